"""The report of a placement: where a plan keeps the arrays of a step, and what it moves between meshes, by cause.

Everything comes from the plan.  What an argument is follows from its structure:

- a result *replaces* an argument of its type when its path ends like that of the argument (`result[0]['w']` for
  `params['w']`), or when the argument is donated or a whole argument of a training step;
- a replaced array of floating-point numbers that forwards or backwards of computations with a name read, or other code
  that computes something for them, is a *parameter*, unless its path ends like that of a parameter of its shape:
  `opt[0].mu['w']` is *state*, as is all else that is replaced;
- everything else (the batch, keys, frozen weights; all arguments of a program that replaces nothing) is an *argument*.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Mapping, Set

from mpmd_trace.backend.placement_tables import (
    SMALL,
    Cause,
    Gathered,
    MeshMemory,
    MisplacedParam,
    PlacementReport,
    ReplacedOnOtherMesh,
    Role,
    Traffic,
)
from mpmd_trace.backend.plan import Plan, Run, Slot, Transfer, parse_mesh
from mpmd_trace.backend.replacements import alike, ends, path_in, replacements
from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.ops import HOISTED
from mpmd_trace.ir.shardings import local_shape
from mpmd_trace.ir.types import MeshTensorType, TensorType, tensor


def placement_report(
    plan: Plan, temporary: dict[int, int] | None = None, reused: dict[int, int] | None = None, *, held: bool = True
) -> PlacementReport:
    """Return what the plan holds (none of it, unless `held`) and moves; the others are as in `Plan.live_bytes`."""
    reader = _Reader(plan)
    return PlacementReport(
        tuple(reader.held(temporary, reused)) if held else (),
        tuple(reader.sent()),
        tuple(reader.misplaced()),
        tuple(reader.returning()),
        {plan.slots[s].name: role for s, role in reader.roles.items()},
        tuple(reader.gathered()),
        tuple(meshes for meshes in dict.fromkeys(plan.sharing.values()) if len(meshes) > 1),
    )


class _Reader:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        #: What each slot is a copy of.
        self.root: dict[int, int] = {}
        #: What made each slot: a run, None for an argument.
        self.maker: dict[int, Run | None] = dict.fromkeys(plan.arguments)
        #: The runs that read a slot itself.
        self.readers: dict[int, list[Run]] = collections.defaultdict(list)
        #: Forward and backward ("F", "B") computations that a slot was computed with.
        self.phases: dict[int, frozenset[str]] = dict.fromkeys(plan.arguments, frozenset())
        #: The meshes on which forwards read each argument (or a cast of it), and whether one did that without its
        #: update, which reads it as well: that may be part of a forward and backward.
        self.forward: dict[int, dict[str, bool]] = {s: {} for s in plan.arguments}
        #: The meshes on which backwards read an argument without its update, or code without a name does that for
        #: computations with one.
        self.also_read: dict[int, set[str]] = collections.defaultdict(set)
        self.replaced = _replaced(plan, trains=any(_phases(run) >= {"B"} for run in plan.runs))
        self._follow()
        self.roles = self._roles()
        self.meshes = {name: parse_mesh(mesh) for name, mesh in plan.meshes.items()}
        self.weights = {plan.slots[s].type.tensor for s, role in self.roles.items() if role == "parameters"}

    def _follow(self) -> None:
        """Fill what is known of slots, instruction by instruction."""
        #: The arguments from which code without a name alone makes each slot, as casts and slices of the batch.
        derived: dict[int, tuple[int, ...]] = {s: (s,) for s in self.plan.arguments}
        for_named = self._for_named()
        for instruction in self.plan.instructions:
            if isinstance(instruction, Transfer):
                for a, b in zip(instruction.inputs, instruction.outputs, strict=True):
                    self.root[b] = self.root.get(a, a)
                    self.phases[b] = self.phases[a]
                    derived[b] = derived.get(a, ())
            elif isinstance(instruction, Run):
                self._follow_run(instruction, derived, for_named)

    def _follow_run(self, run: Run, derived: dict[int, tuple[int, ...]], for_named: Set[int]) -> None:
        own, made, inputs = _phases(run), set(run.outputs), dict.fromkeys(run.inputs)
        for slot in inputs:
            self.readers[slot].append(run)
        read = dict.fromkeys(a for slot in inputs for a in derived.get(slot, ()))
        without_update = {a for a in read if self._new(a) not in made}
        if "F" in own:
            for a in read:
                meshes = self.forward[a]
                meshes[run.mesh] = meshes.get(run.mesh, False) or own == {"F"} or a in without_update
        elif own or not made.isdisjoint(for_named):
            for a in without_update:
                self.also_read[a].add(run.mesh)
        self.maker.update(dict.fromkeys(run.outputs, run))
        phases = own or frozenset().union(*(self.phases[slot] for slot in inputs))
        self.phases.update(dict.fromkeys(run.outputs, phases))
        if not own and all(derived.get(slot) for slot in inputs):
            slots = self.plan.slots
            for output in run.outputs:
                shape = slots[output].type.tensor.shape
                alike = (slot for slot in inputs if slots[slot].type.tensor.shape == shape)
                derived[output] = tuple(dict.fromkeys(a for slot in alike for a in derived[slot]))

    def _for_named(self) -> set[int]:
        """Return the values that computations with a name read, or are made from."""
        result: set[int] = set()
        for instruction in reversed(self.plan.instructions):
            if isinstance(instruction, Transfer):
                result |= {a for a, b in zip(instruction.inputs, instruction.outputs, strict=True) if b in result}
            elif isinstance(instruction, Run) and (_phases(instruction) or not result.isdisjoint(instruction.outputs)):
                result.update(instruction.inputs)
        return result

    def _new(self, argument: int) -> int | None:
        """Return what takes the place of an argument."""
        result = self.replaced.get(argument)
        return None if result is None else self.plan.results[result]

    # What arguments are.

    def _roles(self) -> dict[int, Role]:
        slots, roles = self.plan.slots, dict[int, Role]()
        roots: list[tuple[str, object]] = []
        # What is read without its update is a parameter for sure.
        is_sure = {s: s in self.also_read or any(self.forward[s].values()) for s in self.replaced}
        wanted = [s for s, sure in is_sure.items() if (sure or self.forward[s]) and _is_float(slots[s])]
        parameters = set()
        for slot in sorted(wanted, key=lambda s: (not is_sure[s], len(path_in(slots[s].name)), s)):
            rest, shape, sure = path_in(slots[slot].name), slots[slot].type.tensor.shape, is_sure[slot]
            if any(shape == other and (rest != tail or not sure) and ends(rest, tail) for tail, other in roots):
                continue
            roots.append((rest, shape))
            parameters.add(slot)
        for slot in self.plan.arguments:
            role: Role = "state" if slot in self.replaced else "arguments"
            roles[slot] = "parameters" if slot in parameters else role
        return roles

    def _used_on(self, slot: int) -> tuple[str, ...]:
        meshes = self.forward[slot]
        return tuple(m for m, sure in meshes.items() if sure or not any(meshes.values()))

    def misplaced(self) -> list[MisplacedParam]:
        """Parameters that are not where they are used, and states that are not with them, the largest first."""
        result = []
        slots = self.plan.slots
        own = alike({s: (slots[s].name, slots[s].type.tensor) for s in self.plan.arguments})
        for number, slot in enumerate(self.plan.arguments):
            here, used, of = slots[slot].mesh, self._used_on(slot), ""
            if self.roles[slot] == "state":
                parameter = own[slot]
                is_of = self.roles[parameter] == "parameters" and slots[slot].bytes > SMALL
                used, of = ((slots[parameter].mesh,), slots[parameter].name) if is_of else ((), "")
            elif self.roles[slot] != "parameters":
                continue
            if used and here not in used and here not in self.also_read.get(slot, ()):
                result.append(MisplacedParam(slots[slot].name, number, self.plan.bytes_of([slot]), here, used, of))
        return sorted(result, key=lambda a: -a.bytes)

    def gathered(self) -> list[Gathered]:
        """Return what arrives whole as shardings do not carry over to meshes of another shape, largest first."""
        totals: dict[tuple[int, str, str, tuple[str, ...]], int] = collections.Counter()
        for transfer in self.plan.transfers:
            source, target = self.plan.meshes[transfer.source], self.plan.meshes[transfer.target]
            if source == target:
                continue
            for a, b in zip(transfer.inputs, transfer.outputs, strict=True):
                axes = _lost_axes(self.plan.slots[a], self.plan.slots[b], dict(parse_mesh(target).axes))
                if axes:
                    totals[self.root[b], transfer.source, transfer.target, axes] += self.plan.slots[b].bytes
        result = [Gathered(self._name(s), a, b, axes, size) for (s, a, b, axes), size in totals.items()]
        return sorted(result, key=lambda one: -one.bytes)

    def returning(self) -> list[ReplacedOnOtherMesh]:
        """Return the replaced arguments whose results are on another mesh; what nothing reads stays where it is."""
        slots, staying = self.plan.slots, self.plan.unused.difference(self.plan.donated)
        pairs = ((slots[a], slots[self.plan.results[r]], r) for a, r in self.replaced.items())
        return [
            ReplacedOnOtherMesh(a.name, self.plan.bytes_of([a.number]), a.mesh, out.mesh, r)
            for a, out, r in pairs
            if a.mesh != out.mesh and a.number not in staying
        ]

    # What moves.

    def sent(self) -> list[Traffic]:
        """Return every value with what it is sent for, the largest first."""
        twins = self._forward_edges()
        copies: dict[tuple[int, Cause, str, str], list[int]] = collections.defaultdict(list)
        for transfer in self.plan.transfers:
            for slot in transfer.outputs:
                cause = self._cause(slot, transfer, twins)
                copies[self.root[slot], cause, transfer.source, transfer.target].append(slot)
        result = [
            Traffic(self._name(s), c, a, b, len(slots), self.plan.bytes_of(slots))
            for (s, c, a, b), slots in copies.items()
        ]
        return sorted(result, key=lambda s: -s.bytes)

    def _name(self, slot: int) -> str:
        maker, slot_info = self.maker[slot], self.plan.slots[slot]
        if maker is None:
            return slot_info.name or "an array that the step closes over"
        return f"{slot_info.type.tensor} of {maker.label if maker.origins else 'unnamed code'}"

    def _forward_edges(self) -> set[tuple[str, str, TensorType]]:
        """(source, target, type) of what a forward sends to a forward."""
        result = set()
        for transfer in self.plan.transfers:
            for slot in transfer.outputs:
                if "F" in self.phases[slot] and any("F" in _phases(run) for run in self.readers[slot]):
                    result.add((transfer.source, transfer.target, self.plan.slots[slot].type.tensor))
        return result

    def _cause(self, slot: int, transfer: Transfer, twins: set[tuple[str, str, TensorType]]) -> Cause:
        slot_info = self.plan.slots[slot]
        if transfer.source == transfer.target:
            before = self.plan.slots[transfer.inputs[transfer.outputs.index(slot)]]
            return "host memory" if "pinned_host" in (before.memory_kind, slot_info.memory_kind) else "within a mesh"
        cause = self._large_cause(slot, transfer, twins)
        is_flow = cause in ("activations", "cotangents") and slot_info.type.tensor.shape != ()
        return "small" if slot_info.bytes <= SMALL and not is_flow else cause

    def _large_cause(self, slot: int, transfer: Transfer, twins: set[tuple[str, str, TensorType]]) -> Cause:
        """Return why a value of any size is sent to another mesh."""
        root, slot_info = self.root[slot], self.plan.slots[slot]
        if self.maker[root] is None:
            return self.roles[root]
        made = self.phases[root]
        read = frozenset().union(*(_phases(run) for run in self.readers[slot]))
        # What comes back for an activation has its type.  Code without a name may have become part of any fragment.
        back = (transfer.target, transfer.source, slot_info.type.tensor) in twins
        if "B" in made and "B" in read and back:
            return "cotangents"
        if "B" in made and slot_info.type.tensor in self.weights:
            is_update = slot in self.plan.results and not self.readers[slot]
            return "state" if is_update else "gradients"
        if slot in self.plan.results and slot in {self.plan.results[r] for r in self.replaced.values()}:
            return "state"
        forward_alone = made == {"F"} or read == {"F"}
        meshes = list(self.plan.meshes)
        later = meshes.index(transfer.target) > meshes.index(transfer.source)
        if "F" in made and read and (forward_alone or ("F" in read and later)):
            # Of unsigned numbers it is a PRNG key.
            return "arguments" if slot_info.type.tensor.element == "ui32" else "activations"
        return "unnamed code"

    # What is held.

    def held(self, temporary: dict[int, int] | None, reused: dict[int, int] | None) -> list[MeshMemory]:
        """Return what each mesh holds at the start and at its peak."""
        plan = self.plan
        at: dict[str, tuple[int, int]] = dict.fromkeys(plan.meshes, (-1, -1))
        for place, mesh, used in plan.memory_use(temporary, reused):
            if used > at[mesh][0]:
                at[mesh] = used, place
        new = {plan.results[r] for r in self.replaced.values()}
        sums = {s.number for s in plan.slots if self._is_gradient(s)} - new
        copies = {s.number for s in plan.slots if is_hoisted(self._maker(s))}
        # Gradients take the memory of gradients; what else a program reuses may be anything.
        reused_sums = reused_rest = reused
        if reused is not None:
            made = {run.program: sum(plan.slots[s].bytes for s in run.outputs if s in sums) for run in plan.runs}
            reused_sums = {program: min(size, made[program]) for program, size in reused.items()}
            reused_rest = {program: size - reused_sums[program] for program, size in reused.items()}
        gradients = self._at(at, sums, reused_sums)
        hoisted, lent = self._at(at, copies, {}), self._at(at, copies, reused_rest)
        values = self._at(at, set(range(len(plan.slots))), reused)
        result = []
        for mesh in plan.meshes:
            start: collections.Counter[Role] = collections.Counter()
            for slot, role in self.roles.items():
                if plan.slots[slot].mesh == mesh and plan.slots[slot].memory_kind != "pinned_host":
                    start[role] += plan.slots[slot].bytes
            running = plan.instructions[at[mesh][1]] if at[mesh][1] >= 0 else None
            scratch = 0
            if temporary and isinstance(running, Run) and running.mesh == mesh:
                scratch = temporary.get(running.program, 0)
            result.append(
                MeshMemory(
                    mesh,
                    start["parameters"],
                    start["state"],
                    start["arguments"],
                    gradients[mesh],
                    values[mesh] - start.total() - gradients[mesh] - lent[mesh],
                    at[mesh][0],
                    hoisted[mesh],
                    scratch,
                )
            )
        return result

    def _is_gradient(self, slot: Slot) -> bool:
        """Return whether backwards made it, or add to it: the zeros that a sum of gradients starts from."""
        root, maker = self.root.get(slot.number, slot.number), self._maker(slot)
        alike = slot.type.tensor in self.weights or _parts_of(slot.type, self.meshes[slot.mesh]) in self.weights
        if not alike or not maker:
            return False
        return "B" in self.phases[root] or (not maker.origins and root in self.donated_to_backwards)

    @functools.cached_property
    def donated_to_backwards(self) -> frozenset[int]:
        return frozenset(r.inputs[i] for r in self.plan.runs if "B" in _phases(r) for i in r.donated)

    def _maker(self, slot: Slot) -> Run | None:
        return self.maker.get(self.root.get(slot.number, slot.number))

    def _at(
        self, at: Mapping[str, tuple[int, int]], counted: set[int], reused: dict[int, int] | None
    ) -> dict[str, int]:
        """Return the bytes of some slots on each mesh while the instruction of its peak runs; see `Plan.live_bytes`."""
        result: dict[str, int] = {}
        for meshes in itertools.zip_longest(*dict.fromkeys(self.plan.sharing.values())):  # none shares with another
            own = {s for s in counted if self.plan.slots[s].mesh in meshes}
            for place, mesh, used in self.plan.memory_use(reused=reused, counted=own):
                if mesh in meshes and place == at[mesh][1]:
                    result[mesh] = used
        return result


def _lost_axes(sent: Slot, here: Slot, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes over which a value could be split on a mesh with axes of these sizes, as it was at its source."""
    there, shape = sent.type.sharding, sent.type.tensor.shape
    if there is None or shape is None or (here.type.sharding and not here.type.sharding.is_fully_replicated):
        return ()
    result: list[str] = []
    for dim, size in enumerate(shape):
        axes = [a.name for a in there.dim_axes(dim) if sizes.get(a.name, 1) > 1]
        if size and size % math.prod(sizes[name] for name in axes) == 0:
            result += axes
    return tuple(result)


def _parts_of(type: MeshTensorType, mesh: MeshAttr) -> TensorType | None:
    """Return the shape of the parts that an array has for each device: its own without the first dimension."""
    shape, sharding = type.tensor.shape, type.sharding
    if not shape or sharding is None or not sharding.dim_axes(0) or local_shape(type.tensor, sharding, mesh)[0] != 1:
        return None
    return tensor(shape[1:], type.tensor.element)


def is_hoisted(run: Run | None) -> bool:
    """Return whether a run computes once what is the same for all microbatches."""
    return run is not None and run.origins == ((HOISTED, 0),)


def _phases(run: Run) -> frozenset[str]:
    """Return whether a run has forwards ("F") and backwards ("B") of named computations."""
    return frozenset("B" if count else "F" for _, count in run.origins)


def _is_float(slot: Slot) -> bool:
    return slot.type.tensor.element.startswith(("f", "bf", "complex"))


def _replaced(plan: Plan, *, trains: bool) -> dict[int, int]:
    """Return the arguments that a result replaces, each with the number of the result."""
    slots = plan.slots
    given = {s: (slots[s].name, slots[s].type.tensor) for s in plan.arguments}
    made = [(name, slots[s].type.tensor) for s, name in zip(plan.results, plan.result_names, strict=True)]
    return replacements(given, made, plan.donated, trains=trains)
