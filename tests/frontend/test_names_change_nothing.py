"""A name changes nothing: under every transformation of JAX, a model with named layers computes what it does without
names, and is as it was afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.errors import TraceContextError
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import mpmd_trace as mt
import mpmd_trace.equinox
import mpmd_trace.linen
import mpmd_trace.nnx as mnnx
from util import filled, max_examples, nightly

F = Callable[[jax.Array], jax.Array]
X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


class Model(NamedTuple):
    """A model of rows: as a function that closes over it, and as one of its arrays."""

    call: F
    of_arrays: Callable[[Any, jax.Array], jax.Array]
    arrays: Any
    #: What nothing may change: identities and values.
    state: Callable[[], Any] = lambda: None


class EquinoxBlock(eqx.Module):
    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key: jax.Array) -> None:
        self.linear = eqx.nn.Linear(4, 4, key=key)
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = jnp.tanh(x @ self.linear.weight.T + self.linear.bias)
        return x + self.dropout(y, inference=True)


def equinox_model(named: bool) -> Model:
    blocks = [filled(EquinoxBlock, jax.random.key(i)) for i in range(2)]
    if named:
        blocks = mpmd_trace.equinox.name_layers(blocks, lambda m: m)
    arrays, static = eqx.partition(blocks, eqx.is_array)

    def run(blocks: Any, x: jax.Array) -> jax.Array:
        for block in blocks:
            x = block(x)
        return x

    return Model(lambda x: run(blocks, x), lambda arrays, x: run(eqx.combine(arrays, static), x), arrays)


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, train: bool) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, use_running_average=not train, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, deterministic=not train, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(self.dropout(self.norm(self.linear(x))))


class NnxModel(nnx.Module):
    def __init__(self, train: bool = False) -> None:
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([NnxBlock(rngs, train), NnxBlock(rngs, train)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x


def parts_of(model: NnxModel) -> list[Any]:
    """All that a model is made of."""
    nodes = [node for _, node in nnx.iter_graph(model, graph=True)]
    held = [(k, id(v)) for node in nodes if isinstance(node, nnx.Module) for k, v in vars(node).items()]
    return [*map(id, nodes), *held, *(id(x.get_raw_value()) for x in nodes if isinstance(x, nnx.Variable))]


def nnx_model(named: bool) -> Model:
    model = NnxModel()
    if named:
        mnnx.name_layers(model, "blocks")
    graph, arrays, rest = nnx.split(model, nnx.Param, ...)
    return Model(model, lambda arrays, x: nnx.merge(graph, arrays, rest)(x), arrays, lambda: parts_of(model))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(nn.Dense(4)(nn.LayerNorm()(x)))


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(2):
            x = LinenBlock(name=f"block_{i}")(x)
        return x


def linen_model(named: bool) -> Model:
    model = LinenModel()
    variables = filled(model.init, jax.random.key(0), X)
    apply = mpmd_trace.linen.name_layers(model.apply, "block_*") if named else model.apply
    return Model(lambda x: apply(variables, x), apply, variables)


def haiku_model(named: bool) -> Model:
    init, apply = hk.without_apply_rng(hk.transform(lambda x: x + jnp.tanh(hk.Linear(4)(x))))
    parts = [mt.named_computation(apply, name=f"part{i}") if named else apply for i in range(2)]
    weights = [filled(init, jax.random.key(i), X) for i in range(2)]

    def run(weights: Any, x: jax.Array) -> jax.Array:
        for part, own in zip(parts, weights, strict=True):
            x = part(own, x)
        return x

    return Model(lambda x: run(weights, x), run, weights)


MODELS: dict[str, Callable[[bool], Model]] = {
    "equinox": equinox_model,
    "nnx": nnx_model,
    "linen": linen_model,
    "haiku": haiku_model,
}


def _custom_jvp(f: F) -> F:
    wrapped: Any = jax.custom_jvp(f)
    wrapped.defjvp(lambda x, t: (f(*x), t[0] * 2.0))
    return wrapped  # type: ignore[no-any-return]


def _shape(f: F) -> F:
    return lambda x: x + float(np.prod(jax.eval_shape(f, x).shape))


#: Each makes of a function of rows another one.
TRANSFORMATIONS: dict[str, Callable[[F], F]] = {
    "jit": jax.jit,
    "nnx.jit": nnx.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x]))[1],
    "map": lambda f: lambda x: lax.map(f, jnp.stack([x, 2 * x]))[1],
    "scan": lambda f: lambda x: lax.scan(lambda carry, _: (f(carry), carry), x, length=2)[0],
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, carry: f(carry), x),
    "cond": lambda f: lambda x: lax.cond(jnp.sum(x) > 0, f, lambda x: x, x),
    "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x))),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.cos(x))[0],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.cos(x)),
    "jacfwd": lambda f: lambda x: jnp.sum(jax.jacfwd(f)(x), axis=tuple(range(x.ndim))),
    "custom_jvp": _custom_jvp,
    "eval_shape": _shape,
    "make_jaxpr": lambda f: lambda x: jax.core.eval_jaxpr((j := jax.make_jaxpr(f)(x)).jaxpr, j.consts, x)[0],
}


def compare(kind: str, use: Callable[[Model], Any]) -> None:
    """`use` of a model gives the same with names as without, and leaves the model as it was."""
    plain, named = MODELS[kind](False), MODELS[kind](True)
    before = named.call(X), named.state()
    found, wanted = use(named), use(plain)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert named.state() == before[1]
    np.testing.assert_array_equal(named.call(X), before[0])


@pytest.mark.parametrize("kind", ["nnx", *map(nightly, ("equinox", "linen", "haiku"))])
def test_each_transformation_of_a_function_that_closes_over_the_model(kind: str) -> None:
    compare(kind, lambda model: {name: made(model.call)(X) for name, made in TRANSFORMATIONS.items()})


@pytest.mark.parametrize("kind", ["equinox", "nnx", *map(nightly, ("linen", "haiku"))])
def test_gradients_by_the_arrays_of_the_model(kind: str) -> None:
    def gradients(model: Model) -> Any:
        by_arrays = jax.grad(lambda arrays, x: jnp.sum(model.of_arrays(arrays, x) ** 2))
        seen = jax.tree.leaves(jax.jit(by_arrays)(model.arrays, X))
        both = jax.jacrev(lambda x: jax.tree.leaves(by_arrays(model.arrays, x))[0])(X)
        return [*seen, both]

    compare(kind, gradients)


@pytest.mark.parametrize("kind", ["equinox", nightly("linen"), "nnx", "haiku"])
@max_examples(4)
@given(names=st.lists(st.sampled_from(sorted(TRANSFORMATIONS)), min_size=2, max_size=3))
def test_transformations_of_transformations(kind: str, names: list[str]) -> None:

    def composed(model: Model) -> jax.Array:
        f = model.call
        for name in names:
            f = TRANSFORMATIONS[name](f)
        return f(X)

    compare(kind, composed)


class Recording(NnxBlock):
    """Has more variables afterwards."""

    def __call__(self, x: jax.Array) -> jax.Array:
        self.seen = nnx.Intermediate(x)
        return super().__call__(x)


@pytest.mark.parametrize("block", [NnxBlock, Recording])
@pytest.mark.parametrize("where", ["closed over", "in a scan"])
def test_a_change_that_jax_forbids_is_refused_and_leaves_the_model_as_it_was(block: type[NnxBlock], where: str) -> None:
    model = NnxModel()
    model.blocks[1] = block(nnx.Rngs(0), train=block is NnxBlock)
    mnnx.name_layers(model, "blocks")
    before = parts_of(model)
    with pytest.raises(TraceContextError, match="Cannot mutate"):
        if where == "closed over":
            jax.jit(lambda x: model(x))(X)
        else:
            lax.scan(lambda carry, _: (model(carry), None), X, length=2)
    assert parts_of(model) == before
    assert model(X).shape == X.shape and parts_of(model) != before
