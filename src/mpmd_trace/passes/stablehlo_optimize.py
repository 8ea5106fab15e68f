"""`stablehlo-target-independent-optimization`: simplification and constant folding of StableHLO ops.

jaxlib does not register StableHLO's pass of this name; this one has its rules, found by experiment.
"""

from __future__ import annotations

import dataclasses
import functools

from mpmd_trace.ir.bodies import remembered, replace_bodies, without_dead_ops
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.semantics import trivially_dead
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.constants import constants_stay, with_unique_constants
from mpmd_trace.passes.greedy import Choices, Pattern, apply_greedily

_MAX_ROUNDS = 1000
_WITHOUT_RULES = frozenset({"mpmd.fragment", "mpmd.transfer", "func.return"})


@dataclasses.dataclass(frozen=True)
class StablehloOptimize(FunctionPass):
    """Simplify ops: neutral elements, identities, constant expressions, loop invariants.

    The rewriting is greedy (docs/rewriting.md), with unique constants and up to a thousand rounds, and visits each
    distinct body of a fragment once. Of the rules for an op (`passes/stablehlo/`), folds come first, then those of
    arithmetic, of shapes and of regions.

    Before:

        %c = stablehlo.constant dense<0.0> : tensor<f32>
        %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> !t
        %d = stablehlo.constant dense<2.0> : !t
        %0 = stablehlo.add %b, %x : !t
        %1 = stablehlo.multiply %d, %0 : !t
        return %1 : !t

    After:

        %cst = stablehlo.constant dense<2.000000e+00> : !t
        %0 = stablehlo.multiply %x, %cst : !t
        return %0 : !t
    """

    name = "stablehlo-target-independent-optimization"
    summary = "simplify and fold StableHLO ops"
    distributed_only = False

    fold_op_element_limit: int = option(
        65536, "largest constant, in elements, that folding may make the program grow by"
    )
    optimize_float: bool = option(True, "also fold floating point values (simplification does not depend on it)")
    assume_no_undeclared_side_effects: bool = option(
        False, "accepted for compatibility; effects are always those that ops declare"
    )

    @property
    def patterns(self) -> list[Pattern]:
        """The rules, in the order in which they are tried."""
        # Here, because they need numpy, and listing the passes should not.
        from mpmd_trace.passes.stablehlo.arithmetic import ARITHMETIC
        from mpmd_trace.passes.stablehlo.folding import folding_patterns
        from mpmd_trace.passes.stablehlo.regions import REGIONS
        from mpmd_trace.passes.stablehlo.shapes import SHAPES

        folds = folding_patterns(self.fold_op_element_limit, self.optimize_float)
        return [*folds, *ARITHMETIC, *SHAPES, *REGIONS]

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        patterns = Choices(self.patterns)
        changed = replace_bodies(function.regions[0], functools.partial(self._simplified, patterns))
        return _simplify(function.regions[0], patterns) or changed

    def _simplified(self, patterns: Choices, body: Region) -> Region:
        def simplified() -> Region:
            if _stays(body):
                return body
            copy = body.clone()
            changed = replace_bodies(copy, functools.partial(self._simplified, patterns))
            changed = _simplify(copy, patterns) or changed
            return freeze(copy) if changed else body

        return remembered(body, self, simplified)


def _stays(body: Region) -> bool:
    """Return whether all that the body does is to return different constants, which no pattern changes."""
    ops = [op for block in body.blocks for op in block][:-1]
    return all(op.name == "stablehlo.constant" and op.has_uses for op in ops) and constants_stay(body)


def _simplify(region: Region, patterns: Choices) -> bool:
    if all(op.name in _WITHOUT_RULES and not trivially_dead(op) for block in region.blocks for op in block):
        # A function of fragments: what the driver does to their bodies.
        replace_bodies(region, with_unique_constants)
        return replace_bodies(region, without_dead_ops)
    return apply_greedily(region, patterns, unique_constants=True, max_rounds=_MAX_ROUNDS).changed
