"""Two models in one step: two towers with one loss, a generator and a discriminator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from recipes.language import WIDTH, small
from recipes.parts import CLIPPED, TWO, apply, matrix, mlp, named
from recipes.recipe import Move, Recipe, saved, size


def two_towers() -> Recipe:
    """CLIP: images on one mesh, texts on the other, one loss over the whole batch."""
    rows = 8
    p = {"image": {"in": matrix(1, 12, WIDTH), **mlp(2)}, "text": {"in": matrix(4, 20, WIDTH), **mlp(5)}}
    p |= {"temperature": jnp.float32(1.0)}
    state = CLIPPED.init(p)
    batch = (jax.random.normal(jax.random.key(1), (rows, 12)), jax.random.normal(jax.random.key(2), (rows, 20)))

    def tower(p: Any, x: jax.Array) -> jax.Array:
        x = apply(p, x @ p["in"])
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def loss(p: Any, batch: Any) -> jax.Array:
        images = named(tower, "image", p["image"], batch[0])
        texts = named(tower, "text", p["text"], batch[1])
        scores = images @ texts.T * jnp.exp(p["temperature"])
        labels = jnp.arange(rows)
        both = [optax.softmax_cross_entropy_with_integer_labels(s, labels).mean() for s in (scores, scores.T)]
        return sum(both) / 2

    def step(p: Any, state: Any, batch: Any) -> Any:
        total, grads = jax.value_and_grad(loss)(p, batch)
        updates, state = CLIPPED.update(grads, state, p)
        return optax.apply_updates(p, updates), state, total

    homes = {"[0]['image']": "a", "[0]['text']": "b", "[0]['temperature']": "", "[2][0]": "a", "[2][1]": "b"}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        text = jax.tree_util.keystr(path)
        homes["[1]" + text] = "" if size(leaf) <= 64 else "a" if "['image']" in text else "b"
    x = {"image": jax.ShapeDtypeStruct((rows, 12), jnp.float32), "text": jax.ShapeDtypeStruct((rows, 20), jnp.float32)}
    one = rows * WIDTH * 4
    held = {
        mesh: [("gradients", size(p[part])), ("activations", saved(tower, p[part], x[part])), ("the loss", 4 * one)]
        for mesh, part in (("a", "image"), ("b", "text"))
    }
    return Recipe(
        "CLIP, two towers",
        step,
        (p, state, batch),
        TWO,
        {"image": "a", "text": "b"},
        homes,
        [
            Move("the embeddings of one tower", "a", "b", one),
            Move("their cotangents", "b", "a", one),
            *small(3, TWO, "norm there and back, counter"),
        ],
        held,
        "One tower's embeddings go to the other's mesh, where the loss is.",
        schedule=None,
        donate=(0, 1),
    )


def gan() -> Recipe:
    """A generator and a discriminator, each with an optimizer, trained in turns in one step."""
    rows = 8
    p = {"g": {"in": matrix(1, 4, WIDTH), **mlp(2)}, "d": {**mlp(4), "out": matrix(6, WIDTH, 1)}}
    optimizer = optax.adam(1e-3)
    state = {name: optimizer.init(p[name]) for name in p}
    first, second = jax.random.split(jax.random.key(1))
    batch = {"real": jax.random.normal(first, (rows, WIDTH)), "z": jax.random.normal(second, (rows, 4))}

    def generate(p: Any, z: jax.Array) -> jax.Array:
        return named(lambda p, z: apply(p, z @ p["in"]), "g", p, z)

    def judge(p: Any, x: jax.Array) -> jax.Array:
        return named(lambda p, x: (apply(p, x) @ p["out"])[:, 0], "d", p, x)

    def step(p: Any, state: Any, batch: Any) -> Any:
        def of_d(d: Any) -> jax.Array:
            fake = jax.lax.stop_gradient(generate(p["g"], batch["z"]))
            return jnp.mean(jax.nn.softplus(-judge(d, batch["real"])) + jax.nn.softplus(judge(d, fake)))

        d_loss, grads = jax.value_and_grad(of_d)(p["d"])
        updates, d_state = optimizer.update(grads, state["d"], p["d"])
        d = optax.apply_updates(p["d"], updates)

        def of_g(g: Any) -> jax.Array:
            return jnp.mean(jax.nn.softplus(-judge(d, generate(g, batch["z"]))))

        g_loss, grads = jax.value_and_grad(of_g)(p["g"])
        updates, g_state = optimizer.update(grads, state["g"], p["g"])
        g = optax.apply_updates(p["g"], updates)
        return {"g": g, "d": d}, {"g": g_state, "d": d_state}, (d_loss, g_loss)

    where = {"g": "a", "d": "b"}
    homes = {f"[0]['{name}']": mesh for name, mesh in where.items()} | {"[2]['real']": "b", "[2]['z']": "a"}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        text = jax.tree_util.keystr(path)
        homes["[1]" + text] = "" if size(leaf) <= 64 else where["g" if text.startswith("['g']") else "d"]
    x = jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)
    one = size(x)
    held = {
        "a": [("gradients", size(p["g"])), ("activations", 2 * saved(apply, p["g"], x)), ("samples", 2 * one)],
        "b": [("gradients", size(p["d"])), ("activations", 2 * saved(apply, p["d"], x)), ("samples", 2 * one)],
    }
    return Recipe(
        "GAN, two optimizers",
        step,
        (p, state, batch),
        TWO,
        where,
        homes,
        [Move("samples", "a", "b", one, 2), Move("their cotangent", "b", "a", one)],
        held,
        "Samples go to the discriminator once for each loss; only the generator's has a cotangent.",
        schedule=None,
        donate=(0, 1),
    )


def recipes() -> list[Recipe]:
    """Both."""
    return [two_towers(), gan()]
