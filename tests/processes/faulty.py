"""A training loop in which one process does something bad: `faulty.py KIND VICTIM STEP INSTRUCTION [OPTION ...]`.

Kinds: `kill` and `stop` (the signals), `withhold` (it does not send what it should), `delay` (it sends later, which is
no fault), `fail` (an instruction raises), `bug` (its runtime cannot be made, by a bug of the package), `crash` (a
program on the device fails), `leave` (it ends in good order), `cut` (it dies while it sends an array).
With the option `across` every mesh is over two processes, with `measured` the step is one that is measured.  The others
print the error that they get, and that they can still compute.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.distribution.tcp import HEAD
from mpmd_trace.backend.distribution.transport import tag_of
from mpmd_trace.backend.runtime import Runtime

KIND, VICTIM, STEP, INSTRUCTION = sys.argv[1], *map(int, sys.argv[2:5])
ACROSS, MEASURED = ("across" in sys.argv[5:]), ("measured" in sys.argv[5:])
DELAY = 1.0
STEPS = 4


def layer(w: jax.Array, x: jax.Array, trouble: jax.Array) -> jax.Array:
    if KIND == "crash":
        x = jax.pure_callback(_maybe_fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x, trouble)
    return jnp.tanh(x @ w)


def _maybe_fail(x: Any, trouble: Any) -> Any:
    if trouble > 0 and jax.process_index() == VICTIM:
        raise ValueError("trouble")
    return np.asarray(x)


def step(ws: list[Any], x: Any, trouble: Any) -> tuple[list[Any], Any]:
    def loss(ws: list[Any], x: Any) -> Any:
        for i, w in enumerate(ws):
            x = mt.named_computation(layer, name=f"f{i}")(w, x, trouble)
        return jnp.mean(x**2)

    if KIND == "crash":  # callbacks have no derivative
        return ws, loss(ws, x[0])
    total, grads = jnp.zeros(()), jax.tree.map(jnp.zeros_like, ws)
    for i in range(x.shape[0]):
        value, more = mt.call(jax.value_and_grad(loss), call_counter=i)(ws, x[i])
        total, grads = total + value, jax.tree.map(jnp.add, grads, more)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], total


def inject(compiled: mt.Compiled) -> None:
    """Let the instruction of the victim do it, at the step."""
    runtime = compiled.program.runtime
    at = INSTRUCTION % len(runtime.steps)
    call, *rest = runtime.steps[at]

    def bad(arrays: Any) -> Any:
        if runtime.step != STEP:
            return call(arrays)
        if KIND in ("kill", "stop"):
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[KIND])
        elif KIND == "delay":
            time.sleep(DELAY)
        elif KIND == "fail":
            raise RuntimeError("no more of this")
        return call(arrays)

    runtime.steps[at] = (bad, *rest)
    if MEASURED:
        call = runtime.calls[INSTRUCTION % len(runtime.calls)]
        runtime.calls[INSTRUCTION % len(runtime.calls)] = bad
    if KIND == "withhold":
        post = current().transport.post  # type: ignore[union-attr]
        send, sent = post.send, [0]

        def never(process: int, tag: int, parts: Any) -> None:
            sent[0] += tag >= tag_of(runtime.program, STEP, 0)
            if sent[0] != 1:
                send(process, tag, parts)

        post.send = never
    if KIND == "cut":

        def half(link: socket.socket, key: tuple[int, int], part: Any) -> None:
            if key[0] < tag_of(runtime.program, STEP, 0):
                return send_part(link, key, part)
            link.sendall(HEAD.pack(*key, part.nbytes) + bytes(part.nbytes // 2))
            return os.kill(os.getpid(), signal.SIGKILL)

        post = current().transport.post  # type: ignore[union-attr]
        send_part, post.send_part = post.send_part, half


def main() -> None:
    mt.initialize()
    count = jax.process_count()
    first = [jax.local_devices(process_index=i) for i in range(count)]
    meshes = {f"m{i}": Mesh(np.array([first[i][0]]), ("x",)) for i in range(count)}
    if ACROSS:
        meshes = {f"m{i}": Mesh(np.array([first[i][0], first[(i + 1) % count][1]]), ("x",)) for i in range(count)}
    config = mt.make_config(
        meshes,
        {f"f{i}": f"m{i}" for i in range(count)},
        pipeline_schedule="1F1B",
        partitioning_options={"mpmd_infer_transfers": True},
    )
    generator = np.random.default_rng(0)
    ws: Any = [(0.3 * generator.normal(size=(8, 8))).astype(np.float32) for _ in range(count)]
    x = generator.normal(size=(count + 1, 4, 8)).astype(np.float32)
    columns = NamedSharding(meshes["m0"], PartitionSpec(None, None, "x")) if ACROSS else None
    lowered, me = (
        mt.jit(step, config, in_shardings=(None, columns, None)).lower(ws, x, np.float32(0)),
        jax.process_index(),
    )
    if KIND == "bug" and me == VICTIM:
        names: dict[str, Any] = {}
        exec(compile("def broken(*args):\n    assert not args", Runtime.__init__.__code__.co_filename, "exec"), names)
        Runtime._issued = names["broken"]  # type: ignore[method-assign]
    compiled = lowered.compile()
    if me == VICTIM:
        inject(compiled)
    for number in range(STEPS):
        started = time.monotonic()
        if KIND == "leave" and me == VICTIM and number == STEP:
            return
        try:
            given = ws, x, np.float32(KIND == "crash" and number == STEP)
            (ws, _), *_ = compiled.measure(*given) if MEASURED and number == STEP else (compiled(*given),)
        except mt.PeerError as error:
            alive = float(jnp.arange(4.0).sum()) == 6.0
            text = str(error).replace("\n", " | ")
            print(f"error in step {number} after {time.monotonic() - started:.2f} s, alive={alive}: {text}", flush=True)
            sys.exit(3)
    print("all steps", flush=True)


if __name__ == "__main__":
    main()
