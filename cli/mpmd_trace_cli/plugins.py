"""Passes that are defined in a Python file of the user."""

from __future__ import annotations

import contextlib
import inspect
import sys

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, raise_errors
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.registry import register


def load_passes(path: str) -> list[str]:
    """Register the passes and pipelines that a Python file (or `package.module`) defines; gives their names.

    Raises `MpmdError` with every class that cannot be registered.
    """
    from mpmd_trace_cli.program import import_code  # late: most calls have no plugin, and it needs jax

    with contextlib.redirect_stdout(sys.stderr):
        module = import_code(path)
    classes = [
        candidate
        for candidate in vars(module).values()
        if isinstance(candidate, type) and issubclass(candidate, Pass) and candidate.__module__ == module.__name__
    ]
    names, problems = [], []
    for cls in classes:
        if not hasattr(cls, "name") and cls.__subclasses__():
            continue  # what passes of the file have in common
        try:
            names.append(register(cls).name)
        except MpmdError as error:
            place = Location(f'"{path}":{inspect.getsourcelines(cls)[1]}:1')
            problems.append(Diagnostic("error", error.diagnostics[0].message, place))
    raise_errors(problems)
    if not names:
        raise MpmdError(f"{path} defines no pass: a subclass of mpmd_trace.passes.base.Pass with a name")
    return names
