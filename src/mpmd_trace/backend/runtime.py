"""Executes a plan in one process.

One thread issues the instructions in the order of the plan; devices work behind its back.  Everything that
does not depend on the arrays is computed when the runtime is made, so that an instruction costs little more
than the C++ call below it, and transfers that the plan issues one after the other share one such call.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpmd_trace.backend.executables import Executable
from mpmd_trace.backend.issue_threads import SLOW, ThreadedPlan, lanes_of
from mpmd_trace.backend.movers import Move, Movers, copying
from mpmd_trace.backend.placement import Placement
from mpmd_trace.backend.plan import Free, Plan, Run, Transfer
from mpmd_trace.backend.profiled import annotated_calls
from mpmd_trace.backend.steps import Call, Issued, Places, Step, make_steps
from mpmd_trace.jax_compat import runtime as compat
from mpmd_trace.jax_compat.profiling import is_profiling, step_annotation


class Runtime:
    """A plan bound to executables and devices.

    Args:
        plan: what to do.
        executables: one for each program of the plan, in order; None for those that other processes run.
        placement: the meshes.
    """

    def __init__(self, plan: Plan, executables: Sequence[Executable | None], placement: Placement) -> None:
        self.plan = plan
        self.executables = list(executables)
        self.placement = placement
        self.movers = Movers(placement)
        #: The instructions that take time, and what carries out each of them on its own.
        self.instructions: list[Run | Transfer] = []
        self.calls: list[Call] = []
        for instruction in plan.instructions:
            if not isinstance(instruction, Free):
                self.instructions.append(instruction)
                self.calls.append(self._call(instruction))
        leading, steps = make_steps(plan.instructions, self._is_copy)
        places = Places(plan, steps)
        #: What `run` goes through.
        self.steps: list[Issued] = [self._issued(step, places) for step in steps]
        self._groups = [step.numbers for step in steps]
        self._leading = places.of(leading)
        self._results = _chooser(places.of(plan.results))
        self._donated = sorted(plan.donated.difference(plan.results))
        self._started = 0
        #: Whether threads may issue. On CPUs, launches take long only where they compute or wait for memory.
        self.may_use_threads = len(set(plan.sharing.values())) > 1 and any(
            device.platform != "cpu" for mesh in placement.meshes.values() for device in mesh.devices.flat
        )
        #: How many calls in a row took long to issue; and whether so many did that threads issue now.
        self._slow = 0
        self._launches_slowly = False
        self._room = [None] * places.room

    def run(self, args: list[jax.Array]) -> list[jax.Array]:
        """Return the results for these arrays, which must be exactly what the plan expects.

        Returns as soon as everything is issued.  Donated arguments are gone afterwards.  The list is emptied,
        so that what only it holds goes with its last use.
        """
        self._started += 1
        if is_profiling():
            return self._profiled(args)
        if self._launches_slowly and not self._calls_back and not _is_watched():
            return self._issue_by_threads(args)
        begin = time.perf_counter()
        results = self._issue(args, self.steps)
        if self._started > 1:  # what is done for the first time takes longer
            each = (time.perf_counter() - begin) / max(1, len(self.steps))
            self._slow = self._slow + 1 if each > SLOW else 0
            self._launches_slowly = self._slow >= _SLOW_CALLS and self.may_use_threads
        return results

    @functools.cached_property
    def _calls_back(self) -> bool:
        """True if a program calls back Python, which may need what this thread holds, and keeps tokens in it."""
        return any(executable.compiled.calls_back for executable in self.own_executables)

    @functools.cached_property
    def _threaded(self) -> ThreadedPlan:
        return ThreadedPlan(self.plan, lanes_of(self.plan, self._is_copy), self._issued, _chooser)

    def _issue_by_threads(self, args: list[jax.Array]) -> list[jax.Array]:
        """As `run`, with a thread for the devices of each mesh."""
        donated = self.donated(args)
        try:
            results = self._threaded.issue(args)
        except Exception as error:
            number = getattr(error, "mpmd_instruction", -1)
            if number >= 0:
                error.add_note(f"while issuing instruction {number} of the plan: {self.describe(number)}")
            raise
        for array in donated:
            array.delete()
        return results

    def _profiled(self, args: list[jax.Array]) -> list[jax.Array]:
        """As `run`; the step and its instructions show in the profile."""
        with step_annotation(self.plan.name, self._started - 1):
            return self._issue(args, self._annotated_steps)

    @functools.cached_property
    def _annotated_steps(self) -> list[Issued]:
        calls = annotated_calls(self.plan, self.instructions, self._groups, [step[0] for step in self.steps])
        return [(call, *step[1:]) for call, step in zip(calls, self.steps, strict=True)]

    def _issue(self, args: list[jax.Array], steps: Sequence[Issued]) -> list[jax.Array]:
        slots: list[Any] = [*args, *self._room]
        donated = self.donated(args)
        args.clear()
        for slot in self._leading:
            slots[slot] = None
        at = 0
        check = jax.config.jax_debug_nans or jax.config.jax_debug_infs
        try:
            with compat.issuing():
                for at, (call, pick, first, last, frees) in enumerate(steps):
                    slots[first:last] = call(pick(slots))
                    if check:
                        self._check_numbers(slots[first:last], self._groups[at][0])
                    for slot in frees:
                        slots[slot] = None
        except Exception as error:
            for number in self._groups[at]:
                error.add_note(f"while issuing instruction {number} of the plan: {self.describe(number)}")
            raise
        for array in donated:
            array.delete()
        return list(self._results(slots))

    @property
    def own_executables(self) -> list[Executable]:
        """Those that run in this process."""
        return [e for e in self.executables if e is not None]

    def from_all(self, what: str, mine: dict[str, int]) -> list[dict[str, int]]:
        """Return these numbers of each process that has a part in the program; all of them call this."""
        return [mine]

    def donated(self, args: Sequence[jax.Array]) -> list[jax.Array]:
        """Return what the caller gave away: all of it is gone after the step, reused or not."""
        return [args[i] for i in self._donated]

    def _check_numbers(self, results: Sequence[jax.Array], at: int) -> None:
        """Do what `jax_debug_nans` and `jax_debug_infs` promise, for the results of instruction `at`."""
        tests: list[tuple[str, Callable[[Any], Any]]] = []
        if jax.config.jax_debug_nans:
            tests.append(("nan", np.isnan))
        if jax.config.jax_debug_infs:
            tests.append(("inf", np.isinf))
        for array in results:
            if not isinstance(array, jax.Array) or not jnp.issubdtype(array.dtype, jnp.inexact):
                continue  # what comes from another process has been looked at there
            for what, test in tests:
                if any(test(np.asarray(shard.data)).any() for shard in array.addressable_shards):
                    raise FloatingPointError(
                        f"invalid value ({what}) encountered in the {self.describe(at)}, in a result of type "
                        f"{array.dtype}{list(array.shape)}"
                    )

    def describe(self, at: int) -> str:
        """Instruction `at` (without counting `free`) in words."""
        instruction = self.instructions[at]
        if isinstance(instruction, Transfer):
            values = ", ".join(str(self.plan.slots[s]) for s in instruction.outputs)
            return f"transfer of {values} from mesh '{instruction.source}' to '{instruction.target}'"
        program = self.plan.programs[instruction.program]
        return f"run of @{program.callee} ({instruction.label}) on mesh '{instruction.mesh}'"

    def _call(self, instruction: Run | Transfer) -> Call:
        if isinstance(instruction, Run):
            executable = self.executables[instruction.program]
            assert executable is not None
            return executable.compiled.call
        return self.movers.mover(self._moves(instruction))

    def _is_copy(self, transfer: Transfer) -> bool:
        """Return whether a transfer is plain copies, which may share a call with others."""
        return bool(self.movers.copies(self._moves(transfer)))

    def _moves(self, transfer: Transfer) -> tuple[Move, ...]:
        slots = self.plan.slots
        return tuple((slots[i].place, slots[o].place) for i, o in zip(transfer.inputs, transfer.outputs, strict=True))

    def _issued(self, step: Step, places: Places) -> Issued:
        outputs = places.of(step.outputs)
        first = outputs[0] if outputs else 0
        call = self.calls[step.numbers[0]]
        if len(step.numbers) > 1:
            transfers = (i for i in step.instructions if isinstance(i, Transfer))
            call = copying([copy for one in transfers for copy in self.movers.copies(self._moves(one))])
        return call, _chooser(places.of(step.inputs)), first, first + len(outputs), places.of(step.frees)


#: After so many calls that took long to issue, threads do it.
_SLOW_CALLS = 3


def _is_watched() -> bool:
    """Return whether settings of JAX, which are those of the calling thread, look at values or copies."""
    config = jax.config
    guards = (
        config.jax_transfer_guard_device_to_device,
        config.jax_transfer_guard_device_to_host,
        config.jax_transfer_guard_host_to_device,
    )
    watched = any((guard or config.jax_transfer_guard) not in (None, "allow") for guard in guards)
    return bool(config.jax_debug_nans or config.jax_debug_infs or watched)


def _chooser(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function from all slots to these ones, as a sequence."""
    if len(slots) > 1 and tuple(slots) != tuple(range(slots[0], slots[0] + len(slots))):
        return itemgetter(*slots)
    return itemgetter(slice(slots[0], slots[0] + len(slots)) if slots else slice(0, 0))
