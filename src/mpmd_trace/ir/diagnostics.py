"""Diagnostics of passes, collected and reported together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, Note, Severity
from mpmd_trace.ir.attributes import dict_text
from mpmd_trace.ir.core import Op, Value


class PassFailed(Exception):
    """Raised inside a pass to stop it; the diagnostics have been emitted already."""


class Diagnostics:
    """Collects what passes report.

    `error`, `warning` and `remark` record a message and return.  A pass that fails calls `fail`, or `refuse` with an
    error (and may go on), or raises `PassFailed`; `fatal` records an error and raises.  As in MLIR, an error by itself
    does not make a pass fail.
    """

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self.failed = False
        self._said: set[str] = set()

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self.found)

    @property
    def errors(self) -> list[Diagnostic]:
        return [d for d in self.found if d.severity == "error"]

    def emit(
        self, severity: Severity, where: Op | Value | Location | None, message: str, notes: Sequence[Note] = ()
    ) -> None:
        text = describe(where) if isinstance(where, Op) else None
        location = where.loc if isinstance(where, Op) else where.location if isinstance(where, Value) else where
        self.found.append(Diagnostic(severity, message, location or UNKNOWN, tuple(notes), text))

    def error(self, where: Op | Value | Location | None, message: str, notes: Sequence[Note] = ()) -> None:
        self.emit("error", where, message, notes)

    def warning(self, where: Op | Value | Location | None, message: str, notes: Sequence[Note] = ()) -> None:
        self.emit("warning", where, message, notes)

    def warn_once(self, kind: str, where: Op | Value | Location | None, message: str) -> None:
        """Warn unless a warning of this kind has been recorded here before, for whatever op."""
        if kind not in self._said:
            self._said.add(kind)
            self.warning(where, message)

    def remark(self, where: Op | Value | Location | None, message: str, notes: Sequence[Note] = ()) -> None:
        self.emit("remark", where, message, notes)

    def fail(self) -> None:
        """Note that the running pass has failed; later passes do not run."""
        self.failed = True

    def refuse(self, where: Op | Value | Location | None, message: str, notes: Sequence[Note] = ()) -> None:
        """Record an error for which the running pass has failed; it may go on, and find more."""
        self.error(where, message, notes)
        self.fail()

    def fatal(self, where: Op | Value | Location | None, message: str, notes: Sequence[Note] = ()) -> PassFailed:
        """Record an error and give the exception to raise: `raise diagnostics.fatal(op, "...")`."""
        self.refuse(where, message, notes)
        return PassFailed(message)


def error_at(op: Op, message: str, *notes: Note) -> MpmdError:
    """Return the exception for what is wrong with the op, to raise where no diagnostics are at hand."""
    return MpmdError([Diagnostic("error", message, op.loc, notes, describe(op))])


def describe(op: Op) -> str:
    """Return a short text of the op: generic form without the insides of its regions."""
    operands = ", ".join(v.type.text for v in op.operands)
    results = ", ".join(r.type.text for r in op.results)
    merged = {**op.props, **op.attrs}
    merged.pop("arg_attrs", None)
    merged.pop("res_attrs", None)
    text = f'"{op.name}" {{{dict_text(merged)}}} : ({operands}) -> ({results})'
    return text if len(text) <= 400 else text[:397] + "..."
