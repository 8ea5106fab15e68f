"""mpmd_trace: one single-device JAX program in, a pipeline over several device meshes out.

The names below are the public API; each is imported when it is first used, so that tools that need no jax
start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import equinox as equinox
    from . import schedules as schedules
    from .api import Compiled as Compiled
    from .api import Jitted as Jitted
    from .api import Lowered as Lowered
    from .api import jit as jit
    from .api_ops import broadcast as broadcast
    from .api_ops import call as call
    from .api_ops import enumerated_for as enumerated_for
    from .api_ops import fori_loop as fori_loop
    from .api_ops import named_computation as named_computation
    from .api_ops import named_tensor as named_tensor
    from .api_ops import reduce as reduce
    from .auto_schedule import AutoSchedule as AutoSchedule
    from .backend.load import run_module as run_module
    from .config import Config as Config
    from .config import MeshOfInput as MeshOfInput
    from .config import make_config as make_config
    from .frontend.trace import trace as trace
    from .ir.diagnostics import Diagnostic as Diagnostic
    from .ir.diagnostics import MpmdError as MpmdError
    from .ir.ops import Module as Module
    from .partitioning import partition as partition
    from .passes.manager import run_passes as run_passes
    from .program import Program as Program
    from .text import parse as parse
    from .transfers import Link as Link
    from .transfers import Links as Links

__version__ = "0.1.0"

_WHERE = {
    "AutoSchedule": "auto_schedule",
    "Compiled": "api",
    "Config": "config",
    "Diagnostic": "ir.diagnostics",
    "Jitted": "api",
    "Link": "transfers",
    "Links": "transfers",
    "Lowered": "api",
    "MeshOfInput": "config",
    "Module": "ir.ops",
    "MpmdError": "ir.diagnostics",
    "Program": "program",
    "broadcast": "api_ops",
    "call": "api_ops",
    "enumerated_for": "api_ops",
    "fori_loop": "api_ops",
    "jit": "api",
    "make_config": "config",
    "named_computation": "api_ops",
    "named_tensor": "api_ops",
    "parse": "text",
    "partition": "partitioning",
    "reduce": "api_ops",
    "run_module": "backend.load",
    "run_passes": "passes.manager",
    "trace": "frontend.trace",
}
_MODULES = ("equinox", "schedules")

__all__ = ["__version__", *sorted(_WHERE), *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
