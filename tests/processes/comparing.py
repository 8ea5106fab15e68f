"""A step over the meshes of all processes, over meshes of this process alone, and under plain `jax.jit`."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import mpmd_trace as mt
from mpmd_trace.backend.distribution.job import current

#: For each mesh its devices: (process, number there).
Places = Mapping[str, list[tuple[int, int]]]
CHECKS: list[Callable[[], None]] = []
TURNS = itertools.count()
WIDTH = 8


def check(fn: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(fn)
    return fn


def topology(places: Places, here: bool) -> dict[str, Mesh]:
    """The meshes, over all processes or as many devices of this one."""
    local = iter(jax.local_devices())
    known: dict[tuple[int, int], jax.Device] = {}
    found = {}
    for name, those in places.items():
        for p, n in those:
            if (p, n) not in known:
                known[p, n] = next(local) if here else jax.local_devices(process_index=p)[n]
        devices = [known[place] for place in those]
        found[name] = Mesh(np.array(devices), ("x",))
    return found


STAGES = {"m0": [(0, 0), (0, 1)], "m1": [(1, 0), (1, 1)]}
IN_TURNS = {"m0": [(0, 0)], "m1": [(1, 0)], "m2": [(0, 1)], "m3": [(1, 1)]}
ACROSS = {"m0": [(0, 0), (1, 0)], "m1": [(0, 1), (1, 1)]}
UNEQUAL = {"m0": [(1, 0), (1, 1)], "m1": [(0, 0)]}
ONE_EACH = {"m0": [(0, 0)], "m1": [(1, 0)]}
SECOND_ALONE = {"m0": [(1, 0)], "m1": [(1, 1)]}


def values(tree: Any) -> Any:
    """As `mpmd_trace.fetch`, for arrays of this process alone."""
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jnp.asarray(x) if is_key(x) else np.asarray(x), tree)


def _bytes(x: Any) -> bytes:
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x).tobytes()


def same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert _bytes(a) == _bytes(b), (a, b)


def close(found: Any, expected: Any) -> None:
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    found, expected = (
        jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree) for tree in (found, expected)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, expected)


def run(
    step: Callable[..., Any], args: tuple[Any, ...], places: Places, *, plain: bool = True, **options: Any
) -> mt.stages.Jitted:
    """Call the step on its own results, everywhere and here.

    The processes take turns in computing alone what all have computed; first they see that all have the same.
    """
    job, its_turn = current(), next(TURNS) % jax.process_count() == jax.process_index()
    assert job is not None
    names = options.pop("names", None) or {f"f{i}": f"m{i}" for i in range(len(places))}
    jit = options.pop("jit", {})
    results = []
    for here in (False, True) if its_turn else (False,):
        made = mt.make_config(topology(places, here), names, **options)
        jitted = mt.jit(step, made, **jit)
        state, *rest = args
        for _ in range(2):
            state, out = jitted(state, *rest)
        results.append(mt.fetch((state, out)) if not here else values((state, out)))
        if not here:
            everywhere = jitted
    digest = hashlib.sha256(repr(jax.tree.map(_bytes, results[0])).encode()).digest()
    assert {*job.peers.allgather_bytes("results", digest)} == {digest}
    if its_turn:
        same(*results)
    if its_turn and plain:
        state, *rest = args
        with jax.default_device(jax.local_devices()[0]):
            for _ in range(2):
                state, out = jax.jit(step)(state, *rest)
        close(results[0], values((state, out)))
    return everywhere


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def forward(ws: list[Any], x: Any) -> Any:
    for i, w in enumerate(ws):
        x = mt.named_computation(layer, name=f"f{i}")(w, x)
    return x


def train(ws: list[Any], batch: Any) -> tuple[list[Any], Any]:
    """The weights after a step, and the loss."""

    def loss(ws: list[Any], x: Any) -> Any:
        return jnp.mean(forward(ws, x) ** 2)

    total, grads = jnp.zeros(()), jax.tree.map(jnp.zeros_like, ws)
    for i in range(batch.shape[0]):
        value, more = mt.call(jax.value_and_grad(loss), call_counter=i)(ws, batch[i])
        total, grads = total + value, jax.tree.map(jnp.add, grads, more)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], total


def weights(count: int) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return [(0.5 * generator.normal(size=(WIDTH, WIDTH))).astype(np.float32) for _ in range(count)]


def batch(microbatches: int = 3) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(microbatches, 4, WIDTH)).astype(np.float32)
