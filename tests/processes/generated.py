"""Generated plans over real processes: each of them runs this script, and ends with the values of one process.

    mpmd-trace launch -n 3 --devices 8 tests/processes/generated.py SEED ...

The plans are those that `make deadlocks` checks (`tests/fuzz/plans.py`), the small ones.  Programs add up what they
read, so that every value depends on all before it; in whole numbers, so that it is exact.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import sys
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import mpmd_trace as mt
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.distribution.runtime import process_runtime
from mpmd_trace.backend.placement import Placement
from mpmd_trace.backend.plan import Free, Plan, ProgramSpec, Run, Transfer

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.plans import random_example

#: Values stay below this.
PRIME = 1021
#: Larger plans take long to compile.
INSTRUCTIONS = 60


@dataclasses.dataclass
class Program:
    """Stands for an executable of XLA."""

    spec: ProgramSpec
    compiled: Any


def _call(program: Any, arrays: Sequence[Any]) -> Any:
    return program(*arrays)


def combined(at: int, number: int, arrays: Sequence[Any]) -> Any:
    """What program `at` makes of what it reads, as its result of this number."""
    found = sum((i + 2) * x for i, x in enumerate(arrays)) + arrays[0].sum() + at + 3 * number
    return found % PRIME


def expected(plan: Plan, shape: tuple[int, ...]) -> dict[int, Any]:
    """All values, computed in one process by NumPy."""
    values: dict[int, Any] = {slot: argument(slot, shape) for slot in plan.arguments}
    for at, instruction in enumerate(plan.instructions):
        if isinstance(instruction, Run):
            read = [values[slot] for slot in instruction.inputs]
            values.update({slot: combined(at, i, read) for i, slot in enumerate(instruction.outputs)})
        elif isinstance(instruction, Transfer):
            values.update(zip(instruction.outputs, map(values.__getitem__, instruction.inputs), strict=True))
    return values


def argument(slot: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(slot).integers(0, PRIME, shape).astype(np.float32)


def made_argument(slot: int, spec: jax.ShapeDtypeStruct) -> jax.Array:
    values = argument(slot, spec.shape)
    assert spec.sharding is not None
    return jax.make_array_from_callback(spec.shape, spec.sharding, lambda index: values[index], dtype=spec.dtype)


def topology(plan: Plan, owners: dict[str, tuple[int, ...]]) -> dict[str, Mesh] | None:
    """Meshes whose devices belong to these processes; None where those have too few."""
    free = collections.defaultdict(lambda: iter(()))
    free.update({p: iter(jax.local_devices(process_index=p)) for p in range(jax.process_count())})
    found = {}
    for name, body in plan.meshes.items():
        axes = {"x": len(owners[name])} if '"y"' not in body else {"x": 2, "y": 2}
        devices = [next(free[p], None) for p in owners[name]]
        if None in devices:
            return None
        found[name] = Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))
    return found


def runs(seed: int) -> bool:
    """Carry out the plan of a seed; False where it is too large."""
    example = random_example(random.Random(seed))
    plan = example.plan
    shape = plan.slots[0].type.tensor.shape
    assert shape is not None
    if len(plan.instructions) > INSTRUCTIONS or any(n % 12 for n in shape):  # JAX has no uneven shards
        return False
    meshes = topology(plan, {n: tuple(p % jax.process_count() for p in own) for n, own in example.owners.items()})
    if meshes is None:
        return False
    placement = Placement(meshes)
    spec = {slot.number: placement.spec(*slot.place) for slot in plan.slots}
    programs = []
    for at, instruction in enumerate(plan.instructions):
        if isinstance(instruction, Run) and instruction.mesh in placement.own:

            def step(*arrays: Any, at: int = at, count: int = len(instruction.outputs)) -> list[Any]:
                return [combined(at, number, arrays) for number in range(count)]

            made = jax.jit(
                step,
                donate_argnums=instruction.donated,
                out_shardings=[spec[slot].sharding for slot in instruction.outputs],
            )
            lowered = made.lower(*(spec[slot] for slot in instruction.inputs))
            call = functools.partial(_call, lowered.compile())
            compiled = types.SimpleNamespace(call=call, calls_back=False)
            programs.append(Program(plan.programs[instruction.program], compiled))
    job = current()
    assert job is not None
    job.peers.allgather_bytes("end of compiling", b"", patient=True)  # as `load` does
    runtime = process_runtime(plan, programs, placement, job, job.next_program())  # type: ignore[arg-type]
    values = expected(plan, shape)
    for _ in range(2):  # two steps
        args = [made_argument(slot, spec[slot]) for slot in plan.arguments]
        for slot, found in zip(plan.results, runtime.run(args), strict=True):
            for shard in found.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), values[slot][shard.index])
    free = sum(isinstance(i, Free) for i in plan.instructions)
    print(f"ends {seed}: {example.schedule}, {len(plan.instructions) - free} instructions", flush=True)
    return True


def main() -> None:
    warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # they have other shardings
    mt.initialize()
    print("carried out", sum(map(runs, map(int, sys.argv[1:]))), flush=True)


if __name__ == "__main__":
    main()
