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
from mpmd_trace.api.stored_as import Names, Rule, by_name, converted, dotted, missing, resolved
from mpmd_trace.backend.stacked import Pieces, PiecesType
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.frontend.errors import warn
from mpmd_trace.jax_compat.layouts import elsewhere, put
from mpmd_trace.jax_compat.tracing import is_key, key_implementation


def restore_foreign(path: str, tree: Any, names: Names | None, *, cast: bool, on_host: bool) -> Any:
    """Return `tree` with the arrays of a checkpoint of others; see `restore`.

    on_host: whether arrays without a sharding are those of NumPy.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    wanted = by_name((dotted(p), _data_type(x)) for p, x in flat if _is_restored(x))
    source = _source(path, tree, wanted, names)
    rules = _in_item(resolved(wanted, names), source)
    problems = [missing(n, source, path) for rule in rules.values() for n in rule.names if n not in source]
    if not problems:
        for name, rule in rules.items():
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
        if not _is_restored(leaf):
            leaves.append(leaf)
        elif not is_dynamic(leaf):
            leaves.append(type(leaf)(rules[name].read(arrays, (), ()).item()))
        else:
            stored = _Stored(name, rules[name], arrays, cast=cast, on_host=on_host)
            leaves.append(_restored(leaf, wanted[name], stored))
    return jax.tree.unflatten(structure, leaves)


def _is_restored(leaf: Any) -> bool:
    return is_dynamic(leaf) or type(leaf) in (int, float, complex)


def _source(path: str, tree: Any, wanted: Mapping[str, Any], names: Names | None) -> Mapping[str, Any]:
    """Return what is stored, by name."""
    if is_safetensors(path):
        return SafetensorsFiles(path)
    if os.path.isdir(path):
        return OrbaxTree(path, tree)
    if is_equinox(path):
        if names:
            raise MpmdError(f"{path} has the leaves of a model in their order and no names: leave out names=")
        leaves = [(dotted(p), x) for p, x in jax.tree_util.tree_leaves_with_path(tree)]
        return equinox_leaves(path, leaves, wanted)
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


@dataclasses.dataclass(frozen=True)
class _Stored:
    """A leaf in a checkpoint, which `read` gives in parts.

    Attributes:
        name: of the leaf.
        rule: how it is stored.
        arrays: what is stored, by name; may be views of files.
        cast: whether it may be converted at a loss.
        on_host: whether it is one of NumPy where there is no sharding.
    """

    name: str
    rule: Rule
    arrays: Mapping[str, Any]
    cast: bool
    on_host: bool

    def read(self, shape: tuple[int, ...], index: tuple[slice, ...], spec: Any) -> np.ndarray[Any, Any]:
        """Return a part in memory of its own: JAX would take over that of a file, which may change."""
        array = self.rule.read(self.arrays, shape, index)
        if not (shape or self.cast):
            array = converted(array, spec.dtype, self.name)
        is_elsewhere = (sharding := getattr(spec, "sharding", None)) and all(
            device.platform != "cpu" for device in sharding.addressable_devices
        )
        return np.require(array, spec.dtype, ["C"] if is_elsewhere else ["C", "O"])


def _restored(leaf: Any, spec: Any, stored: _Stored) -> Any:
    """Return the array for a leaf."""
    if isinstance(leaf, Pieces | PiecesType):
        parts = [
            _array(part, stored, leaf.shape, (leaf.axis, start))
            for start, part in zip(leaf.bounds, leaf.parts, strict=False)
        ]
        return Pieces(leaf.bounds, parts, leaf.axis)
    array = _array(spec, stored, spec.shape, (0, 0))
    return jax.random.wrap_key_data(array, impl=key_implementation(leaf)) if is_key(leaf) else array


def _array(spec: Any, stored: _Stored, whole: Sequence[int], at: tuple[int, int]) -> Any:
    """Return the array like `spec`, of which each process reads what is on its devices.

    It is a part of one of the shape `whole`: along the axis `at[0]`, from `at[1]`.
    """
    sharding = getattr(spec, "sharding", None)
    axis, start = at
    rule, arrays = stored.rule, stored.arrays

    def read(index: Sequence[slice]) -> np.ndarray[Any, Any]:
        full = [slice(*one.indices(size)) for one, size in zip(index, spec.shape, strict=True)]
        if start:
            full[axis] = slice(full[axis].start + start, full[axis].stop + start)
        return stored.read(tuple(whole), tuple(full), spec)

    def everything() -> np.ndarray[Any, Any]:
        return read([slice(None)] * len(spec.shape))

    if sharding is None:
        return everything() if stored.on_host else jax.numpy.asarray(everything())
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
