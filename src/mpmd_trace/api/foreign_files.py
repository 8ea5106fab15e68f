"""What others have written: trees of orbax, leaves of Equinox, states of Flax; each as arrays by name."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import jax
import numpy as np

from mpmd_trace.api.checkpoint_folders import has_checksums
from mpmd_trace.api.checkpoints import checkpointer_of_job, orbax
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.api.saved_arrays import Saved, saved_arrays
from mpmd_trace.api.stored_as import Rule, by_name, dotted
from mpmd_trace.diagnostics.internal import in_words
from mpmd_trace.diagnostics.messages import MpmdError

_METADATA = "_METADATA"
_NUMPY = b"\x93NUMPY"
_STEP = re.compile(r"(.*_)?(\d+)")
#: What is before the path of JAX in the names that `save` gives.
_PREFIX = re.compile(r"(?:number |rows \S+ of axis \d+ of |empty \S+ )?")
#: A key in a path of JAX: text, the number of a child, another key of a dictionary, an attribute.
_KEY = re.compile(
    r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]|\[<flat\ index\ (\d+)>\]|\[([^][]*)\]|\.(\w+)""", re.DOTALL
)


class OrbaxTree(Mapping[str, Any]):
    """The arrays in a folder of orbax: of a tree, of a step of a manager, or of the last step of a manager.

    Its values have the types of what is stored and no data; `read` reads them.  Where a step has several items, their
    names come first.
    """

    def __init__(self, path: str, like: Any) -> None:
        #: The names here of what `save` names by its path.
        self._known = {jax.tree_util.keystr(p): dotted(p) for p, _ in jax.tree_util.tree_leaves_with_path(like)}
        self._folders = _folders(path)
        #: The names of the items, if there are several.
        self.item_names = tuple(name for name in self._folders if name)
        self._trees: dict[str, Any] = {}
        #: What is stored, and of that the parts of arrays that `save` wrote in parts.
        self._entries: dict[str, Any] = {}
        self._in_parts: dict[str, Saved] = {}
        types: list[tuple[str, Any]] = []
        for item, folder in self._folders.items():
            tree = self._trees[item] = _tree(folder)
            # `save` knows no items, so their names come in front of what its names say.
            entries = by_name((name, _without_data(one)) for name, one in self._named(tree, "") if _is_type(one))
            self._entries |= {_in_item(item, name): one for name, one in entries.items()}
            for path, saved in saved_arrays(entries).items():
                name = _in_item(item, _in_dots(path, self._known))
                types.append((name, _without_data(saved)))
                if saved.entries != (path,):
                    parts = tuple(_in_item(item, entry) for entry in saved.entries)
                    self._in_parts[name] = dataclasses.replace(saved, entries=parts)
        self._types = by_name(types)

    def __getitem__(self, name: str) -> Any:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def read(self, rules: Mapping[str, Rule], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return what these rules need: on its devices what is stored as it is wanted, and else arrays of NumPy."""
        ocp = orbax()
        arrays = [n for name, rule in rules.items() for n in rule.names_here(wanted[name])]
        needed = [entry for n in arrays for entry in self._entries_of(n)]
        used = {entry for rule in rules.values() for n in rule.names for entry in self._entries_of(n)}
        placed = {
            rule.names[0]: wanted[name]
            for name, rule in rules.items()
            if rule.is_plain and needed.count(rule.names[0]) == 1 and _is_placed(wanted[name])
            # Orbax would convert a number to a dtype that it does not fit.
            if wanted[name].shape or wanted[name].dtype == self._types[rule.names[0]].dtype
        }

        def argument(name: str) -> Any:
            spec = placed.get(name)
            if spec is None:
                return ocp.RestoreArgs(restore_type=np.ndarray)
            return ocp.ArrayRestoreArgs(sharding=spec.sharding, global_shape=spec.shape, dtype=spec.dtype)

        result: dict[str, Any] = {}
        with checkpointer_of_job() as checkpointer:
            for item, folder in self._folders.items():
                structure = jax.tree.structure(self._trees[item], is_leaf=_is_type)
                names = [name for name, _ in self._named(self._trees[item], item)]
                if not used.intersection(names):
                    continue
                kept = set(names).intersection(needed)  # none perhaps, but the processes restore together
                types = [self._entries[n] if n in kept else ocp.PLACEHOLDER for n in names]
                arguments = [argument(n) for n in names]
                with _reading(folder):
                    read = checkpointer.restore(
                        folder,
                        item=jax.tree.unflatten(structure, types),
                        restore_args=jax.tree.unflatten(structure, arguments),
                    )
                result.update((n, x) for n, x in zip(names, structure.flatten_up_to(read), strict=True) if n in kept)
        result |= {n: self._in_parts[n].whole(result) for n in arrays if n in self._in_parts}
        return {n: x if isinstance(x, jax.Array) else np.asarray(x) for n, x in result.items()}

    def _entries_of(self, name: str) -> tuple[str, ...]:
        return self._in_parts[name].entries if name in self._in_parts else (name,)

    def _named(self, tree: Any, item: str) -> list[tuple[str, Any]]:
        """Return the types of a tree with their names."""
        flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_type)
        names = [_in_dots(dotted(path), self._known) for path, _ in flat]
        return [(_in_item(item, name), one) for name, (_, one) in zip(names, flat, strict=True)]


def _in_item(item: str, name: str) -> str:
    """Return the name with that of its item in front."""
    return f"{item}.{name}" if item and name else item or name


def _is_placed(spec: Any) -> bool:
    sharding = getattr(spec, "sharding", None)
    return isinstance(sharding, jax.sharding.NamedSharding) and bool(sharding.addressable_devices)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """While another library reads; its errors become `MpmdError`."""
    try:
        yield
    except Exception as error:
        raise MpmdError(f"cannot restore from {path}: {in_words(error)}") from error


def _folders(path: str) -> dict[str, str]:
    """Return the folders of trees below `path` by the names of their items; that of a single tree has none."""
    if os.path.isfile(os.path.join(path, _METADATA)):
        return {"": path}
    inside = sorted(name for name in os.listdir(path) if os.path.isdir(os.path.join(path, name)))
    items = [name for name in inside if os.path.isfile(os.path.join(path, name, _METADATA))]
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
            f"{path} is no checkpoint: neither one of mpmd_trace.save, nor a tree of orbax or steps of its "
            f"CheckpointManager, nor safetensors; it has {', '.join(sorted(os.listdir(path))[:5]) or 'nothing'}"
        )
    return _folders(os.path.join(path, last[0]))


def _has_tree(folder: str) -> bool:
    """Return whether a folder is a tree of orbax, or has those of its items."""
    return any(os.path.isfile(os.path.join(folder, name, _METADATA)) for name in ("", *sorted(os.listdir(folder))))


def _tree(folder: str) -> Any:
    """Return the tree of the types of what is stored, from orbax's metadata (whose form depends on its version)."""
    # The handler alone: a checkpointer warns of items of a manager, which have no metadata of a whole checkpoint.
    ocp = orbax()
    with _reading(folder), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        metadata = handler.metadata(pathlib.Path(folder))
    return getattr(metadata, "tree", metadata)


def _is_type(x: Any) -> bool:
    return hasattr(x, "dtype")


def is_ours(path: str, like: Any) -> bool:
    """Return whether `save` wrote this folder.  It has checksums, or, of old versions, arrays by their paths in `like`.

    Orbax writes no checksums.
    """
    if has_checksums(path):
        return True
    if not os.path.isfile(os.path.join(path, _METADATA)):
        return False
    tree = _tree(path)
    if not isinstance(tree, dict) or not all(map(_is_type, tree.values())):
        return False
    paths = {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(like)}
    return any(_PREFIX.sub("", name, count=1) in paths for name in tree)


def _in_dots(name: str, known: Mapping[str, str]) -> str:
    """Return the name of an array that `save` wrote, `['layers'][0].w`, with dots; others as they are."""
    path = name.removeprefix("number ")
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
    with _reading(path):
        state = serialization.msgpack_restore(data)
    return by_name((dotted(p), np.asarray(x)) for p, x in jax.tree_util.tree_leaves_with_path(state))
