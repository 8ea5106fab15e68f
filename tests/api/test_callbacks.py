"""Programs that call back into Python run; their text alone cannot."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import MpmdError, named_computation
from pipelines import Weights, assert_same, batch, check, config, layer, loss_of, summed_gradients, topology, weights
from util import nightly


def on_host(factor: float, x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: np.asarray(factor * np.sin(x)), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.custom_jvp
def wave(x: jax.Array) -> jax.Array:
    return on_host(2.0, x)


@wave.defjvp
def _wave_jvp(primals: Any, tangents: Any) -> Any:
    return wave(primals[0]), on_host(3.0, primals[0]) * tangents[0]


step = functools.partial(summed_gradients, loss_of(lambda w, x: wave(x @ w)))


@pytest.mark.parametrize(("schedule", "sharded"), [("1F1B", True), ("zb-h1", False)])
def test_callbacks_in_a_pipeline(schedule: str, sharded: bool) -> None:
    """Several callbacks with several numbers, on both meshes, whole and sharded arguments."""
    split = NamedSharding(topology()["m0"], PartitionSpec(None, "x")) if sharded else None
    jitted = check(step, weights(), batch(4), config=config(pipeline_schedule=schedule), in_shardings=(None, split))
    jitted(weights(), batch(4))


def test_the_text_does_not_have_the_functions() -> None:
    """XLA would call what is not there and crash."""
    lowered = mpmd_trace.jit(step, config()).lower(weights(), batch(2))
    with pytest.raises(MpmdError) as found:
        mpmd_trace.compiler.run_module(lowered.as_text(), topology(), [*weights(), batch(2)])
    assert "this op calls back a Python function (jax.pure_callback)" in str(found.value)
    assert "Run the program with mpmd_trace.jit" in str(found.value)


Told = list[tuple[Any, ...]]


def both_told(fn: Any, *args: Any, **options: Any) -> tuple[Told, Told]:
    """What `fn(told)` tells under `jax.jit` and here: the same, and as often, with the same result."""
    told: tuple[Told, Told] = [], []
    expected = jax.jit(fn(told[0]))(*args)
    assert_same(mpmd_trace.jit(fn(told[1]), config(**options))(*args), expected)
    jax.effects_barrier()
    assert sorted(told[0]) == sorted(told[1]) != []
    return told


def same_effects(fn: Any, *args: Any, ordered: bool = False) -> Told:
    """What `fn(told)` tells is that under `jax.jit`; in the same order where it is ordered."""
    told = both_told(fn, *args)
    for kind in (0, 1) if ordered else ():  # JAX orders callbacks of the same kind
        assert [t for t in told[0] if kind in t[1:2]] == [t for t in told[1] if kind in t[1:2]]
    return told[1]


def teller(told: Told, name: str, ordered: bool, x: jax.Array) -> None:
    """Twice, by different means."""
    jax.debug.callback(lambda s: told.append((name, 0, float(s))), jnp.round(x.sum()), ordered=ordered)
    io_callback(lambda s: told.append((name, 1, float(s))), None, jnp.round(x.sum()), ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_in_named_and_unnamed_code(ordered: bool) -> None:
    """Once each, on meshes of two devices, also when differentiated, or when the results are not used."""

    def program(told: Told) -> Any:
        def loud(w: jax.Array, x: jax.Array) -> jax.Array:
            teller(told, "inside", ordered, x)
            return layer(w, x)

        def model(ws: Weights, x: jax.Array) -> jax.Array:
            h = named_computation(loud, name="f0")(ws[0], x)
            named_computation(lambda h: teller(told, "alone", ordered, h), name="f0")(h)
            return jnp.sum(named_computation(layer, name="f1")(ws[1], h))

        def run(ws: Weights, x: jax.Array) -> Any:
            value, grads = jax.value_and_grad(model)(ws, x)
            io_callback(lambda v: told.append(("outside", 2, float(v))), None, jnp.round(value), ordered=ordered)
            return grads

        return run

    # Between meshes there is no order.
    told = same_effects(program, weights(), batch())
    if ordered:
        on_first = [t[:2] for t in told if t[0] != "outside"]
        assert on_first == [("inside", 0), ("inside", 1), ("alone", 0), ("alone", 1)]


def test_effects_that_only_a_nested_name_has() -> None:
    """Also when nothing uses what the outer one returns."""

    def program(told: Told) -> Any:
        def loud(x: jax.Array) -> jax.Array:
            teller(told, "nested", False, x)
            return jnp.sin(x)

        def outer(x: jax.Array) -> jax.Array:
            return named_computation(loud, name="inner")(x) + 1

        def run(ws: Weights, x: jax.Array) -> jax.Array:
            h = named_computation(layer, name="f0")(ws[0], x)
            named_computation(outer, name="f0")(h)
            return named_computation(layer, name="f1")(ws[1], h)

        return run

    assert len(same_effects(program, weights(), batch())) == 2


def test_order_over_computations_and_microbatches() -> None:
    """Of one mesh, over programs that do not need each other's results."""

    def program(told: Told) -> Any:
        def loud(name: str) -> Any:
            def run(w: jax.Array, x: jax.Array) -> jax.Array:
                teller(told, name, True, x)
                return layer(w, x)

            return named_computation(run, name="f0")

        def body(i: Any, total: jax.Array, x: jax.Array) -> jax.Array:
            return total + loud("second")(total, loud("first")(x, x)) + loud("third")(x, x + 1)

        return lambda ws, xs: named_computation(layer, name="f1")(
            ws[1], mpmd_trace.enumerated_for(body, jnp.zeros((4, 4)), xs)
        )

    told = same_effects(program, weights(), batch(3), ordered=True)
    assert [t[:2] for t in told] == [(n, kind) for n in ("first", "second", "third") for kind in (0, 1)] * 3


def test_results_of_effects_are_made_once() -> None:
    """What two meshes use is sent from one to the other."""

    def program(told: Told) -> Any:
        def number(s: Any) -> Any:
            told.append(("number",))
            return np.float32(2 * s)

        def run(ws: Weights, x: jax.Array) -> jax.Array:
            v = io_callback(number, jax.ShapeDtypeStruct((), jnp.float32), x.sum(), ordered=True)
            h = named_computation(lambda w, x, v: layer(w, x) + v, name="f0")(ws[0], x, v)
            found: jax.Array = named_computation(lambda w, x, v: layer(w, x) + v, name="f1")(ws[1], h, v)
            return found

        return run

    same_effects(program, weights(), batch(), ordered=True)


def test_printing(capfd: pytest.CaptureFixture[str]) -> None:
    def loud(ws: Weights, x: jax.Array) -> jax.Array:
        def first(w: jax.Array, x: jax.Array) -> jax.Array:
            jax.debug.print("rows {n}", n=jnp.int32(x.shape[0]))
            return layer(w, x)

        return named_computation(layer, name="f1")(ws[1], named_computation(first, name="f0")(ws[0], x))

    mpmd_trace.jit(loud, config())(weights(), batch())
    jax.effects_barrier()
    assert capfd.readouterr().out == "rows 4\n"


def say(told: Told, name: str, ordered: bool, *values: Any) -> None:
    rounded = [jnp.round(jnp.sum(v), 3) for v in values]
    io_callback(lambda *v: told.append((name, *map(float, v))), None, *rounded, ordered=ordered)


def control_flow(told: Told, ordered: bool) -> Any:
    """Loops in loops and a conditional, with callbacks before, in, between and after them, also in a condition."""
    tell = functools.partial(say, told)

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        def one(h: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            def goes_on(s: Any) -> Any:
                if ordered:  # JAX drops others
                    tell("goes on", True, s[0])
                return s[0] < 2

            def turn(s: Any) -> Any:
                tell("turn", ordered, s[0])
                return s[0] + 1, s[1] * 2

            def branch(name: str, factor: float) -> Any:
                def taken(h: jax.Array) -> jax.Array:
                    tell(name, ordered, h)
                    return h * factor

                return taken

            tell("in", ordered, h, i)
            _, more = jax.lax.while_loop(goes_on, turn, (0, h))
            h = jax.lax.cond(i > 0, branch("yes", 2.0), branch("no", 3.0), h)
            tell("out", ordered, h)
            return layer(w, h) + more, h.sum()

        def backwards(h: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            tell("backwards", ordered, i)
            return layer(w, h), None

        tell("before", ordered, x)
        y, sums = jax.lax.scan(one, x, jnp.arange(3.0))
        y, _ = jax.lax.scan(backwards, y, jnp.arange(3.0), reverse=True, unroll=2)
        tell("after", ordered, y)
        return y + sums.sum()

    return run


def alone(told: Told, ordered: bool) -> Any:
    """Loops for what they do."""

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        jax.lax.scan(lambda c, i: (c, say(told, "scan", ordered, i)), None, jnp.arange(3.0))
        jax.lax.fori_loop(0, 2, lambda i, _: say(told, "loop", ordered, i), None)
        jax.lax.cond(x.sum() > 99, lambda: say(told, "yes", ordered, x), lambda: say(told, "no", ordered, x))
        return layer(w, x)

    return run


@pytest.mark.parametrize(
    ("where", "ordered", "make", "placement"),
    [
        ("named", True, control_flow, "cut"),
        nightly("named", False, alone, "reference"),
        ("unnamed", True, control_flow, "reference"),
        nightly("unnamed", False, control_flow, "cut"),
        ("unnamed", True, alone, "cut"),
        nightly("checkpointed", True, alone, "reference"),
        ("checkpointed", False, control_flow, "cut"),
    ],
)
def test_effects_in_loops_that_stay(where: str, ordered: bool, make: Any, placement: str) -> None:
    """In calls of microbatches, once each; what they compute is used on both meshes."""

    def run(told: Told) -> Any:
        inner = make(told, ordered)
        inner = jax.checkpoint(inner) if where == "checkpointed" else inner
        inner = inner if where == "unnamed" else named_computation(inner, name="f0")

        def step(ws: Weights, xs: jax.Array) -> Any:
            def body(i: Any, carry: Any, x: jax.Array) -> Any:
                h = inner(ws[0], named_computation(layer, name="f0")(ws[0], x))
                return carry[0] + named_computation(layer, name="f1")(ws[1], h), carry[1] + h

            return mpmd_trace.enumerated_for(body, (jnp.zeros((4, 4)),) * 2, xs)

        return step

    first, second = both_told(run, weights(), batch(2), placement=placement)
    assert not ordered or first == second


@pytest.mark.filterwarnings("ignore:'f0', 'f1' occur inside:mpmd_trace.MpmdWarning")
@pytest.mark.parametrize("names", [("f0",), ("f0", "f1")], ids=len)
def test_order_in_a_loop_with_names(names: tuple[str, ...]) -> None:
    """A loop of one name is part of its mesh; one of several names is in order with what is before it on each mesh."""

    def loud(told: Told, where: str, name: str) -> Any:
        def run(w: jax.Array, x: jax.Array) -> jax.Array:
            say(told, f"{name} {where}", True, x)
            return layer(w, x)

        return named_computation(run, name=name)

    def program(told: Told) -> Any:
        def run(ws: Weights, x: jax.Array) -> jax.Array:
            def turn(s: Any) -> Any:
                h = s[1]
                say(told, "turn", True, h)
                for name in names:
                    h = loud(told, "inside", name)(ws[0], h)
                return s[0] + 1, h

            h = loud(told, "before", "f0")(ws[0], x)
            h = jax.lax.while_loop(lambda s: s[0] < 2, turn, (0, h))[1]
            loud(told, "behind", "f0")(ws[0], 2 * h)
            found: jax.Array = loud(told, "behind", "f1")(ws[1], h)
            return found

        return run

    told = both_told(program, weights(), batch())
    for name in ("f0", "f1"):  # of different meshes
        order = [[t for t in one if t[0] != f"{name} behind"] for one in told]
        assert order[0] == order[1]


def test_order_in_the_gradient_of_a_loop() -> None:
    def program(told: Told) -> Any:
        def loop(w: jax.Array, x: jax.Array) -> jax.Array:
            def one(h: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
                jax.debug.callback(lambda i: told.append((int(i),)), i, ordered=True)
                return layer(w, h), None

            return jax.lax.scan(one, x, jnp.arange(3))[0]

        def value(ws: Weights, x: jax.Array) -> jax.Array:
            h = named_computation(loop, name="f0")(ws[0], x)
            return jnp.sum(named_computation(layer, name="f1")(ws[1], h))

        return jax.value_and_grad(value)

    assert same_effects(program, weights(), batch()) == [(0,), (1,), (2,)]


def test_order_in_a_nested_name() -> None:
    """One without a mesh of its own."""

    def program(told: Told) -> Any:
        def outer(w: jax.Array, x: jax.Array) -> jax.Array:
            say(told, "a", True, x)
            x = named_computation(lambda x: (say(told, "b", True, x), x + 1)[1], name="inner")(x)
            named_computation(lambda x: say(told, "c", True, x), name="inner")(w)
            say(told, "d", True, w)
            return layer(w, x)

        return lambda ws, x: named_computation(layer, name="f1")(ws[1], named_computation(outer, name="f0")(ws[0], x))

    assert [name for name, _ in same_effects(program, weights(), batch())] == ["a", "b", "c", "d"]
