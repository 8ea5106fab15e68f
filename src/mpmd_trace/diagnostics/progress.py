"""Reports while a program is compiled: log lines with times, and a bar in a terminal.

The logger is `logging.getLogger("mpmd_trace")`.  As JAX does with `jax_log_compiles`, callers may ask for lines that
are logged without any setting of the logger.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOG = logging.getLogger("mpmd_trace")
#: Seconds after which a bar appears in a terminal.
BAR_AFTER = 1.0
#: Seconds after which a script without a terminal tells for the first time how far it is; then each time twice as many.
TOLD_AFTER = 30.0


class Compiling:
    """The progress of one program; a thread of its own shows it while it takes long."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.what = "trace"
        self.done, self.total, self.program = 0, 0, ""
        self._over = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._show, name="mpmd-progress", daemon=True)
        self._thread.start()

    def count(self, done: int, total: int, program: str) -> None:
        """So many programs of all are compiled, the last one this."""
        self.done, self.total, self.program = done, total, program

    def __str__(self) -> str:
        of = f" {self.done} of {self.total} programs" if self.total else ""
        return f"compiling {self.name}: {self.what}{of}, {time.monotonic() - self._started:.0f} s"

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if _has_bar() and not self._over.wait(BAR_AFTER):
            self._bar()
        wait = TOLD_AFTER
        while not self._over.wait(max(0.0, self._started + wait - time.monotonic())):
            LOG.warning("%s", self)
            wait *= 2

    def _bar(self) -> None:
        from rich.console import Console  # late: only for what takes long in a terminal, and where it is installed
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("compiling {task.fields[name]}: {task.description:6}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[program]}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(self.what, total=None, name=self.name, count="", program="")
            while not self._over.wait(0.1):
                shown.update(
                    task,
                    description=self.what,
                    completed=self.done,
                    total=self.total or None,
                    count=f"{self.done}/{self.total}" if self.total else "",
                    program=self.program[:40],
                )


def _has_bar() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


_CURRENT: ContextVar[Compiling | None] = ContextVar("mpmd_trace_compiling", default=None)
_SILENT: ContextVar[bool] = ContextVar("mpmd_trace_without_bar", default=False)


@contextmanager
def without_bar() -> Iterator[None]:
    """Nothing is shown inside: for tools with a bar of their own.  Log lines are written all the same."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


@contextmanager
def compiling(name: str) -> Iterator[Compiling | None]:
    """Show how far the program `name` is; None where nothing is to be shown.  Nests."""
    if _SILENT.get() or _CURRENT.get() is not None:
        yield _CURRENT.get()
        return
    shown = Compiling(name)
    token = _CURRENT.set(shown)
    try:
        yield shown
    finally:
        _CURRENT.reset(token)
        shown.end()


@contextmanager
def stage(what: str, name: str, loud: bool = False) -> Iterator[Compiling | None]:
    """Run a stage of compiling `name` ("trace", "passes", "XLA", "load"); log how long it took, when it succeeds.

    The line is of level INFO; a `loud` one of level WARNING.
    """
    started = time.monotonic()
    with compiling(name) as shown:
        if shown is not None:
            shown.what = what
            shown.count(0, 0, "")
        yield shown
    LOG.log(logging.WARNING if loud else logging.INFO, "%s of %s: %.2f s", what, name, time.monotonic() - started)
