"""mpmd_trace: one single-device JAX program in, a pipeline over several device meshes out.

The names below, and those of the modules in `_MODULES`, are the public API; each is imported when it is first used, so
that tools that need no jax start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mpmd_trace.diagnostics.moved import moved

if TYPE_CHECKING:
    from mpmd_trace import checkpoint as checkpoint
    from mpmd_trace import compiler as compiler
    from mpmd_trace import config as config
    from mpmd_trace import equinox as equinox
    from mpmd_trace import errors as errors
    from mpmd_trace import gradients as gradients
    from mpmd_trace import linen as linen
    from mpmd_trace import nnx as nnx
    from mpmd_trace import rules as rules
    from mpmd_trace import schedules as schedules
    from mpmd_trace import scheduling as scheduling
    from mpmd_trace import stages as stages
    from mpmd_trace.api.checkpoints.restoring import restore as restore
    from mpmd_trace.api.checkpoints.saving import save as save
    from mpmd_trace.api.config import make_config as make_config
    from mpmd_trace.api.exit import shutdown as shutdown
    from mpmd_trace.api.filter_jit import filter_jit as filter_jit
    from mpmd_trace.api.jit import jit as jit
    from mpmd_trace.api.loading import load as load
    from mpmd_trace.api.placing import abstract as abstract
    from mpmd_trace.api.placing import create as create
    from mpmd_trace.api.placing import place as place
    from mpmd_trace.api.processes import fetch as fetch
    from mpmd_trace.api.processes import initialize as initialize
    from mpmd_trace.api.program import Program as Program
    from mpmd_trace.config import MeshOfInput as MeshOfInput
    from mpmd_trace.diagnostics.messages import MpmdError as MpmdError
    from mpmd_trace.diagnostics.messages import MpmdWarning as MpmdWarning
    from mpmd_trace.frontend.gradient_accumulation import pad_rows as pad_rows
    from mpmd_trace.frontend.gradient_accumulation import value_and_grad as value_and_grad
    from mpmd_trace.frontend.layer_scan import scan as scan
    from mpmd_trace.frontend.naming import broadcast as broadcast
    from mpmd_trace.frontend.naming import call as call
    from mpmd_trace.frontend.naming import enumerated_for as enumerated_for
    from mpmd_trace.frontend.naming import fori_loop as fori_loop
    from mpmd_trace.frontend.naming import named_computation as named_computation
    from mpmd_trace.frontend.naming import named_tensor as named_tensor
    from mpmd_trace.frontend.naming import reduce as reduce
    from mpmd_trace.frontend.scan_names import name_scans as name_scans

__version__ = "0.1.0"

#: The public names, by the modules that have them.
_NAMES = {
    "api.config": "make_config",
    "api.exit": "shutdown",
    "api.filter_jit": "filter_jit",
    "api.jit": "jit",
    "api.loading": "load",
    "api.placing": "abstract create place",
    "api.processes": "fetch initialize",
    "api.program": "Program",
    "api.checkpoints.restoring": "restore",
    "api.checkpoints.saving": "save",
    "config": "MeshOfInput",
    "diagnostics.messages": "MpmdError MpmdWarning",
    "frontend.gradient_accumulation": "pad_rows value_and_grad",
    "frontend.layer_scan": "scan",
    "frontend.naming": "broadcast call enumerated_for fori_loop named_computation named_tensor reduce",
    "frontend.scan_names": "name_scans",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = (
    *("checkpoint", "compiler", "config", "equinox", "errors", "gradients", "linen", "nnx", "rules", "schedules"),
    *("scheduling", "stages"),
)
#: Names that were here until the last release, with the modules that have them now.
_MOVED_TO = {
    "checkpoint": "StoredAs checkpoint_handler save_safetensors",
    "compiler": "Diagnostic Module parse partition run_module run_passes target_devices trace",
    "config": "Config",
    "errors": "InternalError PeerError",
    "gradients": "contrastive_value_and_grad encoded_value_and_grad",
    "rules": "FragmentInfo MergeRule ScheduleRule",
    "scheduling": "AutoSchedule Link Links",
    "stages": "Compiled Jitted Lowered Pieces",
}
_MOVED = {name: module for module, names in _MOVED_TO.items() for name in names.split()}

__all__ = ["__version__", *sorted(_WHERE), *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    elif name in _MOVED:
        return moved(__name__, f"{__name__}.{_MOVED[name]}", {name: name}, stacklevel=3)(name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
