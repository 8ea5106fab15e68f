"""Which instruction of a plan gives other numbers than the module says, where every pass is right.

The step is executed instruction by instruction: each program is held against the interpreter on the arrays that it
got, each transfer against what was sent, and each array that is read against what it was when it was made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.plan import Run
from mpmd_trace.ir.ops import Module
from mpmd_trace.jax_compat.layouts import put
from mpmd_trace_devtools.interpreter import Remembered, interpret
from mpmd_trace_devtools.numbers import Error, largest


@dataclasses.dataclass(frozen=True)
class Wrong:
    """An instruction that does not do what it should: its number without counting `free`, and what it does in words.

    fault: "program", "transfer", or "overwritten" for an array that is not what it was when it was made.
    """

    number: int
    what: str
    fault: str
    error: Error


def wrong_instruction(
    program: LoadedProgram, module: Module, arguments: Sequence[Any], tolerance: float
) -> tuple[Wrong | None, list[Any]]:
    """Return the first wrong instruction of a step of this process, None if each by itself is right; and the results.

    Args:
        program: what is executed; donated arguments are gone afterwards.
        module: what it was made of.
        arguments: those of the step, as the program takes them.
        tolerance: how far a result of an instruction may be off, relative to its norm.

    Raises:
        MpmdError: where an op cannot be interpreted.
    """
    plan, runtime = program.plan, program.runtime
    slots: dict[int, Any] = {i: put(a, s) for i, (a, s) in enumerate(zip(arguments, program.input_specs, strict=True))}
    made = {slot: np.array(array) for slot, array in slots.items()}
    maker = dict.fromkeys(slots, "an argument")
    remembered = Remembered()
    for number, (instruction, call) in enumerate(zip(runtime.instructions, runtime.calls, strict=True)):
        what = runtime.describe(number)
        inputs = [slots[slot] for slot in instruction.inputs]
        for slot in instruction.inputs:
            if slots[slot].is_deleted():
                return Wrong(number, what, "overwritten", Error(math.inf, f"what {maker[slot]} gave")), []
        given = [np.array(array) for array in inputs]
        before = [made[slot] for slot in instruction.inputs]
        names = [f"what {maker[slot]} gave" for slot in instruction.inputs]
        changed = largest(given, before, names)
        if changed.size > 0:
            return Wrong(number, what, "overwritten", changed), []
        actual = call(inputs)
        if isinstance(instruction, Run):
            callee = plan.programs[instruction.program].callee
            expected, fault, limit = interpret(module, given, callee, remembered), "program", tolerance
        else:
            expected, fault, limit = given, "transfer", 0.0
        results = [np.array(array) for array in actual]
        error = largest(results, expected, [f"result {i}" for i in range(len(results))])
        if not error.size <= limit:
            return Wrong(number, what, fault, error), []
        for slot, array, value in zip(instruction.outputs, actual, results, strict=True):
            slots[slot], made[slot], maker[slot] = array, value, f"the {what}"
    return None, [np.asarray(slots[slot]) for slot in plan.results]
