"""The format of safetensors: eight bytes of length, a header in JSON, and the bytes of the tensors."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mpmd_trace.diagnostics.files import write_file
from mpmd_trace.diagnostics.messages import MpmdError

__all__ = ["SafetensorsFiles", "Tensor", "check_dtypes", "is_safetensors", "is_there", "write"]

_SUFFIX = ".safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {
    "BOOL": "bool",
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("U", "uint"), ("I", "int")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}
#: The header is at most this long; a longer one is no header.
_LONGEST = 100_000_000


def is_safetensors(path: str) -> bool:
    """Return whether there is a file of safetensors, or a folder of such files."""
    if os.path.isdir(path):
        return any(name.endswith(_SUFFIX) for name in os.listdir(path))
    return path.endswith(_SUFFIX)


class SafetensorsFiles(Mapping[str, "np.ndarray[Any, Any]"]):
    """The tensors of a file or folder, as views of the files: what is not looked at is not read.

    A folder has an index, or its files are all read for the names in their headers.

    Raises:
        MpmdError: for what is no such file.
    """

    def __init__(self, path: str) -> None:
        self._open: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        index = os.path.join(path, _INDEX)
        if os.path.isfile(index):
            self._file_of = {name: os.path.join(path, file) for name, file in _weight_map(index).items()}
            return
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(_SUFFIX)]
        self._file_of = {name: file for file in files for name in self._tensors(file)}

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        file = self._file_of[name]
        tensors = self._tensors(file)
        if name not in tensors:
            raise MpmdError(f"{file} has no tensor {name}, which {_INDEX} says it has")
        return tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._file_of  # which opens no file

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def _tensors(self, file: str) -> dict[str, np.ndarray[Any, Any]]:
        if file not in self._open:
            try:
                self._open[file] = _opened(file)
            except OSError as error:
                raise MpmdError(f"cannot read {file}: {error.strerror or error}") from None
            except (ValueError, KeyError, TypeError, struct.error) as error:
                raise MpmdError(f"{file} is no file of safetensors, or it is damaged: {error}") from None
        return self._open[file]


def _weight_map(index: str) -> dict[str, str]:
    try:
        with open(index, encoding="utf-8") as file:
            return {str(name): str(where) for name, where in json.load(file)["weight_map"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise MpmdError(f"{index} is no index of safetensors: {error}") from None


def _opened(path: str) -> dict[str, np.ndarray[Any, Any]]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, _LONGEST):
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(file.read(length))
    start = 8 + length
    data: np.ndarray[Any, Any] = np.memmap(path, np.uint8, "r") if size > start else np.zeros(size, np.uint8)
    result = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        if tensor["dtype"] not in _DTYPES:
            raise ValueError(f"{name} has the dtype {tensor['dtype']}, which JAX does not have")
        dtype = jnp.dtype(_DTYPES[tensor["dtype"]])
        shape = tuple(tensor["shape"])
        if end - begin != int(np.prod(shape)) * dtype.itemsize or start + end > size:
            raise ValueError(f"{name} is {tensor['dtype']}{list(shape)} and has {end - begin} bytes at {start + begin}")
        # Not every file is aligned.
        result[name] = np.ndarray(shape, dtype, data, start + begin)
    return result


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
    """Write the files of this process; what is returned finishes the folder when all processes have.

    Raises:
        OSError: when they cannot be written.
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
    for file, group in zip(names, groups, strict=True):
        if group[0].process == process:
            _write_file(os.path.join(folder, file), group, metadata)

    def finish() -> None:
        for old in is_there(folder):
            if old not in names:
                os.remove(os.path.join(folder, old))
        if count > 1:
            weight_map = {one.name: file for file, group in zip(names, groups, strict=True) for one in group}
            index = {"metadata": {"total_size": sum(one.nbytes for one in tensors)}, "weight_map": weight_map}
            write_file(os.path.join(folder, _INDEX), json.dumps(index, indent=2) + "\n")

    return finish


def is_there(folder: str) -> list[str]:
    """Return the files of a model in a folder."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name for name in names if name == _INDEX or (name.startswith("model") and name.endswith(_SUFFIX))]


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
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for one in tensors:
                file.write(np.ascontiguousarray(one.make()).tobytes())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
