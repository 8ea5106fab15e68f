"""Names of passes and pipelines, and where they are implemented (imported only when needed)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ..ir.diagnostics import MpmdError
from .base import Pass, Pipeline
from .options import make_pass, nearest, parse_pipeline

__all__ = ["PASSES", "PIPELINES", "build", "fill", "get_pass", "pass_class", "pipeline_class"]

#: Name of a pass -> `module:Class` below `mpmd_trace.passes`.
PASSES: dict[str, str] = {}
#: Name of a pipeline -> `module:Class`; a `Pipeline` is a dataclass of options with `passes()`.
PIPELINES: dict[str, str] = {}


def fill() -> None:
    """Make `PASSES` and `PIPELINES` complete; no pass is imported."""
    if PASSES:
        return
    from . import tables

    for table in tables.PASS_TABLES:
        PASSES.update(table)
    PIPELINES.update(tables.PIPELINES)


def _load(where: str) -> type[Pass]:
    module, _, name = where.partition(":")
    found: type[Pass] = getattr(importlib.import_module(f"mpmd_trace.passes.{module}"), name)
    return found


def pass_class(name: str) -> type[Pass] | None:
    """The class of one of our passes, or None."""
    fill()
    return _load(PASSES[name]) if name in PASSES else None


def pipeline_class(name: str) -> type[Pass] | None:
    """The class of one of our pipelines, or None."""
    fill()
    return _load(PIPELINES[name]) if name in PIPELINES else None


def get_pass(name: str, options: dict[str, str | None] | None = None) -> list[Pass]:
    """The pass, or the passes of the pipeline, called `name`.

    Names that are not ours go to MLIR (`canonicalize`, `cse`, `sdy-*` ...).  Raises `MpmdError`.
    """
    from .mlir_pass import MlirPass, is_upstream

    pipeline = pipeline_class(name)
    if pipeline is not None:
        made = make_pass(pipeline, options or {})
        assert isinstance(made, Pipeline)
        return made.passes()
    cls = pass_class(name)
    if cls is not None:
        return [make_pass(cls, options or {})]
    if is_upstream(name):
        return [MlirPass.checked(name, options or {})]
    known = [*PASSES, *PIPELINES, "canonicalize", "cse", "symbol-dce", "inline"]
    raise MpmdError(f"there is no pass or pipeline '{name}'{nearest(name, known)}")


def build(pipeline: str | Sequence[str | Pass]) -> list[Pass]:
    """Passes from a textual pipeline, or from a list of specs and passes.  Raises `MpmdError`."""
    if isinstance(pipeline, str):
        return [p for name, opts in parse_pipeline(pipeline) for p in get_pass(name, opts)]
    passes: list[Pass] = []
    for item in pipeline:
        passes += [item] if isinstance(item, Pass) else build(item)
    return passes
