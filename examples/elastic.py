"""Training that goes on when a process dies.

    mpmd-trace launch -n 4 --devices 1 --restarts 1 examples/elastic.py --folder out/elastic --kill 2

The state is saved every few steps.  When a process dies (here by `--kill`, in the middle), all others get an error and
end; the launcher starts as many as are left, which divide the layers among themselves anew and go on from the last
complete checkpoint.  At the end process 0 tells how long each part of that took.
"""

import argparse
import json
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace.schedules import partition_layers

LAYERS, WIDTH, MICROBATCHES, STEPS, EVERY = 12, 32, 6, 20, 5


def loss(weights, x):
    for i, w in enumerate(weights):
        x = mpmd_trace.named_computation(lambda w, x: x + jnp.tanh(x @ w), name=f"layer{i}")(w, x)
    return jnp.mean(x**2)


def step(weights, batch):
    value, grads = mpmd_trace.value_and_grad(loss, microbatches=MICROBATCHES)(weights, batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def batch_of(number):
    return np.random.default_rng(number).normal(size=(8 * MICROBATCHES, WIDTH)).astype(np.float32)


def compiled_for(processes):
    """The step with a stage for each process, as equal as can be."""
    stages = partition_layers([1.0] * LAYERS, processes).stages
    topology = {f"stage{i}": Mesh(np.array([d]), ("data",)) for i, d in enumerate(jax.devices()[:processes])}
    where = {f"layer{n}": f"stage{i}" for i, layers in enumerate(stages) for n in layers}
    config = mpmd_trace.make_config(topology, where, pipeline_schedule="1F1B")
    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    lowered = mpmd_trace.jit(step, config, donate_argnums=0).lower(weights, batch_of(0))
    note("planned")
    return lowered.compile()


def init(key):
    return [0.1 * jax.random.normal(k, (WIDTH, WIDTH)) for k in jax.random.split(key, LAYERS)]


def main():
    processes = mpmd_trace.initialize()
    note("started")
    compiled = compiled_for(processes)
    note("compiled")
    manager = ocp.CheckpointManager(
        os.path.abspath(os.path.join(folder, "checkpoints")), item_handlers=mpmd_trace.checkpoint.checkpoint_handler()
    )
    first = manager.latest_step() or 0
    if first:
        like = mpmd_trace.abstract(compiled)
        arguments = ocp.checkpoint_utils.construct_restore_args(like)
        weights = manager.restore(first, args=ocp.args.PyTreeRestore(like, restore_args=arguments))
    else:
        weights = mpmd_trace.create(init, compiled, jax.random.key(0))
    note("loaded")
    try:
        for number in range(first, STEPS):
            if number == STEPS // 2 + 1 and first == 0 and jax.process_index() == options.kill:
                note("killed")
                os.kill(os.getpid(), signal.SIGKILL)
            weights, value = compiled(weights, batch_of(number))
            if number == first:
                note("first step")
            if (number + 1) % EVERY == 0:
                manager.save(number + 1, args=ocp.args.PyTreeSave(weights))
                manager.wait_until_finished()  # so that what is printed is true
                if jax.process_index() == 0:
                    print(f"step {number + 1} of {STEPS} on {processes} processes")
            value = float(mpmd_trace.fetch(value))
    except mpmd_trace.errors.PeerError as error:
        note("noticed")
        print(error, file=sys.stderr)
        sys.exit(1)
    if jax.process_index() == 0:
        print(f"loss {value:.6f}")
        tell()


def note(event):
    """Remember when something happened; the last process to write counts."""
    with open(os.path.join(folder, "events"), "a", encoding="utf-8") as file:
        file.write(json.dumps([event, time.time()]) + "\n")


def tell():
    """How long it took from the end of a process to the next step."""
    with open(os.path.join(folder, "events"), encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    killed = next((at for event, at in events if event == "killed"), None)
    if killed is None:
        return
    before, total = killed, 0.0
    for event in ("noticed", "started", "planned", "compiled", "loaded", "first step"):
        at = max(at for name, at in events if name == event and at > killed)
        print(f"  {event:>10} after {at - before:.1f} s")
        total, before = at - killed, at
    print(f"from the end of a process to the next step: {total:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="out/elastic")
    parser.add_argument("--kill", type=int, default=None, help="the process that dies")
    options = parser.parse_args()
    folder = options.folder
    os.makedirs(folder, exist_ok=True)
    main()
