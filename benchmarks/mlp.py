"""A training step of a multilayer perceptron in stages, for the benchmarks of the runtime."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import mpmd_trace


@dataclasses.dataclass(frozen=True)
class Case:
    """`layers` of `width` x `width` in equal `stages`, one mesh of one device each."""

    width: int
    layers: int
    stages: int
    microbatches: int
    batch: int
    schedule: str = "1F1B"
    #: Whether a forward and a backward that follow each other on a mesh are one program; None: as it is by default.
    merge: bool | None = True
    #: Whether gradients are summed by `enumerated_for`, not by a loop in Python.
    enumerated: bool = False

    def parameters(self) -> list[list[tuple[np.ndarray, np.ndarray]]]:
        rng = np.random.default_rng(0)
        n, per_stage = self.width, self.layers // self.stages
        return [
            [(rng.normal(size=(n, n)).astype(np.float32) / n**0.5, np.zeros(n, np.float32)) for _ in range(per_stage)]
            for _ in range(self.stages)
        ]

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        x, y = (rng.normal(size=(self.batch, self.width)).astype(np.float32) for _ in range(2))
        return x, y

    def loss(self, parameters: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def stage(layers: Any, x: jax.Array) -> jax.Array:
            for w, b in layers:
                x = jnp.tanh(x @ w + b)
            return x

        def last(layers: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.mean((stage(layers, x) - y) ** 2)

        for i, layers in enumerate(parameters[:-1]):
            x = mpmd_trace.named_computation(stage, name=f"stage{i}")(layers, x)
        name = f"stage{self.stages - 1}"
        return mpmd_trace.named_computation(last, name=name)(parameters[-1], x, y)

    def step(self, parameters: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        """Forward, backward and update; loss and gradients are summed from one microbatch to the next."""
        size = self.batch // self.microbatches
        total: Any = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters))

        def add(total: Any, parameters: Any, x: jax.Array, y: jax.Array) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(self.loss)(parameters, x, y))

        if self.enumerated:
            parts = jax.tree.map(lambda a: a.reshape(self.microbatches, size, -1), (x, y))
            total = mpmd_trace.enumerated_for(lambda i, total, part: add(total, parameters, *part), total, parts)
        else:
            for i in range(self.microbatches):
                part = slice(i * size, (i + 1) * size)
                total = mpmd_trace.call(add, call_counter=i)(total, parameters, x[part], y[part])
        loss, gradients = total
        rate = 0.01 / self.microbatches
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients), loss / self.microbatches

    def config(self, devices: Sequence[jax.Device] | None = None) -> mpmd_trace.config.Config:
        devices = jax.devices() if devices is None else devices
        meshes = [f"m{i}" for i in range(self.stages)]
        merging = {
            "mpmd_infer_cross_mesh_reductions": True,
            "mpmd_merge_forward_with_backward": self.merge,
            "mpmd_merge_backward_with_forward": self.merge,
        }
        return mpmd_trace.make_config(
            {m: Mesh(np.array(devices[i : i + 1]), ("x",)) for i, m in enumerate(meshes)},
            {f"stage{i}": (m, i) for i, m in enumerate(meshes)},
            input_mesh_assignment=(meshes, None, None),
            output_mesh_assignment=(meshes, None),
            partitioning_options={"mpmd_infer_transfers": True, **({} if self.merge is None else merging)},
            pipeline_schedule=self.schedule,
        )


def timed(step: Callable[..., Any], parameters: Any, x: Any, y: Any, steps: int) -> tuple[float, Any]:
    """Seconds per step, and the parameters after the steps."""
    jax.block_until_ready((parameters, x, y))
    start = time.perf_counter()
    for _ in range(steps):
        parameters, loss = step(parameters, x, y)
    jax.block_until_ready((parameters, loss))
    return (time.perf_counter() - start) / steps, parameters


def compare(case: Case, *, steps: int, rounds: int) -> dict[str, float]:
    """Time of a pipelined step over the time of the same step under plain `jax.jit` on one device.

    The two take turns, `rounds` times; the ratio is the median over the rounds.
    """
    x, y = case.data()
    begin = time.perf_counter()
    compiled = mpmd_trace.jit(case.step, case.config(), donate_argnums=(0,)).lower(case.parameters(), x, y).compile()
    compile_seconds = time.perf_counter() - begin
    (pipelined, px, py), _ = compiled.place(case.parameters(), x, y)
    device = jax.devices()[0]
    plain_step = jax.jit(case.step, donate_argnums=(0,))
    plain, jx, jy = jax.device_put((case.parameters(), x, y), device)

    _, pipelined = timed(compiled, pipelined, px, py, 3)
    _, plain = timed(plain_step, plain, jx, jy, 3)
    for found, wanted in zip(jax.tree.leaves(pipelined), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    ours, theirs = [], []
    for _ in range(rounds):
        seconds, pipelined = timed(compiled, pipelined, px, py, steps)
        ours.append(seconds)
        seconds, plain = timed(plain_step, plain, jx, jy, steps)
        theirs.append(seconds)
    pipelined, whole, inside = issuing(compiled, pipelined, px, py, steps)
    plan = compiled.program.plan
    return {
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "best ratio": min(ours) / min(theirs),
        "pipelined ms": statistics.median(ours) * 1e3,
        "jit ms": statistics.median(theirs) * 1e3,
        "runs": len(plan.runs),
        "transfers": sum(len(t.outputs) for t in plan.transfers),
        "compile s": compile_seconds,
        "instructions": len(compiled.program.runtime.steps),
        "us per instruction": whole,
        "us per instruction in JAX": inside,
        "us per instruction of ours": whole - inside,
    }


def issuing(
    compiled: mpmd_trace.stages.Compiled, parameters: Any, x: Any, y: Any, steps: int
) -> tuple[Any, float, float]:
    """The parameters after the steps; microseconds of the calling thread for each instruction, and those of JAX in it.

    The latter are spent inside of JAX's functions that start a program or a copy.
    """

    def spent() -> float:
        nonlocal parameters
        start = time.thread_time_ns()
        for _ in range(steps):
            parameters, loss = compiled(parameters, x, y)
        found = time.thread_time_ns() - start
        jax.block_until_ready((parameters, loss))
        return found / steps / len(runtime.steps) / 1e3

    def clocked(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_clocked(arrays: Any) -> Any:
            nonlocal inside
            start = time.thread_time_ns()
            found = call(arrays)
            inside += time.thread_time_ns() - start
            return found

        return call_clocked

    runtime, inside = compiled.program.runtime, 0
    plain = runtime.steps
    whole = spent()
    runtime.steps = [(clocked(call), *rest) for call, *rest in plain]
    spent()
    runtime.steps = plain
    return parameters, whole, inside / steps / len(plain) / 1e3


def main(
    description: str | None, cases: dict[str, tuple[Case, float]], *, steps: int, rounds: int, measure: str = "ratio"
) -> int:
    """The command line of a benchmark that compares cases with plain `jax.jit`; the exit status.

    Each case has a name and a target, the most that `measure`, a key of what `compare` returns, may be.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    first = next(iter(cases.values()))[0]
    parser.add_argument("--steps", type=int, default=steps, help="steps per round")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--batch", type=int, default=first.batch, help="rows per step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument(
        "--synchronous", action="store_true", help="both run their programs in the thread that calls them"
    )
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", first.stages)
    jax.config.update("jax_cpu_enable_async_dispatch", not options.synchronous)
    reached = True
    for title, (case, target) in cases.items():
        found = compare(dataclasses.replace(case, batch=options.batch), steps=options.steps, rounds=options.rounds)
        reached = report(title, found, target, measure, as_json=options.json) and reached
    return 0 if reached or not options.check else 1


def report(title: str, figures: dict[str, float], target: float, measure: str, *, as_json: bool) -> bool:
    """Print the result; says whether the target is reached."""
    reached = figures[measure] <= target
    if as_json:
        print(json.dumps({"benchmark": title, "measure": measure, "target": target, "reached": reached, **figures}))
        return reached
    print(f"{title}: {figures['ratio']:.2f} times plain jit, best {figures['best ratio']:.2f}")
    print(
        f"  {figures['pipelined ms']:.2f} ms against {figures['jit ms']:.2f} ms; {figures['runs']:.0f} runs and "
        f"{figures['transfers']:.0f} transfers; compiled in {figures['compile s']:.1f} s"
    )
    print(
        f"  {figures['instructions']:.0f} instructions, each issued in {figures['us per instruction']:.1f} us of the "
        f"calling thread, of which {figures['us per instruction in JAX']:.1f} us start a program or copies and "
        f"{figures['us per instruction of ours']:.1f} us are ours"
    )
    print(f"  target: {measure} at most {target:g}, {'reached' if reached else 'missed'}")
    return reached
