"""Executes a plan in one process.

One thread issues the instructions in the order of the plan; devices work behind its back.  Everything that
does not depend on the arrays is computed when the runtime is made, so that an instruction costs little more
than the C++ call below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from .executables import Executable
from .placement import Placement
from .plan import Free, Plan, Run, Slot, Transfer

__all__ = ["Runtime"]

Call = Callable[[Sequence[Any]], Sequence[Any]]
#: call, choice of its inputs, first and last+1 result slot, slots to drop afterwards.
Step = tuple[Call, Callable[[list[Any]], Sequence[Any]], int, int, tuple[int, ...]]


class Runtime:
    """A plan bound to executables and devices.

    Args:
        plan: what to do.
        executables: one for each program of the plan, in order.
        placement: the meshes.
    """

    def __init__(self, plan: Plan, executables: Sequence[Executable], placement: Placement) -> None:
        self.plan = plan
        self.executables = list(executables)
        self.placement = placement
        self._movers: dict[tuple[object, ...], Call] = {}
        self.steps: list[Step] = []
        self.instructions: list[Run | Transfer] = []
        leading: list[int] = []
        for instruction in plan.instructions:
            if isinstance(instruction, Free):
                if self.steps:
                    call, pick, first, last, frees = self.steps[-1]
                    self.steps[-1] = (call, pick, first, last, (*frees, *instruction.slots))
                else:
                    leading += instruction.slots
            else:
                self.steps.append(self._step(instruction))
                self.instructions.append(instruction)
        self._leading = tuple(leading)
        self._results = _chooser(plan.results)
        self._donated = sorted(plan.donated.difference(plan.results))
        self._room = [None] * (len(plan.slots) - len(plan.arguments))

    def run(self, args: Sequence[jax.Array]) -> list[jax.Array]:
        """The results for these arrays, which must be exactly what the plan expects.

        Returns as soon as everything is issued.  Donated arguments are gone afterwards.
        """
        slots: list[Any] = [*args, *self._room]
        donated = self.donated(args)
        del args
        for slot in self._leading:
            slots[slot] = None
        at = 0
        try:
            for at, (call, pick, first, last, frees) in enumerate(self.steps):  # noqa: B007
                slots[first:last] = call(pick(slots))
                for slot in frees:
                    slots[slot] = None
        except Exception as error:
            error.add_note(f"while issuing instruction {at} of the plan: {self.describe(at)}")
            raise
        for array in donated:
            array.delete()
        return list(self._results(slots))

    def donated(self, args: Sequence[jax.Array]) -> list[jax.Array]:
        """What the caller gave away: all of it is gone after the step, reused or not."""
        return [args[i] for i in self._donated]

    def describe(self, at: int) -> str:
        """Instruction `at` (without counting `free`) in words."""
        instruction = self.instructions[at]
        if isinstance(instruction, Transfer):
            values = ", ".join(str(self.plan.slots[s]) for s in instruction.outputs)
            return f"transfer of {values} from mesh '{instruction.source}' to '{instruction.target}'"
        program = self.plan.programs[instruction.program]
        return f"run of @{program.callee} ({instruction.label}) on mesh '{instruction.mesh}'"

    def _step(self, instruction: Run | Transfer) -> Step:
        outputs = instruction.outputs
        first = outputs[0] if outputs else 0
        assert outputs == tuple(range(first, first + len(outputs)))
        call = (
            self.executables[instruction.program].call
            if isinstance(instruction, Run)
            else self.mover(instruction)
        )
        return call, _chooser(instruction.inputs), first, first + len(outputs), ()

    # Transfers.

    def sharding(self, slot: int) -> NamedSharding:
        found = self.plan.slots[slot]
        return self.placement.sharding(found.type, found.memory_kind)

    def mover(self, transfer: Transfer) -> Call:
        """The function that carries out a (batched) transfer."""
        pairs = [
            (self.plan.slots[i], self.plan.slots[o])
            for i, o in zip(transfer.inputs, transfer.outputs, strict=True)
        ]
        key = tuple((a.type, a.memory_kind, b.type, b.memory_kind) for a, b in pairs)
        found = self._movers.get(key)
        if found is None:
            found = self._movers[key] = self._mover(pairs)
        return found

    def _mover(self, pairs: Sequence[tuple[Slot, Slot]]) -> Call:
        from ..jax_compat.runtime import batched_copy, same_tiles

        sources = [self.placement.sharding(a.type, a.memory_kind) for a, _ in pairs]
        targets = [self.placement.sharding(b.type, b.memory_kind) for _, b in pairs]
        shapes = [a.type.tensor.shape or () for a, _ in pairs]
        overlap = bool(sources[0].device_set & targets[0].device_set)
        if all(same_tiles(n, s, t) for n, s, t in zip(shapes, sources, targets, strict=True)):
            return batched_copy(targets, fresh=overlap)
        if len(pairs) == 1:
            return self._reshard(pairs[0], sources[0], targets[0], overlap)
        movers = [self._mover([pair]) for pair in pairs]
        return lambda arrays: [mover([a])[0] for mover, a in zip(movers, arrays, strict=True)]

    def _reshard(
        self, pair: tuple[Slot, Slot], source: NamedSharding, target: NamedSharding, overlap: bool
    ) -> Call:
        """First to the target's tiles on the source mesh, by a program; then a plain copy.

        Between meshes of different size `jax.device_put` does it, through the host where it must.
        """
        from ..jax_compat.runtime import batched_copy, compile_lowered, direct_call, lower_function

        if source.num_devices != target.num_devices:
            return lambda arrays: [jax.device_put(arrays[0], target, may_alias=False)]
        devices = source.mesh.devices.reshape(target.mesh.devices.shape)
        between = NamedSharding(Mesh(devices, target.mesh.axis_names), target.spec)
        type = pair[0].type.tensor.text
        text = f"module {{ func.func @main(%x: {type}) -> {type} {{ return %x : {type} }} }}"
        given = self.placement.spec(pair[0].type, pair[0].memory_kind)
        if source.memory_kind is not None:
            between = between.with_memory_kind(source.memory_kind)
        wanted = jax.ShapeDtypeStruct(given.shape, given.dtype, sharding=between)
        program = direct_call(compile_lowered(lower_function(text, [given], [wanted], name="reshard")))
        if not overlap:
            copy = batched_copy([target], fresh=False)
            return lambda arrays: copy(program(arrays))
        if (
            tuple(devices.flat) == tuple(target.mesh.devices.flat)
            and between.memory_kind == target.memory_kind
        ):
            return program
        again = batched_copy([target], fresh=True)
        return lambda arrays: again(program(arrays))


def _chooser(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function from all slots to these ones, as a sequence."""
    if len(slots) > 1 and tuple(slots) != tuple(range(slots[0], slots[0] + len(slots))):
        return itemgetter(*slots)
    return itemgetter(slice(slots[0], slots[0] + len(slots)) if slots else slice(0, 0))
