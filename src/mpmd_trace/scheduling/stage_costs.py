"""Costs of a microbatch in each stage of a program: what its fragments compute and send, counted after import."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.ops import FragmentOp, Module, TransferOp
from mpmd_trace.passes.compile_options import Overlap
from mpmd_trace.passes.fragment_info import is_forward, is_scheduling_unit, split_type
from mpmd_trace.passes.loop_numbers import LoopNumbers
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.passes.optimize.pipeline_scheduler import scheduling_units
from mpmd_trace.passes.optimize.reference_schedules import Unit
from mpmd_trace.schedules import Costs, Transfers
from mpmd_trace.schedules._costs import PerLink
from mpmd_trace.scheduling.costs import Hiding, exposed_bytes
from mpmd_trace.scheduling.transfers import Link, Links, fragment_action

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageCosts(Costs):
    """The costs of a microbatch in each stage, and the mesh of the stage; any unit of time.

    `visits` are the microbatches that run through each stage, all of them by default.  A backward that cannot
    be split is all `weight_grad` in a stage that needs no input gradient, else all `input_grad`.  `transfers` are as in
    `schedules.simulate`.
    """

    meshes: int
    microbatches: int
    mesh_of: tuple[int, ...]
    forward: tuple[float, ...]
    input_grad: tuple[float, ...]
    weight_grad: tuple[float, ...]
    visits: tuple[tuple[int, ...], ...] = ()
    transfers: Transfers = "async"
    collectives: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    exposed: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    #: How the program makes one program of the parts of a block, if it does.
    overlap: Overlap | None = None
    #: Which stages need what others compute, as (producer, consumer), where the flow comes back to a mesh.
    edges: tuple[tuple[int, int], ...] = ()

    @property
    def forward_only(self) -> bool:
        """True if there are no backwards."""
        return not any(self.input_grad) and not any(self.weight_grad)

    @property
    def chunks(self) -> int:
        """Stages per mesh, where every mesh has as many; else 0."""
        counts = {self.mesh_of.count(m) for m in range(self.meshes)}
        return counts.pop() if len(counts) == 1 else 0

    def on_meshes(self, meshes: Sequence[int]) -> StageCosts:
        """Return the costs of the stages on some meshes, as of a pipeline of their own."""
        stages = [stage for stage, mesh in enumerate(self.mesh_of) if mesh in meshes]
        place = {stage: i for i, stage in enumerate(stages)}
        number = {mesh: i for i, mesh in enumerate(meshes)}

        def of_links(values: PerLink) -> PerLink:
            if not isinstance(values, Mapping):
                return values
            return {(number[a], number[b]): v for (a, b), v in values.items() if a in number and b in number}

        def of_stages(values: Sequence[T]) -> tuple[T, ...]:
            return tuple(values[stage] for stage in stages) if values else ()

        visits = of_stages(self.visits)
        return dataclasses.replace(
            self,
            meshes=len(meshes),
            microbatches=max((own[-1] + 1 for own in visits if own), default=self.microbatches),
            mesh_of=tuple(number[self.mesh_of[stage]] for stage in stages),
            forward=of_stages(self.forward),
            input_grad=of_stages(self.input_grad),
            weight_grad=of_stages(self.weight_grad),
            visits=visits,
            sends={(place[a], place[b]): v for (a, b), v in self.sends.items() if a in place and b in place},
            latency=of_links(self.latency),
            bandwidth=None if self.bandwidth is None else of_links(self.bandwidth),
            collectives={kind: of_stages(own) for kind, own in self.collectives.items()},
            exposed={kind: of_stages(own) for kind, own in self.exposed.items()},
            edges=tuple((place[a], place[b]) for a, b in self.edges if a in place and b in place),
        )

    def delays(self) -> Costs:
        """Return the costs for searches that know only latencies and whole actions: wires and collectives are in them.

        Which blocks hide collectives is for the simulation of what they give.
        """
        meshes = range(self.meshes)
        longest = {(a, b): self.delay(a, b) for a in meshes for b in meshes}
        for (p, s), size in self.sends.items():
            link = self.mesh_of[p], self.mesh_of[s]
            longest[link] = max(longest[link], self.delay(*link) + size * self.seconds_per_size(*link))
        times = {"F": self.forward, "I": self.input_grad, "W": self.weight_grad}
        for kind, sent in self.collectives.items():
            times[kind] = tuple(map(sum, zip(times[kind], sent, strict=True)))
        return Costs(times["F"], times["I"], times["W"], latency=longest if any(longest.values()) else 0.0)

    def scaled(self, factor: float) -> StageCosts:
        """Return the costs in another unit of time, `1 / factor` of this one."""
        return dataclasses.replace(
            self.resized(factor),
            sends=self.sends,
            latency=_times(self.latency, factor),
            bandwidth=None if self.bandwidth is None else _times(self.bandwidth, 1 / factor),
        )

    def resized(self, factor: float) -> StageCosts:
        """Return the costs of microbatches `factor` times as large; everything but latency is in proportion."""
        return dataclasses.replace(
            self,
            forward=tuple(c * factor for c in self.forward),
            input_grad=tuple(c * factor for c in self.input_grad),
            weight_grad=tuple(c * factor for c in self.weight_grad),
            sends={k: v * factor for k, v in self.sends.items()},
            collectives={k: tuple(c * factor for c in own) for k, own in self.collectives.items()},
            exposed={k: tuple(c * factor for c in own) for k, own in self.exposed.items()},
        )

    def linked(self, links: Links, meshes: Sequence[str], unit: float) -> StageCosts:
        """Return the costs with the links between these meshes, by name; `unit`: the seconds of a unit of time."""
        pairs = [(a, b) for a in range(self.meshes) for b in range(self.meshes) if a != b]
        known = {(a, b): links.between(meshes[a], meshes[b]) for a, b in pairs}
        width = {k: v.bandwidth * unit for k, v in known.items() if v.bandwidth is not None}
        return dataclasses.replace(
            self,
            latency={k: v.latency / unit for k, v in known.items() if v.latency} or 0.0,
            bandwidth=width or None,
            transfers=links.transfers,
        )


def _times(values: PerLink, factor: float) -> PerLink:
    return {k: v * factor for k, v in values.items()} if isinstance(values, Mapping) else values * factor


def stage_costs(module: Module) -> StageCosts | None:
    """Return the costs of a module after the import phase, best with split backwards; None without microbatches."""
    counted = _units(module)
    if counted is None:
        return None
    units, _, table = counted
    mean, visits = _of_stages(module, counted, lambda op, module: flops(op.body, module))
    topology = module.main.topology
    assert topology is not None
    return StageCosts(
        meshes=len(schedulable_meshes(topology)),
        microbatches=1 + max(u.counter for u in units.values()),
        mesh_of=tuple(table[s] for s in sorted(table)),
        forward=mean["F"],
        input_grad=mean["I"],
        weight_grad=mean["W"],
        visits=tuple(tuple(sorted(v)) for v in visits),
    )


def may_run_again(module: Module) -> bool:
    """Return whether a mesh may run a stage again for a microbatch, in a module after the import phase.

    It does so in a second loop over microbatches, and for a gradient of a gradient.  Loops of one microbatch cannot be
    told from each other, so there may be several of those.
    """
    units, _, _ = _units(module) or ({}, {}, {})
    if units and not any(u.counter for u in units.values()):
        return True
    runs = {(u.mesh, op.props.get("origin"), u.transpose, u.counter, split_type(op)) for op, u in units.items()}
    loops = LoopNumbers()
    return len(runs) < len(units) or any(
        loops.of(u.mesh, None if u.transpose else op.props.get("origin"), u.counter) for op, u in units.items()
    )


def held_microbatches(module: Module) -> tuple[float, ...]:
    """Return the activations that each mesh holds at most, in microbatches, in the order that the module has.

    A microbatch is held in a stage from its first forward of which a backward there uses something up to that backward.
    """
    topology = module.main.topology
    assert topology is not None
    order = {op: place for place, op in enumerate(module.main.body)}
    lives: dict[str, dict[tuple[int | None, int], list[tuple[int, int]]]] = {
        m: {} for m in schedulable_meshes(topology)
    }
    for op in order:
        if not isinstance(op, FragmentOp) or op.call_counter is None or not is_forward(op) or op.mesh not in lives:
            continue
        kept = [*op.results, *(v for v in op.operands if isinstance(v.defining_op, TransferOp))]
        users = {
            user for value in kept for user in value.users if isinstance(user, FragmentOp) and user.mesh == op.mesh
        }
        backwards = (order[u] for u in users if u.call_counter == op.call_counter and not is_forward(u) and u.is_user)
        last = max(backwards, default=None)
        if last is not None:
            lives[op.mesh].setdefault((op.stage, op.call_counter), []).append((order[op], last))
    return tuple(_most_at_once(of_mesh) for of_mesh in lives.values())


def _most_at_once(lives: _Lives) -> float:
    """Return how many microbatches are alive at once, of several stages each a part."""
    changes: list[tuple[int, int]] = []
    for own in lives.values():
        end = -1
        for first, last in sorted(own):
            if last > end:
                changes += [(max(first, end), 1), (last, -1)]
                end = last
    stages = len({stage for stage, _ in lives})
    return max(itertools.accumulate((change for _, change in sorted(changes)), initial=0)) / max(stages, 1)


def collective_times(module: Module, link: Link, hiding: Hiding) -> tuple[dict[str, tuple[float, ...]], ...]:
    """Return the seconds of the collectives that the program writes out, of each stage by letter, and those in pairs.

    They are those in which a device computes nothing; both are empty for none.
    """
    counted = _units(module)
    if counted is None:
        return {}, {}

    def seconds(op: FragmentOp, module: Module, paired: bool) -> float:
        apart, together = exposed_bytes(op, module, hiding)
        whole = link.seconds(apart, 1) if apart else 0.0
        return whole * together / apart if paired and apart else whole

    apart, together = (_of_stages(module, counted, functools.partial(seconds, paired=p))[0] for p in (False, True))
    if not any(any(own) for own in apart.values()):
        return {}, {}
    return apart, together


def _of_stages(
    module: Module, counted: _Units, count: Callable[[FragmentOp, Module], float]
) -> tuple[dict[str, tuple[float, ...]], list[set[int]]]:
    """Return what is counted of a microbatch in each stage, by letter, and the microbatches that visit it."""
    units, number, table = counted
    rank = {stage: i for i, stage in enumerate(sorted(table))}
    visits: list[set[int]] = [set() for _ in rank]
    for op, u in units.items():
        visits[rank[number[op]]].add(u.counter)
    costs = ((rank[number[op]], fragment_action(op, 0).kind, count(op, module)) for op in units)
    starts_chain = [stage == 0 or not own & visits[stage - 1] for stage, own in enumerate(visits)]
    return by_letter(costs, [len(own) for own in visits], [0.0 if starts else 1.0 for starts in starts_chain]), visits


def by_letter(
    costs: Iterable[tuple[int, str, float]], visits: Sequence[int], input_shares: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Return what a microbatch costs in each stage as F, I and W; of a whole backward, a share of the stage is I.

    `costs`: the stage, letter and cost of everything that runs in a step; `visits`: how many microbatches run through
    each stage.
    """
    sums = {kind: [0.0] * len(visits) for kind in "FIWB"}
    for stage, kind, cost in costs:
        sums[kind][stage] += cost
    mean = {kind: [t / max(v, 1) for t, v in zip(row, visits, strict=True)] for kind, row in sums.items()}
    for kind, shares in (("I", input_shares), ("W", [1 - share for share in input_shares])):
        mean[kind] = [own + b * s for own, b, s in zip(mean[kind], mean["B"], shares, strict=True)]
    return {kind: tuple(mean[kind]) for kind in "FIW"}


#: The scheduling units, the number of the stage of each, and the mesh of each such number.
_Units: TypeAlias = "tuple[dict[FragmentOp, Unit], dict[FragmentOp, int], dict[int, int]]"

#: From when to when something of a microbatch is held, for each stage and microbatch.
_Lives: TypeAlias = "dict[tuple[int | None, int], list[tuple[int, int]]]"


def _units(module: Module) -> _Units | None:
    """Return the scheduling units, the number of the stage of each, and the mesh of each such number."""
    main = module.lookup("main")
    if main is None or main.topology is None:
        return None
    ops = [op for op in main.body if isinstance(op, FragmentOp) and is_scheduling_unit(op)]
    units = scheduling_units(main, ops)
    if not units or any(u.mesh_index is None for u in units.values()):
        return None  # nothing, or on a host mesh
    staged = all(u.stage is not None for u in units.values())
    meshes = range(len(schedulable_meshes(main.topology)))
    table: dict[int, int] = {} if staged else {m: m for m in meshes}
    number = {op: u.stage if staged and u.stage is not None else u.m for op, u in units.items()}
    for op, u in units.items():
        table.setdefault(number[op], u.m)
    return units, number, table


def stage_ranks(module: Module) -> dict[int, int]:
    """Return the place in the pipeline of each stage number that `transfers.fragment_action` gives."""
    counted = _units(module)
    topology = module.main.topology
    if counted is None or topology is None:
        return {}
    units, number, table = counted
    rank = {stage: i for i, stage in enumerate(sorted(table))}
    index = {name: i for i, name in enumerate(topology.meshes)}
    if all(u.stage is not None for u in units.values()):
        return rank
    ranks = {index[m]: rank[i] for i, m in enumerate(schedulable_meshes(topology)) if i in rank}
    ranks.update({fragment_action(op, index[op.mesh]).stage: rank[number[op]] for op in units})
    return ranks
