"""The C++ partitioner of jaxlib as a second engine, in a subprocess.  See `jax_compat/cpp_partitioner.py`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.fragment_rules import parse_merge_rule, parse_schedule_rule
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.passes.partition import OUR_OPTIONS, Assignment, IoSpec, NamedMeshes, Partitioned, Phases

__all__ = ["CppAnswer", "CppPartitioner", "available", "partition_with_cpp"]


def available() -> bool:
    """Whether this jaxlib contains the C++ partitioner."""
    return importlib.util.find_spec("jaxlib._sdy_mpmd") is not None


@dataclasses.dataclass
class CppAnswer:
    """What the reference made of a module.

    texts: the module after each phase asked for that it reached.
    seconds: CPU time of these phases.
    error: why it went no further, or None; `stopped` when its process ended instead of saying so.
    input_specs: where the inputs live after the last phase; empty after an error.  Likewise `output_specs`.
    """

    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    stopped: bool = False
    input_specs: list[IoSpec] = dataclasses.field(default_factory=list)
    output_specs: list[IoSpec] = dataclasses.field(default_factory=list)


class CppPartitioner:
    """A process that partitions modules, each in a fork of its own: started once, and an abort harms no other.

    with CppPartitioner() as cpp:
        answer = cpp.partition(text, "f", ...)
    """

    def __init__(self) -> None:
        if not available():
            installed = importlib.metadata.version("jaxlib")
            raise MpmdError(
                f"engine='cpp' needs the partitioner inside jaxlib 0.12 or newer; this is jaxlib {installed}"
            )
        source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mpmd_trace.jax_compat.cpp_partitioner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def partition(
        self,
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
        phases: Sequence[Phases] = ("all",),
        timeout: float = 900.0,
    ) -> CppAnswer:
        """What the reference makes of the module, after each of the phases; arguments as for `mpmd_trace.partition`.

        Raises `MpmdError` only when the process itself cannot be talked to.
        """
        options = {k: v for k, v in dict(partitioning_options or {}).items() if v is not False}
        request = {
            "text": text,
            "func_name": func_name,
            "named_meshes": [[name, [list(a) for a in axes]] for name, axes in named_meshes],
            "assignment": {
                k: v if isinstance(v, str) or v[1] is not None else v[0] for k, v in assignment.items()
            },
            "input_meshes": list(input_meshes),
            "output_meshes": list(output_meshes),
            "donate_argnums": list(donate_argnums),
            "partitioning_options": options,
            "merge_rules": [dataclasses.asdict(parse_merge_rule(str(r))) for r in fragment_merge_rules],
            "schedule_rules": [dataclasses.asdict(parse_schedule_rule(str(r))) for r in fragment_schedule_rules],
            "phases": list(phases),
            "timeout": timeout,
        }
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        answer = CppAnswer()
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            while "end" not in (line := json.loads(stdout.readline())):
                answer.texts[line["phase"]] = line["text"]
                answer.seconds += line["seconds"]
        except (OSError, ValueError):
            raise MpmdError("the process of the C++ partitioner ended before it answered") from None
        if line["end"] == "error":
            answer.error = f"the C++ partitioner says: {line['message']}"
        elif line["end"] == "stopped":
            answer.stopped = True
            if line["status"] == -signal.SIGALRM:
                answer.error = f"the C++ partitioner took longer than {timeout:.0f} s"
            else:
                last = " | ".join(line["log"])
                answer.error = f"the C++ partitioner stopped with status {line['status']}: {last}"
        else:
            answer.input_specs = [_io_spec(s) for s in line["input_specs"]]
            answer.output_specs = [_io_spec(s) for s in line["output_specs"]]
        return answer


def _io_spec(fields: Mapping[str, Any]) -> IoSpec:
    return IoSpec(
        fields["mesh"],
        tuple(tuple(axes) for axes in fields["dims"]),
        tuple(fields["unreduced"]),
        fields["memory_kind"],
    )


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
    same_mesh: Sequence[tuple[int, int]] = (),
    timeout: float = 900.0,
) -> Partitioned:
    """What the reference makes of the module; arguments as for `mpmd_trace.partition`.

    Raises `MpmdError` with the reference's message, also when it aborts or takes longer than `timeout` seconds,
    and for what only `mpmd_trace.partition` takes: some options, and `same_mesh`.
    """
    if same_mesh:
        raise MpmdError(
            "the C++ partitioner cannot be told that results are where arguments are (MeshOfInput); use "
            "engine='python', or give the results meshes"
        )
    ours = [name for name in OUR_OPTIONS if (partitioning_options or {}).get(name)]
    if ours:
        raise MpmdError(f"the C++ partitioner has no option {', '.join(ours)}; use engine='python', or leave it out")
    with CppPartitioner() as cpp:
        answer = cpp.partition(
            text,
            func_name,
            named_meshes,
            assignment,
            input_meshes,
            output_meshes,
            donate_argnums,
            partitioning_options=partitioning_options,
            fragment_merge_rules=fragment_merge_rules,
            fragment_schedule_rules=fragment_schedule_rules,
            phases=(phases,),
            timeout=timeout,
        )
    if answer.error is not None:
        raise MpmdError(answer.error)
    run = PassRun(0, "the C++ partitioner", True, answer.seconds)
    return Partitioned(parse(answer.texts[phases]), (run,))
