"""Runs passes, with one hook between them: verify, snapshot, time, diff."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from ..ir.collector import paused_collector
from ..ir.diagnostics import Diagnostics, MpmdError, PassFailed
from ..ir.ops import Module
from .base import Pass
from .registry import build

__all__ = ["PassManager", "PassRun", "run_passes"]


@dataclasses.dataclass(frozen=True)
class PassRun:
    """What happened when one pass ran: its spec, whether it changed the module, and its CPU time in seconds."""

    index: int
    spec: str
    changed: bool
    seconds: float


#: Called after each pass with the record and the module as it is then.
Hook = Callable[[PassRun, Module], None]


class PassManager:
    """A list of passes and the hooks that see every step.

    `run` works on the module in place.  It raises `MpmdError` with all diagnostics collected so far when a
    pass fails; `error_is_failure` makes an error diagnostic of a pass that did not fail raise at the end.
    """

    def __init__(
        self,
        pipeline: str | Sequence[str | Pass],
        hooks: Sequence[Hook] = (),
        *,
        error_is_failure: bool = True,
        first_index: int = 0,
    ) -> None:
        self.passes = build(pipeline)
        self.hooks = list(hooks)
        self.error_is_failure = error_is_failure
        self.first_index = first_index
        self.runs: list[PassRun] = []
        self.diagnostics = Diagnostics()

    def run(self, module: Module) -> list[PassRun]:
        """Run all passes; returns their records."""
        with paused_collector():
            return self._run(module)

    def _run(self, module: Module) -> list[PassRun]:
        for one in self.passes:
            started = time.process_time()
            try:
                changed = one.run(module, self.diagnostics)
            except PassFailed:
                self.diagnostics.fail()
                changed = True
            except MpmdError as error:
                self.diagnostics.found += error.diagnostics
                self.diagnostics.fail()
                changed = True
            record = PassRun(self.first_index + len(self.runs), one.spec, changed, time.process_time() - started)
            self.runs.append(record)
            if self.diagnostics.failed:
                if not self.diagnostics.errors:
                    self.diagnostics.error(None, f"{one.name} failed without saying why")
                raise MpmdError(list(self.diagnostics), pass_name=one.name)
            for hook in self.hooks:
                hook(record, module)
        if self.error_is_failure and self.diagnostics.errors:
            raise MpmdError(list(self.diagnostics))
        return self.runs


def run_passes(module: Module, pipeline: str | Sequence[str | Pass], hooks: Sequence[Hook] = ()) -> Module:
    """Run a pipeline on the module in place and return it.  Raises `MpmdError`."""
    PassManager(pipeline, hooks).run(module)
    return module
