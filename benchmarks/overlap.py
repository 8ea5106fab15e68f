"""How much of what the devices of a mesh send XLA hides where a forward and a backward are one program.

    python benchmarks/overlap.py [--target tpu:v5e:2x4] [--layers 2] [--width 256] [--of experts] [--json] [--check]

1F1B of four microbatches on two meshes whose devices share the experts of a layer, gather its weights (`--of fsdp`), or
add up what each has of its products (`--of tensor`); on the first mesh a backward and the forward behind it become one
program with `overlap="pairs"`.  Counted are the bytes that collectives give a device, and those of them in the
background of a product: without pairs, without pairs but with the options of XLA that pairs come with, and in a pair.
`--target` compiles for accelerators that are not there; CPUs hide nothing.  `--check`: exit 1 unless a pair hides 0.8,
and the programs without pairs less than 0.2.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace.api.options import options_of_overlap
from mpmd_trace.backend.collectives import Collective, Collectives, collectives_of

MICROBATCHES = 4
Weights = tuple[Any, ...]


def experts(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    """Send each token to the device of its expert and back: of its tokens, each device has as many for each expert."""
    count = up.shape[0] * jax.lax.axis_size("experts")
    x = jax.lax.all_to_all(x.reshape(count, -1, x.shape[-1]), "experts", 0, 1, tiled=True)
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", x, up))
    x = jnp.einsum("ecf,efd->ecd", hidden, down)
    return jax.lax.all_to_all(x, "experts", 1, 0, tiled=True).reshape(-1, x.shape[-1])


def gathered(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    """Gather the weights, of which each device has a part of the rows."""
    up, down = (jax.lax.all_gather(w, "experts", tiled=True) for w in (up, down))
    return jax.nn.relu(x @ up) @ down


def added(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    """Add up the products of the columns and rows that each device has."""
    return jax.lax.psum(jax.nn.relu(x @ up) @ down, "experts")


#: The layer, and how its two weights and its rows are split.
KINDS: dict[str, tuple[Any, tuple[P, P, P]]] = {
    "experts": (experts, (P("experts"), P("experts"), P("experts"))),
    "fsdp": (gathered, (P("experts"), P("experts"), P("experts"))),
    "tensor": (added, (P(None, "experts"), P("experts"), P())),
}


def layers(mesh: Mesh, kind: str, weights: Sequence[Weights], x: jax.Array) -> jax.Array:
    layer, specs = KINDS[kind]
    sparse = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=specs[2])
    for before, up, down, behind in weights:
        x = x + jnp.tanh(x @ before) @ before.T
        x = x + sparse(up, down, x)
        x = x + jnp.tanh(x @ behind) @ behind.T
    return x


def step_of(meshes: dict[str, Mesh], kind: str) -> Any:
    def loss(weights: Sequence[Sequence[Weights]], x: jax.Array) -> jax.Array:
        for one, (name, mesh) in zip(weights, meshes.items(), strict=True):
            x = mpmd_trace.named_computation(functools.partial(layers, mesh, kind), name=f"layers of {name}")(one, x)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return mpmd_trace.value_and_grad(loss, microbatches=MICROBATCHES)


def types(meshes: dict[str, Mesh], kind: str, depth: int, width: int) -> tuple[Any, ...]:
    devices, specs = next(iter(meshes.values())).size, KINDS[kind][1]

    def array(mesh: Mesh, shape: Sequence[int], *spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tuple(shape), jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    def layer(mesh: Mesh) -> Weights:
        dense = array(mesh, (width, width))
        count = (2 * devices,) if kind == "experts" else ()
        up, down = (*count, width, 4 * width), (*count, 4 * width, width)
        return dense, array(mesh, up, *specs[0]), array(mesh, down, *specs[1]), dense

    weights = [[layer(mesh) for _ in range(depth)] for mesh in meshes.values()]
    rows = MICROBATCHES * 2 * width * devices
    return weights, array(next(iter(meshes.values())), (rows, width), *specs[2])


def sent(
    meshes: dict[str, Mesh], kind: str, depth: int, width: int, overlap: Any, with_options: bool
) -> dict[str, Collectives]:
    """Return what programs of the first mesh send: a pair, or a forward and a backward."""
    names = {f"layers of {name}": name for name in meshes}
    config = mpmd_trace.make_config(meshes, names, pipeline_schedule="1F1B", overlap=overlap)
    lowered = mpmd_trace.jit(step_of(meshes, kind), config).lower(*types(meshes, kind, depth, width))
    compiled = lowered.compile(options_of_overlap(config.with_options(overlap="pairs")) if with_options else None)
    first = next(iter(meshes))
    programs = [(one.name, collectives_of(one)) for one in compiled.executables() if one.mesh == first]
    programs = [(name, found) for name, found in programs if found.total.runs >= depth]
    if overlap is None:
        return {"forward" if "_fwd" in name else "backward": found for name, found in programs}
    return {"pair": max((found for _, found in programs), key=lambda found: found.total.bytes)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="as mpmd-trace compile --target")
    parser.add_argument("--layers", type=int, default=2, help="on each mesh")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--of", choices=KINDS, default="experts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.target is None:
        jax.config.update("jax_num_cpu_devices", 8)
    devices = jax.devices()[:8] if options.target is None else mpmd_trace.compiler.target_devices(options.target)
    rows = np.array(devices).reshape(2, -1)
    meshes = {f"m{i}": Mesh(row, ("experts",)) for i, row in enumerate(rows)}
    modes = {"separate": (None, False), "separate, options": (None, True), "pair": ("pairs", False)}
    found = {name: sent(meshes, options.of, options.layers, options.width, *mode) for name, mode in modes.items()}
    whole = {name: sum((one.total for one in programs.values()), Collective()) for name, programs in found.items()}
    shares = {name: round(one.hidden_share, 3) for name, one in whole.items()}
    if options.json:
        parts = {
            name: {
                program: {kind: round(one.hidden_share, 3) for kind, one in all_of.of.items()}
                for program, all_of in programs.items()
            }
            for name, programs in found.items()
        }
        print(json.dumps({"runs": {name: one.runs for name, one in whole.items()}, "hidden": shares, "of": parts}))
    else:
        for name, one in whole.items():
            print(f"{name:17} {one.runs:3} collectives of {one.bytes / 2**20:.1f} MiB, {one.hidden_share:.0%} hidden")
    return int(options.check and not (shares["pair"] >= 0.8 and shares["separate"] < 0.2))


if __name__ == "__main__":
    sys.exit(main())
