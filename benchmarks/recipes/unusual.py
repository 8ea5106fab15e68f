"""Steps that do more than one gradient and one update: second gradients, choices, one vector of everything, heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from mpmd_trace import enumerated_for, named_computation
from recipes.language import (
    LENGTH,
    MICROBATCHES,
    ROWS,
    WIDTH,
    Layout,
    batch_of,
    cross_entropy,
    logits,
    parameters,
    small,
    state_homes,
    summed,
    train,
)
from recipes.recipe import Move, Recipe, saved, size

TWO = ("a", "b")
ONE = ROWS * LENGTH * WIDTH * 4  # the bytes of an activation of one microbatch


def _loss(p: Any, tokens: jax.Array) -> jax.Array:
    return cross_entropy(logits(p, tokens[:, :-1]), tokens) / MICROBATCHES


def _language(
    name: str, step: Any, state: Any, scalars: int, reason: str, *, more: list[Move] | None = None, copies: int = 0
) -> Recipe:
    """The language model on two meshes; `copies` of the parameters are held besides."""
    layout, p, batch = Layout(TWO, 4), parameters(4), batch_of()
    held = {
        mesh: [*parts, ("copies of the parameters", copies * layout.share(p, mesh))]
        for mesh, parts in layout.held(p).items()
    }
    moves = [*layout.activation_moves(), *(more or []), layout.targets(batch), *small(scalars, TWO, "small values")]
    homes = {**layout.homes("[0]"), **state_homes(layout, state), "[2]": ""}
    return Recipe(name, step, (p, state, batch), TWO, layout.names(), homes, moves, held, reason, donate=(0, 1))


def sharpness() -> Recipe:
    """SAM: the gradient of the loss a step uphill, along the gradient of all parameters."""
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        _, grads = summed(p, batch, _loss)
        norm = optax.global_norm(grads)
        total, grads = summed(jax.tree.map(lambda w, g: w + 0.05 * g / norm, p, grads), batch, _loss)
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, total

    again = Layout(TWO, 4).activation_moves()
    return _language(
        "second gradient uphill (SAM)",
        step,
        optimizer.init(parameters(4)),
        2,
        "Two pipelines one after the other, and a norm between them.",
        more=again,
        copies=1,
    )


def sharpness_in_the_loop() -> Recipe:
    """SAM with a step uphill for each microbatch."""
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        def microbatch(i: jax.Array, sums: Any, tokens: jax.Array) -> Any:
            grads = jax.grad(_loss)(p, tokens)
            norm = optax.global_norm(grads)
            uphill = jax.tree.map(lambda w, g: w + 0.05 * g / norm, p, grads)
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(_loss)(uphill, tokens))

        total, grads = enumerated_for(microbatch, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p)), batch)
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, total

    return _language(
        "SAM in each microbatch",
        step,
        optimizer.init(parameters(4)),
        2 * MICROBATCHES,
        "Two microbatches are on their way, each with its gradient, then its parameters uphill.",
        more=Layout(TWO, 4).activation_moves(),
        copies=2,
    )


def epochs() -> Recipe:
    """Two epochs over the batch in one step, each with its update."""
    optimizer = optax.adam(1e-3)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        losses = []
        for _ in range(2):
            total, grads = summed(p, batch, _loss)
            updates, state = optimizer.update(grads, state, p)
            p = optax.apply_updates(p, updates)
            losses.append(total)
        return p, state, losses

    return _language(
        "two epochs",
        step,
        optimizer.init(parameters(4)),
        4,
        "Two steps one after the other.",
        more=Layout(TWO, 4).activation_moves(),
    )


def best() -> Recipe:
    """The parameters of the lowest loss are kept beside those that are trained."""
    optimizer, p = optax.adam(1e-3), parameters(4)
    state = {"optimizer": optimizer.init(p), "best": jax.tree.map(jnp.copy, p), "loss": jnp.float32(1e9)}

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        total, grads = summed(p, batch, _loss)
        better = total < state["loss"]
        kept, lowest = jax.lax.cond(better, lambda: (p, total), lambda: (state["best"], state["loss"]))
        updates, optimizer_state = optimizer.update(grads, state["optimizer"], p)
        new = {"optimizer": optimizer_state, "best": kept, "loss": lowest}
        return optax.apply_updates(p, updates), new, total

    return _language("best parameters kept", step, state, 2, "Whether it is better is one bit.")


def phases() -> Recipe:
    """One of three updates, by the number of the step."""
    state = {"moments": jax.tree.map(jnp.zeros_like, parameters(4)), "step": jnp.int32(0)}

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        total, grads = summed(p, batch, _loss)
        heavier = jax.tree.map(lambda m, g: 0.9 * m + g, state["moments"], grads)
        branches = [lambda: (grads, state["moments"]), lambda: (heavier, heavier), lambda: (state["moments"],) * 2]
        updates, moments = jax.lax.switch(state["step"] // 100, branches)
        p = jax.tree.map(lambda w, u: w - 0.1 * u, p, updates)
        return p, {"moments": moments, "step": state["step"] + 1}, total

    return _language("switch of optimizers", step, state, 2, "A conditional on each mesh, its index sent.")


def raveled() -> Recipe:
    """Gradients as one vector, which is clipped and cut again."""
    optimizer = optax.adam(1e-3)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        total, grads = summed(p, batch, _loss)
        flat, apart = ravel_pytree(grads)
        grads = apart(flat * jnp.minimum(1.0, 1.0 / jnp.linalg.norm(flat)))
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, total

    state = optimizer.init(parameters(4))
    return _language("clipping of one vector", step, state, 3, "The vector need not be anywhere; its norm is a number.")


def _quantised(x: jax.Array) -> dict[str, jax.Array]:
    scale = jnp.max(jnp.abs(x), -1, keepdims=True) / 127 + 1e-12
    return {"values": jnp.round(x / scale).astype(jnp.int8), "scale": scale}


def eight_bits() -> Recipe:
    """Moments of eight bits with a scale for each row."""
    p = parameters(4)
    zeros = jax.tree.map(lambda x: _quantised(jnp.zeros_like(x)), p)
    state = {"first": zeros, "second": jax.tree.map(jnp.copy, zeros), "step": jnp.int32(0)}

    def averaged(tree: Any, grads: Any, decay: float) -> Any:
        def one(q: Any, g: jax.Array) -> jax.Array:
            return decay * q["values"].astype(jnp.float32) * q["scale"] + (1 - decay) * g

        return jax.tree.map(one, tree, grads, is_leaf=lambda x: isinstance(x, dict) and "values" in x)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        total, grads = summed(p, batch, _loss)
        first = averaged(state["first"], grads, 0.9)
        second = averaged(state["second"], jax.tree.map(jnp.square, grads), 0.99)
        p = jax.tree.map(lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, first, second)
        state = {"first": jax.tree.map(_quantised, first), "second": jax.tree.map(_quantised, second)} | {
            "step": state["step"] + 1
        }
        return p, state, total

    return _language("moments of eight bits", step, state, 1, "An optimizer works parameter by parameter.")


def mean_teacher() -> Recipe:
    """Predictions are pulled towards those of an average of the parameters, which is another state."""
    optimizer, p = optax.adam(1e-3), parameters(4)
    state = {"optimizer": optimizer.init(p), "teacher": jax.tree.map(jnp.copy, p)}

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        def loss(p: Any, tokens: jax.Array) -> jax.Array:
            wanted = jax.lax.stop_gradient(jax.nn.softmax(logits(state["teacher"], tokens[:, :-1])))
            found = logits(p, tokens[:, :-1])
            apart = jnp.mean((jax.nn.softmax(found) - wanted) ** 2)
            return (cross_entropy(found, tokens) + apart) / MICROBATCHES

        total, grads = summed(p, batch, loss)
        updates, optimizer_state = optimizer.update(grads, state["optimizer"], p)
        p = optax.apply_updates(p, updates)
        teacher = jax.tree.map(lambda t, w: 0.99 * t + 0.01 * w, state["teacher"], p)
        return p, {"optimizer": optimizer_state, "teacher": teacher}, total

    return _language(
        "mean teacher",
        step,
        state,
        1,
        "The teacher is where the student is; only its activations travel besides.",
        more=Layout(TWO, 4).activation_moves(backward=False),
    )


def two_heads() -> Recipe:
    """A trunk, and on two other meshes a head for each of two tasks, whose losses are weighted by what is learnt."""
    meshes = ("a", "b", "c")
    where = {"trunk": "a", "left": "b", "right": "c"}

    def block(p: Any, x: jax.Array) -> jax.Array:
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    def matrix(seed: int, *shape: int) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), shape) / shape[0] ** 0.5

    p = {n: {"up": matrix(i, WIDTH, 4 * WIDTH), "down": matrix(i + 9, 4 * WIDTH, WIDTH)} for i, n in enumerate(where)}
    p |= {"uncertainty": jnp.zeros(2)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = optimizer.init(p)
    x = jax.random.normal(jax.random.key(0), (MICROBATCHES, ROWS, LENGTH, WIDTH))
    batch = (x, jnp.flip(x), jnp.roll(x, 1))

    def loss(p: Any, one: Any) -> jax.Array:
        trunk = named_computation(block, name="trunk")(p["trunk"], one[0])
        heads = [named_computation(block, name=n)(p[n], trunk) for n in ("left", "right")]
        each = jnp.stack([jnp.mean((y - t) ** 2) for y, t in zip(heads, one[1:], strict=True)])
        return jnp.sum(jnp.exp(-p["uncertainty"]) * each + p["uncertainty"]) / MICROBATCHES

    def step(p: Any, state: Any, batch: Any) -> Any:
        total, grads = summed(p, batch, loss)
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, total

    homes = {f"[2][{i}]": mesh for i, mesh in enumerate(meshes)}
    for path, leaf in jax.tree_util.tree_leaves_with_path((p, state)):
        text = jax.tree_util.keystr(path)
        mesh = next((mesh for part, mesh in where.items() if f"['{part}']" in text), "")
        homes[text] = mesh if size(leaf) > 64 else ""
    one = saved(block, p["trunk"], jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32))
    held = {
        mesh: [
            ("sums of gradients", size(p[part])),
            ("activations", (3 if mesh == "a" else 1) * one),
            ("what arrives and leaves", 2 * ONE),
        ]
        for part, mesh in where.items()
    }
    return Recipe(
        "two heads on two meshes",
        step,
        (p, state, batch),
        meshes,
        where,
        homes,
        [
            Move("activations", "a", "b", ONE, 2 * MICROBATCHES),
            Move("cotangents", "b", "a", ONE, 2 * MICROBATCHES),
            Move("a loss and its weight", "b", "c", 8, MICROBATCHES),
            *small(3, meshes, "norm there and back, counter"),
        ],
        held,
        "Losses and their weights are numbers.",
        donate=(0, 1),
    )


def recipes() -> list[Recipe]:
    """All of them."""
    found = [sharpness(), sharpness_in_the_loop(), epochs(), best(), phases(), raveled(), eight_bits(), mean_teacher()]
    found.append(two_heads())
    contributed: dict[str, Any] = {
        "acprop": optax.contrib.acprop(1e-3),
        "ademamix": optax.contrib.ademamix(1e-3),
        "adopt": optax.contrib.adopt(1e-3),
        "cocob": optax.contrib.cocob(),
        "dadapt_adamw": optax.contrib.dadapt_adamw(),
        "dog": optax.contrib.dog(1e-3),
        "dowg": optax.contrib.dowg(),
        "galore": optax.contrib.galore(1e-3),
        "madgrad": optax.contrib.madgrad(1e-3),
        "mechanize": optax.contrib.mechanize(optax.adam(1e-3)),
        "momo": optax.contrib.momo(1e-3),
        "momo_adam": optax.contrib.momo_adam(1e-3),
        "simplified_ademamix": optax.contrib.simplified_ademamix(1e-3),
        "muon": optax.contrib.muon(1e-3),
        "prodigy": optax.contrib.prodigy(1.0),
        "schedule_free_adamw": optax.contrib.schedule_free_adamw(1e-3),
    }
    reason = "An optimizer works parameter by parameter; its inner products are numbers."
    extra: dict[str, Any] = {"extra": lambda grads, loss: {"value": loss}}  # only some read the loss
    return found + [train(f"optax.contrib.{n}", o, scalars=6, reason=reason, **extra) for n, o in contributed.items()]
