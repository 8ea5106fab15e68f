"""Serialized executables of XLA's CPU client without what only their compilation needed: read back in half the time.

An executable is written with the HLO module that it was compiled from.  What runs is its thunks and object code, but
reading builds the whole module again, and most of it are the insides of fusions, which are machine code by then.
Here a fusion of the entry becomes a custom call of the same operands and shape, and ops of it lose their metadata.

The bytes are protocol buffers, of which only the fields named here are looked at.  Bytes of any other form are given
back as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["slim"]

#: Fields of XLA's messages, by their numbers.
_FILE_EXECUTABLE = 1  # ExecutableAndOptionsProto.serialized_executable
_RESULT_MODULE = 1  # CompilationResultProto.hlo_module
_MODULE = 1  # HloModuleProtoWithConfig.hlo_module
_COMPUTATIONS, _ENTRY = 3, 6  # HloModuleProto
_INSTRUCTIONS, _COMPUTATION_ID = 2, 5  # HloComputationProto
_NAME, _OPCODE, _SHAPE, _METADATA, _FUSION_KIND, _TARGET = 1, 2, 3, 7, 11, 28  # HloInstructionProto
_ID, _OPERANDS, _CALLED = 35, 36, 38

#: Fusions of other kinds are read again when the executable is loaded.
_KINDS = (b"kLoop", b"kInput", b"kOutput")
#: Fusions with such ops may write into an operand, which the analysis of buffers has to see.
_IN_PLACE = (b"dynamic-update-slice", b"scatter", b"custom-call", b"async", b"while", b"conditional", b"sort")


class _Field(NamedTuple):
    number: int
    value: bytes | int
    raw: bytes


class _OtherForm(Exception):
    """These are not the bytes that we know."""


def slim(serialized: bytes) -> bytes:
    """Return the executable without the insides of its fusions; the same bytes where their form is another one."""
    try:
        size, start = _number(serialized, 0)  # of IFRT's header
        start += size
        return serialized[:start] + _changed(serialized[start:], [_FILE_EXECUTABLE, _RESULT_MODULE, _MODULE], _module)
    except _OtherForm:
        return serialized


def _changed(message: bytes, path: list[int], change: Callable[[bytes], bytes]) -> bytes:
    """Return a message in which the one message at the end of a path of fields is changed."""
    if not path:
        return change(message)
    number, *rest = path
    fields = list(_fields(message))
    if sum(field.number == number for field in fields) != 1:
        raise _OtherForm
    return b"".join(
        _written(number, _changed(_bytes(field), rest, change)) if field.number == number else field.raw
        for field in fields
    )


def _module(message: bytes) -> bytes:
    fields = list(_fields(message))
    entry = next((field.value for field in fields if field.number == _ENTRY), None)
    computations = {_id_of(_bytes(f)): _bytes(f) for f in fields if f.number == _COMPUTATIONS}
    if entry not in computations:
        raise _OtherForm
    kept: set[int] = set()
    fused: set[int] = set()

    def instruction(message: bytes) -> bytes:
        parts = list(_fields(message))
        values = {part.number: part.value for part in parts}
        called = _numbers(values.get(_CALLED, b""))
        inside = b"".join(computations.get(number, _IN_PLACE[0]) for number in called)
        is_code = values.get(_OPCODE) == b"fusion" and values.get(_FUSION_KIND) in _KINDS
        if not is_code or any(name in inside for name in _IN_PLACE):
            kept.update(called)
            return b"".join(part.raw for part in parts if part.number != _METADATA)
        fused.update(called)
        same = b"".join(part.raw for part in parts if part.number in (_NAME, _SHAPE, _ID, _OPERANDS))
        return same + _written(_OPCODE, b"custom-call") + _written(_TARGET, b"fusion")

    changed = b"".join(
        _written(_INSTRUCTIONS, instruction(_bytes(field))) if field.number == _INSTRUCTIONS else field.raw
        for field in _fields(computations[entry])
    )
    computations[entry] = changed
    others = b"".join(f.raw for f in fields if f.number != _COMPUTATIONS)
    gone = fused - kept
    return others + b"".join(_written(_COMPUTATIONS, c) for number, c in computations.items() if number not in gone)


def _id_of(computation: bytes) -> int:
    ids = [field.value for field in _fields(computation) if field.number == _COMPUTATION_ID]
    if len(ids) != 1 or not isinstance(ids[0], int):
        raise _OtherForm
    return ids[0]


def _fields(message: bytes) -> Iterator[_Field]:
    place, end = 0, len(message)
    while place < end:
        start = place
        tag, place = _number(message, place)
        kind = tag & 7
        value: bytes | int = b""
        if kind == 0:
            value, place = _number(message, place)
        elif kind == 2:
            size, first = _number(message, place)
            place = first + size
            value = message[first:place]
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        if kind not in (0, 1, 2, 5) or not tag >> 3 or place > end:
            raise _OtherForm
        yield _Field(tag >> 3, value, message[start:place])


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return the variable-length number that begins there, and the place behind it."""
    value = shift = 0
    while place < len(data):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise _OtherForm


def _numbers(packed: bytes | int) -> list[int]:
    """Return a repeated number, of which one alone may be written plainly."""
    if isinstance(packed, int):
        return [packed]
    attribute, place = [], 0
    while place < len(packed):
        value, place = _number(packed, place)
        attribute.append(value)
    return attribute


def _bytes(field: _Field) -> bytes:
    if not isinstance(field.value, bytes):
        raise _OtherForm
    return field.value


def _written(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
