"""Reading checkpoints, those of `save` and those of others, onto the meshes of a program."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from mpmd_trace.api.checkpoints.entries import NUMBER, Parts
from mpmd_trace.api.checkpoints.folders import check, complete, has_checksums, unmixed
from mpmd_trace.api.checkpoints.formats import OrbaxTree, equinox_leaves, flax_state, folders, in_dots, is_equinox
from mpmd_trace.api.checkpoints.safetensors_format import SafetensorsFiles, is_safetensors
from mpmd_trace.api.checkpoints.stored_as import Names, Rule, by_name, converted, dotted, missing, resolved
from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.api.placing import abstract
from mpmd_trace.backend.stacked import Pieces, PiecesType
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError, listed, raise_errors
from mpmd_trace.frontend.errors import warn
from mpmd_trace.jax_compat.layouts import elsewhere, put
from mpmd_trace.jax_compat.tracing import is_key, key_implementation


@explains_internal_errors
def restore(
    path: str | os.PathLike[str],
    like: Any,
    argnums: int | Sequence[int] = 0,
    *,
    verify: bool = True,
    names: Names | None = None,
    cast: bool = False,
) -> Any:
    """Read a checkpoint, and put each array where `like` says.

    Args:
        path: a folder that `save` wrote, or a checkpoint of another library: a tree of orbax; a step of its
            `CheckpointManager`, or the folder of all steps, of which the last is read; a file or folder of safetensors;
            a file of `eqx.tree_serialise_leaves` or of `flax.serialization.to_bytes`.
        like: a compiled program, to read its arguments at `argnums`.  Or a pytree of the saved structure, with arrays
            or `jax.ShapeDtypeStruct`s that have the shardings of the result.  An array of NumPy there is one in the
            result.  Other leaves are kept as they are, except numbers, which are read.  A saved number may be an array
            in `like`.
        argnums: the arguments of a compiled program to read: a position gives one argument, a sequence of positions
            (also of a single one) gives a tuple.
        verify: whether to read all files first and verify the checksums that `save` has written.
        names: what arrays are called there, where it is not the same: for patterns (regular expressions) of names
            here, such as `layers.0.weight`, a name there or `StoredAs`.
        cast: whether arrays may be stored in other dtypes, and are converted.

    Raises:
        MpmdError: when orbax or the folder is missing, something in it is damaged, or the arrays have other names,
            shapes or dtypes.
    """
    place = os.path.realpath(path)
    return unmixed(place, lambda: _read(complete(place), like, argnums, verify, names, cast))


def _read(path: str, like: Any, argnums: int | Sequence[int], verify: bool, names: Names | None, cast: bool) -> Any:
    """Return what `restore` does, from the folder or file where it is complete."""
    if not os.path.exists(path):
        raise MpmdError(f"there is no folder {path} to restore from")
    if verify and os.path.isdir(path):
        _verify(path)
    is_program = isinstance(like, Compiled)
    tree = abstract(like, argnums) if is_program else like
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    # What `save` wrote is called by its path, and all of it is wanted.
    is_own = not (names or cast or is_safetensors(path)) and has_checksums(path)
    named = [(jax.tree_util.keystr(p) if is_own else dotted(p), x) for p, x in flat]
    numbers = {name for name, x in named if type(x) in (int, float, complex)}
    wanted = by_name((name, _data_type(x)) for name, x in named if is_dynamic(x) or name in numbers)
    source = _source(path, flat, wanted, names, is_own=is_own)
    saved_numbers = source.numbers if isinstance(source, OrbaxTree) else set()
    if is_own:  # numbers stay that are part of a program, or not there
        kept = {n for n in numbers if is_program or n not in source or source[n].shape}
        wanted = {name: spec for name, spec in wanted.items() if name not in kept}
        rules = resolved(wanted, None)
    else:
        rules = _in_item(resolved(wanted, names), source)
    used = dict.fromkeys(n for rule in rules.values() for n in rule.names)
    unused = [n for n in source if n not in used and not (is_own and n in saved_numbers)]
    dots = functools.partial(in_dots, known={jax.tree_util.keystr(p): dotted(p) for p, _ in flat})
    shown = dots if is_own else str
    problems = missing([*map(shown, used)], map(shown, source), path, named=bool(names))
    also = f"{path} also has {listed([*map(shown, unused)], 3)}, which nothing here takes"
    if is_own and unused and not problems:
        problems.append(rf'{also}; restore(..., names={{r"(.*)": r"\1"}}) leaves it there')
    for name, rule in rules.items():
        # Of numbers the value counts, when it is read.
        is_number = not wanted[name].shape and (rule.names[0] in saved_numbers or (is_own and name in numbers))
        if not is_number:
            problems += _mismatches(rule, source, wanted[name], shown, cast=cast)
    raise_errors(dict.fromkeys(problems))
    if unused and not is_own:
        warn(also)
    arrays = source
    if isinstance(source, OrbaxTree):
        types = {name for name, leaf in named if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is None}
        arrays = source.read(rules, wanted, types if is_own and not is_program else ())

    def restored(name: str, leaf: Any) -> Any:
        if name not in wanted:
            return leaf
        on_host = is_program or isinstance(leaf, np.ndarray | np.generic)
        stored = _Stored(name, rules[name], arrays, cast=cast, on_host=on_host)
        if name not in numbers:
            return _restored(leaf, wanted[name], stored, wanted[name].shape)
        if is_own and name not in saved_numbers:  # a count that was an array when it was saved
            return jax.numpy.asarray(rules[name].read(arrays, (), ()))
        return type(leaf)(stored.read((), (), wanted[name]).item())

    return jax.tree.unflatten(structure, [restored(name, leaf) for name, leaf in named])


def _verify(path: str) -> None:
    """Raise `MpmdError` if a file of a checkpoint is damaged, as far as it has checksums."""
    check(path)
    if not (has_checksums(path) or is_safetensors(path)):
        for folder in folders(path).values():  # of the last step
            check(folder)


def _mismatches(
    rule: Rule, source: Mapping[str, Any], spec: Any, shown: Callable[[str], str], *, cast: bool
) -> Sequence[str]:
    """Return what is wrong with the shapes and dtypes of what is stored for an array; nothing if it is not there."""
    if not all(n in source for n in rule.names):
        return []
    # All processes find the same, but where each may have the files of what it reads alone.
    looked_at = rule.names if isinstance(source, OrbaxTree) else rule.names_here(spec)
    return rule.problems(source, looked_at, spec, shown, cast=cast)


def _source(path: str, flat: Any, wanted: Mapping[str, Any], names: Names | None, *, is_own: bool) -> Mapping[str, Any]:
    """Return what is stored, by name."""
    if is_own:
        return OrbaxTree(path, lambda name: name.removeprefix(NUMBER))
    if is_safetensors(path):
        return SafetensorsFiles(path)
    if os.path.isdir(path):
        known = {jax.tree_util.keystr(p): dotted(p) for p, _ in flat}
        return OrbaxTree(path, functools.partial(in_dots, known=known))
    if is_equinox(path):
        if names:
            raise MpmdError(f"{path} has the leaves of a model in their order and no names: leave out names=")
        return equinox_leaves(path, [(dotted(p), x) for p, x in flat], wanted)
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


def _data_type(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the type of what is stored for a leaf: of typed keys their data, of numbers arrays."""
    if isinstance(leaf, PiecesType | Pieces):
        return PiecesType(leaf.bounds, [_data_type(part) for part in leaf.parts], leaf.axis)
    if isinstance(leaf, jax.ShapeDtypeStruct) and not is_key(leaf):
        return leaf  # with its layout
    data = jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype if is_dynamic(leaf) else np.asarray(leaf).dtype)
    if is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, data)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=getattr(leaf, "sharding", None))


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

    def placed(self, start: int) -> jax.Array | None:
        """Return the array, or its part from `start` on, if it was read onto its devices."""
        array = self.arrays.get(self.rule.names[0]) if self.rule.is_plain else None
        if isinstance(array, Parts):
            return array.placed(start)
        return array if isinstance(array, jax.Array) else None

    def read(self, shape: tuple[int, ...], index: tuple[slice, ...], spec: Any) -> np.ndarray[Any, Any]:
        """Return a part in memory of its own: JAX would take over that of a file, which may change."""
        array = self.rule.read(self.arrays, shape, index)
        if not (shape or self.cast):
            array = converted(array, spec.dtype, self.name)
        is_elsewhere = (sharding := getattr(spec, "sharding", None)) and all(
            device.platform != "cpu" for device in sharding.addressable_devices
        )
        return np.require(array, spec.dtype, ["C"] if is_elsewhere else ["C", "O"])


def _restored(leaf: Any, spec: Any, stored: _Stored, whole: Sequence[int], at: tuple[int, int] = (0, 0)) -> Any:
    """Return the array for a leaf; see `_array`."""
    if isinstance(spec, PiecesType):
        pieces = zip(leaf.parts, spec.parts, spec.bounds, strict=False)
        parts = [_restored(part, own, stored, whole, (spec.axis, start)) for part, own, start in pieces]
        return Pieces(spec.bounds, parts, spec.axis)
    array = _array(spec, stored, whole, at)
    return jax.random.wrap_key_data(array, impl=key_implementation(leaf)) if is_key(leaf) else array


def _array(spec: Any, stored: _Stored, whole: Sequence[int], at: tuple[int, int]) -> Any:
    """Return the array like `spec`, of which each process reads what is on its devices.

    It is a part of one of the shape `whole`: along the axis `at[0]`, from `at[1]`.
    """
    sharding, (axis, start) = spec.sharding, at

    def read(index: Sequence[slice]) -> np.ndarray[Any, Any]:
        full = [slice(*one.indices(size)) for one, size in zip(index, spec.shape, strict=True)]
        if start:
            full[axis] = slice(full[axis].start + start, full[axis].stop + start)
        return stored.read(tuple(whole), tuple(full), spec)

    def everything() -> np.ndarray[Any, Any]:
        return read([slice(None)] * len(spec.shape))

    if sharding is not None and not sharding.addressable_devices:
        return elsewhere(spec)
    result = stored.placed(start)
    if result is None and sharding is None:
        return everything() if stored.on_host else jax.numpy.asarray(everything())
    if result is None and isinstance(sharding, SingleDeviceSharding):
        result = jax.device_put(everything(), sharding)
    elif result is None:
        result = jax.make_array_from_callback(tuple(spec.shape), sharding, read, dtype=spec.dtype)
    return put(result, spec) if sharding is not None and sharding.is_fully_addressable else result
