"""Formats of checkpoints: trees of orbax, leaves of Equinox, states of Flax; each as arrays by name."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import jax
import numpy as np
from jax.sharding import NamedSharding

from mpmd_trace.api.checkpoints.entries import NUMBER, Parts, Saved, is_here, rows_here, saved_arrays
from mpmd_trace.api.checkpoints.folders import has_checksums
from mpmd_trace.api.checkpoints.orbax_handler import checkpointer_of_job, orbax, working
from mpmd_trace.api.checkpoints.stored_as import Rule, by_name, dotted
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.backend.stacked import PiecesType
from mpmd_trace.diagnostics.messages import MpmdError

_METADATA = "_METADATA"
_NUMPY = b"\x93NUMPY"
_STEP = re.compile(r"(.*_)?(\d+)")
#: A key in a path of JAX: text, the number of a child, another key of a dictionary, an attribute.
_KEY = re.compile(
    r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]|\[<flat\ index\ (\d+)>\]|\[([^][]*)\]|\.(\w+)""", re.DOTALL
)


class OrbaxTree(Mapping[str, Any]):
    """The arrays in a folder of orbax: of a tree, of a step of a manager, or of the last step of a manager.

    Its values have the types of what is stored and no data; `read` reads them.  Where a step has several items, their
    names come first.

    Args:
        path: the folder.
        rename: returns the name here of what is called so there.
    """

    def __init__(self, path: str, rename: Callable[[str], str]) -> None:
        self._path = path
        self._folders = folders(path)
        #: The names of the items, if there are several.
        self.item_names = tuple(name for name in self._folders if name)
        #: What `save` wrote as numbers, which are not arrays.
        self.numbers: set[str] = set()
        #: The names of the leaves of each folder, and its structure.
        self._leaves: dict[str, tuple[list[str], Any]] = {}
        #: What is stored, and of that the arrays that `save` wrote in parts.
        self._entries: dict[str, Any] = {}
        self._in_parts: dict[str, Saved] = {}
        types: list[tuple[str, Any]] = []
        for item, folder in self._folders.items():
            tree = _tree(folder)
            flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_type)
            # `save` knows no items, so their names come in front of what its names say.
            named = [(dotted(p), rename(dotted(p)), one) for p, one in flat]
            self._leaves[item] = [_in_item(item, n) for _, n, _ in named], jax.tree.structure(tree, is_leaf=_is_type)
            self.numbers |= {_in_item(item, n) for there, n, _ in named if there.startswith(NUMBER) and there != n}
            entries = by_name((n, _without_data(one)) for _, n, one in named if _is_type(one))
            self._entries |= {_in_item(item, n): one for n, one in entries.items()}
            for there, one in saved_arrays(entries).items():
                name = _in_item(item, rename(there))
                types.append((name, _without_data(one)))
                if isinstance(one, Saved):
                    parts = tuple(_in_item(item, entry) for entry in one.entries)
                    self._in_parts[name] = dataclasses.replace(one, entries=parts)
        self._types = by_name(types)

    def __getitem__(self, name: str) -> Any:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def read(
        self, rules: Mapping[str, Rule], wanted: Mapping[str, Any], where_saved: Collection[str]
    ) -> dict[str, Any]:
        """Return what these rules need in this process: on its devices if it is stored as it is wanted there.

        Else it is an array of NumPy, or the `Parts` of one.

        Args:
            rules: how what is wanted is stored.
            wanted: its types.
            where_saved: the names of those that go to the devices that they were on.
        """
        ocp = orbax()
        uses = collections.Counter(n for rule in rules.values() for n in rule.names)
        #: How each entry is read.  What only other processes need is not.
        arguments: dict[str, Any] = {}
        bare: list[str] = []
        for name, rule in rules.items():
            for n in rule.names_here(wanted[name]):
                is_same = rule.is_plain and uses[n] == 1
                for entry, target in self._targets(n, wanted[name], is_same=is_same):
                    arguments[entry] = ocp.RestoreArgs(restore_type=np.ndarray)
                    # Orbax would convert a number to a dtype that it does not fit.
                    if target is None or not (target.shape or target.dtype == self._entries[entry].dtype):
                        continue
                    if isinstance(target.sharding, NamedSharding):
                        arguments[entry] = ocp.ArrayRestoreArgs(
                            sharding=target.sharding, global_shape=target.shape, dtype=target.dtype
                        )
                    elif name in where_saved and n not in self.numbers:
                        arguments[entry] = ocp.RestoreArgs(restore_type=jax.Array, dtype=target.dtype)
                        bare.append(name or "the value")
        hint = " (it may be damaged)"
        if bare:
            hint = f" (the type of {bare[0]} has no sharding: give it one of the devices there are)"
        used = {entry for n in uses for entry in (self._in_parts[n].entries if n in self._in_parts else (n,))}
        read: dict[str, Any] = {}
        with checkpointer_of_job() as checkpointer, working(f"restore from {self._path}", hint, together=True):
            for item, folder in self._folders.items():
                names, structure = self._leaves[item]
                if used.isdisjoint(names):
                    continue
                types = [self._entries[n] if n in arguments else ocp.PLACEHOLDER for n in names]
                how = [arguments.get(n, ocp.RestoreArgs()) for n in names]
                unflatten = functools.partial(jax.tree.unflatten, structure)
                restored = checkpointer.restore(folder, item=unflatten(types), restore_args=unflatten(how))
                read.update(zip(names, structure.flatten_up_to(restored), strict=True))
        read = {n: x if isinstance(x, jax.Array) else np.asarray(x) for n, x in read.items() if n in arguments}
        for name, rule in rules.items():
            for n in rule.names_here(wanted[name]):
                if n in self._in_parts:
                    parts = Parts(self._in_parts[n], read)
                    read[n] = parts if rule.is_plain and uses[n] == 1 else parts.whole
        return read

    def _targets(self, name: str, spec: Any, *, is_same: bool) -> list[tuple[str, Any]]:
        """Return the entries of an array that this process needs, with their types where they are wanted as they are.

        is_same: whether that goes for the whole array, whose type is `spec`, which is all that needs it.
        """
        saved = self._in_parts.get(name)
        if saved is None:
            return [(name, spec if is_same and not isinstance(spec, PiecesType) else None)]
        if not is_same:
            return [(entry, None) for entry in saved.entries]
        if isinstance(spec, PiecesType) and (spec.axis, spec.bounds) == (saved.axis, saved.bounds):
            return [(entry, part) for entry, part in zip(saved.entries, spec.parts, strict=True) if is_here(part)]
        return [(entry, None) for entry in saved.entries_of(rows_here(spec, saved.axis))]


def _in_item(item: str, name: str) -> str:
    """Return the name with that of its item in front."""
    return f"{item}.{name}" if item and name else item or name


def folders(path: str) -> dict[str, str]:
    """Return the folders of trees below `path` by the names of their items; that of a single tree has none."""
    if os.path.isfile(os.path.join(path, _METADATA)):
        return {"": path}
    # `.NAME.new-...` is what `save` has not completed yet.
    inside = sorted(n for n in os.listdir(path) if not n.startswith(".") and os.path.isdir(os.path.join(path, n)))
    # Those that have the name of a step are steps, also where one has lost its checksums.
    stepped = {m[1] for n in inside if _is_step(path, n) and (m := _STEP.fullmatch(n))}
    items = [
        n
        for n in inside
        if os.path.isfile(os.path.join(path, n, _METADATA)) and not ((m := _STEP.fullmatch(n)) and m[1] in stepped)
    ]
    steps: dict[str, dict[int, str]] = {}
    for name in inside:
        if name not in items and (match := _STEP.fullmatch(name)):
            steps.setdefault(match[1] or "", {})[int(match[2])] = name
    # Folders of others, such as of logs, may have numbers too.
    steps = {p: s for p, s in steps.items() if any(_has_tree(os.path.join(path, name)) for name in s.values())}
    last = [those[max(those)] for those in steps.values()]
    if len(last) + bool(items) > 1:
        raise MpmdError(
            f"{path} has checkpoints of several kinds, such as {' and '.join((last + items)[:2])}: "
            "name the folder of one"
        )
    if items:
        return {"" if len(items) == 1 else name: os.path.join(path, name) for name in items}
    if not last:
        raise MpmdError(
            f"{path} is not a checkpoint: neither one of mpmd_trace.save, nor a tree of orbax or steps of its "
            f"CheckpointManager, nor safetensors; it has {', '.join(sorted(os.listdir(path))[:5]) or 'nothing'}"
        )
    return folders(os.path.join(path, last[0]))


def _is_step(path: str, name: str) -> bool:
    """Return whether a folder with a tree is that of a step rather than of an item: `5`, or `step_5` by `save`."""
    return name.isdecimal() or (_STEP.fullmatch(name) is not None and has_checksums(os.path.join(path, name)))


def _has_tree(folder: str) -> bool:
    """Return whether a folder is a tree of orbax, or has those of its items."""
    return any(os.path.isfile(os.path.join(folder, name, _METADATA)) for name in ("", *sorted(os.listdir(folder))))


def _tree(folder: str) -> Any:
    """Return the tree of the types of what is stored, from orbax's metadata (whose form depends on its version)."""
    # The handler alone: a checkpointer warns of items of a manager, which have no metadata of a whole checkpoint.
    ocp = orbax()
    with working(f"restore from {folder}"), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        metadata = handler.metadata(pathlib.Path(folder))
    return getattr(metadata, "tree", metadata)


def _is_type(x: Any) -> bool:
    return hasattr(x, "dtype")


def in_dots(name: str, known: Mapping[str, str]) -> str:
    """Return the name of an array that `save` wrote, `['layers'][0].w`, with dots; others as they are.

    known: the names with dots of what is wanted, by the names that `save` gives.
    """
    path = name.removeprefix(NUMBER)
    if path in known:
        return known[path]
    keys = list(_KEY.finditer(path))
    if "".join(key[0] for key in keys) != path:
        return name
    return ".".join(ast.literal_eval(key[1]) if key[1] else key[2] or key[3] or key[4] or "" for key in keys)


def _without_data(one: Any) -> np.ndarray[Any, Any]:
    """Return an array of this type that takes no memory."""
    return np.broadcast_to(np.zeros((), one.dtype), tuple(getattr(one, "shape", None) or ()))


def is_equinox(path: str) -> bool:
    """Return whether `eqx.tree_serialise_leaves` wrote this file: arrays of NumPy, one after the other."""
    with open(path, "rb") as file:
        return file.read(len(_NUMPY)) == _NUMPY


def equinox_leaves(path: str, leaves: Sequence[tuple[str, Any]], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of such a file that are wanted, as views of it.

    leaves: of the model, by their names; the file has all that are arrays or numbers in this order, flags among them.
    """
    numbers = (np.generic, bool, int, float, complex)
    written = [n for n, x in leaves if is_dynamic(x) or isinstance(x, numbers) or hasattr(x, "__jax_array__")]
    result: dict[str, Any] = {}
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for number, name in enumerate(written):
            if file.tell() == size:
                raise MpmdError(f"{path} has {number} arrays, and {len(written)} are wanted: it is of another model")
            spec = wanted.get(name)
            try:
                array = _next_array(path, file, size, spec)
            except (ValueError, TypeError, EOFError, OverflowError) as error:
                raise MpmdError(f"{path} is damaged: {error}") from None
            if spec is not None:
                result[name] = array
        if file.tell() != size:
            raise MpmdError(f"{path} has more than the {len(written)} arrays that are wanted: it is of another model")
    return result


def _next_array(path: str, file: BinaryIO, size: int, spec: Any) -> np.ndarray[Any, Any]:
    """Return the array that begins where the file is, which then is at its end.  Raises `ValueError`."""
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = header(file)
    if dtype.hasobject:
        raise ValueError("it has Python objects")
    if dtype.kind == "V" and spec is not None and dtype.itemsize == spec.dtype.itemsize:
        dtype = np.dtype(spec.dtype)  # NumPy knows no bfloat16
    start, length = file.tell(), math.prod(shape) * dtype.itemsize
    if length < 0 or start + length > size:
        raise ValueError(f"it ends in an array of {dtype}{list(shape)}")
    file.seek(start + length)
    data: Any = np.memmap(path, np.uint8, "r") if length else np.zeros(start, np.uint8)
    return np.ndarray(shape, dtype, data, start, order="F" if is_fortran else "C")


def flax_state(path: str) -> dict[str, Any]:
    """Return the arrays of a file of `flax.serialization.to_bytes`."""
    try:
        from flax import serialization  # optional
    except ImportError as error:
        raise MpmdError(f"{path} may be a file of Flax; to read it: pip install 'mpmd_trace[flax]'") from error
    with open(path, "rb") as file:
        data = file.read()
    with working(f"restore from {path}"):
        state = serialization.msgpack_restore(data)
    return by_name((dotted(p), np.asarray(x)) for p, x in jax.tree_util.tree_leaves_with_path(state))
