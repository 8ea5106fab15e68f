"""The parts of `gpu.py`, each run as `python gpu_parts.py NAME`: it prints its result, and ends with 1 if wrong."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import mpmd_trace as mt

PART = sys.argv[-1]
if PART.startswith("processes"):  # before anything looks at devices
    PROCESSES = mt.initialize(transfers="host" if PART == "processes" else None)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from gpu_model import SIZES, TINY, make, timed  # noqa: E402
from jax.sharding import Mesh  # noqa: E402

ON_GPU = jax.default_backend() == "gpu"
DEVICE = jax.devices()[0]


def difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two pytrees of arrays."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()) for a, b in pairs)


def equal(meshes: int, schedule: str) -> dict[str, Any]:
    """The model in float32 against `jax.jit`."""
    case = make(TINY, meshes, dtype=jnp.float32, pipeline_schedule=schedule)
    with jax.default_matmul_precision("highest"):
        ours, theirs = mt.jit(case.step, case.config)(*case.args), jax.jit(case.step)(*case.args)
    apart = difference(ours[0], theirs[0])
    return {"largest difference": apart, "wrong": [] if apart < 1e-5 else ["parameters"]}


Layer = Callable[[jax.Array, jax.Array], jax.Array]


def two_layers(first: Layer, second: Layer) -> Callable[..., Any]:
    """Return a training step whose layers are `a` and `b`."""

    def loss(w: list[jax.Array], x: jax.Array) -> jax.Array:
        x = mt.named_computation(first, name="a")(w[0], x)
        x = mt.named_computation(second, name="b")(w[1], x)
        return (x.astype(jnp.float32) ** 2).mean()

    def step(w: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        start = jax.tree.map(jnp.zeros_like, w)
        grads = mt.enumerated_for(lambda i, g, x: jax.tree.map(jnp.add, g, jax.grad(loss)(w, x)), start, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)

    return step


def kernels() -> dict[str, Any]:
    """What models on GPUs are made of: random numbers, attention, Pallas kernels, decompositions, float8, callbacks."""
    from jax.experimental import pallas as pl

    def attention(kind: str) -> Layer:
        def layer(w: jax.Array, x: jax.Array) -> jax.Array:
            q = (x @ w).astype(jnp.bfloat16).reshape(1, 16, 1, 64)
            out = jax.nn.dot_product_attention(q, q, q, is_causal=True, implementation=kind)
            return out.reshape(16, 64).astype(jnp.float32)

        return layer

    def kernel(x: Any, out: Any) -> None:
        out[...] = jnp.sin(x[...])

    @jax.custom_vjp
    def sine(x: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=out, interpret=not ON_GPU)(x)

    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))
    f8 = jnp.float8_e4m3fn

    def product8(w: jax.Array, x: jax.Array) -> jax.Array:
        return (x.astype(f8).astype(jnp.bfloat16) @ w.astype(f8).astype(jnp.bfloat16)).astype(jnp.float32)

    def called_back(w: jax.Array, x: jax.Array) -> jax.Array:
        same = jax.ShapeDtypeStruct((16, 64), jnp.float32)
        return x @ w + jax.pure_callback(lambda a: np.asarray(a) * 0, same, jax.lax.stop_gradient(x))

    def convolution(w: jax.Array, x: jax.Array) -> jax.Array:
        image, window = x.reshape(1, 1, 16, 64), w[:3, :3].reshape(1, 1, 3, 3)
        return jax.lax.conv_general_dilated(image, window, (1, 1), "SAME").reshape(16, 64)

    def dropout(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), x @ w, 0)

    def scanned(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]

    def plain(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    def printed(w: jax.Array, x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda total: None, x.sum())
        return x @ w

    layers: dict[str, Layer] = {
        "plain": plain,
        "dropout": dropout,
        "attention by XLA": attention("xla"),
        **({"attention by cuDNN": attention("cudnn")} if ON_GPU else {}),
        "Pallas": lambda w, x: sine(x @ w),
        "qr": lambda w, x: x @ jnp.linalg.qr(w)[0],
        "eigh": lambda w, x: x @ jnp.linalg.eigh(w + w.T)[1] ** 2,
        "svd": lambda w, x: x * jnp.linalg.svd(w, compute_uv=False)[0],
        "top_k": lambda w, x: jax.lax.top_k(x @ w, 64)[0],
        "float8": product8,
        "callback": called_back,
        "debug callback": printed,
        "convolution": convolution,
        "scan": scanned,
        "checkpoint": jax.checkpoint(plain),
    }
    rng = np.random.default_rng(0)
    w = [jnp.asarray(0.1 * rng.normal(size=(64, 64)), jnp.float32) for _ in range(2)]
    batch = jnp.asarray(rng.normal(size=(4, 16, 64)), jnp.float32)
    topology = {f"m{i}": Mesh(np.array([DEVICE]), ("data",)) for i in range(2)}
    config = mt.make_config(topology, {"a": "m0", "b": "m1"}, pipeline_schedule="1F1B")
    wrong, differences = [], {}
    for name, layer in layers.items():
        step = two_layers(layer, plain)
        try:
            differences[name] = difference(mt.jit(step, config)(w, batch), jax.jit(step)(w, batch))
            if not differences[name] < (0.2 if name == "eigh" else 2e-2):
                wrong.append(name)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    return {"kinds": len(layers), "largest difference": max(differences.values()), "wrong": wrong}


def saved() -> dict[str, Any]:
    """Whether a step gives the same bits each time, and a program that was saved and loaded the same as before."""
    case = make(TINY, 2, dtype=jnp.float32, pipeline_schedule="1F1B")
    ours = mt.jit(case.step, case.config).lower(*case.args).compile()
    with tempfile.TemporaryDirectory() as folder:
        ours.save(os.path.join(folder, "step"))
        loaded = mt.load(os.path.join(folder, "step"))
        theirs = jax.jit(case.step).lower(*case.args).compile()

        def same(a: Any, b: Any) -> bool:
            return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))

        apart = difference(ours(*case.args)[0], loaded(*case.args)[0])
        return {
            "jit twice the same bits": same(theirs(*case.args), theirs(*case.args)),
            "ours twice": same(ours(*case.args), ours(*case.args)),
            "loaded as saved": same(ours(*case.args), loaded(*case.args)),
            "ours as jit": same(ours(*case.args), theirs(*case.args)),
            "largest difference": apart,
            "wrong": [] if apart < 1e-5 else ["loaded"],
        }


def memory() -> dict[str, Any]:
    """A step under 70 % of the memory that it takes (85 % where it is tiny): by recomputing, and by offloading."""
    size = SIZES["middle"] if ON_GPU else TINY
    result: dict[str, Any] = {"wrong": []}

    def peak(**options: Any) -> int:
        case = make(size, 2, pipeline_schedule="1F1B", **options)
        compiled = mt.jit(case.step, case.config, donate_argnums=(0, 1)).lower(*case.args).compile()
        most = max(memory.peak for memory in compiled.memory_analysis().values())
        name = next((name for name in ("remat", "offload") if name in options), "whole")
        result[f"{name} ms"] = timed(compiled, case.args, steps=2)["step ms"]
        result[f"{name} predicted MiB"] = round(most / 2**20)
        return most

    limit = int((0.7 if ON_GPU else 0.85) * peak())
    for name in ("remat", "offload"):
        try:
            fits = peak(**{name: "auto"}, device_memory=limit) <= limit
            if name == "offload":  # where copies to the host take too long, nothing is offloaded
                result["offload fits"] = fits
            elif not fits:
                result["wrong"].append(f"{name} takes more than {limit}")
        except Exception as error:
            result["wrong"].append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    return result


def mixed() -> dict[str, Any]:
    """A mesh of the CPU and a mesh of the GPU in one process."""
    step = two_layers(*[lambda w, x: jnp.tanh(x @ w)] * 2)
    rng = np.random.default_rng(9)
    w = [(0.1 * rng.normal(size=(64, 64))).astype(np.float32) for _ in range(2)]
    batch = rng.normal(size=(4, 8, 64)).astype(np.float32)
    meshes = {"host": Mesh(np.array(jax.devices("cpu")[-1:]), ("d",)), "device": Mesh(np.array([DEVICE]), ("d",))}
    config = mt.make_config(meshes, {"a": "host", "b": "device"}, pipeline_schedule="1F1B")
    apart = difference(mt.jit(step, config)(w, batch), jax.jit(step)(w, batch))
    return {"largest difference": apart, "wrong": [] if apart < 1e-3 else ["parameters"]}


def processes() -> dict[str, Any]:
    """Two processes, which share the GPU, send values by way of the host, or directly where that is possible."""
    step = two_layers(*[lambda w, x: jnp.tanh(x @ w)] * 2)
    rng = np.random.default_rng(9)
    w = [(0.1 * rng.normal(size=(256, 256))).astype(np.float32) for _ in range(2)]
    batch = rng.normal(size=(8, 64, 256)).astype(np.float32)
    own = {d.process_index: d for d in reversed(jax.devices())}
    meshes = {f"m{i}": Mesh(np.array([own[i]]), ("d",)) for i in range(PROCESSES)}
    run = mt.jit(step, mt.make_config(meshes, {"a": "m0", "b": "m1"}, pipeline_schedule="1F1B"))
    new = run(w, batch)
    begin = time.perf_counter()
    for _ in range(10):
        new = run(new, batch)
    values = [mt.fetch(x) for x in new]
    seconds = (time.perf_counter() - begin) / 10
    here = jax.local_devices()[0]
    expected = jax.device_put(w, here)
    for _ in range(11):
        expected = jax.jit(step)(expected, jax.device_put(batch, here))
    apart = difference(values, expected)
    return {"step ms": round(1e3 * seconds, 2), "largest difference": apart, "wrong": [] if apart < 1e-2 else ["w"]}


def measured(size: str, kind: str) -> dict[str, Any]:
    """Milliseconds of a step, predicted and measured memory."""
    attention = "cudnn" if ON_GPU else "xla"
    meshes = 1 if kind == "jit" else int(kind)
    case = make(SIZES[size] if ON_GPU else TINY, meshes, attention=attention, pipeline_schedule="1F1B")
    jitted = jax.jit(case.step, donate_argnums=(0, 1))
    result: dict[str, Any] = {}
    if kind != "jit":
        begin = time.perf_counter()
        jitted = mt.jit(case.step, case.config, donate_argnums=(0, 1)).lower(*case.args).compile()
        result["compile s"] = round(time.perf_counter() - begin, 2)
        plan = jitted.program.plan
        result |= {"runs": len(plan.runs), "transfers": len(plan.transfers)}
        result["predicted peak MiB"] = round(max(m.peak for m in jitted.memory_analysis().values()) / 2**20)
    result |= timed(jitted, case.args)
    peak = (DEVICE.memory_stats() or {}).get("peak_bytes_in_use")
    return {**result, "peak MiB": None if peak is None else round(peak / 2**20), "wrong": []}


def dispatch() -> dict[str, Any]:
    """A tiny multilayer perceptron over `jax.jit`: what issuing takes."""
    weights = [0.3 * jax.random.normal(key, (16, 16)) for key in jax.random.split(jax.random.key(0), 8)]
    batch = jax.random.normal(jax.random.key(1), (8, 8, 16))

    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"l{i}")(w, x)
        return (x**2).mean()

    def step(ws: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        start = jax.tree.map(jnp.zeros_like, ws)
        grads = mt.enumerated_for(lambda i, c, x: jax.tree.map(jnp.add, c, jax.grad(loss)(ws, x)), start, batch)
        return jax.tree.map(lambda w, g: w - 0.01 * g, ws, grads)

    topology = {f"m{i}": Mesh(np.array([DEVICE]), ("d",)) for i in range(4)}
    config = mt.make_config(topology, {f"l{i}": f"m{i // 2}" for i in range(8)}, pipeline_schedule="1F1B")
    steps = {"ours": mt.jit(step, config, donate_argnums=0), "jit": jax.jit(step, donate_argnums=0)}

    def rounds(run: Any) -> float:
        ws = jax.tree.map(jnp.copy, weights)
        for _ in range(5):
            ws = run(ws, batch)
        jax.block_until_ready(ws)
        begin = time.perf_counter()
        for _ in range(40):
            ws = run(ws, batch)
        jax.block_until_ready(ws)
        return (time.perf_counter() - begin) / 40

    taken = [{name: rounds(run) for name, run in steps.items()} for _ in range(7)]
    return {
        "times jit": round(statistics.median(one["ours"] / one["jit"] for one in taken), 2),
        **{f"{name} ms": round(1e3 * statistics.median(one[name] for one in taken), 3) for name in steps},
        "wrong": [],
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "kernels": kernels,
    "equal-2": lambda: equal(2, "1F1B"),
    "equal-4": lambda: equal(4, "zb-h1"),
    "saved": saved,
    "memory": memory,
    "mixed": mixed,
    "processes": processes,
    "processes-direct": processes,
    "dispatch": dispatch,
}


def main() -> int:
    size, _, kind = PART.partition("-")  # of those that measure
    part = PARTS[PART] if PART in PARTS else lambda: measured(size, kind.partition("-")[0])
    result = part()
    result |= {"device": DEVICE.device_kind, "versions": f"jax {jax.__version__}, Python {sys.version.split()[0]}"}
    if not result["wrong"]:
        del result["wrong"]
    print("RESULT " + json.dumps(result), flush=True)
    return int("wrong" in result)


sys.exit(main())
