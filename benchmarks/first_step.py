"""What a user waits for: the first step, over the first step of `jax.jit` of the same function on one device.

    python benchmarks/first_step.py [--models encoder,masked,gpt,modules] [--sizes 8x4x8,16x8x16,32x16x16] [--repeat 1]
                                    [--where] [--over jit|reference] [--warm] [--json]

Sizes are layers x meshes x microbatches.  Each measurement is a fresh process; counted are wall clock and CPU seconds
of the first call, that is tracing, passes, XLA and one step, and the programs that XLA compiled.  The `encoder` is
made of plain arrays: attention, RMSNorm, gated feed-forward, adam with clipping, one device a mesh; `masked` is the
same for texts of unequal length: words see words alone, and only they count.  `gpt` is that of `examples/char_gpt.py`,
with two devices a mesh; `modules` are those of Equinox, with RMSNorm and gated feed-forward layers, likewise.  All are
narrow, so that compiling is what counts.  `--where` tells in which phases the time goes and which programs XLA
compiled.  `--over reference`: over the first step of the same pipeline with `placement="reference"`.  `--warm`: of
both, a process that finds all in JAX's persistent compilation cache, where one before it left it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import mpmd_trace as mt

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
WIDTH, LENGTH, VOCABULARY, ROWS = 32, 16, 64, 2


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a model is, and in how many parts it runs."""

    layers: int
    meshes: int
    microbatches: int

    @staticmethod
    def parse(text: str) -> Size:
        return Size(*map(int, text.split("x")))

    def mesh(self, layer: int) -> str:
        """The mesh of a layer: as many layers on each."""
        return f"m{layer * self.meshes // self.layers}"


# The encoder.


def rms_norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    return scale * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def encoder_layer(p: dict[str, jax.Array], x: jax.Array, is_word: jax.Array | None = None) -> jax.Array:
    """Self-attention with one head and a gated feed-forward layer; `x` is (rows, length, width).

    With `is_word`, (rows, length), words are seen alone.
    """
    y = rms_norm(p["norm1"], x)
    q, k, v = y @ p["q"], y @ p["k"], y @ p["v"]
    scores = q @ k.swapaxes(-1, -2) * WIDTH**-0.5
    if is_word is not None:
        scores = jnp.where(is_word[:, None, :], scores, -1e9)
    weights = jax.nn.softmax(scores)
    x = x + weights @ v @ p["o"]
    y = rms_norm(p["norm2"], x)
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def encoder_parameters(layers: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def matrix(n: int, m: int) -> np.ndarray:
        return (rng.normal(size=(n, m)) / n**0.5).astype(np.float32)

    def layer() -> dict[str, np.ndarray]:
        square = {name: matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "o")}
        wide = {"gate": matrix(WIDTH, 2 * WIDTH), "up": matrix(WIDTH, 2 * WIDTH), "down": matrix(2 * WIDTH, WIDTH)}
        return {**square, **wide, "norm1": np.ones(WIDTH, np.float32), "norm2": np.ones(WIDTH, np.float32)}

    return {
        "embed": {"table": matrix(VOCABULARY, WIDTH), "position": matrix(LENGTH, WIDTH)},
        "layers": [layer() for _ in range(layers)],
        "head": {"norm": np.ones(WIDTH, np.float32), "out": matrix(WIDTH, VOCABULARY)},
    }


def encoder(size: Size, masked: bool = False) -> tuple[Callable[..., Any], tuple[Any, ...], mt.config.Config]:
    """A step with its arguments, and the configuration for a pipeline of it; `masked`: token 0 is not a word."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def loss(p: dict[str, Any], tokens: jax.Array, wanted: jax.Array) -> jax.Array:
        masks = [tokens != 0] if masked else []
        x = mt.named_computation(lambda p, t: p["table"][t] + p["position"], name="embed")(p["embed"], tokens)
        for i, layer in enumerate(p["layers"]):
            x = mt.named_computation(encoder_layer, name=f"layer{i}")(layer, x, *masks)
        logits = mt.named_computation(lambda p, x: rms_norm(p["norm"], x) @ p["out"], name="head")(p["head"], x)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, wanted)
        if masked:
            return jnp.sum(each * masks[0]) / jnp.maximum(jnp.sum(masks[0]), 1) / size.microbatches
        return each.mean() / size.microbatches

    def step(p: Any, state: Any, tokens: jax.Array, wanted: jax.Array) -> Any:
        def microbatch(i: jax.Array, total: Any, one: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(p, *one))

        start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        value, grads = mt.enumerated_for(microbatch, start, (tokens, wanted))
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, value

    p = encoder_parameters(size.layers)
    rng = np.random.default_rng(1)
    tokens, wanted = rng.integers(1, VOCABULARY, (2, size.microbatches, ROWS, LENGTH), np.int32)
    if masked:
        tokens *= np.arange(LENGTH) < rng.integers(LENGTH // 2, LENGTH, (size.microbatches, ROWS, 1))
    devices = np.array(jax.devices()[: size.meshes])
    names = {f"layer{i}": size.mesh(i) for i in range(size.layers)}
    config = mt.make_config(
        {f"m{i}": Mesh(devices[i : i + 1], ("data",)) for i in range(size.meshes)},
        {**names, "embed": "m0", "head": f"m{size.meshes - 1}"},
        pipeline_schedule="1F1B",
        partitioning_options={"mpmd_infer_transfers": True},
    )
    return step, (p, optimizer.init(p), tokens, wanted), config


def gpt(size: Size) -> mt.Program:
    """The example, with other sizes."""
    spec = importlib.util.spec_from_file_location("char_gpt", EXAMPLES / "char_gpt.py")
    assert spec is not None and spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    jax.config.update("jax_num_cpu_devices", 2 * size.meshes)
    example.BLOCKS, example.MESHES, example.MICROBATCHES = size.layers, size.meshes, size.microbatches
    example.WIDTH, example.HEADS, example.CONTEXT, example.BATCH = WIDTH, 2, LENGTH, ROWS * size.microbatches
    program: mt.Program = example.program()
    return program


# One measurement, in a process of its own.


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def measured(model: str, size: Size, engine: str) -> dict[str, Any]:
    """Wall clock and CPU seconds of the first step, of its phases, and of each program that XLA compiles."""
    jax.config.update("jax_platforms", "cpu")
    programs: list[tuple[str, float]] = []

    def heard(event: str, seconds: float, **more: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append((str(more.get("fun_name", "?")), seconds))

    if model == "gpt":
        found = gpt(size)
        step, args, config, options = found.fn, found.args, found.config, {"in_shardings": found.in_shardings}
    elif model == "modules":
        from modules import modules  # Equinox is imported for it alone

        jax.config.update("jax_num_cpu_devices", 2 * size.meshes)
        sizes = (WIDTH, LENGTH, VOCABULARY, ROWS)
        step, args, config, options = modules(size.layers, size.meshes, size.microbatches, size.mesh, sizes)
    else:
        jax.config.update("jax_num_cpu_devices", size.meshes)
        (step, args, config), options = encoder(size, model == "masked"), {}
    if engine == "reference":
        config = config.with_options(placement="reference")
    args = jax.tree.map(np.asarray, args)
    jax.block_until_ready(jax.jit(lambda x: x + 1)(np.ones(3)))
    jax.monitoring.register_event_duration_secs_listener(heard)
    marks = [("", *clocks())]
    if engine == "jit":
        jax.block_until_ready(jax.jit(step)(*args))
    else:
        lowered = mt.jit(step, config, **options).lower_lazily(*args)
        marks.append(("trace", *clocks()))
        if lowered.stored is None:  # what is loaded as a whole needs no module
            _ = lowered.partitioned
        marks.append(("text and passes", *clocks()))
        compiled = lowered.compile()
        marks.append(("XLA", *clocks()))
        jax.block_until_ready(compiled(*args))
    marks.append(("step", *clocks()))
    return {
        "wall": marks[-1][1] - marks[0][1],
        "cpu": marks[-1][2] - marks[0][2],
        "compilations": len(programs),
        "phases": {name: [w - before[1], c - before[2]] for before, (name, w, c) in itertools.pairwise(marks)},
        "programs": sorted(programs, key=lambda one: -one[1]),
    }


def in_new_process(model: str, size: str, engine: str, cache: str | None = None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", model, size, engine]
    # A package that is installed has its modules compiled.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if cache is not None:
        env |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if found.returncode:
        raise SystemExit(found.stderr)
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def compared(model: str, size: str, repeat: int, over: str, cache: str | None) -> dict[str, Any]:
    """The medians of both, which take turns, and their ratios; what they leave in the cache is there before."""
    if cache is not None:
        for engine in ("mpmd", over):
            in_new_process(model, size, engine, cache)
    rounds = [[in_new_process(model, size, engine, cache) for engine in ("mpmd", over)] for _ in range(repeat)]
    result: dict[str, Any] = {"model": model, "size": size, "detail": rounds[0][0]}
    for what in ("wall", "cpu"):
        ours, plain = ([pair[i][what] for pair in rounds] for i in (0, 1))
        result[what] = statistics.median(ours)
        result[f"{over} {what}"] = statistics.median(plain)
        result[f"{what} ratio"] = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
    result["compilations"] = rounds[0][0]["compilations"]
    return result


def lines(found: dict[str, Any], where: bool, over: str) -> Iterator[str]:
    yield (
        f"{found['model']:8} {found['size']:>9}   {found['wall']:6.1f} {found[f'{over} wall']:6.1f} "
        f"{found['wall ratio']:6.2f}   {found['cpu']:6.1f} {found[f'{over} cpu']:6.1f} {found['cpu ratio']:6.2f}   "
        f"{found['compilations']:12}"
    )
    if where:
        for name, (wall, cpu) in found["detail"]["phases"].items():
            yield f"    {name:16} {wall:6.2f} s, CPU {cpu:6.2f} s"
        for name, seconds in found["detail"]["programs"]:
            yield f"      {seconds:6.2f} s  {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="encoder,masked,gpt,modules")
    parser.add_argument("--sizes", default="8x4x8,16x8x16,32x16x16")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--where", action="store_true", help="tell where the time goes")
    parser.add_argument("--over", choices=("jit", "reference"), default="jit")
    parser.add_argument("--warm", action="store_true", help="with the compiled programs of an earlier process")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "SIZE", "ENGINE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model, size, engine = options.one
        print(json.dumps(measured(model, Size.parse(size), engine)))
        return
    if not options.json:
        short = options.over[:6].rjust(6)
        print(f"model         size   wall s {short}  ratio    CPU s {short}  ratio   compilations")
    for model in options.models.split(","):
        for size in options.sizes.split(","):
            with tempfile.TemporaryDirectory() as cache:
                found = compared(model, size, options.repeat, options.over, cache if options.warm else None)
            if options.json:
                print(json.dumps(found))
            else:
                print("\n".join(lines(found, options.where, options.over)), flush=True)


if __name__ == "__main__":
    main()
