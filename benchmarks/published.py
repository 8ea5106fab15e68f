"""Predictions for public training runs, from the shapes of their models on abstract meshes.

    python benchmarks/published.py [--table zero-bubble|llama-405b|moe-67b] [--json] [--check]

Each model is traced with three stages of one layer (with the embedding, in the middle, with the loss). What these cost,
hold and send is that of `mpmd-trace plan`, with one efficiency for all products of a chip; from it follow the stages of
the run, whose schedule is simulated. What matters are ratios between the rows of a table, since efficiencies are not
published. `--check`: exit 1 where a ratio, or a memory that is compared, is off by more than a tenth. A run whose
schedule was searched for within a limit, ZB-2p, is predicted to fill it, although the schedule found here may not.

Sources: tables 4 and 5 of arXiv 2401.10241 (GPT on A100s), arXiv 2410.06511 (Llama 3.1 405B, 512 H100s), and a report
on a mixture of experts with 67 billion parameters on 64 H100s under DualPipeV, whose dimensions are not public: here
are some that have 67 billion, 2 of them active, so that its memory (59.15 GB) is shown and not compared. What experts
send each other costs nothing here, so their speed itself is too high.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.report.plan_costs import study
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.schedules import Costs, get_schedule, simulate

TOLERANCE = 0.1
WEIGHT_FRACTION = 0.5


@dataclass(frozen=True)
class Chip:
    """Operations per second in products, the part of them that runs reach, and bytes per second between stages."""

    flops: float
    efficiency: float
    link: float


A100 = Chip(312e12, 0.55, 31e9)
H100 = Chip(989e12, 0.45, 50e9)


@dataclass(frozen=True)
class Shape:
    """A decoder, what one microbatch is of it, and the devices of a stage: `data` times `tensor`.

    Batch and experts are split over `data`, heads and hidden dimensions over `tensor`, dense weights over both.
    """

    name: str
    chip: Chip
    layers: int
    width: int
    heads: int
    rows: int
    length: int
    hidden: int
    vocabulary: int = 51200
    kv_heads: int = 0
    experts: int = 0
    active: int = 1
    gated: bool = False
    data: int = 1
    tensor: int = 1
    dropout: bool = False
    #: Whether attention keeps its inputs alone, as fused kernels do.
    flash: bool = False
    remat: bool = False


@dataclass(frozen=True)
class Part:
    """What a stage costs for a microbatch (ms), holds for each (bytes of a device), and holds besides; and what its
    programs take while they run, one layer after the other.
    """

    forward: float
    input_grad: float
    weight_grad: float
    activation: float
    static: float
    scratch: float

    @property
    def time(self) -> float:
        return self.forward + self.input_grad + self.weight_grad

    def plus(self, other: Part, times: float) -> Part:
        """Return the stage with so many more of another one in it."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        whole = Part(*(a + times * b for a, b in pairs))
        return replace(whole, scratch=max(self.scratch, other.scratch))


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


# These keep their inputs, as fused kernels do.
norm, gelu = jax.checkpoint(_norm), jax.checkpoint(jax.nn.gelu)
gated = jax.checkpoint(lambda x, y: jax.nn.silu(x) * y)


def weights_of(shape: Shape) -> dict[str, tuple[int, ...]]:
    d, f, kv = shape.width, shape.hidden, (shape.kv_heads or shape.heads) * shape.width // shape.heads
    experts = (shape.experts,) if shape.experts else ()
    sizes = {"q": (d, d), "k": (d, kv), "v": (d, kv), "o": (d, d), "up": (*experts, d, f), "down": (*experts, f, d)}
    if shape.gated:
        sizes["gate"] = (*experts, d, f)
    if experts:
        sizes["router"] = (d, shape.experts)
    return sizes


def placed(shape: Shape, x: jax.Array, *axes: str | None) -> jax.Array:
    if shape.data * shape.tensor == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh_of(shape), PartitionSpec(*axes)))


def mesh_of(shape: Shape) -> AbstractMesh:
    return AbstractMesh((shape.data, shape.tensor), ("data", "tensor"))


def gathered(shape: Shape, name: str, w: jax.Array) -> jax.Array:
    """Return a weight as products read it: dense ones are split over `tensor` alone."""
    return w if shape.experts else placed(shape, w, *(None if axis == "data" else axis for axis in _split(shape, name)))


def attention(shape: Shape, w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    rows, length, _ = x.shape
    size = shape.width // shape.heads
    q, k, v = (
        placed(shape, (x @ w[n]).reshape(rows, length, -1, size), "data", None, "tensor" if shape.tensor > 1 else None)
        for n in "qkv"
    )
    k, v = (jnp.repeat(one, q.shape[2] // one.shape[2], axis=2) for one in (k, v))

    def scores(q: jax.Array, k: jax.Array) -> jax.Array:
        s = jnp.einsum("blhd,bmhd->bhlm", q, k) * size**-0.5
        return jax.nn.softmax(jnp.where(jnp.tri(length, dtype=bool), s, -1e9), axis=-1)

    def mixed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        p = scores(q, k)
        if shape.dropout:
            kept = jax.random.bernoulli(jax.random.key(0), 0.9, p.shape)
            p = jnp.where(kept, p, jnp.zeros((), p.dtype))
        return jnp.einsum("bhlm,bmhd->blhd", p, v)

    mixed = jax.checkpoint(mixed) if shape.flash else mixed
    return mixed(q, k, v).reshape(x.shape) @ w["o"]


def feed_forward(shape: Shape, w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    if not shape.experts:
        y = placed(shape, x @ w["up"], "data", None, "tensor" if shape.tensor > 1 else None)
        return (gated(x @ w["gate"], y) if shape.gated else gelu(y)) @ w["down"]
    tokens = x.reshape(-1, shape.width)
    weight, expert = jax.lax.top_k(jax.nn.softmax((tokens @ w["router"]).astype(jnp.float32)), shape.active)
    room = tokens.shape[0] * shape.active // shape.experts
    order = jnp.argsort(expert.reshape(-1))
    sent = placed(shape, tokens[order // shape.active].reshape(shape.experts, room, shape.width), "data")
    y = gated(jnp.einsum("ecd,edf->ecf", sent, w["gate"]), jnp.einsum("ecd,edf->ecf", sent, w["up"]))
    back = jnp.einsum("ecf,efd->ecd", y, w["down"]).reshape(-1, shape.width)
    scaled = placed(shape, back * weight.reshape(-1)[order][:, None].astype(back.dtype), "data")
    return jnp.zeros_like(tokens).at[order // shape.active].add(scaled).reshape(x.shape)


def layer(shape: Shape, w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    w = {name: gathered(shape, name, one.astype(jnp.bfloat16)) for name, one in w.items()}
    x = placed(shape, x + attention(shape, w, norm(x)), "data")
    return placed(shape, x + feed_forward(shape, w, norm(x)), "data")


def parts(shape: Shape) -> tuple[Part, Part, Part]:
    """Return what stages of one layer cost: the first with the embedding, one in the middle, the last with the loss."""
    names, mesh = ("first", "middle", "last"), mesh_of(shape)
    block: Callable[..., Any] = lambda w, x: layer(shape, w, x)  # noqa: E731
    block = jax.checkpoint(block) if shape.remat else block

    def first(w: Any, tokens: jax.Array) -> jax.Array:
        return block(w["layer"], placed(shape, w["table"].astype(jnp.bfloat16)[tokens], "data"))

    def last(w: Any, x: jax.Array, tokens: jax.Array) -> jax.Array:
        logits = norm(block(w["layer"], x)) @ w["table"].astype(jnp.bfloat16).T
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), tokens[..., None], -1))

    def loss(ws: Any, tokens: jax.Array) -> jax.Array:
        x = mt.named_computation(first, name="first")(ws[0], tokens)
        x = mt.named_computation(lambda w, x: block(w["layer"], x), name="middle")(ws[1], x)
        return mt.named_computation(last, name="last")(ws[2], x, tokens)

    def step(ws: Any, moments: Any, tokens: jax.Array) -> Any:
        value, grads = mt.value_and_grad(loss, microbatches=2)(ws, tokens)
        moments = jax.tree.map(lambda m, g: (0.9 * m[0] + g, 0.9 * m[1] + g * g), moments, grads, is_leaf=_is_pair)
        change = jax.tree.map(lambda m: m[0] * jax.lax.rsqrt(m[1] + 1e-8), moments, is_leaf=_is_pair)
        return jax.tree.map(lambda w, c: w - 1e-4 * c, ws, change), moments, value

    def struct(size: tuple[int, ...], spec: PartitionSpec, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, dtype, sharding=NamedSharding(mesh, spec) if mesh.size > 1 else None)

    own = {name: struct(size, PartitionSpec(*_split(shape, name))) for name, size in weights_of(shape).items()}
    table = struct((shape.vocabulary, shape.width), PartitionSpec(None, "data"))
    ws = [{"layer": own, "table": table}, {"layer": own}, {"layer": own, "table": table}]
    moments = jax.tree.map(lambda w: (w, w), ws)
    tokens = struct((2 * shape.rows, shape.length), PartitionSpec("data"), jnp.int32)
    apart = {"mpmd_merge_forward_with_backward": False, "mpmd_merge_backward_with_forward": False}
    same = {name: name for name in names}
    config = mt.make_config(dict.fromkeys(names, mesh), same, pipeline_schedule="zb-h1", partitioning_options=apart)
    actions = FragmentActions()
    lowered = mt.jit(step, config, donate_argnums=(0, 1)).lower(ws, moments, tokens, hooks=[actions])
    chip = shape.chip
    plan = study(lowered, lowered.estimated, actions, flops_per_second=chip.flops * chip.efficiency)
    costs = plan.stages
    first_one, middle, last_one = (
        Part(f, i, w, a, max(whole - part for whole, part in zip(s, c, strict=True)), max(c))
        for f, i, w, a, s, c in zip(
            costs.forward, costs.input_grad, costs.weight_grad, plan.activations, plan.static, plan.scratch, strict=True
        )
    )
    return first_one, middle, last_one


def _is_pair(one: Any) -> bool:
    return isinstance(one, tuple)


def _split(shape: Shape, name: str) -> tuple[str | None, ...]:
    """Return the axes of a weight: experts are spread over the devices, dense weights split in both dimensions."""
    if shape.experts:
        return ("data",) if name in ("up", "gate", "down") else ()
    return ("tensor", "data") if name in ("o", "down") else ("data", "tensor")


@dataclass(frozen=True)
class Row:
    """A run: its schedule, what is published of it, and what is predicted."""

    label: str
    published: float
    predicted: float
    memory: float | None = None
    predicted_memory: float = 0.0

    @property
    def memory_ratio(self) -> float | None:
        return self.predicted_memory / self.memory if self.memory else None

    def agrees(self, ratio: float) -> bool:
        """Return whether a ratio of speeds, and the memory if it is compared, are those that are published."""
        return all(abs(one - 1) <= TOLERANCE for one in (ratio, self.memory_ratio or 1.0))


def run(
    shape: Shape,
    schedule: str,
    meshes: int,
    microbatches: int,
    chunks: int = 1,
    limit: float | None = None,
    fewer_at_the_ends: bool = False,
) -> tuple[float, float]:
    """Return the time of a step (ms) and the largest memory of a device (bytes), as simulated."""
    first, middle, last = known(shape)
    options: dict[str, Any] = {} if chunks == 1 or schedule == "dualpipe-v" else {"chunks": chunks}
    stages = meshes * chunks
    # The ends have fewer layers: as published, or by what embedding and loss cost.
    fewer = [1.0 if fewer_at_the_ends else float(round(one.time / middle.time - 1)) for one in (first, last)]
    each = (shape.layers + sum(fewer)) / stages
    inner = Part(0, 0, 0, 0, 0, 0).plus(middle, each)
    ends = [one.plus(middle, max(0.0, each - less - 1)) for one, less in zip((first, last), fewer, strict=True)]
    all_parts = [ends[0], *[inner] * (stages - 2), ends[1]]
    hop = 1e3 * 2 * shape.rows * shape.length * shape.width / (shape.data * shape.tensor) / shape.chip.link
    costs = Costs(
        tuple(p.forward for p in all_parts),
        tuple(p.input_grad for p in all_parts),
        tuple(p.weight_grad for p in all_parts),
        latency=hop,
    )
    if limit is not None:
        options |= {"costs": costs, "memory_limit": limit}
    made = get_schedule(schedule, meshes, microbatches, guard=False, **options)
    result = simulate(made, costs, weight_fraction=WEIGHT_FRACTION, activation=tuple(p.activation for p in all_parts))
    memory = 0.0
    for stages_here, peak in zip(made.placement.stages_on, result.peak_activations, strict=True):
        held = peak if limit is None else limit * sum(all_parts[s].activation for s in stages_here)
        besides = sum(all_parts[s].static for s in stages_here) + max(all_parts[s].scratch for s in stages_here)
        memory = max(memory, held + besides)
    return result.span if schedule.startswith("zb") else result.makespan, memory


_known: dict[str, tuple[Part, Part, Part]] = {}


def known(shape: Shape) -> tuple[Part, Part, Part]:
    if shape.name not in _known:
        _known[shape.name] = parts(shape)
    return _known[shape.name]


# Model, meshes, microbatches, (ZB-2p, ZB-1p, 1F1B) in samples per second of a device, and in GB.
GPT = [
    (Shape("GPT 1.5B", A100, 22, 2304, 24, 6, 1024, 4 * 2304, dropout=True), 8, 24, (14.5, 12.9, 11.8), (59, 32, 30)),
    (Shape("GPT 6.2B", A100, 30, 4096, 32, 3, 1024, 4 * 4096, dropout=True), 8, 24, (4.32, 3.88, 3.50), (70, 42, 39)),
    (Shape("GPT 14.6B", A100, 46, 5120, 40, 1, 1024, 4 * 5120, dropout=True), 16, 48, (1.81, 1.61, 1.40), (51, 33, 32)),
    (Shape("GPT 28.3B", A100, 62, 6144, 48, 1, 1024, 4 * 6144, dropout=True), 32, 96, (0.99, 0.87, 0.76), (74, 44, 43)),
]


def zero_bubble() -> Iterator[list[Row]]:
    for shape, meshes, count, speeds, memories in GPT:
        rows = []
        for (label, name, limit), speed, memory in zip(
            (("ZB-2p", "zb-auto", 2.0 * meshes), ("ZB-1p", "zb-h1", None), ("1F1B", "1f1b", None)),
            speeds,
            memories,
            strict=True,
        ):
            step, held = run(shape, name, meshes, count, limit=limit, fewer_at_the_ends=True)
            predicted = 1e3 * shape.rows * count / step / meshes
            rows.append(Row(f"{shape.name}, {label}", speed, predicted, memory, held / 1e9))
        yield rows


LLAMA = Shape(
    "Llama 3.1 405B",
    H100,
    126,
    16384,
    128,
    8,
    8192,
    53248,
    128256,
    8,
    gated=True,
    data=8,
    tensor=8,
    flash=True,
    remat=True,
)


def llama() -> Iterator[list[Row]]:
    tokens = 8 * LLAMA.rows * LLAMA.length / 512
    plain, looped = (run(LLAMA, name, 8, 8, chunks)[0] for name, chunks in (("1f1b", 1), ("interleaved-1f1b", 2)))
    yield [Row("1F1B", 100, 1e3 * tokens / plain), Row("interleaved 1F1B", 128, 1e3 * tokens / looped)]


MOE = Shape("67B-A2B", H100, 48, 2048, 16, 16, 4096, 864, 32000, experts=256, active=4, gated=True, data=8, flash=True)


def mixture() -> Iterator[list[Row]]:
    rows = []
    for count, published in ((16, 543_490), (32, 603_327)):
        step, held = run(MOE, "dualpipe-v", 8, count, 2)
        tokens = count * MOE.rows * MOE.length
        rows.append(Row(f"DualPipeV, {count} microbatches", published, 1e3 * tokens / step, None, held / 1e9))
    yield rows


TABLES = {"zero-bubble": zero_bubble, "llama-405b": llama, "moe-67b": mixture}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 where a figure is off by more than a tenth")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("ignore")
    printed, good = [], True
    for name in options.table or TABLES:
        begin = time.process_time()
        for rows in TABLES[name]():
            base = rows[-1]
            for row in rows:
                ratio = row.predicted / base.predicted / (row.published / base.published)
                good &= row.agrees(ratio)
                printed.append({"table": name, **vars(row), "ratio": ratio, "memory_ratio": row.memory_ratio})
                if not options.json:
                    held = f"{row.predicted_memory:7.1f} GB" if row.predicted_memory else ""
                    of = f" for {row.memory:g} ({row.memory_ratio:.2f})" if row.memory_ratio else ""
                    print(
                        f"{row.label:<32}{row.predicted:10.5g} for {row.published:<8g} relative to the last row "
                        f"{ratio:.3f}  {held}{of}",
                        flush=True,
                    )
        if not options.json:
            print(f"{name}: {time.process_time() - begin:.1f} s of CPU time")
    if options.json:
        print(json.dumps({"benchmark": "published", "tolerance": TOLERANCE, "rows": printed}))
    return 0 if good or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
