"""The compiler by itself: from a function, or MLIR text, to a partitioned module, and running one.

What needs jax is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import after, run_passes
from mpmd_trace.passes.partition import partition

if TYPE_CHECKING:
    from mpmd_trace.api.targets import target_devices
    from mpmd_trace.backend.load import run_module
    from mpmd_trace.frontend.trace import trace

__all__ = ["Diagnostic", "Module", "after", "parse", "partition", "run_module", "run_passes", "target_devices", "trace"]

_LATER = {"run_module": "backend.load", "target_devices": "api.targets", "trace": "frontend.trace"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mpmd_trace.{_LATER[name]}"), name)
