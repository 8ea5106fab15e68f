"""Before a program runs on several processes, they compare what they are about to run."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from mpmd_trace.backend.distribution.job import Job
from mpmd_trace.backend.executables import CompilerOptions
from mpmd_trace.backend.placement import Placement
from mpmd_trace.backend.plan import Plan
from mpmd_trace.diagnostics.messages import raise_errors

_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_softmax_custom_jvp",
    "jax_use_shardy_partitioner",
    "jax_cpu_collectives_implementation",
    "jax_debug_nans",
    "jax_debug_infs",
)


def check_consistency(job: Job, plan: Plan, placement: Placement, options: CompilerOptions, text: str) -> int:
    """Return the number of the program in the job, once all processes have shown that it is the same in each of them.

    A program of one process alone has none, and the others do nothing in it.

    Raises:
        MpmdError: with the processes that have something else than process 0, and what.
        PeerError: when a process does not come.
    """
    if len(placement.processes) == 1:
        return 0
    mine = {
        "version of Python": platform.python_version(),
        "version of jax": jax.__version__,
        "version of jaxlib": importlib.metadata.version("jaxlib"),
        "settings of JAX": _settings(),
        "topology": "\n".join(f"{name}: {_mesh(mesh)}" for name, mesh in placement.meshes.items()),
        "compiler options": "\n".join(f"{mesh}: {dict(sorted(shown.items()))}" for mesh, shown in options.items()),
        "plan": str(plan),
        "program": text,
    }
    digests = {key: hashlib.sha256(value.encode()).hexdigest() for key, value in mine.items()}
    everyone = job.peers.allgather("comparison of programs", digests)
    unlike = [key for key in mine if len({shown[key] for shown in everyone}) > 1]
    if unlike:
        # Versions and settings explain programs that differ.
        key = unlike[0]
        raise_errors(differences(plan.name, key, job.peers.allgather("difference of programs", mine[key])))
    return job.next_program()


def differences(name: str, key: str, texts: Sequence[str]) -> list[str]:
    """Return how the `key` of a program differs between processes, in words."""
    problems = []
    for process, text in enumerate(texts):
        if text == texts[0]:
            continue
        here, there = text.splitlines(), texts[0].splitlines()
        pairs = zip([*here, *[""] * len(there)], [*there, *[""] * len(here)], strict=False)
        number, (a, b) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        line = f" (line {number + 1})" if max(len(here), len(there)) > 1 else ""
        problems.append(
            f"process {process} has another {key} of {name} than process 0{line}:\n"
            f"  process {process}: {a.strip() or 'nothing'}\n"
            f"  process 0: {b.strip() or 'nothing'}\n"
            "All processes must trace the same program: branches on jax.process_index(), other arguments, other "
            "versions or settings make it another one."
        )
    return problems


def _settings() -> str:
    """Return what changes the numbers of a program, or when it stops; as it is in this thread."""
    lines = [f"{name} = {getattr(jax.config, name, None)}" for name in _SETTINGS]
    return "\n".join([*lines, f"XLA_FLAGS = {os.environ.get('XLA_FLAGS', '')}"])


def _mesh(mesh: Mesh) -> str:
    axes = ", ".join(f"{a}={n}" for a, n in mesh.shape.items())
    return f"{axes} on devices {[d.id for d in mesh.devices.flat]}"
