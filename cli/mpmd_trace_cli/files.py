"""Files that commands read and write: whole texts, and errors that say which file and what about it."""

from __future__ import annotations

import sys
from typing import TextIO

from mpmd_trace.diagnostics import files
from mpmd_trace_cli.status import CallError


def explain_os_error(error: OSError) -> str:
    """Return what is wrong with which file, in words."""
    if not error.strerror:
        return str(error)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    return reason if error.filename is None else f"{error.filename}: {reason}"


def read_text(file: str) -> tuple[str, str]:
    """Return the text of a file, `-` for stdin, and the name it has in messages.  Raises `MpmdError`."""
    name = "<stdin>" if file == "-" else file
    if file == "-":
        stream = getattr(sys.stdin, "buffer", None)
        if stream is None:
            return sys.stdin.read(), name
        content = stream.read()
    else:
        try:
            with open(file, "rb") as opened:
                content = opened.read()
        except OSError as error:
            raise CallError(f"cannot read {explain_os_error(error)}") from None
    try:
        text: str = content.decode("utf-8-sig")  # editors may write a mark in front
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CallError(
            f"{name} is not a text of MLIR: byte 0x{content[error.start]:02x} in line {line} is not UTF-8 (MLIR "
            "bytecode must be printed as text first)"
        ) from None
    return text.replace("\r\n", "\n"), name


def check_output(path: str, *, folders: bool = False) -> None:
    """Raise `MpmdError` when a file cannot be written there, as `diagnostics.files.check_output`; `-` is stdout."""
    if path != "-":
        files.check_output(path, folders=folders)


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; `-` is stdout.  Raises `MpmdError`."""
    if path != "-":
        files.write_file(path, text)
        return
    write_stream(sys.stdout, text)


def write_stream(stream: TextIO, text: str) -> None:
    """Write a text whole.  Raises `OSError` now, not when Python ends.

    `stream.write` alone loses the rest of what an unbuffered stream (`PYTHONUNBUFFERED`) can only write in part.
    """
    stream.flush()
    binary = getattr(stream, "buffer", None)
    if binary is None:  # of a test or a notebook
        stream.write(text)
    else:
        rest = memoryview(text.encode(stream.encoding, stream.errors or "strict"))
        while rest:
            rest = rest[binary.write(rest) or 0 :]
    stream.flush()
