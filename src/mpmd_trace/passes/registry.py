"""Names of passes and pipelines, and where they are implemented (imported only when needed)."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Sequence
from typing import TypeVar

from mpmd_trace.diagnostics.messages import MpmdError, did_you_mean
from mpmd_trace.passes import pass_table
from mpmd_trace.passes.base import Pass, Pipeline
from mpmd_trace.passes.mlir_pass import MlirPass, is_upstream
from mpmd_trace.passes.parse_pipeline import convert, make_pass, parse_pipeline

P = TypeVar("P", bound=Pass)

#: Name of a pass -> `module:Class` below `mpmd_trace.passes`, or the class when it was registered.
PASSES: dict[str, str | type[Pass]] = {**pass_table.PASSES, **pass_table.VARIANTS}
#: The same for pipelines; a `Pipeline` is a dataclass of options with `passes()`.
PIPELINES: dict[str, str | type[Pass]] = dict(pass_table.PIPELINES)


def register(cls: type[P]) -> type[P]:
    """Make a pass or pipeline of your own known by its name, in textual pipelines and to `mpmd-trace opt`.

    A class decorator, above `@dataclasses.dataclass(frozen=True)` where the pass has options.  A class of the same
    file and name as one registered before takes its place.  Raises `MpmdError`.
    """
    what, name = cls.__qualname__, getattr(cls, "name", None)
    options = [field for field, kind in inspect.get_annotations(cls).items() if "ClassVar" not in str(kind)]
    if options and "__dataclass_fields__" not in cls.__dict__:
        raise MpmdError(
            f"{what} has options ({', '.join(options)}) and is not a dataclass itself: write "
            "@dataclasses.dataclass(frozen=True) above it"
        )
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        raise MpmdError(f'{what} needs a name of letters, digits, dashes and dots: name = "my-pass"')
    if not isinstance(getattr(cls, "summary", None), str):
        raise MpmdError(f'{what} needs a line that says what it does: summary = "..."')
    before = PASSES.get(name) or PIPELINES.get(name)
    again = isinstance(before, type) and (before.__module__, before.__qualname__) == (cls.__module__, what)
    if not again and (before is not None or is_upstream(name)):
        raise MpmdError(f"{what} cannot be called '{name}': there is a pass or pipeline of this name")
    (PIPELINES if issubclass(cls, Pipeline) else PASSES)[name] = cls
    return cls


def _load(where: str | type[Pass]) -> type[Pass]:
    if not isinstance(where, str):
        return where
    module, _, name = where.partition(":")
    result: type[Pass] = getattr(importlib.import_module(f"mpmd_trace.passes.{module}"), name)
    return result


def pass_class(name: str) -> type[Pass] | None:
    """Return the class of one of our passes, or None."""
    return _load(PASSES[name]) if name in PASSES else None


def pipeline_class(name: str) -> type[Pass] | None:
    """Return the class of one of our pipelines, or None."""
    return _load(PIPELINES[name]) if name in PIPELINES else None


def get_pass(name: str, options: dict[str, str | None] | None = None) -> list[Pass]:
    """Return the pass, or the passes of the pipeline, called `name`.

    Names that are not ours go to MLIR (`canonicalize`, `cse`, `sdy-*` ...).  Raises `MpmdError`.
    """
    pipeline = pipeline_class(name)
    if pipeline is not None:
        made = make_pass(pipeline, options or {})
        assert isinstance(made, Pipeline)
        return made.passes()
    cls = pass_class(name)
    if cls is not None:
        return [_with_old_options(cls, options or {})]
    if is_upstream(name):
        return [MlirPass.checked(name, options or {})]
    known = [*PASSES, *PIPELINES, "canonicalize", "cse", "symbol-dce", "inline"]
    raise MpmdError(f"there is no pass or pipeline '{name}'{did_you_mean(name, known)}")


def _with_old_options(cls: type[Pass], options: dict[str, str | None]) -> Pass:
    """Return the pass, or the one that does now what one of its options asked for in the last release."""
    for option, text in options.items():
        instead = pass_table.OLD_OPTIONS.get((cls.name, option))
        if instead is not None:
            others = {name: value for name, value in options.items() if name != option}
            warnings.warn(f"{cls.name}{{{option}}} is the pass {instead}", DeprecationWarning, stacklevel=2)
            if convert(text, bool, False, f"option {cls.name} {option}"):
                return make_pass(_load(PASSES[instead]), others)
            return make_pass(cls, others)
    return make_pass(cls, options)


def build(pipeline: str | Sequence[str | Pass]) -> list[Pass]:
    """Return passes from a textual pipeline, or from a list of specs and passes.  Raises `MpmdError`."""
    if isinstance(pipeline, str):
        return [p for name, opts in parse_pipeline(pipeline) for p in get_pass(name, opts)]
    passes: list[Pass] = []
    for item in pipeline:
        passes += [item] if isinstance(item, Pass) else build(item)
    return passes
