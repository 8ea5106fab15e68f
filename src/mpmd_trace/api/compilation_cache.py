"""Programs that need not be compiled again: those in files, and those in JAX's persistent compilation cache."""

from __future__ import annotations

import importlib
import io
import logging
import os
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from mpmd_trace.backend.serialization import Stored, deserialize, serialize, versions
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.arg_shardings import Spec
from mpmd_trace.frontend.program_key import Unknown, key_of, sources
from mpmd_trace.frontend.traced import Traced
from mpmd_trace.jax_compat import cache
from mpmd_trace.jax_compat.tracing import trace_settings

_LOG = logging.getLogger("mpmd_trace")
#: Fields of a traced program that are written to files.
_KEPT = (
    *("in_tree", "out_tree", "stacks", "inputs", "outputs", "donated"),
    *("out_memories", "returned", "platform", "name"),
)
#: Fields of a configuration that count in another form, or not at all.
_APART = ("where", "input_mesh_assignment", "output_mesh_assignment")


def signature(traced: Traced, adapter: Any) -> bytes:
    """Return what Python needs to call a program.  Raises `MpmdError` for what cannot be written to a file."""
    return _dumps(
        {
            **{name: getattr(traced, name) for name in _KEPT},
            "constants": [np.asarray(c) for c in traced.constants],
            "in_shardings": [_without_mesh(s) for s in traced.in_shardings],
            "out_shardings": [_without_mesh(s) for s in traced.out_shardings],
            "adapter": adapter,
        }
    )


def _without_mesh(spec: Spec | None) -> Spec | None:
    return None if spec is None else spec._replace(mesh=None)


def key_of_program(traced: Traced, config: Config, *more: Any) -> str | None:
    """Return the key of a traced program, its configuration and other options; None when it may not be kept.

    It can be made before the program is rewritten.  None where no persistent cache is in use, and for programs with
    parts that have no value of their own, such as rules and comparators of the user's.
    """
    if config.is_abstract or jax.process_count() > 1:
        return None
    device = next(iter(config.topology.values())).devices.flat[0]
    if not cache.is_used(device.client):
        return None
    fields = {f: getattr(config, f) for f in config.__dataclass_fields__ if f not in _APART}
    try:
        return key_of(
            traced.jaxpr,
            fields,
            config.input_meshes(traced.in_tree),
            config.output_meshes(traced.out_tree),
            config.same_mesh(traced),
            (traced.inputs, traced.outputs, traced.donated, traced.in_shardings, traced.out_shardings),
            None if traced.stacks is None else (traced.stacks.inputs, traced.stacks.outputs),
            (traced.out_memories, traced.returned, traced.platform, traced.name),
            re.sub(r" at 0x[0-9a-f]+", "", str(trace_settings())),
            versions(device),
            sources(),
            [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
            more,
        )
    except Unknown as error:
        _LOG.debug("%s is not kept in the compilation cache: %s", traced.name, error)
        return None


def find(key: str | None, config: Config) -> Stored | None:
    """Return the program of a key from the persistent cache, or None."""
    if key is None:
        return None
    device = next(iter(config.topology.values())).devices.flat[0]
    data = cache.get(f"mpmd_trace-{key}", device.client)
    if data is None:
        return None
    try:
        return deserialize(data, "the entry of the compilation cache")[0]
    except Exception as error:  # whatever it is, the program can be made again
        reason = error.diagnostics[0].message if isinstance(error, MpmdError) else f"{type(error).__name__}: {error}"
        _LOG.warning("%s; it is made again", reason)
        cache.drop(f"mpmd_trace-{key}")
        return None


def keep(key: str, stored: Stored, config: Config, seconds: float) -> None:
    """Put a program that took so long to compile into the persistent cache, as JAX's settings say."""
    if None in stored.numbers:
        return
    device = next(iter(config.topology.values())).devices.flat[0]
    cache.put(f"mpmd_trace-{key}", serialize(stored), seconds, device.client)


# The structure of arguments and results: pytrees whose static leaves may be functions of a library.


class _Pickler(pickle.Pickler):
    """Functions by name, also those that a decorator of their module has wrapped (`jax.nn.relu`)."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, jax.tree_util.PyTreeDef):
            # By a value: nodes may have sentinels in their structure that a pickle would copy.
            return jax.tree.structure, (jax.tree.unflatten(obj, range(obj.num_leaves)),)
        module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
        if isinstance(obj, type) or not callable(obj) or not isinstance(module, str) or not isinstance(name, str):
            return NotImplemented
        for depth, layer in enumerate(_layers(module, name)):
            if layer is obj:
                return (_layer, (module, name, depth)) if depth else name
        return NotImplemented


def _layers(module: str, name: str) -> Iterator[Any]:
    """Yield what a module has under a name, and what that wraps, outermost first."""
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError):
        return
    while target is not None:
        yield target
        target = getattr(target, "__wrapped__", None)


def _layer(module: str, name: str, depth: int) -> Any:
    return list(_layers(module, name))[depth]


def _dumps(value: Any) -> bytes:
    """Return `value` as bytes.  Raises `MpmdError` for what cannot be found again by its name."""
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise MpmdError(
            f"the structure of arguments or results cannot be written to a file: {error}. Static parts of them must "
            "be plain values, or functions and classes that a module has under their names (no lambdas)"
        ) from None
    return file.getvalue()


loads: Callable[[bytes], Any] = pickle.loads
