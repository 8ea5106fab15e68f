"""Whether backwards of loops, conditionals and `shard_map` divide as those of unrolled layers do.

    python benchmarks/split_backwards.py [--kinds scan,map] [--width 32] [--rows 64] [--experts] [--json] [--check]

ZB-H1 on four meshes with four layers each. Counted are the operations of both halves of a backward in the middle, the
gradients that a mesh holds at most (copies of its parameters), and whether results equal those of `jax.jit`. `--check`:
exit 1 unless both halves have the operations of unrolled layers within 5 %, and gradients take no more than theirs.
A loop adds each of its weight gradients to a sum, so with R rows per iteration 1/(2R) of the second half is additions.
`--experts`: gradient copies of a mixture of experts with 16 stages under DualPipeV, at most 1.2 with `--check`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import mpmd_trace as mt
from mpmd_trace.ir.flops import flops

MESHES, LAYERS, MICROBATCHES = 4, 4, 8
Weights = Any


def dense(w: Weights, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w[0] + w[2]) @ w[1]


def sharded(w: Weights, x: jax.Array) -> jax.Array:
    def body(w: Weights, x: jax.Array) -> jax.Array:
        return x + lax.psum(jnp.tanh(x @ w[0] + w[2]) @ w[1], "x")

    return jax.shard_map(body, in_specs=((P(None, "x"), P("x"), P("x")), P()), out_specs=P())(w, x)


def mapped(w: Weights, x: jax.Array) -> jax.Array:
    return lax.map(functools.partial(dense, w), x.reshape(2, -1, x.shape[-1])).reshape(x.shape)


def conditional(w: Weights, x: jax.Array) -> jax.Array:
    return lax.cond(x[0, 0] > 0, dense, lambda w, x: 2 * dense(w, x), w, x)


def unrolled(layer: Callable[..., jax.Array], ws: Sequence[Weights], x: jax.Array) -> jax.Array:
    for w in ws:
        x = layer(w, x)
    return x


def scanned(layer: Callable[..., jax.Array], ws: Weights, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, w: (layer(w, x), None), x, ws)[0]


#: How the layers of a stage run, and whether their weights are stacked.
KINDS: dict[str, tuple[Callable[..., jax.Array], bool]] = {
    "unrolled": (functools.partial(unrolled, dense), False),
    "stacked": (dense, True),
    "scan": (functools.partial(scanned, dense), True),
    "unrolled remat": (functools.partial(unrolled, jax.checkpoint(dense)), False),
    "remat": (functools.partial(scanned, jax.checkpoint(dense)), True),
    "map": (functools.partial(unrolled, mapped), False),
    "cond": (functools.partial(unrolled, conditional), False),
    "shard_map": (functools.partial(unrolled, sharded), False),
    "scan of shard_map": (functools.partial(scanned, sharded), True),
}


def stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def meshes_of(count: int, size: int) -> dict[str, Mesh]:
    rows = np.array(jax.devices()[: count * size]).reshape(count, size)
    return {f"m{i}": Mesh(row, ("x",)) for i, row in enumerate(rows)}


def measure(kind: str, width: int, rows: int) -> dict[str, Any]:
    """Return the operations of both halves of the third stage's backward, gradient copies, and the largest error."""
    stage, is_stacked = KINDS[kind]
    meshes = meshes_of(MESHES, 2 if "shard_map" in kind else 1)
    names = {f"s{i}": name for i, name in enumerate(meshes)} if kind != "stacked" else {"layers": list(meshes)}

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        if kind == "stacked":
            x = mt.scan(lambda x, w: (stage(w, x), None), x, ws, name="layers")[0]
        else:
            for name, w in zip(names, ws, strict=True):
                x = mt.named_computation(stage, name=name)(w, x)
        return jnp.mean(x**2)

    draw = np.random.default_rng(0)
    shapes = ((width, width), (width, width), (width,))
    layers = [
        tuple(jnp.asarray(0.2 * draw.normal(size=s), jnp.float32) for s in shapes) for _ in range(MESHES * LAYERS)
    ]
    split = [layers[i : i + LAYERS] for i in range(0, len(layers), LAYERS)]
    ws = stack(layers) if kind == "stacked" else [stack(one) if is_stacked else one for one in split]
    x = jnp.asarray(draw.normal(size=(MICROBATCHES * rows, width)), jnp.float32)
    gradients = mt.value_and_grad(loss, microbatches=MICROBATCHES)

    def step(params: Any, x: jax.Array) -> Any:
        return gradients(params, x)

    config = mt.make_config(meshes, names, pipeline_schedule="zb-h1")
    with jax.set_mesh(meshes["m0"]) if "shard_map" in kind else contextlib.nullcontext():
        lowered = mt.jit(step, config).lower(ws, x)
        expected = jax.jit(step)(ws, x)
    module = lowered.partitioned.module
    third = ("s2_bwd", "layers[2/4]_bwd")
    halves = [flops(f.regions[0], module) for f in module.functions if any(name in str(f.sym_name) for name in third)]
    compiled = lowered.compile()
    report = compiled.placement_report()
    errors = jax.tree.map(lambda a, b: float(np.max(np.abs(np.subtract(a, b)))), compiled(ws, x), expected)
    return {
        "kind": kind,
        "input gradients": int(halves[0]),
        "weight gradients": int(sum(halves[1:])),
        "copies": max(mesh.gradients / mesh.parameters for mesh in report.meshes),
        "error": max(jax.tree.leaves(errors)),
    }


PIPELINE, PARTNERS, ACTIVE = 8, 2, 2


def experts(w: Weights, x: jax.Array) -> jax.Array:
    """Send each token to the devices of its two experts and back, with room for twice the mean."""

    def body(router: jax.Array, up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        tokens, count = x.shape[0], router.shape[1]
        top, chosen = lax.top_k(x @ router, ACTIVE)
        room = 2 * tokens * ACTIVE // count
        onehot = jax.nn.one_hot(chosen, count)
        place = (jnp.cumsum(onehot.reshape(-1, count), 0) - 1).reshape(onehot.shape)
        sent = onehot * (place < room)
        slot = jax.nn.one_hot(jnp.sum(place * onehot, -1).astype(jnp.int32), room)
        y = jnp.einsum("tke,tkc,td->ecd", sent, slot, x)
        y = lax.all_to_all(y, "x", 0, 1, tiled=True)
        y = jnp.einsum("ecf,efd->ecd", jax.nn.silu(jnp.einsum("ecd,edf->ecf", y, up)), down)
        y = lax.all_to_all(y, "x", 1, 0, tiled=True)
        return x + jnp.einsum("tke,tkc,tk,ecd->td", sent, slot, jax.nn.softmax(top), y)

    spread = P("x")
    mixed = jax.shard_map(body, in_specs=(P(), spread, spread, spread), out_specs=spread)
    q, k, v = jnp.split(x @ w["qkv"], 3, -1)
    x = x + (jax.nn.softmax(q @ k.T / x.shape[-1] ** 0.5) @ v) @ w["out"]
    return mixed(w["router"], w["up"], w["down"], x)


def copies_with_experts(microbatches: int) -> list[float]:
    """Return the gradient copies of each mesh of two stages of two layers, under DualPipeV."""
    meshes, stages = meshes_of(PIPELINE, PARTNERS), 2 * PIPELINE
    sizes = {"router": (32, 8), "up": (8, 32, 64), "down": (8, 64, 32), "qkv": (32, 96), "out": (32, 32)}
    ws = [{name: jnp.ones((2, *size)) for name, size in sizes.items()} for _ in range(stages)]
    names = {f"s{i}": (f"m{min(i, stages - 1 - i)}", i) for i in range(stages)}

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        for name, w in zip(names, ws, strict=True):
            x = mt.named_computation(functools.partial(scanned, jax.checkpoint(experts)), name=name)(w, x)
        return jnp.mean(x**2)

    config = mt.make_config(meshes, names, pipeline_schedule="dualpipe-v")
    with jax.set_mesh(meshes["m0"]):
        gradients = mt.value_and_grad(loss, microbatches=microbatches)
        step = mt.jit(lambda params, x: gradients(params, x), config)
        report = step.lower(ws, jnp.ones((microbatches * 64, 32))).placement_report()
    return [round(mesh.gradients / mesh.parameters, 2) for mesh in report.meshes]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kinds", default=",".join(k for k in KINDS if "unrolled" not in k), help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rows", type=int, default=64, help="of a microbatch")
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", PIPELINE * PARTNERS)
    if options.experts:
        copies = copies_with_experts(2 * PIPELINE)
        print(json.dumps({"copies": copies}) if options.json else f"gradient copies of each mesh: {copies}")
        return int(options.check and max(copies) > 1.2)
    good, measured = True, []
    plain: dict[bool, dict[str, Any]] = {}
    for kind in options.kinds.split(","):
        remat = "remat" in kind
        if remat not in plain:
            plain[remat] = measure("unrolled remat" if remat else "unrolled", options.width, options.rows)
        one = measure(kind, options.width, options.rows)
        shares = [one[half] / plain[remat][half] for half in ("input gradients", "weight gradients")]
        good &= all(abs(share - 1) <= 0.05 for share in shares) and one["copies"] <= plain[remat]["copies"] + 1e-9
        measured.append(one)
        if not options.json:
            halves = " + ".join(f"{one[half]:,} {half}" for half in ("input gradients", "weight gradients"))
            print(f"{kind:18} {halves} ({shares[0]:.3f}, {shares[1]:.3f} of unrolled), ", end="")
            print(f"{one['copies']:.2f} copies, error {one['error']:.1e}", flush=True)
    if options.json:
        print(json.dumps(measured))
    return int(options.check and not good)


if __name__ == "__main__":
    sys.exit(main())
