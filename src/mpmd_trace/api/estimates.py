"""Estimates of costs and memory of a program before XLA has compiled it: for machines that are not there.

Floating point operations are counted from the ops (`ir/flops.py`).  Scratch memory is the most that is alive
at once of what XLA has to write down: results of contractions, reductions and the like, and what several ops use;
element-wise ops with one user are taken as fused.  Shardings divide both.
"""

from __future__ import annotations

import math
from typing import Any

from mpmd_trace.backend.cost_analysis import CountedProgram, Estimate, Estimates
from mpmd_trace.backend.executables import program_module
from mpmd_trace.backend.plan import ProgramSpec
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.flops import flops, manual_devices, products_of
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.sharding_attributes import TensorShardingAttr, TensorShardingPerValueAttr
from mpmd_trace.ir.shardings import bit_width, byte_size, local_shape, mesh_of, mesh_symbols
from mpmd_trace.ir.stablehlo_attributes import shape_of
from mpmd_trace.ir.types import TensorType
from mpmd_trace.jax_compat.mlir import run_pipeline
from mpmd_trace.passes.sharding.chlo_rules import with_rules
from mpmd_trace.passes.sharding.shardy import propagation_pipeline


class EstimatedProgram(CountedProgram):
    """A partitioned program as if it were compiled, as far as that is known without devices."""

    def __init__(self, module: Module) -> None:
        self.plan = make_plan(module)
        self._symbols = mesh_symbols(module)
        self._functions = {f.sym_name: f for f in module.functions}
        self._module = module
        self._counted: dict[str, tuple[float, float, int]] = {}
        self.runtime = Estimates([self._estimate(spec) for spec in self.plan.programs])

    def _estimate(self, spec: ProgramSpec) -> Estimate:
        if spec.callee not in self._counted:
            self._counted[spec.callee] = self._count(spec.callee)
        work, between, scratch = self._counted[spec.callee]
        inputs, outputs = (
            [(math.ceil(byte_size(type, self._symbols)), kind) for type, kind, _ in places]
            for places in (spec.inputs, spec.outputs)
        )
        left, reused = list(outputs), 0
        for given in (inputs[position] for position in spec.donated):
            if given in left:  # XLA takes memory of the right size, whatever is in it
                left.remove(given)
                reused += given[0]
        accessed = float(sum(size for size, _ in (*inputs, *outputs))) + between
        return Estimate(spec, {"flops": work, "bytes accessed": accessed}, scratch, reused)

    def _count(self, callee: str) -> tuple[float, float, int]:
        """Operations, bytes that are written and read again, and scratch memory, of one device."""
        work = flops(self._functions[callee].regions[0], self._module)
        body = self._sharded(callee).regions[0]
        written, peak = self._scratch_of(body)
        return work * self._divided(body), 2.0 * written, peak

    def _sharded(self, callee: str) -> FuncOp:
        """Return the function with the shardings of all values, as Shardy propagates those of arguments and results."""
        function = self._functions[callee]
        parts = (*function.arg_attrs, *function.res_attrs)
        given = [attrs.entries.get("sdy.sharding") for attrs in parts]
        if all(s is None or s.is_fully_replicated for s in given if isinstance(s, TensorShardingAttr | None)):
            return function
        alone = program_module(self._module, callee)
        alone.main.regions[0] = with_rules(freeze(alone.main.regions[0]))
        text, _ = run_pipeline(alone.to_generic(), propagation_pipeline())
        return parse_generic(text).main

    def _divided(self, body: Region) -> float:
        """Return the part of the work that one device does, after the shardings of the results of contractions."""
        whole, local = self._work(body)
        return local / whole if whole else 1.0

    def _work(self, region: Region) -> tuple[float, float]:
        """Return the sizes of the results of contractions, those of all devices and those of one."""
        whole = local = 0.0
        for op in (op for block in region.blocks for op in block):
            if products_of(op) is not None:
                work = float(math.prod(shape_of(op.results[0])))
                values = (*op.operands, *op.results)
                whole += work
                local += work / max(math.prod(shape_of(v)) / max(math.prod(self._local(v)), 1) for v in values)
                continue
            devices = manual_devices(op) if op.name == "sdy.manual_computation" else 1
            for inside_whole, inside_local in map(self._work, op.regions):
                whole += devices * inside_whole
                local += inside_local
        return whole, local

    def _scratch_of(self, body: Region) -> tuple[float, int]:
        """Return the bytes of all values that are written down in a body, and the most that are alive at once."""
        block = body.blocks[0]
        ops = list(block)
        place = {op: i for i, op in enumerate(ops)}
        returned = set(ops[-1].operands) if ops else set()
        ends: dict[int, int] = {}
        total = live = peak = 0
        for i, op in enumerate(ops):
            for result in op.results:
                if result in returned or not _is_written(op, result):
                    continue
                size = _bytes(result.type, self._local(result))
                around = (user.ancestor_in(block) for user in result.users)
                last = max((place[op] for op in around if op is not None), default=i)
                ends[last] = ends.get(last, 0) + size
                live += size
                total += size
            inside = max((self._scratch_of(r)[1] for r in op.regions if r.blocks and _has_scratch(op)), default=0)
            peak = max(peak, live + inside)
            live -= ends.pop(i, 0)
        return float(total), peak

    def _local(self, value: Value) -> tuple[int, ...]:
        """Return the shape of the part of a value on one device."""
        type, op = value.type, value.defining_op
        if not isinstance(type, TensorType) or not type.is_ranked:
            return ()
        sharding = None
        if op is None:
            around = value.block.parent.parent if value.block is not None and value.block.parent is not None else None
            annotation = around.arg_attr(value.index, "sdy.sharding") if isinstance(around, FuncOp) else None
            sharding = annotation if isinstance(annotation, TensorShardingAttr) else None
        elif isinstance(
            annotation := op.attr("out_shardings" if op.name == "sdy.manual_computation" else "sdy.sharding"),
            TensorShardingPerValueAttr,
        ):
            sharding = annotation.shardings[value.index]
        return local_shape(type, sharding, None if sharding is None else mesh_of(sharding, self._symbols))


def _bytes(type: Any, shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * bit_width(type.element) // 8) if isinstance(type, TensorType) else 0


#: Ops whose results are memory of their own in any case.
_WRITTEN_NAMES = """
all_reduce case cholesky concatenate convolution custom_call dot_general fft gather if reduce reduce_window scatter
select_and_scatter sort triangular_solve while
"""
_WRITTEN = frozenset(f"stablehlo.{name}" for name in _WRITTEN_NAMES.split()) | {
    "chlo.ragged_dot",
    "chlo.top_k",
    "sdy.manual_computation",
}
#: Ops that make nothing, or what others make again for themselves.
_NOTHING = frozenset(
    f"stablehlo.{n}" for n in ("constant", "iota", "broadcast_in_dim", "reshape", "optimization_barrier", "tuple")
)


def _is_written(op: Op, result: Value) -> bool:
    """Return whether XLA is likely to write this down: not what fuses into its only user."""
    if op.name in _NOTHING:
        return False
    return op.name in _WRITTEN or len(result.distinct_users) > 1


def _has_scratch(op: Op) -> bool:
    return op.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation")
