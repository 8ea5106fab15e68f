"""Custom calls of programs on CPUs that are Python functions and get the addresses of their buffers.

The structures are those of `xla/ffi/api/c_api.h`, as far as they are used here; minor versions only add to them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import jax

__all__ = ["register"]

#: The version of the interface that this file was written to.
_MAJOR, _MINOR = 0, 1
_METADATA, _EXECUTE, _INTERNAL = 1, 3, 13


def _structure(name: str, *fields: tuple[str, Any]) -> Any:
    """A structure that begins with its size, and with a pointer to what extends it, as almost all do."""
    return type(name, (Structure,), {"_fields_": [("size", c_size_t), ("extension", c_void_p), *fields]})


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


_Version: Any = _structure("_Version", ("major", c_int), ("minor", c_int))


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


_Buffer: Any = _structure("_Buffer", ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p))
_Buffers: Any = _structure("_Buffers", ("count", c_int64), ("types", c_void_p), ("each", POINTER(POINTER(_Buffer))))
_Error: Any = _structure("_Error", ("message", c_char_p), ("code", c_int))
_Api: Any = _structure(
    "_Api", ("version", _Version), ("internal", c_void_p), ("make_error", ctypes.CFUNCTYPE(c_void_p, POINTER(_Error)))
)
_Frame: Any = _structure(
    "_Frame",
    ("api", POINTER(_Api)),
    ("context", c_void_p),
    ("stage", c_int),
    ("arguments", _Buffers),
    ("results", _Buffers),
)
_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))

#: What XLA calls stays as long as the process.
_KEPT: list[Any] = []


def register(name: str, call: Callable[[int, int], None]) -> None:
    """Let custom calls `name` be `call(argument, result)`, with the addresses of their first argument and result.

    It runs in a thread of XLA.  What it raises is the error that the result is instead of values.
    """

    def handler(pointer: Any) -> int | None:
        frame = pointer.contents
        try:
            if frame.extension:
                extension = ctypes.cast(frame.extension, POINTER(_MetadataExtension)).contents
                if extension.base.type == _METADATA:
                    metadata = extension.metadata.contents
                    metadata.version.major, metadata.version.minor, metadata.traits = _MAJOR, _MINOR, 0
                    return None
            if frame.stage == _EXECUTE:
                call(frame.arguments.each[0].contents.data, frame.results.each[0].contents.data)
        except BaseException as error:  # nobody is above this who could take it
            text = f"{type(error).__name__}: {error}".encode()
            made = _Error(ctypes.sizeof(_Error), None, text, _INTERNAL)
            found: int | None = frame.api.contents.make_error(ctypes.byref(made))
            return found
        return None

    function = _Handler(handler)
    _KEPT.append(function)
    address = ctypes.cast(function, c_void_p).value
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform="cpu")
