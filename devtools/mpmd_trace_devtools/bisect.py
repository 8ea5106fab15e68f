"""Which pass first gives other numbers: modules between passes are interpreted, halving the passes each time.

A pass that is found is run on ever smaller modules, as long as what it makes of them computes something else: what
is left is a module of a few ops that shows the fault.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.manager import PassRun, run_passes
from mpmd_trace_devtools.interpreter import interpret, random_args
from mpmd_trace_devtools.numbers import Error, Numbers, largest
from mpmd_trace_devtools.reduce import reduce


@dataclasses.dataclass(frozen=True)
class Stage:
    """A module after a pass; `number` and `spec` are those of `mpmd-trace dump`."""

    number: int
    spec: str
    module: Module


@dataclasses.dataclass
class Modules:
    """A pass hook that keeps the module after each pass that changed it."""

    stages: list[Stage] = dataclasses.field(default_factory=list)

    def start(self, module: Module) -> None:
        """Keep the module before the first pass."""
        self.stages.insert(0, Stage(0, "traced", module))

    def __call__(self, run: PassRun, module: Module) -> None:
        if run.changed:
            self.stages.append(Stage(run.index + 1, run.spec, module.clone()))


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found.

    wrong: the index of the first stage whose numbers are others, None where none is.
    errors: of the stages that were computed, by index.
    """

    wrong: int | None
    errors: dict[int, Error]


def bisect(
    stages: Sequence[Stage],
    numbers: Numbers,
    tolerance: float,
    *,
    every: bool = False,
    say: Callable[[Stage, Error], None] = lambda stage, error: None,
) -> Found:
    """Return the first stage whose results differ by more than the tolerance from those of plain `jax.jit`.

    Passes before the first wrong one are right and those after it are wrong, as far as they were looked at.

    Args:
        stages: the modules, the traced one first.
        numbers: what the program is to compute.
        tolerance: how far a result may be off, relative to its norm.
        every: look at all of them, instead of halving.
        say: called with each that was looked at.

    Raises:
        MpmdError: when an op cannot be computed.
    """
    errors: dict[int, Error] = {}

    def is_wrong(at: int) -> bool:
        if at not in errors:
            errors[at] = numbers.error(stages[at].module)
            say(stages[at], errors[at])
        return not errors[at].size <= tolerance

    last = len(stages) - 1
    if every:
        wrong_ones = [at for at in range(len(stages)) if is_wrong(at)]
        return Found(wrong_ones[0] if wrong_ones else None, errors)
    if not is_wrong(last):
        return Found(None, errors)
    if is_wrong(0):
        return Found(0, errors)
    right, wrong = 0, last
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if is_wrong(middle) else (middle, wrong)
    return Found(wrong, errors)


class _Late(Exception):
    """There is no more time."""


def reduce_wrong_pass(
    module: Module,
    pipeline: str | Sequence[str | Pass],
    tolerance: float,
    seconds: float,
    say: Callable[[str], None] = lambda _: None,
) -> str | None:
    """Return a small module, as text, that a pass makes compute something else; None if the pass alone does not.

    Args:
        module: the module before the pass; it is not changed.
        pipeline: the pass, or several.
        tolerance: how far results may be off.
        seconds: how long to look for a smaller one.
        say: called with progress.
    """
    end = time.monotonic() + seconds
    smallest: str | None = None

    def is_wrong(text: str) -> bool:
        nonlocal smallest
        if smallest is not None and time.monotonic() > end:
            raise _Late
        if not _changes_numbers(text, pipeline, tolerance):
            return False
        smallest = text
        return True

    try:
        reduce(module, is_wrong, say)
    except _Late:
        say(f"stopped after {seconds:g} s")
    except KeyboardInterrupt:  # which pass is wrong is known, and often what is found so far is small enough
        say("interrupted: reduces the module no further")
    except MpmdError:
        pass  # it is right by itself, for random arguments
    return smallest


def _changes_numbers(text: str, pipeline: str | Sequence[str | Pass], tolerance: float) -> bool:
    """Return whether the pass makes the module compute something else from random arguments."""
    try:
        before = parse(text)
        args = random_args(before)
        after = run_passes(before.clone(), pipeline)
        expected, actual = interpret(before, args), interpret(after, args)
    except Exception:  # what is wrong with it is something else, or it breaks the wrong pass down
        return False
    if len(expected) != len(actual):
        return False
    names = [str(i) for i in range(len(actual))]
    return not largest(actual, expected, names).size <= tolerance
