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
from typing import Any, Self

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.compile_options import OUR_OPTIONS
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Schedule
from mpmd_trace.passes.partition import IoSpec, Partitioned
from mpmd_trace.passes.request import PartitionRequest, Phases


def available() -> bool:
    """Return whether this jaxlib contains the C++ partitioner."""
    return importlib.util.find_spec("jaxlib._sdy_mpmd") is not None


@dataclasses.dataclass
class CppAnswer:
    """What the reference made of a module.

    texts: the module after each phase asked for that it reached.
    seconds: CPU time of these phases.
    talking: CPU time of reading the text and of printing those of the phases.
    error: why it went no further, or None; `stopped` when its process ended instead of saying so.
    input_specs: where the inputs live after the last phase; empty after an error.  Likewise `output_specs`.
    """

    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    talking: float = 0.0
    error: str | None = None
    stopped: bool = False
    input_specs: list[IoSpec] = dataclasses.field(default_factory=list)
    output_specs: list[IoSpec] = dataclasses.field(default_factory=list)


class CppPartitioner:
    """A process that partitions modules, each in a fork of its own: started once, and an abort harms no other.

    with CppPartitioner() as cpp:
        answer = cpp.partition(text, request)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        with self._process:  # closes the pipes, and waits
            pass

    def partition(
        self, text: str, request: PartitionRequest, *, phases: Sequence[Phases] = ("all",), timeout: float = 900.0
    ) -> CppAnswer:
        """Return what the reference makes of the module, after each of the phases.

        Raises `MpmdError` only when the process itself cannot be talked to.
        """
        question = {"text": text, "arguments": _arguments(request), "phases": list(phases), "timeout": timeout}
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        answer = CppAnswer()
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            while "end" not in (line := json.loads(stdout.readline())):
                answer.texts[line["phase"]] = line["text"]
                answer.seconds += line["seconds"]
                answer.talking = line["talking"]
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
        fields["mesh"], tuple(tuple(axes) for axes in fields["dims"]), tuple(fields["unreduced"]), fields["memory_kind"]
    )


def _arguments(request: PartitionRequest) -> dict[str, Any]:
    """Return the request as arguments of the reference's driver, in plain data."""
    return {
        "func_name": request.func_name,
        "named_meshes": [[name, mesh.axes] for name, mesh in request.topology.meshes.items()],
        "assignment": {
            name: a.place if a.stage is None else [a.place, a.stage] for name, a in request.assignment.items()
        },
        "input_meshes": [None if a is None else a.place for a in request.inputs],
        "output_meshes": [None if a is None else a.place for a in request.outputs],
        "donate_argnums": list(request.donated),
        "partitioning_options": {
            **{name: True for name, value in request.options.changed().items() if name.startswith("mpmd_") and value},
            "mpmd_pipeline_schedule": str(request.schedule),
        },
        "fragment_merge_rules": [dataclasses.asdict(rule) for rule in request.merge_rules],
        "fragment_schedule_rules": [dataclasses.asdict(rule) for rule in request.schedule_rules],
    }


def partition_with_cpp(
    text: str, request: PartitionRequest, *, phases: Phases = "all", timeout: float = 900.0
) -> Partitioned:
    """Return what the reference makes of the module.

    Raises `MpmdError` with the reference's message, also when it aborts or takes longer than `timeout` seconds,
    and for what only our own engine does: some options and schedules, and `same_mesh`.
    """
    if request.same_mesh:
        raise MpmdError(
            "the C++ partitioner does not support results on the mesh of an argument (MeshOfInput); use "
            "engine='python', or give the results meshes"
        )
    order = request.schedule
    if not isinstance(order, Schedule):
        raise MpmdError(
            f"engine='cpp' knows the reference's schedules only, not '{order}'; use engine='python', or one of "
            + ", ".join(SCHEDULES)
        )
    ours = [name for name in (*OUR_OPTIONS, "mpmd_equal_microbatches") if getattr(request.options, name)]
    if ours:
        raise MpmdError(f"the C++ partitioner has no option {', '.join(ours)}; use engine='python', or leave it out")
    with CppPartitioner() as cpp:
        answer = cpp.partition(text, request, phases=(phases,), timeout=timeout)
    if answer.error is not None:
        raise MpmdError(answer.error)
    run = PassRun(0, "the C++ partitioner", True, answer.seconds)
    return Partitioned(parse(answer.texts[phases]), (run,))
