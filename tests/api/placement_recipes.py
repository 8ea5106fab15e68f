"""Training and inference steps as people write them, whose plan a person would draw with the parameters at home."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mpmd_trace import call, enumerated_for, named_computation, value_and_grad
from util import normal

WIDTH, WORDS, MICROBATCHES = 16, 24, 4
#: Bytes of one activation: 4 rows.
ACTIVATION = 4 * WIDTH * 4
Recipe = tuple[Callable[..., Any], tuple[Any, ...]]


def weights() -> dict[str, Any]:
    return {f"w{i}": {"w": 0.3 * normal(i, WIDTH, WIDTH), "b": jnp.zeros(WIDTH)} for i in range(4)}


def words(*names: str) -> dict[str, Any]:
    return {name: 0.3 * normal(4 + i, WORDS, WIDTH) for i, name in enumerate(names)}


def data() -> Any:
    x, y = normal(7, 2, MICROBATCHES, 4, WIDTH)
    return x, y, (normal(8, MICROBATCHES, 4) > -0.5).astype(jnp.float32)


def tokens() -> jax.Array:
    return jnp.asarray(np.random.default_rng(9).integers(0, WORDS, (MICROBATCHES, 2, 5)), jnp.int32)


def layer(p: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w"] + p["b"])


def forward(ws: Any, x: jax.Array) -> jax.Array:
    for i in range(4):
        x = named_computation(layer, name=f"f{i}")(ws[f"w{i}"], x)
    return x


def token_loss(ws: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    """Summed over tokens, to be divided by their number in the end."""
    return jnp.sum(jnp.sum((forward(ws, x) - y) ** 2, -1) * mask)


def summed(loss: Callable[..., jax.Array], ws: Any, batch: Any) -> Any:
    """The gradients, the loss and the number of tokens over the microbatches."""

    def microbatch(i: Any, carry: Any, xs: Any) -> Any:
        grads, total, count = carry
        value, g = jax.value_and_grad(loss)(ws, *xs)
        return jax.tree.map(jnp.add, grads, g), total + value, count + jnp.sum(xs[2])

    return enumerated_for(microbatch, (jax.tree.map(jnp.zeros_like, ws), jnp.zeros(()), jnp.zeros(())), batch)


def training(optimizer: Any) -> Recipe:
    ws = weights()

    def step(ws: Any, state: Any, batch: Any) -> Any:
        grads, total, count = summed(token_loss, ws, batch)
        grads = jax.tree.map(lambda g: g / count, grads)
        updates, state = optimizer.update(grads, state, ws)
        return optax.apply_updates(ws, updates), state, total / count

    return step, (ws, optimizer.init(ws), data())


CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


def clipped() -> Recipe:
    return training(CLIPPED)


def finite() -> Recipe:
    return training(optax.apply_if_finite(CLIPPED, 3))


def every_third() -> Recipe:
    return training(optax.MultiSteps(CLIPPED, 3, should_skip_update_fn=optax.skip_not_finite))


def loss_scaling() -> Recipe:
    """Gradients of a scaled loss in half precision; a step is left out when one of them is not finite."""
    optimizer, ws = optax.adam(1e-2), weights()

    def step(ws: Any, state: Any, scale: jax.Array, batch: Any) -> Any:
        def loss(ws: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
            half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), ws)
            return jnp.sum(jnp.sum((forward(half, x.astype(jnp.bfloat16)) - y) ** 2, -1) * mask) * scale

        grads, _, count = summed(loss, ws, batch)
        grads = jax.tree.map(lambda g: g / (count * scale), grads)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        updates, new = optimizer.update(grads, state, ws)

        def chosen(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        return chosen(optax.apply_updates(ws, updates), ws), chosen(new, state), jnp.where(finite, scale, scale / 2)

    return step, (ws, optimizer.init(ws), jnp.float32(8), data())


def inner_loop() -> Recipe:
    """A loop over all gradients that an optimizer might make, and a scan over them."""

    def step(ws: Any, batch: Any) -> Any:
        grads, _, count = summed(token_loss, ws, batch)

        def body(i: Any, carry: Any) -> Any:
            moments, scale = carry
            return jax.tree.map(lambda m, g: 0.9 * m + jnp.tanh(g) * (i + 1), moments, grads), scale * 0.5

        moments, scale = jax.lax.fori_loop(0, 3, body, (jax.tree.map(jnp.zeros_like, ws), count))
        moments, _ = jax.lax.scan(
            lambda m, s: (jax.tree.map(lambda x: x * s, m), None), moments, jnp.arange(1.0, 3.0) * scale
        )
        return jax.tree.map(lambda w, m: w - 0.01 * m, ws, moments)

    return step, (weights(), data())


def nested_conditionals() -> Recipe:
    """A conditional that clips by a norm over all meshes inside of one that skips the step."""
    ws = weights()

    def step(ws: Any, state: Any, batch: Any, flag: jax.Array) -> Any:
        grads, total, count = summed(token_loss, ws, batch)

        def scaled(g: Any) -> Any:
            return jax.tree.map(lambda x: x / optax.global_norm(g), g)

        def update(g: Any, state: Any) -> Any:
            g = jax.lax.cond(optax.global_norm(g) > 2.0, scaled, lambda g: g, g)
            return (*CLIPPED.update(g, state, ws), total)

        def skip(g: Any, state: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, g), state, count

        updates, state, value = jax.lax.cond(flag > 0, update, skip, grads, state)
        return optax.apply_updates(ws, updates), state, value

    return step, (ws, CLIPPED.init(ws), data(), jnp.int32(1))


def tied_loss(ws: Any, t: jax.Array) -> jax.Array:
    x = named_computation(lambda e, t: e[t], name="f0")(ws["e"], t[:, :-1])
    logits = named_computation(lambda e, x: (x @ e.T).astype(jnp.float32), name="f3")(ws["e"], forward(ws, x))
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), t[:, 1:, None], -1))


def lora() -> Recipe:
    """The table of `tied` is frozen; thin matrices whose product is added to it, for each microbatch, are trained."""
    ws = {**weights(), **words("e")}
    thin = {"l": jnp.ones((WORDS, 1)), "r": jnp.ones((1, WIDTH))}

    def step(thin: Any, ws: Any, batch: jax.Array) -> Any:
        def loss(thin: Any, t: jax.Array) -> jax.Array:
            return tied_loss({**ws, "e": ws["e"] + thin["l"] @ thin["r"]}, t)

        grads = jax.tree.map(jnp.zeros_like, thin)
        grads = enumerated_for(lambda i, g, t: jax.tree.map(jnp.add, g, jax.grad(loss)(thin, t)), grads, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, thin, grads)

    return step, (thin, ws, tokens())


def tied(*, average: bool = False, python: bool = False, half: bool = False) -> Recipe:
    """One table of words for the input of the first layer and the output of the last one.

    With `half` the loss casts the weights to half precision, and `value_and_grad` sums the gradients in full.
    """
    ws = {**weights(), **words("e")}

    def loss(ws: Any, t: jax.Array) -> jax.Array:
        return tied_loss(jax.tree.map(lambda w: w.astype(jnp.bfloat16), ws) if half else ws, t)

    def add(total: jax.Array, g: jax.Array) -> jax.Array:
        return total + (g / MICROBATCHES if average else g)

    def step(ws: Any, batch: jax.Array) -> Any:
        grads = jax.tree.map(jnp.zeros_like, ws)
        if half:
            _, grads = value_and_grad(loss, microbatches=MICROBATCHES)(ws, jnp.reshape(batch, (-1, batch.shape[-1])))
        elif python:
            for i in range(MICROBATCHES):
                grads = jax.tree.map(add, grads, call(jax.grad(loss), i)(ws, batch[i]))
        else:
            grads = enumerated_for(lambda i, g, t: jax.tree.map(add, g, jax.grad(loss)(ws, t)), grads, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)

    return step, (ws, tokens())


def evaluation() -> Recipe:
    """Loss, tokens and hits with labels made from the input."""
    ws = {**weights(), **words("e", "h")}

    def one(ws: Any, t: jax.Array) -> Any:
        x = named_computation(lambda e, t: e[t], name="f0")(ws["e"], t[:, :-1])
        logits = named_computation(lambda h, x: x @ h.T, name="f3")(ws["h"], forward(ws, x))
        labels = t[:, 1:]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
        counted = labels != 0
        return jnp.sum(losses * counted), jnp.sum(counted), jnp.sum((jnp.argmax(logits, -1) == labels) & counted)

    def step(ws: Any, batch: jax.Array) -> Any:
        totals: Any = (jnp.zeros(()), 0, 0)
        for i in range(MICROBATCHES):
            totals = jax.tree.map(jnp.add, totals, call(one, i)(ws, batch[i]))
        return totals[0] / totals[1], totals[2] / totals[1]

    return step, (ws, tokens())


def generation() -> Recipe:
    """Words sampled one by one."""
    ws = {**weights(), **words("e", "h")}

    def step(ws: Any, first: jax.Array, seed: jax.Array) -> Any:
        def body(word: jax.Array, key: jax.Array) -> Any:
            x = named_computation(lambda e, t: e[t], name="f0")(ws["e"], word)
            logits = named_computation(lambda h, x: x @ h.T, name="f3")(ws["h"], forward(ws, x))
            new = jax.random.categorical(key, logits)
            return new, new

        return jax.lax.scan(body, first, jax.random.split(jax.random.wrap_key_data(seed), 3))[1]

    return step, (ws, jnp.arange(4), jax.random.key_data(jax.random.key(0)))


def cross_attention() -> Recipe:
    """What the encoder makes is read by every layer of the decoder."""
    ws = weights()

    def loss(ws: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def decoder(p: Any, y: jax.Array, h: jax.Array) -> jax.Array:
            return jnp.tanh(y @ p["w"] + h @ p["w"].T + p["b"])

        h = named_computation(layer, name="f1")(ws["w1"], named_computation(layer, name="f0")(ws["w0"], x))
        for _ in range(2):
            for name, w in (("f2", "w2"), ("f3", "w3")):
                y = named_computation(decoder, name=name)(ws[w], y, h)
        return jnp.mean(y**2)

    def step(ws: Any, batch: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, ws)
        grads = enumerated_for(lambda i, g, xy: jax.tree.map(jnp.add, g, jax.grad(loss)(ws, *xy)), zeros, batch[:2])
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)

    return step, (ws, data())
