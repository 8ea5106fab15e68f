"""Runs both partitioners on a generated program and says where they differ."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.cpp_engine import CppAnswer, CppPartitioner
from mpmd_trace.passes.export.lower_to_fragment_calls import LowerToFragmentCalls
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.passes.partition import IoSpec, partition_as
from mpmd_trace.passes.request import PartitionRequest, Phases

PHASES: tuple[Phases, ...] = ("import", "optimize", "all")

#: Checks that end the reference's process; we take such programs (see docs/differences.md).
FATAL_CHECKS = re.compile("Callee should not have value chained through from arg to result directly")
#: A call that was moved into a callee, where nothing inlines it.
CALL_LEFT = re.compile(r"mpmd\.call @\w+\(\)")
#: An op left without results because only its effects count; the reference's scheduler crashes on it.
NO_RESULTS = re.compile(r"\} : \([^()]*\) -> \(\)$", re.M)


class Program(Protocol):
    """A module and what is asked for it."""

    @property
    def text(self) -> str: ...

    @property
    def request(self) -> PartitionRequest: ...


@dataclasses.dataclass
class Outcome:
    """The module after each phase that was reached, and why it went no further."""

    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str | None = None
    input_specs: list[IoSpec] = dataclasses.field(default_factory=list)
    output_specs: list[IoSpec] = dataclasses.field(default_factory=list)


@contextmanager
def names_of_the_reference(ends: list[int]) -> Iterator[None]:
    """Let `partition` share functions between fragments of different shardings, as the reference does.

    `ends` gets the number of passes up to the end of each phase.
    """
    module = importlib.import_module("mpmd_trace.passes.partition")
    original = module.passes_of

    def passes_of(*args: Any, **kwargs: Any) -> list[list[Pass]]:
        phases = [
            [
                dataclasses.replace(p, share_across_shardings=True) if isinstance(p, LowerToFragmentCalls) else p
                for p in passes
            ]
            for passes in original(*args, **kwargs)
        ]
        total = 0
        for passes in phases:
            total += len(passes)
            ends.append(total)
        ends[2:] = ends[3:]  # the last phase has two pipelines
        return phases

    with mock.patch.object(module, "passes_of", passes_of):
        yield


def ours(program: Program) -> Outcome:
    """What our partitioner makes of the program."""
    outcome, ends = Outcome(), list[int]()

    def snapshot(run: PassRun, module: Module) -> None:
        if run.index + 1 in ends:
            outcome.texts[PHASES[ends.index(run.index + 1)]] = str(module)

    with names_of_the_reference(ends):
        try:
            result = partition_as(program.text, program.request, hooks=[snapshot])
        except MpmdError as error:
            outcome.error = str(error)
        else:
            outcome.input_specs, outcome.output_specs = result.input_specs, result.output_specs
    return outcome


def difference(cpp: CppPartitioner, program: Program) -> str | None:
    """How the results differ, in words and lines; None when they are equal or both refuse the program."""
    theirs = cpp.partition(program.text, program.request, phases=PHASES, timeout=60)
    found = ours(program)
    for phase in PHASES:
        a, b = theirs.texts.get(phase), found.texts.get(phase)
        if a is None and b is None:
            return None
        if b is None:
            return f"only we refuse it in phase {phase}: {found.error}"
        if a is None:
            if theirs.stopped and _is_known_crash(theirs, program):
                return None
            return f"only the reference refuses it in phase {phase}: {theirs.error}"
        if a != b and a.startswith('"builtin.module"') and _splits_backwards(program):
            return None  # MLIR prints so what does not verify: a dead op lost what it reads
        if a != b and phase == "import" and CALL_LEFT.search(a):
            return None  # see docs/differences.md
        if a != b:
            lines = difflib.unified_diff(a.splitlines(), b.splitlines(), "C++", "Python", lineterm="", n=1)
            return f"different after phase {phase}:\n" + "\n".join(list(lines)[:60])
    return _specs(theirs, found)


def _is_known_crash(theirs: CppAnswer, program: Program) -> bool:
    """Whether docs/differences.md says that the reference cannot do this."""
    assert theirs.error is not None
    if FATAL_CHECKS.search(theirs.error):
        return True
    if "import" in theirs.texts:
        return NO_RESULTS.search(theirs.texts["import"]) is not None
    # Dead ops in a backward fragment that is split.
    return _splits_backwards(program)


def _splits_backwards(program: Program) -> bool:
    return program.request.options.mpmd_split_bwd_fragments


def _specs(theirs: CppAnswer, found: Outcome) -> str | None:
    if found.error or theirs.error:
        return f"after the last phase: we say {found.error}, the reference {theirs.error}"
    for name in ("input_specs", "output_specs"):
        a, b = getattr(theirs, name), getattr(found, name)
        if a != b:
            return f"different {name}: {a} and {b}"
    return None
