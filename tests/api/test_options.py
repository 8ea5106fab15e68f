"""The options of `jit` and `filter_jit`: donation by names, unused arguments, XLA's options, decorators."""

from __future__ import annotations

import functools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mpmd_trace
from mpmd_trace import MpmdError, MpmdWarning
from mpmd_trace.equinox import filter_jit
from pipelines import WIDTH, assert_same, batch, check, config, loss, weights


def step(ws: Any, x: Any, *, rate: Any = 0.1) -> Any:
    grads = jax.grad(loss)(ws, x)
    return jax.tree.map(lambda w, g: w - rate * g, ws, grads), jnp.sum(x)


def deleted(tree: Any) -> list[bool]:
    return [x.is_deleted() for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]


@pytest.mark.parametrize("options", [{"donate_argnames": "ws"}, {"donate_argnums": 0}, {"donate_argnames": ["ws"]}])
@pytest.mark.parametrize("by_name", [False, True])
def test_positions_and_names_of_donated_arguments_imply_each_other(options: dict[str, Any], by_name: bool) -> None:
    jitted = mpmd_trace.jit(step, config(), **options)
    ws, x = weights(), batch()
    expected = jax.jit(step)(ws, x)
    found = jitted(x=x, ws=ws) if by_name else jitted(ws, x)
    assert_same(found, expected)
    assert deleted(ws) == [True, True] and deleted(x) == [False]


def test_keyword_arguments_can_be_donated() -> None:
    jitted = mpmd_trace.jit(step, config(), donate_argnames=("x", "rate"))
    ws, x, rate = weights(), batch(), jnp.float32(0.1)
    jitted(ws, x, rate=rate)
    assert deleted([ws, x, rate]) == [False, False, True, True]
    assert jitted.lower(ws, batch()).traced.donated == (2,), "an argument that is not there is not donated"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"donate_argnames": "weights"}, r"donate_argnames \['weights'\] are not arguments of step, which takes"),
        ({"donate_argnames": 3}, "donate_argnames are names of arguments, one or several, not 3"),
        ({"donate_argnums": 3}, r"donate_argnums \[3\] are out of range"),
        ({"donate_argnames": "x", "static_argnames": "x"}, "both static and donated"),
    ],
)
def test_donations_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MpmdError, match=message):
        mpmd_trace.jit(step, config(), **options)(weights(), 1.0 if "static_argnames" in options else batch())


@pytest.mark.parametrize(
    ("donate", "expected"),
    [("all", (True, True, True)), ("all-except-first", (False, True, True)), ("none", (False, False, False))],
)
def test_donating_all(donate: Any, expected: tuple[bool, ...]) -> None:
    layer = eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0))

    def fn(layer: Any, x: jax.Array, how: str, *, scale: jax.Array) -> Any:
        return jax.tree.map(lambda a: a + 1, x), jax.vmap(layer)(x) * scale, how

    x, scale = batch(), jnp.float32(2)
    wanted = fn(layer, x, "a", scale=scale)
    found = filter_jit(fn, config({}, meshes=1), donate=donate)(layer, x, "a", scale=scale)
    assert_same(found[:2], wanted[:2])
    assert (all(deleted(layer)), *deleted([x, scale])) == expected
    assert any(deleted(layer)) == expected[0]


def test_donating_the_arrays_of_a_module_that_is_called() -> None:
    for donate, expected in (("all", [True, True, True]), ("all-except-first", [True, True, False])):
        layer, x = eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0)), jnp.ones(WIDTH)
        filter_jit(layer, config({}, meshes=1), donate=donate)(x)
        assert deleted([layer, x]) == expected
    layer, x = eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0)), jnp.ones(WIDTH)
    filter_jit(layer, config({}, meshes=1), donate_argnames="x")(x)
    assert deleted([layer, x]) == [False, False, True]


def test_donations_that_nothing_reuses_are_told() -> None:
    def fn(x: jax.Array, big: jax.Array) -> jax.Array:
        return x + big.sum()

    big = jnp.ones((WIDTH, 64))
    with pytest.warns(MpmdWarning, match="no program of fn reuses the memory of these donated arguments.*: big"):
        filter_jit(fn, config({}, meshes=1), donate="warn")(jnp.ones(WIDTH), big)
    assert big.is_deleted()


def test_bad_ways_to_donate() -> None:
    with pytest.raises(MpmdError, match=r"donate is one of 'all', 'all-except-first', .*, not 'some'"):
        filter_jit(step, config(), donate="some")  # type: ignore[call-overload]
    with pytest.raises(MpmdError, match="donate='all' says which arguments are donated; donate_argnums"):
        filter_jit(step, config(), donate="all", donate_argnums=0)


def test_decorators() -> None:
    one = config({}, meshes=1)

    @mpmd_trace.jit(config=one, static_argnames="power")
    def f(x: jax.Array, power: int) -> jax.Array:
        """Raises."""
        return x**power

    @functools.partial(mpmd_trace.jit, config=one)
    def g(x: jax.Array) -> jax.Array:
        return x + 1

    @filter_jit(one, donate="all")
    def h(x: jax.Array, name: str) -> Any:
        return x * 2, name

    assert f.__name__ == "f" and f.__doc__ == "Raises." and isinstance(f, mpmd_trace.stages.Jitted)
    assert float(f(jnp.float32(3), 2)) == 9 and float(g(jnp.float32(3))) == 4
    x = jnp.float32(3)
    assert h(x, "n")[1] == "n" and x.is_deleted()
    for make in (lambda: mpmd_trace.jit(), lambda: mpmd_trace.jit(config=3), lambda: filter_jit(step)):
        with pytest.raises(MpmdError, match=r"takes a config of mpmd_trace.make_config"):
            make()


def test_arguments_that_are_static_as_a_whole() -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

    jax.tree_util.register_pytree_node(Scale, lambda s: ((jnp.float32(s.factor),), None), lambda _, c: Scale(c[0]))
    seen = []

    def fn(x: jax.Array, scale: Any) -> jax.Array:
        seen.append(type(scale.factor))
        return x * scale.factor

    scale = Scale(3)
    for options in ({"static_argnums": 1}, {"static_argnames": "scale"}):
        jitted = filter_jit(fn, config({}, meshes=1), **options)
        assert float(jitted(jnp.float32(2), scale)) == float(jitted(jnp.float32(2), scale=scale)) == 6
        compiled = jitted.lower(jnp.float32(2), scale).compile()
        assert float(compiled(jnp.float32(4), scale)) == 12
    assert set(seen) == {int}
    with pytest.raises(MpmdError, match="the static argument 'scale' is a list, which cannot be hashed"):
        jitted(jnp.float32(2), scale=[1])
    with pytest.raises(MpmdError, match=r"static_argnames \['size'\] are not arguments of fn"):
        filter_jit(fn, config(), static_argnames="size")


def test_what_is_not_used_is_not_placed() -> None:
    def fn(ws: Any, x: jax.Array, unused: Any) -> Any:
        return loss(ws, x)

    elsewhere = jax.device_put(jnp.ones(8), jax.devices()[7])
    for array in (np.ones(8, np.float32), jnp.ones(8), elsewhere):
        check(fn, weights(), batch(), array)
    here = mpmd_trace.jit(fn, config(), keep_unused=True)
    assert_same(here(weights(), batch(), np.ones(8, np.float32)), loss(weights(), batch()))
    with pytest.raises(MpmdError, match=r"argument unused is on device 7"):
        here(weights(), batch(), elsewhere)
    compiled = mpmd_trace.jit(fn, config()).lower(weights(), batch(), elsewhere).compile()
    with pytest.raises(MpmdError, match=r"argument unused must be float32\[8\], not float32\[7\]"):
        compiled(weights(), batch(), jnp.ones(7))
    assert_same(compiled.measure(weights(), batch(), elsewhere)[0], loss(weights(), batch()))


def test_options_reach_xla() -> None:
    options = {"xla_cpu_enable_fast_math": True}
    for given in (options, {"m0": options}, {"m0": options, "m1": {"xla_cpu_enable_fast_math": False}}):
        check(loss, weights(), batch(), compiler_options=given)
    lowered = mpmd_trace.jit(loss, config()).lower(weights(), batch())
    with pytest.raises(MpmdError, match="XLA refuses the compiler option xla_no='a': No such compile option: 'xla_no'"):
        lowered.compile(compiler_options={"m1": {"xla_no": "a"}})
    assert_same(lowered.compile(compiler_options=options)(weights(), batch()), loss(weights(), batch()))


def test_all_options_that_xla_refuses_are_told() -> None:
    wrong = {"xla_cpu_enable_fast_math": "maybe", "xla_no": 1, "xla_embed_ir_in_executable": True}
    with pytest.raises(MpmdError) as error:
        mpmd_trace.jit(loss, config(), compiler_options=wrong)(weights(), batch())
    text = str(error.value)
    assert re.search(r"xla_cpu_enable_fast_math='maybe': .*is not a valid bool value.*\(for mesh m0, m1\)", text)
    assert "xla_no=1: No such compile option: 'xla_no' (for mesh m0, m1)" in text
    assert "xla_embed_ir" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m7": {"a": 1}}, r"compiler_options are given for 'm7', which is not a mesh of the topology. .*'m0'"),
        ({"m0": {"a": 1}, "b": 2}, "for all meshes, or a mapping from each mesh to its options, not both: 'm0'"),
        ({"a": [1]}, r"compiler_options have 'a': \[1\]; an option of XLA is a name with a bool"),
        ([("a", 1)], "compiler_options map names of XLA's options to values"),
    ],
)
def test_options_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises(MpmdError, match=message) as error:
        mpmd_trace.jit(loss, config(), compiler_options=options)
    assert "test_options.py:" in str(error.value)
