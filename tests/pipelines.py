"""Small pipelines over two or more meshes of two devices, and the comparison with plain `jax.jit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace import enumerated_for, named_computation
from util import normal

WIDTH = 4
Weights = list[jax.Array]


def topology(count: int = 2, size: int = 2, axis: str = "x") -> dict[str, Mesh]:
    """Meshes `m0`, `m1`, ... with one axis."""
    devices = np.array(jax.devices()[: count * size]).reshape(count, size)
    return {f"m{i}": Mesh(devices[i], (axis,)) for i in range(count)}


def mesh(first: int, shape: tuple[int, ...], *names: str) -> Mesh:
    """A mesh with axes of these names over the devices from number `first` on."""
    return Mesh(np.array(jax.devices()[first : first + math.prod(shape)]).reshape(shape), names)


def transfers(compiled: mpmd_trace.stages.Compiled) -> list[tuple[str, str]]:
    """Source and target of every transfer: the names of the meshes, and the types."""
    slots = [f"{slot.mesh} {slot}" for slot in compiled.program.plan.slots]
    pairs = [pair for t in compiled.program.plan.transfers for pair in zip(t.inputs, t.outputs, strict=True)]
    return [(slots[a], slots[b]) for a, b in pairs]


def config(
    names: Mapping[str, Any] | None = None, meshes: int = 2, infer: bool = True, **options: Any
) -> mpmd_trace.config.Config:
    """By default `f0` on `m0` and `f1` on `m1`, transfers inferred."""
    wanted = {"mpmd_infer_transfers": infer, **options.pop("partitioning_options", {})}
    return mpmd_trace.make_config(
        options.pop("topology", None) or topology(meshes),
        {"f0": "m0", "f1": "m1"} if names is None else names,
        partitioning_options=wanted,
        **options,
    )


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def loss(ws: Weights, x: jax.Array) -> jax.Array:
    """A layer `f<i>` for each weight, and a loss that is part of the last one."""
    for i, w in enumerate(ws[:-1]):
        x = named_computation(layer, name=f"f{i}")(w, x)
    return named_computation(lambda w, x: jnp.mean(layer(w, x) ** 2), name=f"f{len(ws) - 1}")(ws[-1], x)


def loss_of(layer: Callable[..., Any], name: str = "f") -> Callable[..., jax.Array]:
    """A loss with a layer `<name><i>` for each of the parameters: the mean square of what the last one gives."""

    def loss(ps: Any, x: jax.Array) -> jax.Array:
        for i, p in enumerate(ps):
            x = named_computation(layer, name=f"{name}{i}")(p, x)
        return jnp.mean(x**2)

    return loss


def summed_gradients(loss: Callable[..., Any], ps: Any, xs: Any) -> Any:
    """The sums of the gradients of the loss, in a loop over microbatches along the first axis."""
    zeros = jax.tree.map(jnp.zeros_like, ps)
    return enumerated_for(lambda i, sums, x: jax.tree.map(jnp.add, sums, jax.grad(loss)(ps, x)), zeros, xs)


def summed_values(loss: Callable[..., Any], ps: Any, xs: Any) -> Any:
    """The sums of the loss and of its gradients, as `summed_gradients` has them."""
    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, ps)
    return enumerated_for(lambda i, sums, x: jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(ps, x)), zeros, xs)


def weights(count: int = 2) -> Weights:
    return [normal(i, WIDTH, WIDTH) * 0.5 for i in range(count)]


def batch(microbatches: int | None = None, rows: int = 4) -> jax.Array:
    return normal(9, *(() if microbatches is None else (microbatches,)), rows, WIDTH)


def accumulate(ws: Weights, x: jax.Array, grad: Callable[..., Any] | None = None) -> tuple[jax.Array, Weights]:
    """Loss and gradients over the microbatches of `x`, one call each."""
    grad = grad or jax.value_and_grad(loss)
    value, grads = None, None
    for i in range(x.shape[0]):
        v, g = mpmd_trace.call(grad, call_counter=i)(ws, x[i])
        value = v if value is None else value + v
        grads = g if grads is None else jax.tree.map(jnp.add, grads, g)
    assert value is not None and grads is not None
    return value, grads


def assert_same(found: Any, expected: Any, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    """Equal structure, types and (nearly) values; typed keys by their data."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for a, (path, b) in zip(jax.tree.leaves(found), paths, strict=True):
        where = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        assert getattr(a, "weak_type", False) == getattr(b, "weak_type", False), where
        if jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = (jax.random.key_data(jnp.asarray(keys)) for keys in (a, b))
        if jnp.issubdtype(b.dtype, jnp.inexact):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=where)
        else:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=where)


def check(
    fn: Callable[..., Any],
    *args: Any,
    config: mpmd_trace.config.Config | None = None,
    rtol: float = 2e-5,
    atol: float = 1e-6,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> mpmd_trace.stages.Jitted:
    """`fn` under `mpmd_trace.jit` gives what it gives under `jax.jit`; the jitted function."""
    from pipelines import config as default

    named = dict(kwargs or {})
    jitted = mpmd_trace.jit(fn, config or default(), **options)
    static = options.get("static_argnums", ())
    # The plain run comes first: the other one may take its arguments away.
    expected = jax.jit(fn, static_argnums=static)(*args, **named)
    assert_same(jitted(*args, **named), expected, rtol, atol)
    return jitted


def meshes_of(tree: Any, topology: Mapping[str, Mesh]) -> Any:
    """The name of the mesh of each array."""
    names = {frozenset(mesh.devices.flat): name for name, mesh in topology.items()}
    return jax.tree.map(lambda x: names[frozenset(x.sharding.device_set)], tree)
