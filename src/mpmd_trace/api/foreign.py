"""Checkpoints that others wrote, onto the meshes of a program."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.api.foreign_files import OrbaxTree, equinox_leaves, flax_state, is_equinox
from mpmd_trace.api.safetensors_files import SafetensorsFiles, is_safetensors
from mpmd_trace.api.stored_as import Names, Rule, dotted, missing, resolved
from mpmd_trace.backend.stacked import Pieces, PiecesType
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.frontend.errors import warn
from mpmd_trace.jax_compat.layouts import elsewhere, put
from mpmd_trace.jax_compat.tracing import is_key, key_implementation

__all__ = ["restore_foreign"]


def restore_foreign(path: str, tree: Any, names: Names | None, *, cast: bool, on_host: bool) -> Any:
    """Return `tree` with the arrays of a checkpoint of others; see `restore`.

    on_host: whether arrays without a sharding are those of NumPy.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    wanted = {dotted(p): _data_type(x) for p, x in flat if is_dynamic(x) or type(x) in (int, float, complex)}
    source = _source(path, wanted, names)
    rules = _in_item(resolved(wanted, names), source)
    problems = [missing(n, source, path) for rule in rules.values() for n in rule.names if n not in source]
    if not problems:
        for name, rule in rules.items():
            if _is_here(wanted[name]):
                problems += rule.problems(source, wanted[name], cast=cast)
    if problems:
        raise MpmdError([Diagnostic("error", p) for p in dict.fromkeys(problems)])
    used = {n for rule in rules.values() for n in rule.names}
    if unused := [n for n in source if n not in used]:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        warn(f"{path} also has {', '.join(unused[:3])}{more}, which nothing here takes")
    arrays = source.read(rules, wanted) if isinstance(source, OrbaxTree) else source
    leaves = []
    for key_path, leaf in flat:
        name = dotted(key_path)
        if name not in wanted:
            leaves.append(leaf)
        elif not is_dynamic(leaf):
            leaves.append(type(leaf)(rules[name].read(arrays, (), ()).item()))
        else:
            leaves.append(_restored(leaf, wanted[name], rules[name], arrays, on_host=on_host))
    return jax.tree.unflatten(structure, leaves)


def _source(path: str, wanted: Mapping[str, Any], names: Names | None) -> Mapping[str, Any]:
    """Return what is stored, by name."""
    if is_safetensors(path):
        return SafetensorsFiles(path)
    if os.path.isdir(path):
        return OrbaxTree(path)
    if is_equinox(path):
        if names:
            raise MpmdError(f"{path} has the leaves of a model in their order and no names: leave out names=")
        return equinox_leaves(path, wanted)
    return flax_state(path)


def _in_item(rules: dict[str, Rule], source: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the rules with the names that are there: those of one item of several, and of variables of Flax."""
    items = source.item_names if isinstance(source, OrbaxTree) else ()
    for prefix in ("", *(f"{item}." for item in items)):
        result = {}
        for name, rule in rules.items():
            there = [known for n in rule.names if (known := _there(prefix + n, source)) is not None]
            if len(there) < len(rule.names):
                break
            result[name] = dataclasses.replace(rule, names=tuple(there))
        else:
            return result
    return rules


def _there(name: str, source: Mapping[str, Any]) -> str | None:
    """Return the name under which something is stored: variables of Flax are so with and without `.value`."""
    return next((n for n in (name, f"{name}.value", name.removesuffix(".value")) if n in source), None)


def _data_type(leaf: Any) -> Any:
    """Return what is stored for a leaf: of typed keys their data, of numbers arrays."""
    if not is_dynamic(leaf):
        return np.asarray(leaf)
    if is_key(leaf) and not isinstance(leaf, PiecesType | Pieces):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=getattr(leaf, "sharding", None))
    return leaf


def _is_here(spec: Any) -> bool:
    """Return whether any part of it is in this process."""
    parts = spec.parts if isinstance(spec, PiecesType | Pieces) else [spec]
    shardings = [getattr(part, "sharding", None) for part in parts]
    return any(one is None or one.addressable_devices for one in shardings)


def _restored(leaf: Any, spec: Any, rule: Rule, arrays: Mapping[str, Any], *, on_host: bool) -> Any:
    """Return the array for a leaf."""
    if isinstance(leaf, Pieces | PiecesType):
        parts = [
            _array(part, rule, arrays, leaf.shape, (leaf.axis, start), on_host=on_host)
            for start, part in zip(leaf.bounds, leaf.parts, strict=False)
        ]
        return Pieces(leaf.bounds, parts, leaf.axis)
    array = _array(spec, rule, arrays, spec.shape, (0, 0), on_host=on_host)
    return jax.random.wrap_key_data(array, impl=key_implementation(leaf)) if is_key(leaf) else array


def _array(
    spec: Any, rule: Rule, arrays: Mapping[str, Any], whole: Sequence[int], at: tuple[int, int], *, on_host: bool
) -> Any:
    """Return the array like `spec`, of which each process reads what is on its devices.

    It is a part of one of the shape `whole`: along the axis `at[0]`, from `at[1]`.
    """
    sharding = getattr(spec, "sharding", None)
    axis, start = at

    def read(index: Sequence[slice]) -> np.ndarray[Any, Any]:
        full = [slice(*one.indices(size)) for one, size in zip(index, spec.shape, strict=True)]
        if start:
            full[axis] = slice(full[axis].start + start, full[axis].stop + start)
        return np.asarray(rule.read(arrays, tuple(whole), tuple(full)), spec.dtype, order="C")

    def everything() -> np.ndarray[Any, Any]:
        return read([slice(None)] * len(spec.shape))

    if sharding is None:
        return everything() if on_host else jax.numpy.asarray(everything())
    like = jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
    if not sharding.addressable_devices:
        return elsewhere(like)
    if rule.is_plain and isinstance(arrays[rule.names[0]], jax.Array):  # orbax has placed it
        result = arrays[rule.names[0]]
    elif isinstance(sharding, SingleDeviceSharding):
        result = jax.device_put(everything(), sharding)
    else:
        result = jax.make_array_from_callback(tuple(spec.shape), sharding, read, dtype=spec.dtype)
    exact = spec if isinstance(spec, jax.ShapeDtypeStruct) else like
    return put(result, exact) if sharding.is_fully_addressable else result
