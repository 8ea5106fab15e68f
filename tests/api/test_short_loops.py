"""Loops of which the first iterations stand for all give the programs that all iterations give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError
from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.passes.partition import partition_as
from pipelines import assert_same, loss_of, summed_gradients, topology

COUNT = 20
Array = jax.Array
Loss = Callable[[Any, Array, Any], Array]


def layer(w: Array, x: Array, scale: Any = 1.0) -> Array:
    return jnp.tanh(x @ w) * scale


def network(weights: list[Array], x: Array, middle: Callable[[Array], Array] = lambda x: x) -> Array:
    x = mpmd_trace.named_computation(layer, name="f")(weights[0], x)
    return jnp.sum(mpmd_trace.named_computation(layer, name="g")(weights[1], middle(x)) ** 2)


def summed(loss: Loss) -> Callable[..., Any]:
    """The gradients of all microbatches."""

    def step(weights: list[Array], batch: Array) -> Any:
        def body(i: Array, total: Any, x: Array) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(weights, x, i))

        return mpmd_trace.enumerated_for(body, (0.0, jax.tree.map(jnp.zeros_like, weights)), batch)

    return step


def dropped(weights: list[Array], x: Array, i: Array) -> Array:
    key = jax.random.fold_in(jax.random.key(0), i)
    return network(weights, x, lambda x: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0))


def scaled(number: Callable[[Array], Array]) -> Callable[..., Any]:
    return summed(lambda weights, x, i: network(weights, x) * number(i))


def by_index(weights: list[Array], batch: Array) -> Any:
    def body(i: Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(network)(weights, batch[i]))

    return mpmd_trace.fori_loop(COUNT, body, jax.tree.map(jnp.zeros_like, weights))


def past_the_end(weights: list[Array], batch: Array) -> Any:
    """JAX reads the last rows in the place of those that there are not."""

    def body(i: Array, total: Any) -> Any:
        rows = jax.lax.dynamic_slice_in_dim(batch, i + 4, 1)[0]
        return jax.tree.map(jnp.add, total, jax.grad(network)(weights, rows))

    return mpmd_trace.fori_loop(COUNT, body, jax.tree.map(jnp.zeros_like, weights))


def twice(weights: list[Array], batch: Array) -> Any:
    step = summed(lambda weights, x, i: network(weights, x))
    value, gradients = step(weights, batch)
    return value, step([w - g for w, g in zip(weights, gradients, strict=True)], batch)


def with_outputs(read: Callable[[Array, Array, Array], Any]) -> Callable[..., Any]:
    """Values of all microbatches, those of their squares, and the inputs of each, stacked; after the sum."""

    def step(weights: list[Array], batch: Array) -> Any:
        def body(i: Array, total: Array, x: Array) -> Any:
            value = network(weights, x)
            return total + value, (value, value * value)

        total, (values, squares) = mpmd_trace.enumerated_for(body, jnp.zeros(()), batch)
        return total, read(total, values, squares)

    return step


def accumulated(**options: Any) -> Callable[..., Any]:
    def loss(weights: list[Array], rows: Array) -> Any:
        value = network(weights, rows[0])
        value = (value, jnp.sum(rows > 0)) if options.get("reduce") == "weighted" else value
        return (value, {"rows": rows[0, :, 0], "value": jnp.max(rows)}) if options.get("has_aux") else value

    return mpmd_trace.value_and_grad(loss, microbatches=COUNT, **options)


def with_inputs(weights: list[Array], batch: Array) -> Any:
    return mpmd_trace.enumerated_for(lambda i, total, x: (total + network(weights, x), x), jnp.zeros(()), batch)


def with_sums(weights: list[Array], batch: Array) -> Any:
    """Each sum is the next carry, and stacked."""

    def body(i: Array, total: Array, x: Array) -> Any:
        return (total + network(weights, x),) * 2

    return mpmd_trace.enumerated_for(body, jnp.zeros(()), batch)


def with_counter(weights: list[Array], batch: Array) -> Any:
    def body(i: Array, carry: Any, x: Array) -> Any:
        return carry[0] + network(weights, x), carry[1] + 1

    return mpmd_trace.enumerated_for(body, (0.0, 0), batch)


def with_rotation(weights: list[Array], batch: Array) -> Any:
    def body(i: Array, carry: Any, x: Array) -> Any:
        total, a, b = carry
        return total + network(weights, x + a), b, a

    return mpmd_trace.enumerated_for(body, (0.0, batch[0], batch[1]), batch)


def with_the_last(weights: list[Array], batch: Array) -> Any:
    def body(i: Array, carry: Any, x: Array) -> Any:
        return carry[0] + network(weights, x + carry[1]), x

    return mpmd_trace.enumerated_for(body, (0.0, batch[0]), batch)


def with_recurrence(weights: list[Array], batch: Array) -> Any:
    def body(i: Array, carry: Array, x: Array) -> Any:
        return mpmd_trace.named_computation(layer, name="g")(
            weights[1], mpmd_trace.named_computation(layer, name="f")(weights[0], x + carry)
        )

    return mpmd_trace.enumerated_for(body, jnp.zeros_like(batch[0]), batch)


#: Whether one call stands for many, for each program.
PROGRAMS: dict[str, tuple[Callable[..., Any], bool]] = {
    "sum": (summed(lambda weights, x, i: network(weights, x)), True),
    "key of the index": (summed(dropped), True),
    "index": (scaled(lambda i: (3 * i + 100).astype(jnp.float32)), True),
    "slices by index": (by_index, True),
    "two loops": (twice, True),
    "recurrence": (with_recurrence, True),
    "product of the index": (scaled(lambda i: (i * i).astype(jnp.float32)), False),
    "at most some index": (scaled(lambda i: jnp.minimum(i, 5).astype(jnp.float32)), False),
    "first iteration": (scaled(lambda i: (i == 0).astype(jnp.int32).astype(jnp.float32)), False),
    "slices past the end": (past_the_end, False),
    "stacked": (with_outputs(lambda total, values, squares: values), True),
    "sum of what is stacked": (with_outputs(lambda total, values, squares: jnp.sum(squares) + total), True),
    "some of what is stacked": (
        with_outputs(lambda total, values, squares: (values[5], squares[-1], values[0:2])),
        True,
    ),
    "stacked twice": (with_outputs(lambda total, values, squares: jnp.stack([values, squares, values])), True),
    "stacked sums": (with_sums, True),
    "value_and_grad": (accumulated(), True),
    "value_and_grad, aux": (accumulated(has_aux=True, aux="stack"), True),
    "stacked inputs": (with_inputs, True),
    "counter": (with_counter, False),
    "rotation": (with_rotation, False),
    "last microbatch": (with_the_last, False),
}


def arguments() -> tuple[list[Any], Any]:
    random = np.random.default_rng(0)
    batch = random.normal(size=(COUNT, 2, 4)).astype(np.float32)
    return [random.normal(size=(4, 4)).astype(np.float32) * 0.3 for _ in range(2)], batch


def lowered(step: Callable[..., Any], **options: Any) -> PartitionedProgram:
    meshes = {name: AbstractMesh((1,), ("x",)) for name in ("a", "b")}
    config = mpmd_trace.make_config(meshes, {"f": "a", "g": "b"}, **options)
    return mpmd_trace.jit(step, config).lower(*arguments())


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_that_of_all_iterations(name: str) -> None:
    step, is_short = PROGRAMS[name]
    program = lowered(step, pipeline_schedule="1F1B" if name not in ("recurrence",) else None)
    assert program.traced.rewritten.is_short == is_short
    whole = partition_as(program.traced.module, program.request).module
    assert program.partitioned.as_text() == str(whole)
    if is_short:  # without falling back to all iterations
        assert str(partition_as(program.traced.short_module, program.request).module) == str(whole)


def check(step: Callable[..., Any], rtol: float, **options: Any) -> None:
    """The step stands for all iterations, and gives the numbers of `jax.jit`."""
    meshes = dict(zip("ab", topology(size=1).values(), strict=True))
    jitted = mpmd_trace.jit(step, mpmd_trace.make_config(meshes, {"f": "a", "g": "b"}, **options))
    assert jitted.lower(*arguments()).traced.rewritten.is_short
    assert_same(jitted(*arguments()), jax.jit(step)(*arguments()), rtol=rtol, atol=rtol / 2)


def test_indices_that_two_arguments_share() -> None:
    """The numbers 1, 4, 7, ... and 5, 6, 7, ... meet in the third iteration, and with the indices of microbatches."""

    def loss(weights: list[Array], x: Array, i: Array) -> Array:
        return network(weights, x * (3 * i + 1).astype(x.dtype)) * (i + 5).astype(x.dtype)

    check(summed(loss), 2e-4, pipeline_schedule="1F1B")


def test_sums_that_stay_with_what_is_stacked() -> None:
    """The weights of all iterations are summed as one array, which is not divided into the iterations' parts."""
    check(accumulated(reduce="weighted"), 1e-6)


def test_iterations_that_passes_make_unlike_one_another() -> None:
    """Slices along the sharded dimension of a batch are taken outside of the calls, at another place each."""
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    config = mpmd_trace.make_config({"a": mesh, "b": mesh}, {"f": "a", "g": "b"}, pipeline_schedule="1F1B")
    step = mpmd_trace.jit(PROGRAMS["sum"][0], config, in_shardings=(None, NamedSharding(mesh, P("x"))))
    program = step.lower(*arguments())
    assert program.traced.rewritten.is_short
    with pytest.raises(MpmdError, match="an iteration is another one than that before"):
        partition_as(program.traced.short_module, program.request)
    assert program.partitioned.as_text() == str(partition_as(program.traced.module, program.request).module)


def test_placement_of_what_reads_the_sums() -> None:
    """Results of the last iteration leave a loop once, however many iterations its call stands for."""

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def step(weights: list[Array], state: Any, batch: Array) -> Any:
        updates, state = optimizer.update(summed_gradients(loss_of(layer), weights, batch), state, weights)
        return optax.apply_updates(weights, updates), state

    meshes = {f"m{i}": AbstractMesh((1,), ("x",)) for i in range(3)}
    names = {f"f{i}": f"m{i}" for i in range(3)}
    config = mpmd_trace.make_config(meshes, names, pipeline_schedule="1F1B")
    weights = [jnp.ones((4, 4))] * 3
    program = mpmd_trace.jit(step, config).lower(weights, optimizer.init(weights), np.ones((COUNT, 2, 4), np.float32))
    assert program.traced.rewritten.is_short
    assert program.partitioned.as_text() == str(partition_as(program.traced.module, program.request).module)
