"""A training loop in which one process does something bad: `faulty.py KIND VICTIM STEP INSTRUCTION [OPTION ...]`.

Kinds: `kill` and `stop` (the signals), `withhold` (it does not send what it should), `delay` (it sends later, which is
no fault), `fail` (an instruction raises), `bug` (its runtime cannot be made, by a bug of the package), `crash` (a
program on the device fails), `leave` (it ends in good order), `cut` (it dies while others fetch an array),
`strangers` (others connect to what the job listens at, which is no fault).  Killed elsewhere: `start` (before JAX knows
its devices), `compile`, `end` (when it leaves the job), and before a change of a file: `save` and `restore`, in which
`disk` has no space left.  These keep a checkpoint in the folder FAULTY_FOLDER.
With the option `across` every mesh is over two processes, with `measured` the step is one that is measured.  The others
print the error that they get, and that they can still compute.
"""

from __future__ import annotations

import atexit
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
from mpmd_trace.backend.distribution.transport import tag_of
from mpmd_trace.backend.runtime import Runtime

KIND, VICTIM, STEP, INSTRUCTION = sys.argv[1], *map(int, sys.argv[2:5])
ACROSS, MEASURED = ("across" in sys.argv[5:]), ("measured" in sys.argv[5:])
DELAY = 1.0
STEPS = 4
#: The events of Python that change files, or look for them.
FILES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "shutil.rmtree")
KEEPS = KIND in ("save", "restore", "disk")


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


def inject(compiled: mt.stages.Compiled) -> None:
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
        elif KIND == "strangers":
            strangers()
        elif KIND == "fail":
            raise RuntimeError("no more of this")
        return call(arrays)

    runtime.steps[at] = (bad, *rest)
    if MEASURED:
        call = runtime.calls[INSTRUCTION % len(runtime.calls)]
        runtime.calls[INSTRUCTION % len(runtime.calls)] = bad
    if KIND in ("withhold", "cut"):
        transport: Any = current().transport  # type: ignore[union-attr]
        offer, offered = transport.offer, [0]

        def bad_offer(tag: int, blocks: Any) -> None:
            offered[0] += tag >= tag_of(runtime.program, STEP, 0)
            if offered[0] != 1:
                offer(tag, blocks)
            elif KIND == "cut":
                offer(tag, blocks)
                kill()

        transport.offer = bad_offer


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Files:
    """Counts what happens to files while it is armed, and does something bad at one of these moments, or at the end."""

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: Any) -> None:
        if self.left is None or event not in FILES:
            return
        self.left -= 1
        if self.left < 0:
            if KIND != "disk":
                kill()
            if event in ("os.mkdir", "os.rename") or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                raise OSError(28, "No space left on device")

    def armed(self, call: Any) -> None:
        """Call this, with trouble."""
        self.left = INSTRUCTION % (4 if KIND == "disk" else 40)
        call()
        self.left = None
        if KIND != "disk":
            kill()


def until_all_begin() -> None:
    """Wait for the others, so that none seems not to come only because it took longer to start."""
    begun = os.environ["FAULTY_FOLDER"] + ".begun"
    os.makedirs(begun, exist_ok=True)
    open(os.path.join(begun, os.environ["JAX_PROCESS_ID"]), "w").close()
    while len(os.listdir(begun)) < int(os.environ["JAX_NUM_PROCESSES"]):
        time.sleep(0.01)


def strangers() -> None:
    """Connect to what all processes listen at, and say nothing, or something else than what is expected."""
    job = current()
    assert job is not None
    places = [text.rsplit(":", 1) for text in job.transport.addresses]  # type: ignore[attr-defined]
    for number in range(8 * len(places)):
        link = socket.create_connection(places[number % len(places)])
        _LINKS.append(link)
        if number % 2:
            link.sendall(bytes([number]) * 40)


_LINKS: list[socket.socket] = []


def main() -> None:
    until_all_begin()
    mt.initialize()
    if KIND == "start" and os.environ["JAX_PROCESS_ID"] == str(VICTIM):
        kill()
    count = jax.process_count()
    first = [jax.local_devices(process_index=i) for i in range(count)]
    meshes = {f"m{i}": Mesh(np.array([first[i][0]]), ("x",)) for i in range(count)}
    if ACROSS:
        meshes = {f"m{i}": Mesh(np.array([first[i][0], first[(i + 1) % count][1]]), ("x",)) for i in range(count)}
    config = mt.make_config(meshes, {f"f{i}": f"m{i}" for i in range(count)}, pipeline_schedule="1F1B")
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
    if KIND == "compile" and me == VICTIM:
        kill()
    compiled = lowered.compile()
    if me == VICTIM:
        inject(compiled)
        if KIND == "end":
            atexit.register(kill)
    files = Files()
    path = os.path.join(os.environ.get("FAULTY_FOLDER", ""), "state")
    for number in range(STEPS):
        started = time.monotonic()
        if KIND == "leave" and me == VICTIM and number == STEP:
            return
        try:
            given = ws, x, np.float32(KIND == "crash" and number == STEP)
            (ws, _), *_ = compiled.measure(*given) if MEASURED and number == STEP else (compiled(*given),)
            if KEEPS:
                ws = keep(path, ws, number, files if me == VICTIM and number == STEP else None)
        except mt.errors.PeerError as error:
            alive = float(jnp.arange(4.0).sum()) == 6.0
            text = str(error).replace("\n", " | ")
            print(f"error in step {number} after {time.monotonic() - started:.2f} s, alive={alive}: {text}", flush=True)
            sys.exit(3)
    print("all steps", flush=True)


def keep(path: str, ws: Any, number: int, files: Files | None) -> Any:
    """Save the weights, and restore them."""

    def save() -> None:
        mt.save(path, {"ws": ws, "step": np.int32(number)}, overwrite=True)

    def restore() -> None:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), ws)
        result.append(mt.restore(path, {"ws": like, "step": 0})["ws"])

    result: list[Any] = []
    for name, call in (("save", save), ("restore", restore)):
        if files is not None and (name == KIND or (name, KIND) == ("save", "disk")):
            files.armed(call)
        else:
            call()
    return result[0]


if __name__ == "__main__":
    begun = time.monotonic()
    try:
        main()
    except mt.errors.PeerError as error:
        text = str(error).replace("\n", " | ")
        print(f"error in step -1 after {time.monotonic() - begun:.2f} s, alive=True: {text}", flush=True)
        sys.exit(3)
