"""`mpmd-fit-memory` (ours): what forwards leave for their backwards fits into memory.  See `docs/memory.md`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from mpmd_trace.ir.attributes import UNIT, MeshAttr, TensorShardingAttr
from mpmd_trace.ir.core import Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import OFFLOADED, OMITTED, STACKS, FragmentOp, FuncOp, Module, make_fragment, make_transfer
from mpmd_trace.ir.shardings import mesh_symbols
from mpmd_trace.ir.types import MeshTensorType, mesh_tensor
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.body_rewrites import prune, replace_op
from mpmd_trace.passes.fragment_info import call_counter, runs_in_step, set_call_counter, take_over_block
from mpmd_trace.passes.memory.activations import Forward, Option, Recomputed, Stage, forwards_of, stage_of, work_of
from mpmd_trace.passes.memory.liveness import Liveness, Places
from mpmd_trace.passes.memory.remarks import MEMORY, PeakRemark
from mpmd_trace.passes.memory.reserved import Reserved, room_on
from mpmd_trace.passes.sharding.edges import (
    SHARDING,
    in_sharding,
    per_value,
    set_fragment_shardings,
    sharding_list,
    take_over_shardings,
)
from mpmd_trace.passes.sharding.reduced_program import reducible

if TYPE_CHECKING:
    from mpmd_trace.passes.memory.combinations import Combinations

#: How warnings of copies that take long begin.
SLOW_COPIES = "Copies of activations to host memory and back"
_HOST = "pinned_host"


@dataclasses.dataclass(frozen=True)
class FitMemory(FunctionPass):
    """Recompute or offload activations of some stages, so that a step fits into `limit` at the least cost.

    For each stage of a mesh, its activations are kept; or a fragment in front of the backward, marked `remat`,
    recomputes all of them from the inputs of the forward, or only those that need no product; or they are kept in host
    memory, unless the copies cost more than `offload-up-to` allows. The choices of all stages of a mesh are made
    together, from the bytes that are held at each op in the order of the schedule: the cheapest combination that fits.
    Nothing changes where a backward directly follows its forward, and nothing is recomputed in stages with
    `jax.checkpoint`.

    Before, with {limit=240 remat=true}:

        func.func public @main(%p: !a, %q: !a) -> (!a, !a) attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
            %v = stablehlo.broadcast_in_dim %u, dims = [1] : (!t) -> tensor<8x4xf32>
            mpmd.return %v : tensor<8x4xf32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<8x4xf32>>
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%q) {call_counter = 1 : ui32} (%u: !t) {
            %v = stablehlo.broadcast_in_dim %u, dims = [1] : (!t) -> tensor<8x4xf32>
            mpmd.return %v : tensor<8x4xf32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<8x4xf32>>
          %2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%0) {call_counter = 0 : ui32} (%v: tensor<8x4xf32>) {
            %w = stablehlo.slice %v [0:1, 0:4] : (tensor<8x4xf32>) -> tensor<1x4xf32>
            %u = stablehlo.reshape %w : (tensor<1x4xf32>) -> !t
            mpmd.return %u : !t
          } : (!mpmd.mesh_tensor<"a", tensor<8x4xf32>>) -> !a
          %3 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%1) {call_counter = 1 : ui32} (%v: tensor<8x4xf32>) {
            %w = stablehlo.slice %v [0:1, 0:4] : (tensor<8x4xf32>) -> tensor<1x4xf32>
            %u = stablehlo.reshape %w : (tensor<1x4xf32>) -> !t
            mpmd.return %u : !t
          } : (!mpmd.mesh_tensor<"a", tensor<8x4xf32>>) -> !a
          return %2, %3 : !a, !a
        }

    After:

        func.func public @main(%p: !a, %q: !a) -> (!a, !a) attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
            %v = stablehlo.broadcast_in_dim %u, dims = [1] : (!t) -> tensor<8x4xf32>
            mpmd.return %v : tensor<8x4xf32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<8x4xf32>>
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%q) {call_counter = 1 : ui32} (%u: !t) {
            %v = stablehlo.broadcast_in_dim %u, dims = [1] : (!t) -> tensor<8x4xf32>
            mpmd.return %v : tensor<8x4xf32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<8x4xf32>>
          %4 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32, remat} (%u: !t) {
            %v = stablehlo.broadcast_in_dim %u, dims = [1] : (!t) -> tensor<8x4xf32>
            mpmd.return %v : tensor<8x4xf32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<8x4xf32>>
          %2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%4) {call_counter = 0 : ui32} (%v: tensor<8x4xf32>) {
            %w = stablehlo.slice %v [0:1, 0:4] : (tensor<8x4xf32>) -> tensor<1x4xf32>
            %u = stablehlo.reshape %w : (tensor<1x4xf32>) -> !t
            mpmd.return %u : !t
          } : (!mpmd.mesh_tensor<"a", tensor<8x4xf32>>) -> !a
          %5 = mpmd.fragment<mesh="a", origin=["f"]> (%q) {call_counter = 1 : ui32, remat} (%u: !t) {
            %v = stablehlo.broadcast_in_dim %u, dims = [1] : (!t) -> tensor<8x4xf32>
            mpmd.return %v : tensor<8x4xf32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<8x4xf32>>
          %3 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%5) {call_counter = 1 : ui32} (%v: tensor<8x4xf32>) {
            %w = stablehlo.slice %v [0:1, 0:4] : (tensor<8x4xf32>) -> tensor<1x4xf32>
            %u = stablehlo.reshape %w : (tensor<1x4xf32>) -> !t
            mpmd.return %u : !t
          } : (!mpmd.mesh_tensor<"a", tensor<8x4xf32>>) -> !a
          return %2, %3 : !a, !a
        }
    """

    name = "mpmd-fit-memory"
    summary = "recompute activations, or keep them in host memory, so that a step fits"
    mpmd_only = True
    entry_only = True

    limit: int = option(0, "the memory limit of a device in bytes; 0: unlimited")
    remat: bool = option(False, "whether activations may be recomputed")
    offload: bool = option(False, "whether activations may be kept in host memory")
    reserved: tuple[Reserved, ...] = option((), "additional bytes needed on meshes, as MESH=BYTES")
    offload_up_to: float = option(0.0, "how much of the work of a mesh offloading may cost in addition; 0: any")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if not self.limit or not reducible(function):
            return False
        assert function.topology is not None
        meshes = function.topology.meshes
        chosen: list[Option] = []
        symbols, places, runs = mesh_symbols(module), Places(function), runs_in_step(function)
        for mesh in dict.fromkeys(function.device_owners.values()):
            sharing = function.sharing(mesh)
            fragments = [op for op in places.ops_of(sharing) if isinstance(op, FragmentOp)]
            forwards = [(meshes[own], group) for own in sharing for group in forwards_of(own, fragments)]
            if forwards:
                room = room_on(mesh, self.limit, self.reserved)
                held = Liveness(function, mesh, symbols, places)
                stages = [
                    stage_of(group, shape, held, runs, remat=self.remat, offload=self.offload)
                    for shape, group in forwards
                ]
                chosen += self._on_devices(function, meshes, held, stages, room, diagnostics)
        for one in chosen:
            for forward, (results, made) in one.dropped.items():
                _recompute(forward, results, made, one.offloaded.get(forward, ()), one.fetched.get(forward))
            for forward, moved in one.offloaded.items():
                if forward not in one.dropped:
                    _offload(forward, moved, list(forward.backwards), one.fetched.get(forward))
        for one in chosen:
            for forward in one.dropped:
                _drop_unused_results(forward.fragment)
        return bool(chosen)

    def _on_devices(
        self,
        function: FuncOp,
        meshes: Mapping[str, MeshAttr],
        held: Liveness,
        stages: list[Stage],
        room: float,
        diagnostics: Diagnostics,
    ) -> list[Option]:
        """Return the options that change something on the devices of a mesh, or of several that share them."""
        mesh = ", ".join(held.sharing)
        held_with, choice = _chosen(held, stages, room)
        if OMITTED in function.attrs:
            # Only what exceeds the limit, and for how long, is other than with all microbatches.
            is_greedy = any(choice) and math.prod(len(stage.options) for stage in stages) > EXACT_UP_TO
            if is_greedy or held_with.above(room, choice) or STACKS in function.attrs:
                raise diagnostics.fatal(function.loc, "what fits into memory depends on all microbatches")
        part = self._part_of_copies(function, meshes, held, stages, choice) if self.offload_up_to else 0.0
        if part > self.offload_up_to:
            kept = [dataclasses.replace(s, options=tuple(o for o in s.options if not o.offloaded)) for s in stages]
            others, other = _chosen(held, kept, room)
            if others.above(room, other) <= held_with.above(room, choice):
                stages, held_with, choice = kept, others, other
                diagnostics.remark(
                    function.loc,
                    f"{MEMORY}on mesh '{mesh}' nothing is offloaded: copies to host memory and back would cost "
                    f"{part:.0%} of the work of a step, more than {self.offload_up_to:.0%}",
                )
            else:
                also = "" if self.remat else "allow remat='auto', "
                diagnostics.warning(
                    function.loc,
                    f"{SLOW_COPIES} on mesh '{mesh}' cost about {part:.0%} of the work of a step, and without them it "
                    f"does not fit into the memory of a device: {also}use more devices or smaller microbatches",
                )
        before, after = (held_with.peak(c) for c in ((0,) * len(stages), choice))
        options = [stage.options[i] for stage, i in zip(stages, choice, strict=True)]
        for stage, one in zip(stages, options, strict=True):
            diagnostics.remark(function.loc, _described(mesh, stage, one))
        text = f"{MEMORY}on mesh '{mesh}' values take {after:,.0f} bytes at the peak"
        text += f", without that {before:,.0f}" if before != after else ""
        diagnostics.found.append(
            PeakRemark("remark", text, function.loc, meshes=tuple(held.sharing), bytes=round(after))
        )
        return [one for one in options if one.changes_something]

    def _part_of_copies(
        self,
        function: FuncOp,
        meshes: Mapping[str, MeshAttr],
        held: Liveness,
        stages: Sequence[Stage],
        choice: Sequence[int],
    ) -> float:
        """Return what the copies of the chosen options cost, in parts of the work of the mesh."""
        options = [stage.options[i] for stage, i in zip(stages, choice, strict=True)]
        fragments = [op for op in function.body if isinstance(op, FragmentOp) and op.mesh in held.sharing]
        work = sum(work_of(op.body) / meshes[op.mesh].size for op in fragments)
        return sum(one.copied for one in options) / max(work, 1.0)


def _chosen(held: Liveness, stages: Sequence[Stage], room: float) -> tuple[Combinations, tuple[int, ...]]:
    """Return what is held with any options of the stages, and the options that fit at the least cost."""
    from mpmd_trace.passes.memory.combinations import Combinations  # late: NumPy

    held_with = Combinations(held, [[one.change for one in stage.options] for stage in stages])
    costs = [[one.cost for one in stage.options] for stage in stages]
    return held_with, choose(costs, functools.partial(held_with.above, room))


def _described(mesh: str, stage: Stage, one: Option) -> str:
    names = ", ".join(stage.names)
    text = f"{MEMORY}on mesh '{mesh}' what a forward of {names} leaves ({stage.bytes:,.0f} bytes) {one}"
    if one.cost:
        text += f", at the cost of {one.cost:,.0f} bytes of memory traffic in a step"
    return text + ("; jax.checkpoint says what is recomputed" if stage.has_checkpoint else "")


def _recompute(
    forward: Forward, results: tuple[int, ...], made: Recomputed, offloaded: tuple[int, ...], fetched: FragmentOp | None
) -> None:
    """Insert the fragment that makes results of a forward again, and let the backwards read its results."""
    fragment, first = forward.fragment, forward.backwards[0]
    read = [fragment.operand(i) for i in made.arguments] + [fragment.results[i] for i in made.results]
    copy = make_fragment(
        fragment.mesh,
        read,
        [fragment.results[i].type for i in results],
        made.body,
        origin=fragment.origin,
        stage=fragment.stage,
        attrs={"remat": UNIT},
        loc=fragment.loc,
    )
    set_call_counter(copy, call_counter(fragment))
    take_over_block(copy, first)
    given = [in_sharding(fragment, i) for i in made.arguments]
    given += [per_value(fragment.out_shardings, i) for i in made.results]
    known = {i: sharding for i, sharding in enumerate(given) if sharding is not None}
    set_fragment_shardings(copy, "in_shardings", known, others_open=False)
    if fragment.out_shardings is not None:
        copy.props["out_shardings"] = sharding_list(tuple(fragment.out_shardings.shardings[i] for i in results))
    assert first.block is not None
    first.block.insert_before(first, copy)
    readers = set(forward.backwards)
    for i, new in zip(results, copy.results, strict=True):
        fragment.results[i].replace_uses_if(new, lambda use: use.owner in readers)
    _offload(forward, offloaded, [copy, *forward.backwards], fetched)


def _drop_unused_results(fragment: FragmentOp) -> None:
    """Replace a fragment by one that makes only those of its results that have users, if any have."""
    used = tuple([result.has_uses for result in fragment.results])
    if any(used) and not all(used):
        body, read = prune(fragment.body, used)
        operands = list(itertools.compress(fragment.operands, read))
        results = list(itertools.compress(fragment.results, used))
        new = replace_op(fragment, operands, results, regions=[body])
        take_over_shardings(fragment, new, read, used)


def _offload(forward: Forward, results: tuple[int, ...], readers: list[FragmentOp], fetched: FragmentOp | None) -> None:
    """Send results of a forward to the host, and back for those that read them, or before the fragment `fetched`."""
    fragment = forward.fragment
    block = fragment.block
    assert block is not None
    at = fragment
    for i in results:
        value = fragment.results[i]
        sharding = per_value(fragment.out_shardings, i)
        first = next(op for op in readers if any(user is op for user in value.users))
        assert isinstance(value.type, MeshTensorType)
        host = mesh_tensor(value.type.mesh, value.type.tensor, None, _HOST)
        there = make_transfer(value, host, loc=fragment.loc)
        there.attrs[OFFLOADED] = UNIT
        block.insert_after(at, there)
        back = make_transfer(there.results[0], value.type, loc=first.loc)
        block.insert_before(fetched or first, back)
        _set_sharding(there, sharding)
        _set_sharding(back, sharding)
        mine = set(readers)
        new: Value = back.results[0]
        value.replace_uses_if(new, lambda use, mine=mine: use.owner in mine)  # type: ignore[misc]


def _set_sharding(transfer: object, sharding: TensorShardingAttr | None) -> None:
    if sharding is not None:
        transfer.attrs[SHARDING] = sharding_list((sharding,))  # type: ignore[attr-defined]


# Choosing one option for each group so that memory suffices at the least cost.


#: With so many combinations the choice is exact.
EXACT_UP_TO = 1024


def choose(
    costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float], exact_up_to: int = EXACT_UP_TO
) -> tuple[int, ...]:
    """Return the option of each group, by number.

    With few combinations the cheapest one without excess, or, if there is none, the one with the least excess.
    Otherwise greedy: as long as there is excess, the option is taken that has most of it go for its cost; what turns
    out not to be needed is taken back, the most expensive first.

    Args:
        costs: of each option of each group; the first option of a group is the one that changes nothing.
        excess: how much memory a choice is above the limit, over all of the step; zero where it fits.
        exact_up_to: the number of combinations of which all may be looked at.
    """
    if math.prod(map(len, costs)) <= exact_up_to:
        return _exact(costs, excess)
    return _without_waste(costs, excess, _greedy(costs, excess))


def _cost(costs: Sequence[Sequence[float]], choice: Sequence[int]) -> float:
    return sum(options[i] for options, i in zip(costs, choice, strict=True))


def _exact(costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    every = sorted(itertools.product(*map(range, map(len, costs))), key=lambda c: (_cost(costs, c), c))
    least = math.inf
    result = every[0]
    for choice in every:
        over = excess(choice)
        if over <= 0:
            return choice
        if over < least:
            least, result = over, choice
    return result


def _greedy(costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    choice = (0,) * len(costs)
    over = excess(choice)
    while over > 0:
        best: tuple[float, tuple[int, ...], float] | None = None
        for group, options in enumerate(costs):
            for number in range(len(options)):
                if number == choice[group]:
                    continue
                other = (*choice[:group], number, *choice[group + 1 :])
                left = excess(other)
                worth = (over - left) / max(options[number] - options[choice[group]], 1e-9)
                if left < over and (best is None or worth > best[0]):
                    best = worth, other, left
        if best is None:
            break
        _, choice, over = best
    return choice


def _without_waste(
    costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float], choice: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the choice with cheaper options wherever these have no more excess."""
    over = excess(choice)
    for group in sorted(range(len(costs)), key=lambda g: (-costs[g][choice[g]], g)):
        options = costs[group]
        for number in sorted(range(len(options)), key=lambda o: (options[o], o)):
            other = (*choice[:group], number, *choice[group + 1 :])
            if options[number] < options[choice[group]] and excess(other) <= over:
                choice = other
                break
    return choice
