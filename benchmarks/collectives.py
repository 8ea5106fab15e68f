"""Collectives of a training step over those of `jax.jit` of the same step, for weights sharded in several ways.

    python benchmarks/collectives.py [--only fsdp] [--stages 2 4] [--run] [--width 512] [--rows 512] [--json] [--check]

A step of 8 microbatches, summed in a loop under `jax.jit` and scheduled as 1F1B by us; the mesh of `jax.jit` has the
shape of one of ours.  Counted are the collectives in optimized HLO, times the runs of each program, in all stages, and
the bytes that they give a device.  `--check`: exit 1 where we have more of a kind.  `--run` also compares the numbers,
and the time of the processor per step.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 16)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import mpmd_trace  # noqa: E402
from mpmd_trace.backend.collectives import Collectives, collectives_of  # noqa: E402

WIDTH, ROWS, MICROBATCHES, LAYERS = 64, 32, 8, 4
COUNTED = ("all-gather", "reduce-scatter", "all-reduce", "all")
#: How the two weights of a layer and a microbatch are sharded, and the type that layers compute in.
CASES: dict[str, tuple[P, P, P, Any]] = {
    "fsdp": (P("data"), P(None, "data"), P(None, "data"), jnp.float32),
    "tensor": (P(None, "model"), P("model"), P(), jnp.float32),
    "both": (P("data", "model"), P("model", "data"), P(None, "data"), jnp.float32),
    "bf16": (P("data"), P(None, "data"), P(None, "data"), jnp.bfloat16),
    "data": (P(), P(), P(None, "data"), jnp.bfloat16),
    "zero1": (P(), P(), P(None, "data"), jnp.float32),
}
#: The axis over which the optimizer's state is sharded, too.
STATE = {"zero1": "data"}


@dataclasses.dataclass(frozen=True)
class Found:
    """What a step needs."""

    collectives: Collectives
    #: Bytes per device at the peak, of the mesh that needs most.
    peak: int
    call: Any


def layer(p: dict[str, jax.Array], x: jax.Array, dtype: Any, place: NamedSharding) -> jax.Array:
    """A residual block; the weights are cast to the type that it computes in, and what it gives has a sharding."""
    up, down = (p[name].astype(dtype) for name in ("up", "down"))
    y = x * p["scale"]
    x = x + (jax.nn.gelu(y.astype(dtype) @ up) @ down).astype(x.dtype)
    return jax.lax.with_sharding_constraint(x, place)


def training_step(case: str, meshes: list[Mesh], loop: Any) -> Any:
    """Loss and gradients summed over microbatches, then SGD with momentum."""
    *_, batch, dtype = CASES[case]
    places = [NamedSharding(meshes[i * len(meshes) // LAYERS], P(*batch[1:])) for i in range(LAYERS)]

    def loss(ps: list[Any], x: jax.Array) -> jax.Array:
        for i, p in enumerate(ps):
            one = functools.partial(layer, dtype=dtype, place=places[i])
            x = mpmd_trace.named_computation(one, name=f"layer{i}")(p, x)
        return mpmd_trace.named_computation(lambda x: jnp.mean(x**2), name="loss")(x)

    def step(ps: list[Any], momentum: list[Any], batch: jax.Array) -> Any:
        def microbatch(i: Any, total: Any, x: jax.Array) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(ps, x))

        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, ps)
        value, grads = loop(microbatch, zeros, batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g / MICROBATCHES, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, ps, momentum), momentum, value / MICROBATCHES

    return step


def scanned(body: Any, start: Any, batch: jax.Array) -> Any:
    """How people sum over microbatches under `jax.jit`."""
    return jax.lax.scan(lambda total, x: (body(0, total, x), None), start, batch)[0]


def arguments(width: int = WIDTH, rows: int = ROWS) -> tuple[Any, Any, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2 * LAYERS + 1)
    size = width**-0.5
    ps = [
        {
            "up": size * jax.random.normal(keys[2 * i], (width, 2 * width)),
            "down": size * jax.random.normal(keys[2 * i + 1], (2 * width, width)),
            "scale": jnp.ones(width),
        }
        for i in range(LAYERS)
    ]
    batch = jax.random.normal(keys[-1], (MICROBATCHES, rows, width))
    return ps, jax.tree.map(jnp.zeros_like, ps), batch


def shardings(case: str, meshes: list[Mesh]) -> Any:
    """Of the arguments, with each layer on its mesh."""
    up, down, batch, _ = CASES[case]
    ps = [
        {name: NamedSharding(meshes[i * len(meshes) // LAYERS], spec) for name, spec in specs}
        for i in range(LAYERS)
        for specs in [(("up", up), ("down", down), ("scale", P()))]
    ]
    return ps, state(case, ps), NamedSharding(meshes[0], batch)


def state(case: str, ps: Any) -> Any:
    """The shardings of momentum: of the weights, or over the axis of the case."""
    return ps if case not in STATE else jax.tree.map(lambda s: NamedSharding(s.mesh, P(STATE[case])), ps)


def mesh(case: str, number: int) -> Mesh:
    """Four devices, with the axes that the case shards over."""
    devices = np.array(jax.devices()[4 * number : 4 * number + 4])
    axes = {"tensor": ("model",), "both": ("data", "model")}.get(case, ("data",))
    return Mesh(devices.reshape(2, 2) if case == "both" else devices, axes)


def placed_once(program: Any, place: Any) -> Any:
    """Calls the program with arguments that the first call places."""
    placed: list[Any] = []

    def call() -> Any:
        if not placed:
            placed.extend(place())
        return program(*placed)

    return call


def by_jit(case: str, *size: int) -> Found:
    """Under `jax.jit` on one mesh."""
    args, places = arguments(*size), shardings(case, [mesh(case, 0)])
    results = None if case not in STATE else (*places[:2], None)
    step = jax.jit(training_step(case, [mesh(case, 0)], scanned), in_shardings=places, out_shardings=results)
    compiled = step.lower(*args).compile()
    sizes = compiled.memory_analysis()
    peak = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return Found(collectives_of(compiled), peak, placed_once(compiled, lambda: jax.device_put(args, places)))


def by_us(case: str, stages: int, *size: int, **options: Any) -> Found:
    """As a pipeline of that many stages."""
    meshes = [mesh(case, i) for i in range(stages)]
    names = {f"layer{i}": f"m{i * stages // LAYERS}" for i in range(LAYERS)}
    config = mpmd_trace.make_config(
        {f"m{i}": m for i, m in enumerate(meshes)},
        {**names, "loss": f"m{stages - 1}"},
        pipeline_schedule="1F1B",
        partitioning_options={"mpmd_infer_transfers": True},
        optimizer_sharding=STATE.get(case),
        **options,
    )
    args, places = arguments(*size), shardings(case, meshes)
    if case in STATE:
        places = places[0], None, places[2]
    step = mpmd_trace.jit(training_step(case, meshes, mpmd_trace.enumerated_for), config, in_shardings=places)
    compiled = step.lower(*args).compile()
    peak = max(found.peak for found in compiled.memory_analysis().values())
    call = placed_once(compiled, lambda: compiled.place(*args)[0])
    return Found(sum(compiled.collectives().values(), Collectives()), peak, call)


def row(case: str, stages: int, *size: int, run: bool, **options: Any) -> dict[str, Any]:
    """One line of the table."""
    wanted, found = by_jit(case, *size), by_us(case, stages, *size, **options)
    result: dict[str, Any] = {"case": case, "stages": stages}
    for kind in COUNTED[:-1]:
        result[kind] = [found.collectives[kind].runs, wanted.collectives[kind].runs]
    result[COUNTED[-1]] = [found.collectives.total.runs, wanted.collectives.total.runs]
    result["bytes"] = [found.collectives.total.bytes, wanted.collectives.total.bytes]
    result["peak"] = [found.peak, wanted.peak]
    if run:
        result["error"] = max(map(_difference, jax.tree.leaves(found.call()), jax.tree.leaves(wanted.call())))
        result["seconds"] = [_seconds(found.call), _seconds(wanted.call)]
    return result


def _difference(a: jax.Array, b: jax.Array) -> float:
    left, right = (np.asarray(x, dtype=np.float64) for x in (a, b))
    return float(np.max(np.abs(left - right)) / max(float(np.max(np.abs(right))), 1e-6))


def _seconds(call: Any) -> float:
    """Time of the processor per step, of the faster of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        jax.block_until_ready(call())
        times.append(time.process_time() - start)
    return round(min(times), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--run", action="store_true", help="also run the step, and compare it with jax.jit")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a microbatch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="fail where jax.jit has fewer collectives of a kind")
    given = parser.parse_args()
    rows = [
        row(case, stages, given.width, given.rows, run=given.run)
        for case in CASES
        if given.only in case
        for stages in given.stages
    ]
    for one in [] if given.json else rows:
        values = {k: v for k, v in one.items() if k not in ("case", "stages")}
        shown = (f"{k} {v[0]}/{v[1]}" if isinstance(v, list) else f"{k} {v:.1e}" for k, v in values.items())
        print(f"{one['case']:8} {one['stages']} stages: {', '.join(shown)}", flush=True)
    if given.json:
        print(json.dumps(rows))
    more = [f"{one['case']}, {one['stages']} stages" for one in rows if any(one[k][0] > one[k][1] for k in COUNTED)]
    if given.check and more:
        sys.exit(f"more collectives than jax.jit: {'; '.join(more)}")


if __name__ == "__main__":
    main()
