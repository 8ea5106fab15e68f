"""Each mistake gives one error that says what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import MpmdError, call, enumerated_for, named_computation
from pipelines import Weights, accumulate, batch, check, config, layer, loss, topology, weights


def error_of(action: Callable[[], Any]) -> MpmdError:
    """What `action` raises; it has one diagnostic."""
    with pytest.raises(MpmdError) as found:
        action()
    assert len(found.value.diagnostics) == 1, str(found.value)
    return found.value


def here(error: MpmdError, code: str) -> bool:
    """Whether the error points to a line of this file that contains `code`."""
    match = re.match(r'"?([^":]*test_bad_input\.py)"?:(\d+)', str(error))
    assert match, str(error)
    with open(__file__, encoding="utf-8") as file:
        return code in file.read().splitlines()[int(match[2]) - 1]


def test_a_mesh_that_does_not_exist() -> None:
    error = error_of(lambda: mpmd_trace.make_config(topology(), {"f0": "n0"}))
    assert ("the name 'f0' is assigned to the mesh 'n0', which the topology lacks. Did you mean 'm0'") in str(error)
    assert here(error, "mpmd_trace.make_config(topology()")


def test_names_on_meshes_of_a_wrong_topology_are_not_told() -> None:
    error = error_of(lambda: mpmd_trace.make_config({"m0": jax.devices()[0]}, {"f0": "m0"}))  # type: ignore[dict-item]
    assert "make it with jax.sharding.Mesh" in str(error)


@pytest.mark.parametrize("function", [mpmd_trace.place, lambda program, ws: mpmd_trace.create(lambda: ws, program)])
def test_a_program_that_is_not_compiled(function: Callable[..., Any]) -> None:
    error = error_of(lambda: function(mpmd_trace.jit(loss, config()), weights()))
    assert "this needs a compiled program, not a Jitted; pass what jitted.lower(*args).compile() returns" in str(error)


def test_a_name_that_occurs_nowhere() -> None:
    cfg = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1", "f2": "m1"})
    with pytest.warns(mpmd_trace.MpmdWarning) as found:
        check(loss, weights(), batch(), config=cfg)
    [warning] = found
    assert "'f2' is assigned to mesh 'm1' but occurs nowhere in the program." in str(warning.message)
    assert f"{warning.filename}:{warning.lineno}" == cfg.where


def test_no_assigned_name_occurs() -> None:
    def step(ws: Weights, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ ws[0])

    cfg = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"})
    error = error_of(lambda: mpmd_trace.jit(step, cfg)(weights(), batch()))
    assert "none of the assigned names occurs in step" in str(error) and "name_layers" in str(error)
    assert here(error, "cfg = mpmd_trace.make_config(topology()")
    # One that assigns no names, or that says where values are, is meant.
    placed = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, output_mesh_assignment="m1")
    with pytest.warns(mpmd_trace.MpmdWarning, match="occurs nowhere"):
        result = mpmd_trace.jit(step, placed)(weights(), batch())
    assert result.devices() == set(placed.topology["m1"].devices.flat)
    np.testing.assert_allclose(np.asarray(result), np.tanh(batch() @ weights()[0]), rtol=1e-5, atol=1e-6)


def test_a_computation_without_a_mesh() -> None:
    def step(ws: Weights, x: jax.Array) -> jax.Array:
        return named_computation(layer, name="lost")(ws[0], x)

    error = error_of(lambda: mpmd_trace.jit(step, config({}))(weights(), batch()))
    assert "the named computation 'lost' is not assigned to a mesh" in str(error)
    assert here(error, 'name="lost"')


def test_a_value_from_another_mesh_without_transfers() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        a = named_computation(layer, name="f0")(ws[0], x)
        b = named_computation(layer, name="f1")(ws[1], x)
        return (a + b) * 2  # needs both

    jitted = mpmd_trace.jit(step, config(infer=False, placement="reference"))
    assert jitted.trace(weights(), batch()).names.keys() == {"f0", "f1"}
    with pytest.raises(MpmdError) as found:
        jitted.lower(weights(), batch())
    text = str(found.value)
    assert "m0" in text and "m1" in text and "mpmd_infer_transfers" in text, text
    assert "test_bad_input.py" in text


def test_a_cycle_between_stages() -> None:
    def model(ws: Weights, x: jax.Array) -> Any:
        x = named_computation(layer, name="f0")(ws[0], x)
        x = named_computation(layer, name="f1")(ws[1], x)
        return named_computation(layer, name="f2")(ws[0], x)

    names = {"f0": ("m0", 0), "f1": ("m1", 1), "f2": ("m0", 0)}
    with pytest.raises(MpmdError) as found:
        mpmd_trace.jit(lambda ws, x: call(model, 0)(ws, x), config(names))(weights(), batch())
    text = str(found.value)
    assert "stage 0" in text and "f0" in text and "f2" in text, text


@pytest.mark.parametrize("schedule", [None, "1F1B"])
@pytest.mark.parametrize("start", [0, 2])
def test_two_loops_through_the_same_stages(start: int, schedule: str | None) -> None:
    """They are told apart where the second one depends on the first, whether or not both count from 0."""

    def step(ws: Weights, x: jax.Array) -> Any:
        first = enumerated_for(lambda i, c, x: c + loss(ws, x), jnp.zeros(()), x)
        ws = [w * first for w in ws]
        return sum(call(loss, start + i)(ws, x[i]) for i in range(2))

    cfg = config({"f0": ("m0", 0), "f1": ("m1", 1)}, pipeline_schedule=schedule)
    ours = mpmd_trace.jit(step, cfg)(weights(), batch(2))
    assert jnp.allclose(ours, jax.jit(step)(weights(), batch(2)))


def test_devices_that_do_not_exist() -> None:
    nothing = Mesh(np.array([None, None], dtype=object), ("x",))
    error = error_of(lambda: mpmd_trace.make_config({"m0": nothing}, {}))
    assert "the mesh 'm0' has None where a device belongs. Make it of devices in jax.devices()" in str(error)


def test_a_batch_that_does_not_divide_into_shards() -> None:
    split = NamedSharding(topology()["m0"], PartitionSpec("x"))
    jitted = mpmd_trace.jit(loss, config(), in_shardings=(None, split))
    error = error_of(lambda: jitted(weights(), batch(rows=3)))
    assert ("in_shardings of x: a dimension of size 3 (shape (3, 4)) cannot be divided into 2 parts") in str(error)
    assert "Choose a size divisible by 2, or leave the dimension whole" in str(error)


def test_microbatches_of_different_number() -> None:
    def step(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
        return enumerated_for(lambda i, c, xy: c + loss(ws, xy[0]), jnp.zeros(()), (x, y))

    error = error_of(lambda: mpmd_trace.jit(step, config())(weights(), batch(2), batch(3)))
    assert "inputs whose arrays have first axes of one length, got inputs[0]: 2, inputs[1]: 3" in str(error)


def test_an_argument_on_the_wrong_mesh() -> None:
    jitted = mpmd_trace.jit(accumulate, config())
    elsewhere = jax.device_put(weights()[0], NamedSharding(Mesh(topology()["m1"].devices, ("own",)), PartitionSpec()))
    error = error_of(lambda: jitted([elsewhere, weights()[1]], batch(2)))
    assert ("argument ws[0] is on devices 2, 3, and the program wants it on mesh 'm0' (devices 0, 1)") in str(error)
    assert "move it with compiled.place(*args)" in str(error)


def test_a_donated_buffer_used_again() -> None:
    jitted = mpmd_trace.jit(loss, config(), donate_argnums=0)
    ws = weights()
    jitted(ws, batch())
    with pytest.raises(MpmdError) as found:
        jitted(ws, batch())
    [one] = found.value.diagnostics
    assert "2 arrays were donated to an earlier call, or deleted, and their buffers are gone: argument ws[0], " in (
        one.message
    )
    assert "Use what that call returned instead, or do not donate them" in one.message
    both = mpmd_trace.jit(loss, config({"f0": "m0", "f1": "m0"}), donate_argnums=0)
    same = jax.device_put(weights()[0], NamedSharding(topology()["m0"], PartitionSpec()))
    error = error_of(lambda: both([same, same], batch()))
    assert "argument ws[1] is the same array as argument ws[0]" in str(error)


def test_a_leaf_that_is_no_array() -> None:
    def step(ws: Any, x: jax.Array) -> jax.Array:
        return loss(ws["w"], x)

    error = error_of(lambda: mpmd_trace.jit(step, config())({"w": weights(), "f": jnp.tanh}, batch()))
    assert "argument ws['f'] is not an array but a " in str(error)
    assert "static_argnums" in str(error) and "mpmd_trace.filter_jit" in str(error)
    assert here(error, "def step(ws: Any")
    result = error_of(lambda: mpmd_trace.jit(lambda x: (x, "text"), config({}))(batch()))
    assert "result[1] is not an array but a str: 'text'" in str(result)


def test_other_arguments_than_compiled_for() -> None:
    compiled = mpmd_trace.jit(lambda x: x * 2, config({}, meshes=1)).lower(batch()).compile()
    error = error_of(lambda: compiled(batch(), 1))
    assert "positional arguments: tuple of length 1, not tuple of length 2" in str(error)
    assert ("argument x must be float32[4, 4], not float32[2, 4]") in str(error_of(lambda: compiled(batch(rows=2))))


def test_what_has_no_data_or_too_much() -> None:
    jitted = mpmd_trace.jit(loss, config())
    compiled = jitted.lower(weights(), batch()).compile()
    for wrong in (jax.ShapeDtypeStruct((4, 4), jnp.float32), "text"):
        error = error_of(lambda wrong=wrong: compiled(weights(), wrong))  # type: ignore[misc]
        assert f"argument x must be an array float32[4, 4], not a {type(wrong).__name__}" in str(error)
    large = error_of(lambda: mpmd_trace.jit(lambda x, n: x * n, config({}))(batch(), 2**40))
    assert "argument n is 1099511627776, which is too large for an int of JAX" in str(large)


def test_a_key_of_another_kind() -> None:
    def step(x: jax.Array, key: jax.Array) -> jax.Array:
        return x + jax.random.normal(key, x.shape)

    compiled = mpmd_trace.jit(step, config({})).lower(batch(), jax.random.key(0)).compile()
    error = error_of(lambda: compiled(batch(), jax.random.key(0, impl="rbg")))
    assert "argument key must be a typed PRNG key of threefry2x32" in str(error) and "not of rbg" in str(error)


def test_constant_arguments_inside_of_another_trace() -> None:
    """There even arrays that are no tracers become some when they are placed."""
    jitted = mpmd_trace.jit(loss, config())
    expected = jitted(weights(), batch())
    ws, x = weights(), batch()
    with pytest.warns(mpmd_trace.MpmdWarning, match="loss is called within another transformation of JAX"):
        np.testing.assert_allclose(jax.jit(lambda y: jitted(ws, x) + y)(1.0), expected + 1.0, rtol=1e-6)
    compiled = jitted.lower(ws, x).compile()
    with pytest.raises(MpmdError, match=r"would become a tracer where it is called.*outside of jax\.jit"):
        jax.jit(lambda y: compiled(ws, x) + y)(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"donate_argnums": "ws"}, "donate_argnums are positions of arguments, one int or several, not 'ws'"),
        ({"donate_argnums": 1.0}, "donate_argnums are positions of arguments"),
        ({"static_argnums": (0, "x")}, "static_argnums are positions of arguments"),
        ({"static_argnames": 3}, "static_argnames of jit are names of arguments, one or several, not 3"),
        ({"static_argnames": ["nope"]}, "static_argnames ['nope'] are not arguments of loss"),
        ({"static_argnums": 4}, "static_argnums [4] are out of range: loss takes 2"),
    ],
)
def test_wrong_options_of_jit(options: Any, message: str) -> None:
    error = error_of(lambda: mpmd_trace.jit(loss, config(), **options))
    assert message in str(error) and here(error, "mpmd_trace.jit(loss, config(), **options)")


def test_options_of_jit_that_say_nothing() -> None:
    for options in ({"donate_argnums": None}, {"static_argnums": None}, {"static_argnames": None}):
        mpmd_trace.jit(loss, config(), **options)(weights(), batch())  # type: ignore[arg-type]
    numbered = mpmd_trace.jit(loss, config(), donate_argnums=np.int64(0))  # type: ignore[arg-type]
    assert numbered.donate_argnums == (0,)


@pytest.mark.parametrize("kind", ["in_shardings", "out_shardings"])
def test_shardings_that_are_none_of_the_topology(kind: str) -> None:
    other = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("y",)), PartitionSpec("y"))
    single = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for sharding, message in (
        (other, "with axes {y: 2}, which no mesh of the topology has ({x: 2}). Use a mesh of the topology"),
        (single, "SingleDeviceSharding cannot be used here. Use a jax.sharding.NamedSharding over a mesh"),
        (PartitionSpec("x"), "cannot be used here. Use a jax.sharding.NamedSharding over a mesh"),
    ):
        jitted = mpmd_trace.jit(lambda x: x * 2, config({}), **{kind: sharding})  # type: ignore[arg-type]
        error = error_of(lambda jitted=jitted: jitted(batch()))  # type: ignore[misc]
        assert message in str(error) and here(error, "mpmd_trace.jit(lambda x: x * 2")


@pytest.mark.parametrize("kind", ["in_shardings", "out_shardings"])
def test_shardings_over_other_devices(kind: str) -> None:
    foreign = NamedSharding(Mesh(np.array(jax.devices()[1:3]), ("x",)), PartitionSpec("x"))
    jitted = mpmd_trace.jit(lambda x: x * 2, config({}), **{kind: foreign})  # type: ignore[arg-type]
    error = error_of(lambda: jitted(batch()))
    assert (
        "sharding over a mesh of devices [1, 2], which is not a mesh of the topology (devices [0, 1] or [2, 3])"
        in str(error)
    )
    assert here(error, "mpmd_trace.jit(lambda x: x * 2")


def test_shardings_that_contradict_assignments() -> None:
    there = NamedSharding(topology()["m1"], PartitionSpec())
    where = config({}, input_mesh_assignment=("m0",), output_mesh_assignment="m0")
    jitted = mpmd_trace.jit(lambda x: x * 2, where, in_shardings=(there,), out_shardings=there)
    with pytest.raises(MpmdError) as found:
        jitted(batch())
    assert [d.message for d in found.value.diagnostics] == [
        f"{name} is on mesh 'm0' in {what}_mesh_assignment, and its sharding is over the devices of mesh 'm1'. Give "
        "both the same mesh, or leave one of them out."
        for name, what in (("x", "input"), ("result", "output"))
    ]


def test_a_computation_has_no_memory() -> None:
    jitted = mpmd_trace.jit(loss, config({"f0": "m0#pinned_host", "f1": "m1"}))
    error = error_of(lambda: jitted(weights(), batch()))
    assert "'f0' is assigned to m0#pinned_host, but only values have a memory. Assign it to 'm0'" in str(error)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("donate", [0, 1, (), (0, 1)])
def test_placing_an_array_twice(donate: int | tuple[int, ...], size: int) -> None:
    """Its copies have buffers of their own where one of them is donated, and else share one."""
    jitted = mpmd_trace.jit(
        named_computation(lambda a, b: (a + b, a * b), name="f0"),
        config({"f0": "m0"}, topology=topology(1, size=size)),
        donate_argnums=donate,
    )
    compiled = jitted.lower(batch(), batch()).compile()
    for place in (lambda x: compiled.place(x, x)[0], lambda x: mpmd_trace.place(compiled, x, x)):
        a, b = place(jnp.copy(batch()))
        addresses = [[shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards] for x in (a, b)]
        assert set(addresses[0]).isdisjoint(addresses[1]) == (donate != ())
        assert a.sharding == b.sharding == compiled.input_shardings[0][0]
        total, product = compiled(a, b)
        assert jnp.allclose(total, 2 * batch()) and jnp.allclose(product, batch() ** 2)


def test_placing_a_key_twice() -> None:
    jitted = mpmd_trace.jit(
        named_computation(lambda a, b: (a, b), name="f0"), config({"f0": "m0"}, topology=topology(1)), donate_argnums=0
    )
    compiled = jitted.lower(jax.random.key(0), jax.random.key(1)).compile()
    for place in (lambda x: compiled.place(x, x)[0], lambda x: mpmd_trace.place(compiled, x, x)):
        results = compiled(*place(jax.random.key(2)))
        assert [jax.random.key_data(key).tolist() for key in results] == [[0, 2], [0, 2]]


@pytest.mark.parametrize("donate", [0, 1, (0, 1)])
def test_a_donated_array_given_twice(donate: int | tuple[int, ...]) -> None:
    """Also when two arrays share a buffer, where XLA would crash."""
    mesh = topology()["m0"]
    jitted = mpmd_trace.jit(
        named_computation(lambda a, b: (a + b, a * b), name="f0"), config({"f0": "m0"}), donate_argnums=donate
    )
    first = jax.device_put(batch(), NamedSharding(mesh, PartitionSpec()))
    other = jax.device_put(first, NamedSharding(mesh, PartitionSpec(None, None)))
    name = "argument a" if donate == 0 else "argument b"
    for _ in range(2):
        for b, what in ((first, "is the same array as"), (other, "shares its buffer with")):
            error = error_of(lambda b=b: jitted(first, b))  # type: ignore[misc]
            assert f"argument b {what} argument a, and {name} is donated; pass a copy" in str(error)
    assert not first.is_deleted()
    total, product = jitted(first, jnp.copy(other))
    assert jnp.allclose(total, 2 * batch()) and jnp.allclose(product, batch() ** 2)
    nowhere = jnp.copy(batch())  # and it is on a device of the mesh
    error = error_of(lambda: jitted(nowhere, nowhere))
    assert f"argument b is the same array as argument a, and {name} is donated" in str(error)
    assert not nowhere.is_deleted()
    # A whole model that is given twice is one error, not one for each array.
    many = mpmd_trace.jit(lambda a, b: jax.tree.map(jnp.add, a, b), config({}), donate_argnums=donate)
    model = [jnp.full(2, float(i)) for i in range(4)]
    error = error_of(lambda: many(model, list(model)))
    assert "argument b[0] is the same array as argument a[0], and" in str(error)
    assert "donated, and 3 more arrays are given twice; pass a copy" in str(error)
    error = error_of(lambda: many(model[:2], model[:2]))
    assert "donated, and 1 more array is given twice; pass a copy" in str(error)
    # Numbers of the host are copied anyway.
    assert jnp.allclose(jitted(batch(), batch())[0], 2 * batch())


@pytest.mark.parametrize("donate", [0, 1, (0, 1)])
def test_a_donated_array_given_twice_is_an_error_before_xla_compiles(
    donate: int | tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the first step of a moving average that starts as the weights themselves."""

    def average(ws: Any, ema: Any) -> Any:
        new = [named_computation(lambda w: 0.5 * w, name=f"f{i}")(w) for i, w in enumerate(ws)]
        return new, jax.tree.map(lambda w, e: 0.1 * w + 0.9 * e, new, ema)

    jitted = mpmd_trace.jit(average, config({"f0": "m0", "f1": "m1"}), donate_argnums=donate)
    ws = [jnp.asarray(w) for w in weights()]
    with monkeypatch.context() as patch:
        patch.setattr(mpmd_trace.stages.Lowered, "compile", lambda *_: pytest.fail("compiled by XLA"))
        error = error_of(lambda: jitted(ws, ws))
    gone = "ws[0]" if donate == 0 else "ema[0]"
    assert f"argument ema[0] is the same array as argument ws[0], and argument {gone} is donated" in str(error)
    _, ema = jitted(ws, [jnp.copy(w) for w in ws])
    assert jnp.allclose(ema[0], weights()[0] * 0.95)


def test_a_donated_array_may_be_given_twice_for_two_meshes() -> None:
    """Each of them gets a copy."""

    def halved(ws: Any) -> Any:
        return [named_computation(lambda w: 0.5 * w, name=f"f{i}")(w) for i, w in enumerate(ws)]

    w = jnp.full(2, 3.0)
    results = mpmd_trace.jit(halved, config({"f0": "m0", "f1": "m1"}), donate_argnums=0)([w, w])
    assert all(jnp.allclose(result, 1.5) for result in results)


def test_a_donated_array_may_be_given_again_where_it_is_not_used() -> None:
    jitted = mpmd_trace.jit(lambda ws, ema: jax.tree.map(jnp.sin, ws), config({}), donate_argnums=0)
    for place in (None, NamedSharding(topology()["m0"], PartitionSpec())):
        ws = jax.device_put([jnp.full(2, 0.5)], place)
        assert jnp.allclose(jitted(ws, ws)[0], jnp.sin(0.5))
    kept = mpmd_trace.jit(lambda ws, ema: jax.tree.map(jnp.sin, ws), config({}), donate_argnums=0, keep_unused=True)
    ws = [jnp.full(2, 0.5)]
    error = error_of(lambda: kept(ws, ws))
    assert "argument ema[0] is the same array as argument ws[0], and argument ws[0] is donated" in str(error)


def test_a_constraint_over_a_mesh_that_is_not_of_the_topology() -> None:
    other = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("y",)), PartitionSpec("y"))
    jitted = mpmd_trace.jit(lambda x: jax.lax.with_sharding_constraint(x, other), config({}))
    error = error_of(lambda: jitted(batch()))
    assert "which no mesh of the topology has" in str(error) and here(error, "with_sharding_constraint")


def test_mistakes_in_the_program_have_a_place() -> None:
    """Also where nobody sees a Python traceback."""
    x = batch()
    for step, code, message in (
        (lambda x: mpmd_trace.call(jnp.sin, -1)(x), "jnp.sin, -1", "call_counter of 'sin' must be"),
        (lambda x: mpmd_trace.reduce(x, x, kind="sum"), 'kind="sum"', "reduce has no kind 'sum'"),
        (lambda x: named_computation(jnp.sin, name=" ")(x), 'name=" "', "starts or ends with blanks"),
        (lambda x: mpmd_trace.fori_loop(2, 3, x), "2, 3, x", "the body of fori_loop is a function, not 3"),
        (lambda x: enumerated_for(None, x, x), "None, x, x", "the body of enumerated_for is a function, not None"),
        (
            lambda x: named_computation(lambda x, n: x, name="f", static_argnames="n")(x, n=[1]),
            'static_argnames="n"',
            "the argument leaf [1] of type list is static (static_argnames) and cannot be hashed",
        ),
    ):
        error = error_of(lambda step=step: mpmd_trace.jit(step, config({}))(x))  # type: ignore[misc]
        assert message in str(error) and here(error, code), str(error)


def test_numbers_of_numpy_count() -> None:
    looped = mpmd_trace.fori_loop(np.int64(3), lambda i, c: c + i, jnp.int32(0))  # type: ignore[arg-type]
    assert looped == 3
    assert mpmd_trace.call(jnp.negative, call_counter=np.int32(1))(1) == -1  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", [lambda: True, lambda one: True])
def test_a_comparator_of_something_else(schedule: Any) -> None:
    error = error_of(lambda: config(pipeline_schedule=schedule))
    assert "pipeline_schedule is a comparator of two fragments" in str(error)


def test_no_function() -> None:
    error = error_of(lambda: mpmd_trace.jit("loss", config()))  # type: ignore[arg-type]
    assert "jit takes a function, not 'loss' of type str" in str(error)


def test_no_config() -> None:
    error = error_of(lambda: mpmd_trace.jit(loss, {"f0": "m0"}))  # type: ignore[arg-type]
    assert "jit takes a config of mpmd_trace.make_config, not a dict" in str(error)


@pytest.mark.parametrize("decides", [bool, int, np.asarray], ids=lambda f: f.__name__)
def test_what_is_decided_in_python_is_told_as_under_jax_jit(decides: Any) -> None:
    def step(ws: Any, x: jax.Array) -> Any:
        decides(x[0, 0] > 0)
        return loss(ws, x)

    told = []
    for jitted in (jax.jit(step), mpmd_trace.jit(step, config())):
        with pytest.raises(jax.errors.JAXTypeError) as error:
            jitted(weights(), batch())
        told.append(str(error.value))
    assert told[0] == told[1] and "test_bad_input.py:" in told[1] and "the argument x" in told[1]


def test_parts_of_arguments_that_are_decided_on_in_python_are_named() -> None:
    def step(ws: Any, x: jax.Array) -> Any:
        return loss(ws, x) if ws[1].sum() > 0 else x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"the value of the argument ws\[1\]\."):
        mpmd_trace.jit(step, config())(weights(), batch())


def test_arguments_of_a_named_computation_that_are_decided_on_in_python_are_named() -> None:
    class Model(NamedTuple):
        w: Any

        def inside(self, x: Any, *more: Any, flags: Any) -> Any:
            which = {"self": self.w["a"], "x": x[0], "more": more[1], "flags": flags["on"]}
            return x[0] if which[flags["asked"]].sum() > 0 else x[1]

    model = Model({"a": batch()})
    places = {"self": "self.w['a']", "x": "x[0]", "more": "more[1]", "flags": "flags['on']"}
    for asked, place in places.items():

        def outer(model: Any, x: Any, asked: str = asked) -> Any:
            flags = {"on": x, "asked": asked}
            return named_computation(model.inside, name="inner")([x, x], 1.0, x, flags=flags)

        for jitted in (jax.jit(outer), mpmd_trace.jit(outer, config({"inner": "m0"}))):
            with pytest.raises(jax.errors.TracerBoolConversionError) as error:
                jitted(model, batch())
            text = str(error.value)
            assert "mpmd_trace.named_computation[inner] at " in text and "test_bad_input.py:" in text
            assert f"the value of the argument {place}." in text


def test_an_argument_of_the_function_around_a_named_computation_keeps_its_name() -> None:
    def outer(w: jax.Array, positive: jax.Array) -> Any:
        return named_computation(lambda x: x if positive else -x, name="inner")(w)

    with pytest.raises(jax.errors.TracerBoolConversionError, match="the value of the argument positive"):
        jax.jit(lambda w, x: named_computation(outer, name="outer")(w, x))(batch(), jnp.array(True))


def test_a_sharding_that_does_not_fit_the_pieces_of_a_stack_is_told_once() -> None:
    def step(w: Any, x: jax.Array) -> Any:
        return mpmd_trace.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w, name="blocks")[0]

    sharding = NamedSharding(jax.sharding.AbstractMesh((2,), ("x",)), PartitionSpec("x"))
    jitted = mpmd_trace.jit(step, config({"blocks[0:1]": "m0", "blocks[1:2]": "m1"}), in_shardings=(sharding, None))
    error = error_of(lambda: jitted(jnp.ones((2, 4, 4)), batch()))
    assert str(error).count("cannot be divided into 2 parts") == 1
