"""`reduce`: shrinks a module as long as a command finds it interesting."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile

from ..ir.diagnostics import MpmdError
from .talk import say

__all__ = ["reduce_file"]


def reduce_file(file: str, check: str, out: str, timeout: float, allow_unregistered: bool) -> int:
    """Shrink `file` and write the result; gives the number of ops left.

    `check` is a command; the path of the module takes the place of `{}` in it, or comes last.  Exit status 0
    means that the module is still interesting.  Raises `MpmdError`.
    """
    from ..report.reduce import count_ops, reduce
    from ..text import parse

    if file == "-":
        text = sys.stdin.read()
    else:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.read()
    module = parse(text, filename=file, allow_unregistered=allow_unregistered)
    before = count_ops(module)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "module.mlir")

        def interesting(candidate: str) -> bool:
            with open(path, "w", encoding="utf-8") as opened:
                opened.write(candidate)
            return _succeeds(check, path, timeout)

        say(f"{file}: {before} ops")
        try:
            result = reduce(module, interesting, say)
        except MpmdError as error:
            raise MpmdError(f"{error.diagnostics[0].message}: {check}") from None
    left = count_ops(result.module)
    say(f"{before} -> {left} ops after {result.tried} runs of the check")
    if out == "-":
        sys.stdout.write(result.text)
    else:
        part = f"{out}.part"
        with open(part, "w", encoding="utf-8") as opened:
            opened.write(result.text)
        os.replace(part, out)
    return left


def _succeeds(check: str, path: str, timeout: float) -> bool:
    quoted = shlex.quote(path)
    command = check.replace("{}", quoted) if "{}" in check else f"{check} {quoted}"
    try:
        done = subprocess.run(
            command,
            shell=True,  # the command is the user's own, pipes and all
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout or None,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
