"""`reduce`: shrinks a module as long as a command finds it interesting."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace_cli.console import say
from mpmd_trace_cli.files import check_output, read_text, write_text
from mpmd_trace_cli.status import CallError
from mpmd_trace_devtools.reduce import count_ops, reduce


def reduce_file(file: str, check: str, out: str, timeout: float, allow_unregistered: bool) -> int:
    """Shrink `file` and write the result; gives the number of ops left.

    `check` is a command; the path of the module takes the place of `{}` in it, or comes last.  Exit status 0
    means that the module is still interesting.  Raises `MpmdError`.
    """
    if timeout < 0:
        raise CallError(f"--timeout is {timeout:g}; it is seconds, or 0 for no limit")
    check_output(out)
    text, name = read_text(file)
    module = parse(text, filename=name, allow_unregistered=allow_unregistered)
    before = count_ops(module)
    last = smallest = ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "module.mlir")

        def interesting(candidate: str) -> bool:
            path.write_text(candidate, encoding="utf-8")
            nonlocal last, smallest
            last = _failure(check, str(path), timeout)
            if not last:
                smallest = candidate
            return not last

        say(f"{name}: {before} ops")
        try:
            result = reduce(module, interesting, say)
        except MpmdError as error:
            raise CallError(f"{error.diagnostics[0].message}: {check} ({last})") from None
        except KeyboardInterrupt:
            if smallest:
                say(f"{before} -> {count_ops(parse(smallest))} ops so far, which are written")
                write_text(out, smallest)
            raise
    left = count_ops(result.module)
    say(f"{before} -> {left} ops after {result.tried} runs of the check")
    write_text(out, result.text)
    return left


def _failure(check: str, path: str, timeout: float) -> str:
    """Return why the check failed, nothing when it succeeded."""
    quoted = shlex.quote(path)
    command = check.replace("{}", quoted) if "{}" in check else f"{check} {quoted}"
    process = subprocess.Popen(
        command,
        shell=True,  # the command is the user's own, pipes and all
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = process.wait(timeout or None)
    except BaseException as error:
        _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            return f"it takes longer than {timeout:g} s"
        raise
    if status == 127:
        return "there is no such command"
    return f"its exit status is {status}" if status else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a shell, and what it has started, which would run on."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
