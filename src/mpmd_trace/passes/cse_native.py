"""Common subexpression elimination that keeps bodies shared: what MLIR's `cse` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import ClassVar

from ..ir.attributes import dict_text
from ..ir.bodies import fingerprint
from ..ir.core import Op
from ..ir.diagnostics import Diagnostics
from ..ir.ops import FuncOp, Module
from ..ir.semantics import is_removable, trivially_dead
from .base import Pass
from .mlir_parts import frozen_bodies, result_of, run_on_bodies, run_on_functions

__all__ = ["CseNative"]


@dataclasses.dataclass(frozen=True)
class CseNative(Pass):
    """Of ops that compute the same thing from the same values there is one; ops that were unused are gone.

        %0 = mpmd.transfer %a : (A) -> B
        %1 = mpmd.transfer %a : (A) -> B
        return %0, %1
    becomes
        %0 = mpmd.transfer %a : (A) -> B
        return %0, %0

    Fragments are equal when their attributes, operands and bodies are.
    """

    name: ClassVar[str] = "mpmd-cse"
    summary: ClassVar[str] = "MLIR's common subexpression elimination, with bodies kept shared"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = [f for f in module.functions if not f.is_declaration]
        native = [f for f in functions if _is_native(f)]
        foreign = [f for f in functions if f not in native]
        changed = run_on_bodies(frozen_bodies(native), "cse", module)
        for function in native:
            changed = _eliminate(function) or changed
        return run_on_functions(foreign, "cse", module) or changed


def _is_native(function: FuncOp) -> bool:
    """Whether the only regions at function level are frozen bodies of one block."""
    return len(function.regions[0].blocks) == 1 and all(
        region.frozen and len(region.blocks) == 1 for op in function.body for region in op.regions
    )


def _eliminate(function: FuncOp) -> bool:
    known: dict[Hashable, Op] = {}
    gone: list[Op] = []
    for op in function.body:
        for i, body in enumerate(op.regions):
            op.regions[i] = result_of(body, "cse")
        if op.is_terminator:
            continue
        if trivially_dead(op):
            gone.append(op)
        elif is_removable(op):
            first = known.setdefault(_key(op), op)
            if first is not op:
                op.replace_all_uses_with(first.results)
                gone.append(op)
    # Dead ops keep their operands alive until here, so a chain of them goes one op per run, as in MLIR.
    for op in gone:
        op.erase()
    return bool(gone)


def _key(op: Op) -> Hashable:
    """What two ops share iff one can replace the other."""
    return (
        op.name,
        tuple(id(value) for value in op.operands),
        tuple(id(result.type) for result in op.results),
        dict_text(op.props),
        dict_text(op.attrs),
        tuple(fingerprint(body) for body in op.regions),
    )
