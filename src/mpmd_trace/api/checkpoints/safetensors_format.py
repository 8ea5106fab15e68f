"""The format of safetensors: eight bytes of length, a header in JSON, and the bytes of the tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mpmd_trace.diagnostics.files import write_file
from mpmd_trace.diagnostics.messages import MpmdError

_SUFFIX = ".safetensors"
_INDEX = "model.safetensors.index.json"
#: The files of a model; a folder may have other models beside it.
_MODEL = re.compile(r"model(?:-(\d{5})-of-(\d{5}))?\.safetensors")
#: What files are called that are not in their place yet.
_PART = ".part"
#: The index of a model that is complete, while its files and this one get from `.part` to their places.
_NEW_INDEX = f"{_INDEX}{_PART}"
_DTYPES = {
    "BOOL": "bool",
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("U", "uint"), ("I", "int")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}
#: The header is at most this long; a longer one is no header.
_LONGEST = 100_000_000


def is_safetensors(path: str) -> bool:
    """Return whether there is a file of safetensors, or a folder of such files."""
    if os.path.isdir(path):
        return any(name.endswith(_SUFFIX) or name == _NEW_INDEX for name in os.listdir(path))
    return path.endswith(_SUFFIX)


class SafetensorsFiles(Mapping[str, "np.ndarray[Any, Any]"]):
    """The tensors of a file or folder, as views of the files: what is not looked at is not read.

    A folder has an index, or its files are read for the names in their headers; those of `model` alone, if it
    has them.

    Raises:
        MpmdError: for what is no such file.
    """

    def __init__(self, path: str) -> None:
        self._open: dict[str, _Opened] = {}
        for index in (_NEW_INDEX, _INDEX):
            if os.path.isfile(file := os.path.join(path, index)):
                place = _new_place if index == _NEW_INDEX else os.path.join
                self._file_of = {name: place(path, file) for name, file in _weight_map(file).items()}
                return
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(path, name) for name in _without_index(path)]
        self._file_of = {}
        for file in files:
            for name in self._opened(file).tensors:
                if (other := self._file_of.setdefault(name, file)) != file:
                    raise MpmdError(f"{name} is in {other} and in {os.path.basename(file)}: name one of the files")

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        file = self._file_of[name]
        opened = self._opened(file)
        if name not in opened.tensors:
            raise MpmdError(f"{file} has no tensor {name}, which {_INDEX} says it has")
        code, shape, start = opened.tensors[name]
        if code not in _DTYPES:
            raise MpmdError(f"{name} in {file} has the dtype {code}, which JAX does not have")
        return np.ndarray(shape, jnp.dtype(_DTYPES[code]), opened.data, start)  # not every file is aligned

    def __contains__(self, name: object) -> bool:
        return name in self._file_of  # which opens no file

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def _opened(self, file: str) -> _Opened:
        if file not in self._open:
            try:
                self._open[file] = _opened(file)
            except OSError as error:
                raise MpmdError(f"cannot read {file}: {error.strerror or error}") from None
            except (ValueError, KeyError, TypeError, struct.error) as error:
                raise MpmdError(f"{file} is not a safetensors file, or it is damaged: {error}") from None
        return self._open[file]


def _weight_map(index: str) -> dict[str, str]:
    try:
        with open(index, encoding="utf-8") as file:
            result = {str(name): str(where) for name, where in json.load(file)["weight_map"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise MpmdError(f"{index} is not a safetensors index: {error}") from None
    for name, where in result.items():
        if os.path.basename(where) != where or where in ("", ".", ".."):
            raise MpmdError(f"{index} has {name} in {where!r}, which is not a file in its folder")
    return result


def _new_place(folder: str, name: str) -> str:
    """Return where a file of a new model is, which may not be in its place yet."""
    part = os.path.join(folder, f"{name}{_PART}")
    return part if os.path.lexists(part) else os.path.join(folder, name)


def _without_index(folder: str) -> list[str]:
    """Return the files to read in a folder without index.  Raises `MpmdError` for a part of them."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))
    matches = [match for name in names if (match := _MODEL.fullmatch(name))]
    numbered = [match for match in matches if match[1]]
    if numbered and [match.groups() for match in numbered] != [
        (f"{i + 1:05}", numbered[0][2]) for i in range(int(numbered[0][2]))
    ]:
        raise MpmdError(
            f"{folder} has {len(numbered)} of the files of a model, such as {numbered[0][0]}, and no {_INDEX}: its "
            "saving did not end, or files are missing"
        )
    return [match[0] for match in matches] or names


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A file: its bytes, and for each tensor the code of its dtype, its shape and where it begins."""

    data: np.ndarray[Any, Any]
    tensors: dict[str, tuple[str, tuple[int, ...], int]]


def _opened(path: str) -> _Opened:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, _LONGEST):
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a dictionary")
    start = 8 + length
    data: np.ndarray[Any, Any] = np.memmap(path, np.uint8, "r") if size > start else np.zeros(size, np.uint8)
    result = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        code, shape = str(tensor["dtype"]), tuple(tensor["shape"])
        there = f"{name} is {code}{list(shape)} and has the bytes {begin} to {end} of {size - start}"
        if any(type(n) is not int or n < 0 for n in (*shape, begin, end)) or not begin <= end <= size - start:
            raise ValueError(there)
        # Others have sizes that are not known here, and are an error where they are wanted.
        if code in _DTYPES and end - begin != math.prod(shape) * jnp.dtype(_DTYPES[code]).itemsize:
            raise ValueError(there)
        result[name] = (code, shape, start + begin)
    return _Opened(data, result)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor to be written: by which process, and what gives it there."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    process: int
    make: Callable[[], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * int(np.dtype(self.dtype).itemsize)


def write(
    folder: str, tensors: Sequence[Tensor], max_file_bytes: int, metadata: Mapping[str, str], process: int
) -> Callable[[], None]:
    """Write the files of this process beside their places; what is returned puts all there when all processes have.

    Raises:
        OSError: when they cannot be written, from both; the first has then changed nothing.
    """
    groups: list[list[Tensor]] = []
    used = 0
    for one in sorted(tensors, key=lambda one: one.process):  # stable
        if not groups or groups[-1][0].process != one.process or used + one.nbytes > max_file_bytes:
            groups.append([])
            used = 0
        groups[-1].append(one)
        used += one.nbytes
    count = len(groups)
    names = [f"model{_SUFFIX}" if count == 1 else f"model-{i + 1:05}-of-{count:05}{_SUFFIX}" for i in range(count)]
    mine = [(f"{file}{_PART}", group) for file, group in zip(names, groups, strict=True) if group[0].process == process]
    try:
        for part, group in mine:
            _write_file(os.path.join(folder, part), group, metadata)
    except BaseException:
        _remove(folder, [part for part, _ in mine])
        raise

    def finish() -> None:
        weight_map = {one.name: file for file, group in zip(names, groups, strict=True) for one in group}
        index = {"metadata": {"total_size": sum(one.nbytes for one in tensors)}, "weight_map": weight_map}
        try:
            write_file(os.path.join(folder, _NEW_INDEX), json.dumps(index, indent=2) + "\n")
        except BaseException:
            _remove(folder, [f"{name}{_PART}" for name in names])
            raise
        put_in_place(folder)

    return finish


def put_in_place(folder: str) -> None:
    """Put a new model, if there is one, in its place; also one of a process that was killed here.  Raises `OSError`.

    At any moment, the old model or the new one can be read: the new one as soon as there is its index.
    """
    new_index = os.path.join(folder, _NEW_INDEX)
    if not os.path.isfile(new_index):
        return
    names = sorted(set(_weight_map(new_index).values()))
    parts = [name for name in names if os.path.lexists(os.path.join(folder, f"{name}{_PART}"))]
    # Others know nothing of the new index: for them, old and new files are never in their places together.
    old = [name for name in is_there(folder) if name != _NEW_INDEX and (name not in names or name in parts)]
    if len(names) == 1:
        old = [name for name in old if name not in names]  # which is replaced in one moment
    for name in sorted(old, key=lambda name: name != _INDEX):
        os.remove(os.path.join(folder, name))
    for name in parts:
        os.replace(os.path.join(folder, f"{name}{_PART}"), os.path.join(folder, name))
    if len(names) > 1:
        os.replace(new_index, os.path.join(folder, _INDEX))
    else:
        os.remove(new_index)


def _remove(folder: str, names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))


def is_there(folder: str) -> list[str]:
    """Return the files of a model in a folder."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name for name in names if name in (_INDEX, _NEW_INDEX) or _MODEL.fullmatch(name)]


def state_of(folder: str) -> list[tuple[str, int, int]]:
    """Return what changes whenever a file of a model in a folder is written, moved or removed."""
    result = []
    for name in is_there(folder):
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(os.path.join(folder, name))
            result.append((name, stat.st_ino, stat.st_mtime_ns))
    return result


def remove_parts(folder: str) -> None:
    """Remove what a process that was killed has left.  Raises `OSError`."""
    for name in sorted(os.listdir(folder)):
        if name.endswith(_PART) and _MODEL.fullmatch(name.removesuffix(_PART)):
            os.remove(os.path.join(folder, name))


def check_dtypes(tensors: Sequence[Tensor]) -> None:
    """Raise `MpmdError` for dtypes that the format does not have."""
    bad = [one for one in tensors if np.dtype(one.dtype).name not in _NAMES]
    if bad:
        listed = ", ".join(f"{one.name} ({np.dtype(one.dtype).name})" for one in bad[:8])
        raise MpmdError(f"safetensors do not have the dtype of {listed}")


def _write_file(path: str, tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for one in tensors:
        begin, end = end, end + one.nbytes
        dtype = _NAMES[np.dtype(one.dtype).name]
        header[one.name] = {"dtype": dtype, "shape": list(one.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for one in tensors:
            data = np.ascontiguousarray(one.make())
            file.write(data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes())
        file.flush()
        os.fsync(file.fileno())
