"""Training steps that grow in one way each: `KNOBS` by name, each from a size to a step, its configuration and inputs.

The step around is the same for all: layers with names in a row over two meshes, microbatches, a plain update.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

import mpmd_trace

__all__ = ["KNOBS", "Setup", "Sized"]

WIDTH, ROWS = 4, 2
Array = jax.Array
#: A step, its configuration and its arguments.
Sized = tuple[Callable[..., Any], mpmd_trace.config.Config, tuple[Any, ...]]


def deep(x: Any, n: int) -> Any:
    """A graph of depth `n` in which every value is read three times."""
    for _ in range(n):
        x = jnp.sin(x) * x + x * 0.5
    return x


def steps_of(x: Any, n: int) -> list[Any]:
    """The values of `deep`, all of them."""
    found = []
    for _ in range(n):
        x = jnp.sin(x) * x + x * 0.5
        found.append(x)
    return found


def dense(w: Array, x: Array) -> Array:
    return jnp.tanh(x @ w)


@dataclasses.dataclass(frozen=True)
class Setup:
    """A step, of which a knob changes one thing."""

    layers: int = 2
    meshes: int = 2
    #: Whether the layers go around the meshes, so that each of them is a stage.
    around: bool = False
    microbatches: int = 2
    #: What a named layer computes of its weight and the activations.
    layer: Callable[[Any, Array], Array] = dense
    #: What happens to a weight in a microbatch outside of names, and once per step.
    weight: Callable[[Any], Any] = lambda w: w
    prepare: Callable[[Any], Any] = lambda w: w
    #: What is between two layers, and to the loss.
    between: Callable[[Array], Array] = lambda x: x
    loss: Callable[[Array], Any] = lambda x: jnp.mean(x**2)
    #: What becomes of the gradients of a microbatch, of their sums, and of weights with these and a learning rate.
    gradient: Callable[[Any], Any] = lambda g: g
    summed: Callable[[Any], Any] = lambda g: g
    update: Callable[[Any, Any, Array], Any] = lambda w, g, rate: w - rate * g
    rate: Callable[[Array], Array] = lambda rate: rate
    #: Metrics of a microbatch by its activations; what the step returns besides, of the batch and new weights.
    metrics: Callable[[Array], list[Array]] = lambda x: []
    more: Callable[[Array, list[Any]], Any] = lambda batch, weights: ()
    leaves: Callable[[], Any] = lambda: jnp.ones((WIDTH, WIDTH))
    #: More arguments, and what the layers' input is of the batch and these.
    arguments: Callable[[], list[Array]] = list
    start: Callable[[Array, list[Array]], Array] = lambda x, more: x
    options: tuple[tuple[str, Any], ...] = (("pipeline_schedule", "1F1B"),)
    #: What it is lowered for.
    platform: str = "cpu"

    def sized(self) -> Sized:
        meshes = {f"m{i}": AbstractMesh((1,), ("data",)) for i in range(self.meshes)}
        places = [i % self.meshes if self.around else i * self.meshes // self.layers for i in range(self.layers)]
        names = {f"layer{i}": f"m{place}" for i, place in enumerate(places)}
        config = mpmd_trace.make_config(meshes, names, **dict(self.options))
        weights = [self.leaves() for _ in range(self.layers)]
        batch = jnp.ones((self.microbatches, ROWS, WIDTH))
        return self.step, config, (weights, batch, jnp.ones(()), self.arguments())

    def step(self, weights: list[Any], batch: Array, rate: Array, more: list[Array]) -> Any:
        def loss(weights: list[Any], x: Array) -> Any:
            x = self.start(x, more)
            for i, w in enumerate(weights):
                x = mpmd_trace.named_computation(self.layer, name=f"layer{i}")(self.weight(w), x)
                x = self.between(x) if i + 1 < len(weights) else x
            return self.loss(x), self.metrics(x)

        def microbatch(i: Any, total: Any, x: Array) -> Any:
            (value, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(prepared, x)
            return jax.tree.map(jnp.add, total, (value, metrics, self.gradient(gradients)))

        prepared = [self.prepare(w) for w in weights]
        zeros = jax.tree.map(jnp.zeros_like, prepared)
        start = (jnp.zeros(()), [jnp.zeros(()) for _ in jax.eval_shape(self.metrics, batch[0])], zeros)
        value, metrics, gradients = mpmd_trace.enumerated_for(microbatch, start, batch)
        rate = self.rate(rate)
        new = jax.tree.map(lambda w, g: self.update(w, self.summed(g), rate), weights, gradients)
        return new, value, metrics, self.more(batch, new)


def after(f: Callable[[Any], Any]) -> Callable[[Any, Array], Array]:
    """A layer with something behind its product."""
    return lambda w, x: f(dense(w, x))


def nested(wrap: Callable[[Callable[[Array], Array]], Callable[[Array], Array]], n: int) -> Callable[[Array], Array]:
    """A function inside of `n` of the same transformations."""
    f: Callable[[Array], Array] = jnp.sin
    for _ in range(n):
        f = wrap(functools.partial(lambda g, x: g(x) * 0.5, f))
    return f


def custom(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The function with a rule for its gradient."""
    made = jax.custom_vjp(f)
    made.defvjp(lambda x: jax.vjp(f, x), lambda pull, g: pull(g))
    return made


def conditional(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: jax.lax.cond(jnp.sum(x) > 0, f, jnp.cos, x)


def looped(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    # Without gradients: JAX looks for the fixed point of each loop's tangents, which takes exponential time.
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), jax.lax.stop_gradient(x), None, length=2)[0]


def dropped(n: int, key: Callable[[], Array]) -> Callable[[Any, Array], Array]:
    """A layer that draws `n` times."""

    def layer(w: Any, x: Array) -> Array:
        x = dense(w, x)
        for i in range(n):
            x = jnp.where(jax.random.bernoulli(jax.random.fold_in(key(), i), 0.9, x.shape), x, 0.0)
        return x

    return layer


def experts(w: Any, x: Array) -> Array:
    """A mixture whose router is its first row."""
    chosen = jax.nn.softmax(x @ w[:, 0].T)
    return jnp.einsum("re,erw->rw", chosen, jnp.stack([x @ one for one in w]))


def several(n: int) -> Callable[[], Any]:
    return lambda: [jnp.ones((WIDTH, WIDTH)) for _ in range(n)]


def all_leaves(w: list[Any], x: Array) -> Array:
    for one in w:
        x = dense(one, x)
    return x


def fanned(n: int) -> Callable[[Array], Array]:
    return lambda x: sum((x * float(i) for i in range(n)), start=jnp.zeros_like(x))


TIGHT = (("pipeline_schedule", "1F1B"), ("device_memory", 1000))
AMPLE = (("pipeline_schedule", "1F1B"), ("device_memory", 10**9))
#: So little that some of the activations are recomputed.
RECOMPUTED = (*TIGHT, ("remat", "auto"))


def pair(x: Array, y: Array) -> tuple[Array, Array]:
    return x, y


def cast(w: Array, x: Array) -> Array:
    return jnp.tanh(x @ jnp.sin(w))


def schedule(name: str, **more: Any) -> Any:
    return tuple({"pipeline_schedule": name, **more}.items())


#: From a size to a setup.
KNOBS: dict[str, Callable[[int], Setup]] = {
    # Depth of graphs whose values are shared.
    "depth of weights in a layer": lambda n: Setup(layer=lambda w, x: dense(deep(w, n), x)),
    "depth of weights in a microbatch": lambda n: Setup(weight=lambda w: deep(w, n)),
    "depth of weights before the microbatches": lambda n: Setup(prepare=lambda w: deep(w, n)),
    "depth of weights, little memory": lambda n: Setup(layer=lambda w, x: dense(deep(w, n), x), options=TIGHT),
    "depth of a constant in a layer": lambda n: Setup(layer=after(lambda x: x + deep(jnp.arange(4.0), n))),
    "depth of a constant between layers": lambda n: Setup(between=lambda x: x + deep(jnp.arange(4.0), n)),
    "depth of a constant that is returned": lambda n: Setup(more=lambda batch, ws: deep(jnp.arange(4.0), n)),
    "all of a constant's graph returned": lambda n: Setup(more=lambda batch, ws: steps_of(jnp.arange(4.0), n)),
    "all of a constant's graph in a layer": lambda n: Setup(
        layer=after(lambda x: functools.reduce(lambda x, c: jnp.sin(x + c), steps_of(jnp.arange(4.0), n), x))
    ),
    "all of a constant's graph between layers": lambda n: Setup(
        between=lambda x: functools.reduce(lambda x, c: jnp.sin(x + c), steps_of(jnp.arange(4.0), n), x)
    ),
    "depth of a learning rate": lambda n: Setup(rate=lambda r: deep(r, n)),
    "all of a learning rate's graph": lambda n: Setup(more=lambda batch, ws: steps_of(jnp.sum(batch), n)),
    "depth of activations in a layer": lambda n: Setup(layer=after(lambda x: deep(x, n))),
    "depth of activations between layers": lambda n: Setup(between=lambda x: deep(x, n)),
    "depth of a mask": lambda n: Setup(
        layer=after(lambda x: jnp.where(deep(jnp.arange(4.0), n) < jnp.arange(4.0)[:, None][:ROWS], x, 0.0))
    ),
    "depth of the batch": lambda n: Setup(start=lambda x, _: deep(x, n)),
    "depth of the loss": lambda n: Setup(loss=lambda x: deep(jnp.mean(x), n)),
    "depth of gradients": lambda n: Setup(gradient=lambda g: jax.tree.map(lambda g: deep(g, n), g)),
    "depth of summed gradients": lambda n: Setup(summed=lambda g: deep(g, n)),
    "depth of an update": lambda n: Setup(update=lambda w, g, rate: w - rate * deep(g * w, n)),
    "depth of a result": lambda n: Setup(more=lambda batch, ws: deep(ws[0], n)),
    "all of a result's graph": lambda n: Setup(more=lambda batch, ws: steps_of(ws[0], n)),
    "depth of a result of two meshes": lambda n: Setup(more=lambda batch, ws: deep(ws[0] + ws[-1], n)),
    "a weighted sum over two meshes": lambda n: Setup(
        more=lambda batch, ws: functools.reduce(lambda s, i: 0.5 * s + jnp.sin(ws[i % 2]), range(n), 0.5 * ws[0])
    ),
    "depth of a constant in a branch": lambda n: Setup(
        more=lambda batch, ws: jax.lax.cond(
            jnp.sum(batch) > 0, lambda x, y: (x + deep(jnp.arange(4.0), n), y * deep(jnp.arange(4.0), n)), pair, *ws
        )
    ),
    # Numbers of things.
    "layers": lambda n: Setup(layers=2 * n),
    "layers, little memory": lambda n: Setup(layers=2 * n, layer=cast, options=TIGHT),
    "layers, much memory": lambda n: Setup(layers=2 * n, layer=cast, options=AMPLE),
    "layers that are alike": lambda n: Setup(layers=2 * n, options=schedule("GPipe")),
    "meshes": lambda n: Setup(layers=n, meshes=n),
    "meshes, little memory": lambda n: Setup(layers=n, meshes=n, layer=cast, options=TIGHT),
    "layers, recomputed": lambda n: Setup(layers=2 * n, options=RECOMPUTED),
    "meshes, recomputed": lambda n: Setup(layers=n, meshes=n, options=RECOMPUTED),
    "stages of a mesh, recomputed": lambda n: Setup(
        layers=2 * n, around=True, options=schedule("interleaved-1f1b", device_memory=1000, remat="auto")
    ),
    "microbatches": lambda n: Setup(microbatches=n),
    "microbatches, little memory": lambda n: Setup(microbatches=n, layer=cast, options=TIGHT),
    "microbatches, recomputed": lambda n: Setup(microbatches=n, options=RECOMPUTED),
    "microbatches without a schedule": lambda n: Setup(microbatches=n, options=()),
    "leaves": lambda n: Setup(leaves=several(n), layer=all_leaves),
    "arguments": lambda n: Setup(
        arguments=lambda: [jnp.ones((ROWS, WIDTH)) for _ in range(n)], start=lambda x, more: sum(more, start=x)
    ),
    "arguments that nothing reads": lambda n: Setup(arguments=lambda: [jnp.ones(WIDTH) for _ in range(n)]),
    "metrics": lambda n: Setup(metrics=lambda x: [jnp.sum(x * i) for i in range(n)]),
    "fan-out in a layer": lambda n: Setup(layer=after(fanned(n))),
    "fan-out between layers": lambda n: Setup(between=fanned(n)),
    "fan-out of a result": lambda n: Setup(more=lambda batch, ws: [ws[0] * float(i) for i in range(n)]),
    "unrolled ops in a layer": lambda n: Setup(
        layer=after(lambda x: functools.reduce(lambda x, _: jnp.sin(x), range(n), x))
    ),
    "unrolled ops between layers": lambda n: Setup(
        between=lambda x: functools.reduce(lambda x, _: jnp.sin(x), range(n), x)
    ),
    "experts": lambda n: Setup(layer=experts, leaves=lambda: jnp.ones((n, WIDTH, WIDTH))),
    "draws of one key": lambda n: Setup(layer=dropped(n, lambda: jax.random.key(0))),
    "a key of a deep graph, on a GPU": lambda n: Setup(
        more=lambda batch, ws: jax.random.uniform(jax.random.key(deep(jnp.sum(batch), n).astype(int))), platform="cuda"
    ),
    "draws between layers": lambda n: Setup(
        between=lambda x: functools.reduce(
            lambda x, i: x + jax.random.uniform(jax.random.fold_in(jax.random.key(0), i), x.shape), range(n), x
        )
    ),
    # Nesting.
    "nested jit": lambda n: Setup(layer=after(nested(jax.jit, n))),
    "nested jit between layers": lambda n: Setup(between=nested(jax.jit, n)),
    "nested cond": lambda n: Setup(layer=after(nested(conditional, n))),
    "nested cond between layers": lambda n: Setup(between=nested(conditional, n)),
    "nested scan": lambda n: Setup(layer=after(nested(looped, n))),
    "nested scan between layers": lambda n: Setup(between=nested(looped, n)),
    "nested custom_vjp": lambda n: Setup(layer=after(nested(custom, n))),
    "nested checkpoint": lambda n: Setup(layer=after(nested(jax.checkpoint, n))),
}
