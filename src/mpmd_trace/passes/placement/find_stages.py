"""`mpmd-find-stages` (ours): the order of the meshes, and the stages on them, follow the flow of the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from mpmd_trace.diagnostics.messages import MpmdError, Note
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.bodies import effective_operands
from mpmd_trace.ir.core import Block, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, ForOp, FragmentOp, Module
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.fragment_info import is_forward

T = TypeVar("T", bound=Hashable)

#: The forward fragments that a value comes from directly, each with its depth.
_Sources = dict[FragmentOp, int]


@dataclasses.dataclass(frozen=True)
class FindStages(Pass):
    """Sort the meshes of the topology in the order in which the forward pass reaches them, and number stages.

    Schedules depend on this order; the user's dictionary may have another. The *depth* of a named forward computation
    is the number of mesh changes on the longest path to it; a computation before the first change, such as the
    embedding of a decoder's tokens, is as deep as its users allow. Meshes are sorted by their first depth or, if the
    user numbered all of these computations, by their first stage: chains that run in opposite directions have no order
    of their own. Ties, and meshes without named computations, keep the given order. If the data flow never returns to a
    mesh, each mesh comes after all that it depends on.

    With `number`, for schedules that need stages, unnumbered computations of one depth on one mesh become a stage,
    together with their backwards; stages are numbered along the data flow. A name that occurs at several depths, such
    as that of a discriminator of data and of what is generated from noise, has the deepest of them. For "v", where the
    data flow turns around on a mesh, the computations there form two stages of equal size.

    Stages that the user numbered against the data flow are an error.

    Before, with {number=loop}:

        func.func @main(%p: !b) -> !b attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="b", origin=["f"]> (%p) (%u: !t) { mpmd.return %u : !t } : (!b) -> !b
          %1 = mpmd.transfer %0 : (!b) -> !a
          %2 = mpmd.fragment<mesh="a", origin=["g"]> (%1) (%u: !t) { mpmd.return %u : !t } : (!a) -> !a
          %3 = mpmd.transfer %2 : (!a) -> !b
          %4 = mpmd.fragment<mesh="b", origin=["h"]> (%3) (%u: !t) { mpmd.return %u : !t } : (!b) -> !b
          return %4 : !b
        }

    After:

        #ordered = #mpmd.topology<<"b" : <["x"=2]>>, <"a" : <["x"=2]>>>
        func.func @main(%p: !b) -> !b attributes {topology = #ordered} {
          %0 = mpmd.fragment<mesh="b", origin=["f"], stage=0> (%p) (%u: !t) { mpmd.return %u : !t } : (!b) -> !b
          %1 = mpmd.transfer %0 : (!b) -> !a
          %2 = mpmd.fragment<mesh="a", origin=["g"], stage=1> (%1) (%u: !t) { mpmd.return %u : !t } : (!a) -> !a
          %3 = mpmd.transfer %2 : (!a) -> !b
          %4 = mpmd.fragment<mesh="b", origin=["h"], stage=2> (%3) (%u: !t) { mpmd.return %u : !t } : (!b) -> !b
          return %4 : !b
        }
    """

    name = "mpmd-find-stages"
    summary = "order the meshes, and number the stages on them, by the flow of the program"

    number: str = option("no", "number the stages, if no name has one: no, loop, or v for flows that turn back")

    def __post_init__(self) -> None:
        if self.number not in ("no", "loop", "v"):
            raise MpmdError(f"option mpmd-find-stages number is no, loop or v, not '{self.number}'")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        main = module.main
        if main.topology is None:
            return False
        flow = _Flow(module)
        flow.follow(main.body, [])
        if flow.contradictions(diagnostics):
            diagnostics.fail()
            return False
        depths = flow.depths()
        changed = _order_meshes(module, main.topology, depths, flow.between_meshes())
        if self.number != "no":
            by_name = _of_names(depths, flow.edges)
            changed = _number_stages(module, by_name, turns=self.number == "v") or changed
        return changed


class _Flow:
    """Which forward fragments follow which, through unnamed code and calls.

    A step may run the computations of its microbatches outside of these, too, and in any order: that is left out.
    """

    def __init__(self, module: Module) -> None:
        self.functions = {f.sym_name: f for f in module.functions}
        ops = [op for function in module.functions for op in function.walk()]
        called = {op.callee for op in ops if isinstance(op, CallOp) and op.call_counter is not None}
        inside = [op for name in called for op in self.functions[name].walk() if isinstance(op, FragmentOp)]
        inside += (op for op in ops if isinstance(op, FragmentOp) and op.call_counter is not None)
        self._of_microbatches = set(inside)
        self._names = {origin.name for op in inside for origin in op.origin}
        #: The depth of each forward fragment by what precedes it, in the order of the program.
        self.early: dict[FragmentOp, int] = {}
        #: (one, the one that uses it), each with what precedes it first.
        self.edges: list[tuple[FragmentOp, FragmentOp]] = []
        self._results: dict[str, list[_Sources]] = {}

    def follow(self, block: Block, arguments: list[_Sources]) -> list[_Sources]:
        """Return where what a block gives comes from.  A function is followed at its first call."""
        sources: dict[Value, _Sources] = dict(zip(block.args, arguments, strict=False))
        nowhere: _Sources = {}
        for op in block:
            # What goes through a conditional is often used in its regions alone.
            used = op.operands if isinstance(op, ForOp | CallOp) else effective_operands(op)
            operands = [sources.get(value, nowhere) for value in used]
            if op.is_terminator:
                return operands
            if isinstance(op, (CallOp, ForOp)):
                depths = self._call(op, operands) if isinstance(op, CallOp) else self._loop(op, operands)
            elif isinstance(op, FragmentOp) and is_forward(op) and not self._is_repeat(op):
                depths = [{op: self._depth(op, _joined(operands))}] * len(op.results)
            elif isinstance(op, FragmentOp) and op.is_user:
                continue  # the backward pass goes the other way, and what runs again may go any
            elif any(operands):
                depths = [_joined(operands)] * len(op.results)
            else:
                continue
            sources.update(zip(op.results, depths, strict=False))
        return []

    def _is_repeat(self, op: FragmentOp) -> bool:
        """Return whether it runs outside of microbatches what runs in them."""
        return op not in self._of_microbatches and any(origin.name in self._names for origin in op.origin)

    def _depth(self, op: FragmentOp, given: _Sources) -> int:
        self.edges += ((before, op) for before in given)
        self.early[op] = max((depth + (before.mesh != op.mesh) for before, depth in given.items()), default=0)
        return self.early[op]

    def _call(self, op: CallOp, arguments: list[_Sources]) -> list[_Sources]:
        if op.callee not in self._results:
            self._results[op.callee] = [{} for _ in op.results]  # a function that calls itself is no flow
            self._results[op.callee] = self.follow(self.functions[op.callee].body, arguments)
        return self._results[op.callee]

    def _loop(self, op: ForOp, arguments: list[_Sources]) -> list[_Sources]:
        depths = self.follow(op.regions[0].block, arguments)
        return [_joined(pair) for pair in zip(arguments, depths, strict=False)]

    def depths(self) -> dict[FragmentOp, int]:
        """Return the depths: the latest that what follows allows, for those before the first change of mesh."""
        after: dict[FragmentOp, list[FragmentOp]] = {}
        for one, other in self.edges:
            after.setdefault(one, []).append(other)
        result = dict(self.early)
        for op in reversed(self.early):
            if self.early[op] == 0 and op in after:
                result[op] = min(result[other] - (op.mesh != other.mesh) for other in after[op])
        return result

    def between_meshes(self) -> dict[str, set[str]]:
        """Return for each mesh the others that it needs something of."""
        needs: dict[str, set[str]] = {op.mesh: set() for op in self.early}
        for before, after in self.edges:
            if before.mesh != after.mesh:
                needs[after.mesh].add(before.mesh)
        return needs

    def contradictions(self, diagnostics: Diagnostics) -> bool:
        """Report stages that come before what they need, unless the flow goes round, as requests on a ring do."""
        against: dict[tuple[int, int], tuple[FragmentOp, FragmentOp]] = {}
        follows: dict[int, set[int]] = {}
        for before, after in self.edges:
            if before.stage is not None and after.stage is not None and before.stage != after.stage:
                follows.setdefault(before.stage, set()).add(after.stage)
                if before.stage > after.stage:
                    against.setdefault((before.stage, after.stage), (before, after))
        if not against or _goes_round(follows):
            return False
        for before, after in against.values():
            names = (before.origin[0].name, after.origin[0].name)
            diagnostics.error(
                after,
                f"'{names[1]}' is of stage {after.stage} and needs what '{names[0]}' of stage {before.stage} computes; "
                "a stage follows those that it needs. Number the stages along the flow of the program, or leave the "
                "numbers out: stages are then found from it",
                [Note(f"'{names[0]}' is computed here", before.loc)],
            )
        return True


def comes_back(module: Module) -> bool:
    """Return whether the forward pass comes back to a mesh, which then has several stages."""
    flow = _Flow(module)
    flow.follow(module.main.body, [])
    return _goes_round(flow.between_meshes())


def stage_edges(module: Module) -> set[tuple[int, int]]:
    """Return the pairs of numbered stages of which the second needs what the first computes for a microbatch."""
    flow = _Flow(module)
    flow.follow(module.main.body, [])
    pairs = ((before.stage, after.stage) for before, after in flow.edges)
    return {(p, s) for p, s in pairs if p is not None and s is not None and p != s}


def _goes_round(follows: Mapping[T, Iterable[T]]) -> bool:
    try:
        TopologicalSorter(follows).prepare()
    except CycleError:
        return True
    return False


def _joined(several: Iterable[_Sources]) -> _Sources:
    result: _Sources = {}
    for sources in several:
        result |= sources
    return result


def _order_meshes(
    module: Module, topology: TopologyAttr, depths: dict[FragmentOp, int], needs: dict[str, set[str]]
) -> bool:
    stages = {op: op.stage for op in depths if op.stage is not None}
    first: dict[str, int] = {}
    for op, place in (stages if len(stages) == len(depths) else depths).items():
        first[op.mesh] = min(first.get(op.mesh, place), place)
    wanted = iter(_behind_needs(sorted((m for m in topology.meshes if m in first), key=first.__getitem__), needs))
    # Meshes without named computations (of hosts, for example) keep their places.
    order = [next(wanted) if name in first else name for name in topology.meshes]
    if order == list(topology.meshes):
        return False
    ordered = TopologyAttr.get({name: topology.meshes[name] for name in order})
    for function in module.functions:
        if function.topology is not None:
            function.attrs["topology"] = ordered
    return True


def _behind_needs(meshes: list[str], needs: dict[str, set[str]]) -> list[str]:
    """Return the meshes, each behind those that it needs; as they are where these are in a circle."""
    if _goes_round(needs):
        return meshes
    order: list[str] = []
    left = list(meshes)
    while left:
        order.append(next(mesh for mesh in left if needs[mesh] <= {*order}))
        left.remove(order[-1])
    return order


def _of_names(depths: dict[FragmentOp, int], edges: Iterable[tuple[FragmentOp, FragmentOp]]) -> dict[FragmentOp, int]:
    """Return the depths with one for all ops of a name, the deepest; as they are where names follow each other."""
    names = {op: dict.fromkeys(origin.name for origin in op.origin) for op in depths}
    deepest: dict[str, int] = {}
    for op, depth in depths.items():
        for name in names[op]:
            deepest[name] = max(deepest.get(name, 0), depth)
    steps = dict.fromkeys((a, b, x.mesh != y.mesh) for x, y in edges for a in names[x] for b in names[y])
    steps |= dict.fromkeys((a, b, False) for own in names.values() for a in own for b in own if a != b)
    is_stable = False
    while not is_stable:
        is_stable = True
        for before, after, is_change in steps:
            if deepest[after] < deepest[before] + is_change:
                deepest[after] = deepest[before] + is_change
                is_stable = False
                if deepest[after] >= len(deepest):
                    return depths  # they go round
    return {op: max(map(deepest.__getitem__, names[op]), default=depth) for op, depth in depths.items()}


def _number_stages(module: Module, depths: dict[FragmentOp, int], *, turns: bool) -> bool:
    fragments = [op for f in module.functions for op in f.walk() if isinstance(op, FragmentOp) and op.is_user]
    if any(op.stage is not None for op in fragments):
        return False
    places: dict[tuple[int, str], list[FragmentOp]] = {}
    for op, depth in depths.items():
        places.setdefault((depth, op.mesh), []).append(op)
    topology = module.main.topology
    assert topology is not None
    order = {name: number for number, name in enumerate(topology.meshes)}
    stages = [places[place] for place in sorted(places, key=lambda place: (place[0], order[place[1]]))]
    if turns:
        stages = _with_turn(stages)
    of_name: dict[str, int] = {}
    for number, ops in enumerate(stages):
        for name in {origin.name for op in ops for origin in op.origin}:
            if of_name.setdefault(name, number) != number:
                return False  # several stages share the name, which does not tell to which one its backward belongs
    for op in fragments:
        numbers = {of_name[origin.name] for origin in op.origin if origin.name in of_name}
        if len(numbers) == 1:
            op.stage = numbers.pop()
    return bool(of_name)


def _with_turn(stages: list[list[FragmentOp]]) -> list[list[FragmentOp]]:
    """Return the stages of a flow a, b, c, b, a as those of a, b, c, c, b, a.

    The flow may be a part of the program's, as that of a model behind encoders, if no mesh of it is in another part.
    """
    meshes = [ops[0].mesh for ops in stages]
    result: list[list[FragmentOp]] = []
    for i, turn in enumerate(stages):
        arm = 0
        while arm < min(i, len(stages) - 1 - i) and meshes[i - arm - 1] == meshes[i + arm + 1]:
            arm += 1
        others = {*meshes[: i - arm], *meshes[i + arm + 1 :]}
        names = list(dict.fromkeys(op.origin[0].name for op in turn))  # of which some come again, in another loop
        if len(names) > 1 and (arm or len(stages) == 1) and others.isdisjoint(meshes[i - arm : i + arm + 1]):
            early = names[: (len(names) + 1) // 2]
            result.append([op for op in turn if op.origin[0].name in early])
            result.append([op for op in turn if op.origin[0].name not in early])
        else:
            result.append(turn)
    return result
