"""Models of other shapes: tied weights, experts, images, skips, statistics, generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mpmd_trace import enumerated_for, fori_loop
from recipes.language import (
    LENGTH,
    MICROBATCHES,
    ROWS,
    VOCABULARY,
    WIDTH,
    Layout,
    batch_of,
    cross_entropy,
    embed,
    logits,
    norm,
    parameters,
    small,
)
from recipes.parts import CLIPPED, ONE, TWO, apply, matrix, mlp, named
from recipes.recipe import Move, Recipe, in_flight, saved, size


def _small_model() -> dict[str, Any]:
    table, out = matrix(1, VOCABULARY, WIDTH), matrix(6, WIDTH, VOCABULARY)
    return {"embed": {"table": table}, "x": mlp(2), "y": mlp(4), "out": out}


def _trained(
    name: str,
    p: dict[str, Any],
    batch: Any,
    where: dict[str, str],
    loss: Callable[..., Any],
    moves: list[Move],
    kept: dict[str, int],
    reason: str,
    *,
    home: dict[str, str] | None = None,
    homes: dict[str, str] | None = None,
    extra: dict[str, list[tuple[str, int]]] | None = None,
) -> Recipe:
    """A model whose parts, `p[part]`, are on the mesh `where[part]`, trained as a 1F1B pipeline with clipped adamw.

    Names that are no parts are in `where`, too, and parts without a name in `home`.  `loss(p, one)` is that of a
    microbatch.  `kept`: bytes of activations of one microbatch on each mesh.
    """
    state = CLIPPED.init(p)
    home = home or {}

    def step(p: Any, state: Any, batch: Any) -> Any:
        def microbatch(i: jax.Array, total: Any, one: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(lambda p: loss(p, one) / MICROBATCHES)(p))

        total, grads = enumerated_for(microbatch, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p)), batch)
        updates, state = CLIPPED.update(grads, state, p)
        return optax.apply_updates(p, updates), state, total

    part_of = {part: mesh for part, mesh in {**where, **home}.items() if part in p}
    parts = {f"['{part}']": mesh for part, mesh in part_of.items()}
    found: dict[str, str] = {f"[0]{part}": mesh for part, mesh in parts.items()}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        text = jax.tree_util.keystr(path)
        _, home = min(((text.index(part), mesh) for part, mesh in parts.items() if part in text), default=(0, ""))
        found["[1]" + text] = home if size(leaf) > 64 else ""
    held: dict[str, list[tuple[str, int]]] = {}
    for number, mesh in enumerate(TWO):
        sums = size([p[part] for part in p if part_of[part] == mesh])
        flight = in_flight("1F1B", 2, MICROBATCHES, number)
        held[mesh] = [
            ("sums of gradients", sums),
            (f"activations of {flight} microbatches", flight * kept[mesh]),
            ("what arrives and leaves", 2 * ONE),
            *(extra or {}).get(mesh, []),
        ]
    return Recipe(
        name,
        step,
        (p, state, batch),
        TWO,
        where,
        {**found, "[2]": "", **(homes or {})},
        [*moves, *small(3, TWO, "norm there and back, counter")],
        held,
        reason,
        donate=(0, 1),
    )


def tied() -> Recipe:
    """The embedding is also the output projection."""
    p = {"table": matrix(1, VOCABULARY, WIDTH), "x": mlp(2), "y": mlp(4)}
    batch = batch_of()

    def head(table: jax.Array, x: jax.Array) -> jax.Array:
        return norm(jnp.ones(WIDTH), x) @ table.T

    def loss(p: Any, tokens: jax.Array) -> jax.Array:
        x = named(lambda t, i: t[i], "embed", p["table"], tokens[:, :-1])
        x = named(apply, "x", p["x"], x)
        x = named(apply, "y", p["y"], x)
        return cross_entropy(named(head, "head", p["table"], x), tokens)

    x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH + 1), jnp.int32)
    kept = {
        "a": saved(apply, p["x"], x),
        "b": saved(apply, p["y"], x) + saved(lambda t, x, i: cross_entropy(head(t, x), i), p["table"], x, tokens),
    }
    table = size(p["table"])
    return _trained(
        "tied embeddings",
        p,
        batch,
        {"embed": "a", "x": "a", "y": "b", "head": "b"},
        loss,
        [
            Move("activations", "a", "b", ONE, MICROBATCHES),
            Move("cotangents", "b", "a", ONE, MICROBATCHES),
            Move("tokens", "a", "b", size(batch)),
            Move("the table for the head", "a", "b", table),
            Move("the sum of its gradients there", "b", "a", table),
        ],
        kept,
        "A tied weight goes once to where it is also used, and the sum of its gradients once back.",
        home={"table": "a"},
        extra={"b": [("the table and its gradients", 2 * table)]},
    )


def experts() -> Recipe:
    """A mixture of experts on each mesh, whose loads are balanced by an auxiliary loss."""

    def moe(p: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gates = jax.nn.softmax(x @ p["gate"])
        each = jnp.einsum("etw,...t->...ew", jax.vmap(lambda w: w)(p["experts"]), x)
        mixed = jnp.einsum("...ew,...e->...w", each, gates)
        return x + mixed, jnp.sum(jnp.mean(gates, axis=(0, 1)) ** 2)

    def part(seed: int) -> Any:
        experts = [matrix(seed + i, WIDTH, WIDTH) for i in range(4)]
        return {"gate": matrix(seed, WIDTH, 4), "experts": jnp.stack(experts)}

    p = {"x": part(1), "y": part(9), "out": matrix(20, WIDTH, 1)}
    batch = (jax.random.normal(jax.random.key(3), (MICROBATCHES, ROWS, LENGTH, WIDTH)), jnp.ones((MICROBATCHES, ROWS)))

    def loss(p: Any, one: Any) -> jax.Array:
        x, first = named(moe, "x", p["x"], one[0])
        x, second = named(moe, "y", p["y"], x)
        y = named(lambda w, x: jnp.mean(x @ w, axis=(1, 2)), "out", p["out"], x)
        return jnp.mean((y - one[1]) ** 2) + 0.01 * (first + second)

    x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    return _trained(
        "mixture of experts",
        p,
        batch,
        {"x": "a", "y": "b", "out": "b"},
        loss,
        [
            Move("activations", "a", "b", ONE, MICROBATCHES),
            Move("cotangents", "b", "a", ONE, MICROBATCHES),
            Move("the auxiliary loss", "a", "b", 4, MICROBATCHES),
        ],
        {"a": saved(moe, p["x"], x), "b": saved(moe, p["y"], x) + ONE},
        "An auxiliary loss is a number; its cotangent is a constant.",
        homes={"[2][0]": "a", "[2][1]": "b"},
    )


def encoder_decoder() -> Recipe:
    """Two decoder layers attend to what the encoder made."""

    def decode(p: Any, x: jax.Array, memory: jax.Array) -> jax.Array:
        scores = jax.nn.softmax(x @ p["q"] @ jnp.swapaxes(memory, -1, -2), axis=-1)
        return apply(p, x + scores @ memory)

    def decoder(seed: int) -> Any:
        return {**mlp(seed), "q": matrix(seed + 2, WIDTH, WIDTH)}

    p = {"source": matrix(1, VOCABULARY, WIDTH), "x": mlp(2), "target": matrix(4, VOCABULARY, WIDTH)}
    p |= {f"d{i}": decoder(10 + 4 * i) for i in range(3)} | {"out": matrix(30, WIDTH, VOCABULARY)}
    batch = {"source": batch_of()[..., 1:], "target": batch_of()}

    def loss(p: Any, one: Any) -> jax.Array:
        memory = named(lambda t, i: t[i], "source", p["source"], one["source"])
        memory = named(apply, "x", p["x"], memory)
        x = named(lambda t, i: t[i], "target", p["target"], one["target"][:, :-1])
        for i in range(3):
            x = named(decode, f"d{i}", p[f"d{i}"], x, memory)
        return cross_entropy(named(lambda w, x: x @ w, "out", p["out"], x), one["target"])

    x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH + 1), jnp.int32)
    last = saved(lambda w, x, t: cross_entropy(x @ w, t), p["out"], x, tokens)
    return _trained(
        "encoder and decoder",
        p,
        batch,
        {"source": "a", "x": "a", "target": "b", "d0": "b", "d1": "b", "d2": "b", "out": "b"},
        loss,
        [Move("memory", "a", "b", ONE, MICROBATCHES), Move("its cotangent", "b", "a", ONE, MICROBATCHES)],
        {"a": saved(apply, p["x"], x), "b": sum(saved(decode, p[f"d{i}"], x, x) for i in range(3)) + last},
        "The cotangents of the three decoders are summed where they are made.",
        homes={"[2]['source']": "a", "[2]['target']": "b"},
    )


def u_net() -> Recipe:
    """Down on the first mesh, up on the second, skips between; all parts see the embedding of the time."""

    def part(p: Any, x: jax.Array, time: jax.Array) -> jax.Array:
        return apply(p, x + (time @ p["time"])[:, None])

    def up(p: Any, x: jax.Array, skip: jax.Array, time: jax.Array) -> jax.Array:
        return part(p, x + skip, time)

    def stage(seed: int) -> Any:
        return {**mlp(seed), "time": matrix(seed + 2, WIDTH, WIDTH)}

    p = {"time": matrix(1, 1, WIDTH)} | {name: stage(4 * i + 2) for i, name in enumerate(("d0", "d1", "u0", "u1"))}
    x = jax.random.normal(jax.random.key(3), (MICROBATCHES, ROWS, LENGTH, WIDTH))
    batch = {"x": x, "time": jnp.linspace(0, 1, MICROBATCHES * ROWS).reshape(MICROBATCHES, ROWS, 1), "noise": x[::-1]}

    def loss(p: Any, one: Any) -> jax.Array:
        time = named(lambda w, t: jnp.sin(t @ w), "time", p["time"], one["time"])
        first = named(part, "d0", p["d0"], one["x"], time)
        second = named(part, "d1", p["d1"], first, time)
        y = named(up, "u0", p["u0"], second, second, time)
        y = named(up, "u1", p["u1"], y, first, time)
        return jnp.mean((y - one["noise"]) ** 2)

    y = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    t = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    time_bytes = ROWS * WIDTH * 4
    return _trained(
        "U-Net with skips",
        p,
        batch,
        {"time": "a", "d0": "a", "d1": "a", "u0": "b", "u1": "b"},
        loss,
        [
            Move("the two skips, one of them the activation", "a", "b", ONE, 2 * MICROBATCHES),
            Move("their cotangents", "b", "a", ONE, 2 * MICROBATCHES),
            Move("the embedding of the time", "a", "b", time_bytes, MICROBATCHES),
            Move("its cotangent, summed", "b", "a", time_bytes, MICROBATCHES),
        ],
        {
            "a": saved(part, p["d0"], y, t) + saved(part, p["d1"], y, t),
            "b": saved(up, p["u0"], y, y, t) + saved(up, p["u1"], y, y, t) + ONE,
        },
        "A value goes once to a mesh, however many layers there use it; the sum of its cotangents comes back.",
        homes={"[2]['x']": "a", "[2]['time']": "a", "[2]['noise']": "b"},
    )


def bert() -> Recipe:
    """Masked tokens are predicted; the mask comes with the batch."""
    p = _small_model()
    tokens = batch_of()[..., 1:]
    batch = {"tokens": tokens, "mask": jax.random.bernoulli(jax.random.key(4), 0.3, tokens.shape)}

    def loss(p: Any, one: Any) -> jax.Array:
        seen = jnp.where(one["mask"], 0, one["tokens"])
        x = named(embed, "embed", p["embed"], seen)
        x = named(apply, "y", p["y"], named(apply, "x", p["x"], x))
        found = named(lambda w, x: x @ w, "out", p["out"], x)
        each = optax.softmax_cross_entropy_with_integer_labels(found, one["tokens"])
        return jnp.sum(each * one["mask"]) / jnp.maximum(jnp.sum(one["mask"]), 1)

    x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    ids = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    last = saved(lambda w, x, t: optax.softmax_cross_entropy_with_integer_labels(x @ w, t).mean(), p["out"], x, ids)
    return _trained(
        "BERT",
        p,
        batch,
        {"embed": "a", "x": "a", "y": "b", "out": "b"},
        loss,
        [
            Move("activations", "a", "b", ONE, MICROBATCHES),
            Move("cotangents", "b", "a", ONE, MICROBATCHES),
            Move("tokens and mask", "a", "b", size(batch)),
        ],
        {"a": saved(apply, p["x"], x), "b": saved(apply, p["y"], x) + last},
        "Targets and mask are small.",
    )


def vit() -> Recipe:
    """Patches, a learned position, blocks, a mean, labels."""

    def patches(p: Any, image: jax.Array) -> jax.Array:
        return image @ p["w"] + p["position"]

    def top(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(x, axis=1) @ w

    p = {"patch": {"w": matrix(1, 12, WIDTH), "position": matrix(2, LENGTH, WIDTH)}, "x": mlp(3), "y": mlp(5)}
    p |= {"top": matrix(7, WIDTH, 10)}
    images = jax.random.normal(jax.random.key(3), (MICROBATCHES, ROWS, LENGTH, 12))
    batch = (images, jax.random.randint(jax.random.key(4), (MICROBATCHES, ROWS), 0, 10))

    def loss(p: Any, one: Any) -> jax.Array:
        image = (one[0] - jnp.mean(one[0])) / jnp.std(one[0])
        x = named(patches, "patch", p["patch"], image)
        x = named(apply, "y", p["y"], named(apply, "x", p["x"], x))
        found = named(top, "top", p["top"], x)
        return optax.softmax_cross_entropy_with_integer_labels(found, one[1]).mean()

    x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    image = ROWS * LENGTH * 12 * 4
    return _trained(
        "ViT",
        p,
        batch,
        {"patch": "a", "x": "a", "y": "b", "top": "b"},
        loss,
        [Move("activations", "a", "b", ONE, MICROBATCHES), Move("cotangents", "b", "a", ONE, MICROBATCHES)],
        {"a": saved(apply, p["x"], x) + image, "b": saved(apply, p["y"], x) + ONE},
        "Images are normalized where they enter; labels are where the loss is.",
        homes={"[2][0]": "a", "[2][1]": "b"},
    )


def dropout() -> Recipe:
    """A key for each microbatch, split for the layers."""
    p = _small_model()
    batch = {"tokens": batch_of(), "key": jax.random.key_data(jax.random.split(jax.random.key(5), MICROBATCHES))}

    def dropped(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
        return apply(p, jnp.where(keep, x / 0.9, 0.0))

    def loss(p: Any, one: Any) -> jax.Array:
        first, second = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(one["key"])))
        x = named(embed, "embed", p["embed"], one["tokens"][:, :-1])
        x = named(dropped, "y", p["y"], named(dropped, "x", p["x"], x, first), second)
        return cross_entropy(named(lambda w, x: x @ w, "out", p["out"], x), one["tokens"])

    x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH + 1), jnp.int32)
    last = saved(lambda w, x, t: cross_entropy(x @ w, t), p["out"], x, tokens)
    kept = {name: saved(lambda p, x, k: dropped(p, x, k), p[part], x, key) for name, part in (("a", "x"), ("b", "y"))}
    return _trained(
        "dropout",
        p,
        batch,
        {"embed": "a", "x": "a", "y": "b", "out": "b"},
        loss,
        [
            Move("activations", "a", "b", ONE, MICROBATCHES),
            Move("cotangents", "b", "a", ONE, MICROBATCHES),
            Move("tokens", "a", "b", size(batch["tokens"])),
            Move("keys", "a", "b", size(batch["key"])),
        ],
        {"a": kept["a"], "b": kept["b"] + last},
        "Keys are small; masks are made where they are used.",
    )


def statistics() -> Recipe:
    """Running statistics as of BatchNorm, one update per microbatch, kept by the layer that they are of."""
    p = {"x": mlp(1), "y": mlp(3), "out": matrix(5, WIDTH, 1)}
    state = {name: {"mean": jnp.zeros(WIDTH), "var": jnp.ones(WIDTH)} for name in ("x", "y")}
    moments = optax.sgd(0.1, momentum=0.9)
    momentum = moments.init(p)
    x = jax.random.normal(jax.random.key(3), (MICROBATCHES, ROWS, LENGTH, WIDTH))
    batch = (x, jnp.ones((MICROBATCHES, ROWS)))

    def normed(p: Any, s: Any, x: jax.Array) -> Any:
        mean, var = jnp.mean(x, axis=(0, 1)), jnp.var(x, axis=(0, 1))
        new = {"mean": 0.9 * s["mean"] + 0.1 * mean, "var": 0.9 * s["var"] + 0.1 * var}
        return apply(p, (x - mean) / jnp.sqrt(var + 1e-5)), new

    def step(p: Any, state: Any, momentum: Any, batch: Any) -> Any:
        def microbatch(i: jax.Array, carry: Any, one: Any) -> Any:
            total, state = carry

            def loss(p: Any) -> Any:
                x, first = named(normed, "x", p["x"], state["x"], one[0])
                x, second = named(normed, "y", p["y"], state["y"], x)
                y = named(lambda w, x: jnp.mean(x @ w, axis=(1, 2)), "out", p["out"], x)
                return jnp.mean((y - one[1]) ** 2) / MICROBATCHES, {"x": first, "y": second}

            (value, state), grads = jax.value_and_grad(loss, has_aux=True)(p)
            return jax.tree.map(jnp.add, total, (value, grads)), state

        start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        (total, grads), state = enumerated_for(microbatch, (start, state), batch)
        updates, momentum = moments.update(grads, momentum, p)
        return optax.apply_updates(p, updates), state, momentum, total

    where = {"x": "a", "y": "b", "out": "b"}
    homes = {f"[{n}]['{name}']": mesh for n in (0, 1) for name, mesh in where.items()}
    for path, _ in jax.tree_util.tree_leaves_with_path(momentum):
        text = jax.tree_util.keystr(path)
        homes["[2]" + text] = next(mesh for name, mesh in where.items() if f"['{name}']" in text)
    one = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)

    def plain(p: Any, x: jax.Array) -> jax.Array:
        return normed(p, {"mean": jnp.zeros(WIDTH), "var": jnp.ones(WIDTH)}, x)[0]

    held = {
        "a": [("sums of gradients", size(p["x"])), ("activations", 2 * saved(plain, p["x"], one)), ("sent", 2 * ONE)],
        "b": [
            ("sums of gradients", size((p["y"], p["out"]))),
            ("activations", saved(plain, p["y"], one) + ONE),
            ("received", 2 * ONE),
        ],
    }
    return Recipe(
        "running statistics",
        step,
        (p, state, momentum, batch),
        TWO,
        where,
        {**homes, "[3][0]": "a", "[3][1]": "b"},
        [Move("activations", "a", "b", ONE, MICROBATCHES), Move("cotangents", "b", "a", ONE, MICROBATCHES)],
        held,
        "Statistics are a state of their layer.",
        donate=(0, 1, 2),
    )


def generation() -> Recipe:
    """Greedy decoding without a cache: the last token returns to the first mesh, not its logits."""
    layout, p, steps = Layout(TWO, 4), parameters(4), 3
    prompt = jax.random.randint(jax.random.key(1), (ROWS, LENGTH), 1, VOCABULARY)

    def step(p: Any, prompt: jax.Array) -> Any:
        def one(i: jax.Array, tokens: jax.Array) -> jax.Array:
            found = logits(p, tokens)
            following = jnp.argmax(found[:, -1], axis=-1).astype(tokens.dtype)
            return jnp.concatenate([tokens[:, 1:], following[:, None]], axis=1)

        return fori_loop(steps, one, prompt)

    return Recipe(
        "generation",
        step,
        (p, prompt),
        TWO,
        layout.names(),
        {**layout.homes("[0]"), "[1]": "a"},
        [Move("activations", "a", "b", ONE, steps), Move("the token", "b", "a", ROWS * 4, steps)],
        {mesh: [("activations of a block", 8 * ONE)] for mesh in TWO},
        "A token is smaller than its logits.",
        schedule=None,
    )


def recipes() -> list[Recipe]:
    """All of them."""
    return [tied(), experts(), encoder_decoder(), u_net(), bert(), vit(), dropout(), statistics(), generation()]
