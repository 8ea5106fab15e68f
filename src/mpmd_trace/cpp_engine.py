"""The C++ partitioner of jaxlib as a second engine, in a subprocess.  See `jax_compat/cpp_partitioner.py`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .ir.diagnostics import MpmdError
from .partition import Assignment, NamedMeshes, Partitioned, Phases
from .passes.fragment_rules import parse_merge_rule, parse_schedule_rule
from .passes.manager import PassRun
from .text import parse

__all__ = ["available", "partition_with_cpp"]


def available() -> bool:
    """Whether this jaxlib contains the C++ partitioner."""
    return importlib.util.find_spec("jaxlib._sdy_mpmd") is not None


def partition_with_cpp(
    text: str,
    func_name: str,
    named_meshes: NamedMeshes,
    assignment: Assignment,
    input_meshes: Sequence[str | None],
    output_meshes: Sequence[str | None],
    donate_argnums: Sequence[int] = (),
    *,
    partitioning_options: Mapping[str, Any] | None = None,
    fragment_merge_rules: Sequence[Any] = (),
    fragment_schedule_rules: Sequence[Any] = (),
    phases: Phases = "all",
    timeout: float = 900.0,
) -> Partitioned:
    """What the reference makes of the module; arguments as for `mpmd_trace.partition`.

    Raises `MpmdError` with the reference's message, also when it aborts or takes longer than `timeout` seconds.
    """
    if not available():
        installed = importlib.metadata.version("jaxlib")
        raise MpmdError(
            f"engine='cpp' needs the partitioner inside jaxlib 0.12 or newer; this is jaxlib {installed}"
        )
    options = {k: v for k, v in dict(partitioning_options or {}).items() if v is not False}
    request = {
        "text": text,
        "func_name": func_name,
        "named_meshes": [[name, [list(a) for a in axes]] for name, axes in named_meshes],
        "assignment": {k: v if isinstance(v, str) or v[1] is not None else v[0] for k, v in assignment.items()},
        "input_meshes": list(input_meshes),
        "output_meshes": list(output_meshes),
        "donate_argnums": list(donate_argnums),
        "partitioning_options": options,
        "merge_rules": [dataclasses.asdict(parse_merge_rule(str(r))) for r in fragment_merge_rules],
        "schedule_rules": [dataclasses.asdict(parse_schedule_rule(str(r))) for r in fragment_schedule_rules],
        "phases": phases,
    }
    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH")) if p)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mpmd_trace.jax_compat.cpp_partitioner"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        )
    except subprocess.TimeoutExpired:
        raise MpmdError(f"the C++ partitioner took longer than {timeout:.0f} s") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-3:]
        raise MpmdError(
            f"the C++ partitioner stopped with status {done.returncode}: " + " | ".join(last)
        ) from None
    if "error" in answer:
        raise MpmdError(f"the C++ partitioner says: {answer['error']}")
    run = PassRun(0, "the C++ partitioner", True, answer["seconds"])
    return Partitioned(parse(answer["text"]), (run,))
