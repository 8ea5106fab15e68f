"""`mpmd-trace compile`: a program as a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mpmd_trace_cli.console import compiling, progress, say
from mpmd_trace_cli.files import check_output
from mpmd_trace_cli.program import load_program


def compile_program(file: str, out: str, settings: Sequence[str]) -> dict[str, Any]:
    """Compile the program of `file` and write it to the file `out`; its numbers.  Raises `MpmdError`."""
    check_output(out, folders=True)
    program = load_program(file, settings)
    with progress() as shown:
        task = shown.add_task("trace, passes", total=1, info=program.name)
        lowered = program.jitted().lower(*program.args)
        shown.update(task, completed=1)
        compiled = lowered.compile(progress=compiling(shown))
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    compiled.save(out)
    size = os.path.getsize(out)
    programs = len(compiled.program.plan.programs)
    say(f"wrote {out}: {programs} programs, {size:,} bytes; mpmd_trace.load reads it (load only what you trust)")
    return {"file": out, "programs": programs, "bytes": size, "meshes": list(compiled.program.topology)}
