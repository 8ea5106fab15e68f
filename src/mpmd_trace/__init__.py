"""mpmd_trace: one single-device JAX program in, a pipeline over several device meshes out.

The names below are the public API; each is imported when it is first used, so that tools that need no jax
start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpmd_trace import equinox as equinox
    from mpmd_trace import linen as linen
    from mpmd_trace import nnx as nnx
    from mpmd_trace import rules as rules
    from mpmd_trace import schedules as schedules
    from mpmd_trace.api.checkpoints import checkpoint_handler as checkpoint_handler
    from mpmd_trace.api.compiled import Compiled as Compiled
    from mpmd_trace.api.config import make_config as make_config
    from mpmd_trace.api.exit import shutdown as shutdown
    from mpmd_trace.api.filter_jit import filter_jit as filter_jit
    from mpmd_trace.api.jit import Jitted as Jitted
    from mpmd_trace.api.jit import jit as jit
    from mpmd_trace.api.loading import load as load
    from mpmd_trace.api.lowered import Lowered as Lowered
    from mpmd_trace.api.placing import abstract as abstract
    from mpmd_trace.api.placing import create as create
    from mpmd_trace.api.placing import place as place
    from mpmd_trace.api.processes import fetch as fetch
    from mpmd_trace.api.processes import initialize as initialize
    from mpmd_trace.api.program import Program as Program
    from mpmd_trace.api.safetensors import save_safetensors as save_safetensors
    from mpmd_trace.api.saving import restore as restore
    from mpmd_trace.api.saving import save as save
    from mpmd_trace.api.stored_as import StoredAs as StoredAs
    from mpmd_trace.api.targets import target_devices as target_devices
    from mpmd_trace.backend.distribution.faults import PeerError as PeerError
    from mpmd_trace.backend.load import run_module as run_module
    from mpmd_trace.backend.stacked import Pieces as Pieces
    from mpmd_trace.config import Config as Config
    from mpmd_trace.config import MeshOfInput as MeshOfInput
    from mpmd_trace.diagnostics.internal import InternalError as InternalError
    from mpmd_trace.diagnostics.messages import Diagnostic as Diagnostic
    from mpmd_trace.diagnostics.messages import MpmdError as MpmdError
    from mpmd_trace.diagnostics.messages import MpmdWarning as MpmdWarning
    from mpmd_trace.frontend.contrastive import contrastive_value_and_grad as contrastive_value_and_grad
    from mpmd_trace.frontend.encoders import encoded_value_and_grad as encoded_value_and_grad
    from mpmd_trace.frontend.gradients import value_and_grad as value_and_grad
    from mpmd_trace.frontend.layers import scan as scan
    from mpmd_trace.frontend.naming import broadcast as broadcast
    from mpmd_trace.frontend.naming import call as call
    from mpmd_trace.frontend.naming import enumerated_for as enumerated_for
    from mpmd_trace.frontend.naming import fori_loop as fori_loop
    from mpmd_trace.frontend.naming import named_computation as named_computation
    from mpmd_trace.frontend.naming import named_tensor as named_tensor
    from mpmd_trace.frontend.naming import reduce as reduce
    from mpmd_trace.frontend.padding import pad_rows as pad_rows
    from mpmd_trace.frontend.scan_names import name_scans as name_scans
    from mpmd_trace.frontend.trace import trace as trace
    from mpmd_trace.ir.ops import Module as Module
    from mpmd_trace.ir.text import parse as parse
    from mpmd_trace.passes.fragment_rules import FragmentInfo as FragmentInfo
    from mpmd_trace.passes.fragment_rules import MergeRule as MergeRule
    from mpmd_trace.passes.fragment_rules import ScheduleRule as ScheduleRule
    from mpmd_trace.passes.manager import run_passes as run_passes
    from mpmd_trace.passes.partition import partition as partition
    from mpmd_trace.scheduling.auto import AutoSchedule as AutoSchedule
    from mpmd_trace.scheduling.transfers import Link as Link
    from mpmd_trace.scheduling.transfers import Links as Links

__version__ = "0.1.0"

_WHERE = {
    "AutoSchedule": "scheduling.auto",
    "Compiled": "api.compiled",
    "Config": "config",
    "Diagnostic": "diagnostics.messages",
    "FragmentInfo": "passes.fragment_rules",
    "InternalError": "diagnostics.internal",
    "Jitted": "api.jit",
    "Link": "scheduling.transfers",
    "Links": "scheduling.transfers",
    "Lowered": "api.lowered",
    "MergeRule": "passes.fragment_rules",
    "MeshOfInput": "config",
    "Module": "ir.ops",
    "MpmdError": "diagnostics.messages",
    "MpmdWarning": "diagnostics.messages",
    "PeerError": "backend.distribution.faults",
    "Pieces": "backend.stacked",
    "Program": "api.program",
    "ScheduleRule": "passes.fragment_rules",
    "StoredAs": "api.stored_as",
    "abstract": "api.placing",
    "broadcast": "frontend.naming",
    "call": "frontend.naming",
    "checkpoint_handler": "api.checkpoints",
    "contrastive_value_and_grad": "frontend.contrastive",
    "encoded_value_and_grad": "frontend.encoders",
    "create": "api.placing",
    "enumerated_for": "frontend.naming",
    "fetch": "api.processes",
    "filter_jit": "api.filter_jit",
    "fori_loop": "frontend.naming",
    "initialize": "api.processes",
    "jit": "api.jit",
    "load": "api.loading",
    "make_config": "api.config",
    "name_scans": "frontend.scan_names",
    "named_computation": "frontend.naming",
    "named_tensor": "frontend.naming",
    "pad_rows": "frontend.padding",
    "parse": "ir.text",
    "partition": "passes.partition",
    "place": "api.placing",
    "reduce": "frontend.naming",
    "restore": "api.saving",
    "run_module": "backend.load",
    "run_passes": "passes.manager",
    "save": "api.saving",
    "save_safetensors": "api.safetensors",
    "scan": "frontend.layers",
    "shutdown": "api.exit",
    "target_devices": "api.targets",
    "trace": "frontend.trace",
    "value_and_grad": "frontend.gradients",
}
_MODULES = ("equinox", "linen", "nnx", "rules", "schedules")

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
