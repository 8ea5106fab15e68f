"""`mpmd-merge-small-calls` (ours): programs that take less time than starting them are few programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, cast

from mpmd_trace.ir.attributes import StringAttr
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentCallOp, FuncOp, Module
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.ir.work import elements_computed
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.export.merged_calls import merge_calls
from mpmd_trace.passes.export.repeated_calls import items_of

__all__ = ["MergeSmallCalls"]

#: Ops that say nothing of how long they run, have effects, or are about the devices of a mesh.
_UNKNOWN = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("while", "if", "case", "custom_call", "composite", "infeed", "outfeed", "send", "recv", "rng"),
        *("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"),
        *("partition_id", "replica_id", "after_all", "create_token"),
    )
)


@dataclasses.dataclass(frozen=True)
class MergeSmallCalls(Pass):
    """A step whose programs take less time than starting them, all together, calls as few of them as it can.

    Such a step gains nothing from the order of a schedule: what it takes is the number of programs and transfers that
    one thread starts, and of arrays.  Calls of a mesh become one call, in an order that their data alone gives, mesh by
    mesh: as many as are ready, from the mesh where these do most.  So a forward and backward pass over all microbatches
    are one program each, and what one gives to another of the same type, transferred or not, is one array.  It leaves
    when all microbatches are done, and all their activations are alive at once, which are as small as the work.

    Nothing changes where the work of all calls, in elements computed (a multiply-add of a contraction is one), is not
    less than what the launches that are saved cost (`launch` elements each); where a function has loops, branches,
    effects, collectives or custom calls; where a mesh has several devices; and where anything is in host memory.

    Before:

        func.func public @main(%p: !a) -> !a attributes {topology = #mpmd.topology<<"a" : <["x"=1]>>>} {
          %0 = mpmd.fragment_call<mesh="a", origin=["f"]> @f(%p) : (!a) -> !a
          %1 = mpmd.fragment_call<mesh="a", origin=["g"]> @g(%0) : (!a) -> !a
          return %1 : !a
        }
        func.func @f(%u: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
          %v = stablehlo.negate %u : !t
          return %v : !t
        }
        func.func @g(%u: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
          %v = stablehlo.sine %u : !t
          return %v : !t
        }

    After:

        func.func public @main(%arg0: !a) -> !a attributes {topology = #mpmd.topology<<"a" : <["x"=1]>>>} {
          %0 = mpmd.fragment_call<mesh="a", origin=["f", "g"]> @m0_f_and_1_more.main(%arg0) : (!a) -> !a
          return %0 : !a
        }
        func.func @m0_f_and_1_more.main(%arg0: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
          %0 = stablehlo.negate %arg0 : !t
          %1 = stablehlo.sine %0 : !t
          return %1 : !t
        }
    """

    name: ClassVar[str] = "mpmd-merge-small-calls"
    summary: ClassVar[str] = "make calls that take less time than starting them few calls"

    launch: int = option(30000, "what starting a program costs, in elements computed in that time")
    most_ops: int = option(1000, "the most ops of a program that is made, for the sake of the time to compile it")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        work = self._work(module)
        if work is None:
            return False
        main = module.main
        functions = {f.sym_name: f for f in module.functions}
        calls = [op for op in main.body if isinstance(op, FragmentCallOp)]
        sizes = {name: len(functions[name].body.ops) for name in {op.callee for op in calls}}
        order = [part for group in _in_groups(main) for part in self._parts(group, sizes)]
        groups = [group for group in order if len(group) > 1]
        if work >= self.launch * sum(len(group) - 1 for group in groups):
            return False
        merge_calls(module, order)
        return True

    def _parts(self, group: list[Op], sizes: Mapping[str, int]) -> Iterator[list[Op]]:
        """The calls of a group, cut where the program of them is too large."""
        if len(group) == 1:
            yield group
            return
        items = items_of(cast("list[FragmentCallOp]", group))
        if sum(sizes[item.calls[0].callee] for item in items) <= self.most_ops:
            yield group
            return
        part: list[Op] = []
        size = 0
        for op in cast("list[FragmentCallOp]", group):
            size += sizes[op.callee]
            if part and size > self.most_ops:
                yield part
                part, size = [], sizes[op.callee]
            part.append(op)
        yield part

    def may_pay(self, module: Module) -> bool:
        """Whether there is something to look at: False for most programs, and soon."""
        return self._work(module) is not None

    def _work(self, module: Module) -> float | None:
        """The elements that all calls compute; None where nothing is to change."""
        main = module.lookup("main")
        if main is None or main.is_declaration or main.topology is None:
            return None
        if any(mesh.size != 1 for mesh in main.topology.meshes.values()) or _on_host(main):
            return None
        calls = [op for op in main.body if isinstance(op, FragmentCallOp)]
        return _work_of_calls(calls, {f.sym_name: f for f in module.functions}, self.launch * len(calls))


def _work_of_calls(calls: Sequence[FragmentCallOp], functions: Mapping[str, FuncOp], limit: float) -> float | None:
    """The elements that all calls compute; None for `limit` or more, and where a call must stay what it is."""
    known: dict[Region, float | None] = {}  # functions of equal stages share theirs
    total = 0.0
    for call in calls:
        function = functions.get(call.callee)
        if function is None or function.is_declaration:
            return None
        body = function.regions[0]
        if body not in known:
            known[body] = _work_of(body)
        work = known[body]
        if work is None or total + work >= limit:
            return None
        total += work
    return total


def _work_of(body: Region) -> float | None:
    total = 0.0
    for op in body.walk():
        known = op.name.startswith(("stablehlo.", "chlo.")) or op.name in ("func.return", "sdy.sharding_constraint")
        if not known or op.name in _UNKNOWN:
            return None
        total += _elements(op)
    return total


def _elements(op: Op) -> float:
    """The elements that an op computes, and those that a reduction reads."""
    read = [v.type for v in op.operands] if op.regions else []
    return elements_computed(op) + sum(t.num_elements for t in read if isinstance(t, TensorType) and t.is_ranked)


def _on_host(main: FuncOp) -> bool:
    """Whether a value is somewhere else than in the memory of devices."""
    values = [*main.args, *(result for op in main.body for result in op.results)]
    kinds = {v.type.memory_kind for v in values if isinstance(v.type, MeshTensorType)}
    for d in (*main.arg_attrs, *main.res_attrs):
        kind = d.entries.get("mhlo.memory_kind")
        kinds.add(kind.value if isinstance(kind, StringAttr) else None)
    return not kinds <= {None, "device"}


def _in_groups(main: FuncOp) -> Iterator[list[Op]]:
    """The ops of a function, without the terminator, in an order of their data; calls that become one together.

    Each time the calls of one mesh that are ready, and those that need only them, in their order.
    """
    done: set[Value] = set(main.args)
    waiting: dict[str, list[FragmentCallOp]] = {}
    others: list[Op] = []
    for op in main.body:
        if isinstance(op, FragmentCallOp):
            waiting.setdefault(op.mesh, []).append(op)
        elif op is not main.body.terminator:
            others.append(op)

    def ready(calls: Sequence[FragmentCallOp]) -> list[FragmentCallOp]:
        found: list[FragmentCallOp] = []
        inside: set[Value] = set()
        for op in calls:
            if all(value in done or value in inside for value in op.operands):
                found.append(op)
                inside.update(op.results)
        return found

    while waiting or others:
        later = []
        for op in others:
            if done.issuperset(op.operands):
                done.update(op.results)
                yield [op]
            else:
                later.append(op)
        others = later
        best: list[FragmentCallOp] = []
        for calls in waiting.values():
            found = ready(calls)
            if len(found) > len(best):
                best = found
        if best:
            mesh, taken = best[0].mesh, set(best)
            waiting[mesh] = [op for op in waiting[mesh] if op not in taken]
            if not waiting[mesh]:
                del waiting[mesh]
            done.update(result for op in best for result in op.results)
            yield list(best)
