"""What `trace` records about a program, and what it refuses."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from traced_programs import batch, calls, check_same, evaluate, first, functions, loss, origins, plain_text, weights

from mpmd_trace import MpmdWarning
from mpmd_trace.frontend import FrontendError, Traced, check_names, trace
from mpmd_trace.frontend.name_checks import name_problems
from mpmd_trace.frontend.naming import broadcast, call, named_computation, named_tensor, reduce

MESH = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def _sharded(*spec: Any, mesh: AbstractMesh = MESH, **kwargs: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec), **kwargs)


def _main(text: str) -> str:
    return next(line for line in text.splitlines() if "@main(" in line)


def test_arguments_and_results_have_names() -> None:
    def step(model: dict[str, Any], *rest: Any, scale: Any) -> Any:
        return {"out": first(model["w"][0], rest[0]) * scale}

    traced = trace(step, {"w": weights()}, batch()[0], scale=2.0)
    assert traced.in_names == ("model['w'][0]", "model['w'][1]", "rest[0]", "scale")
    assert traced.out_names == ("result['out']",)
    assert [s.shape for s in traced.in_avals] == [(4, 4), (4, 4), (2, 4), ()]
    assert traced.in_avals[3].weak_type and not traced.in_avals[0].weak_type
    text = traced.mlir_text()
    assert "jax.result_info = \"result['out']\"" in text
    assert "loc(\"model['w'][1]\")" in text


def test_unused_arguments_stay() -> None:
    traced = trace(lambda a, b, c: b * 2, jnp.ones(3), jnp.ones(4), jnp.ones(0))
    assert "tensor<3xf32>, %arg1: tensor<4xf32>, %arg2: tensor<0xf32>" in _main(plain_text(traced))


def test_donation_marks_all_leaves_of_an_argument() -> None:
    def step(x: jax.Array, ws: list[jax.Array]) -> list[jax.Array]:
        return [w + x.sum() for w in ws]

    traced = trace(step, batch(), weights(), donate_argnums=1)
    assert traced.donated == (1, 2)
    assert _main(plain_text(traced)).count("{jax.buffer_donor = true}") == 2
    assert trace(step, batch(), weights(), donate_argnums=(-1,)).donated == (1, 2)


def test_static_arguments() -> None:
    def step(power: int, x: jax.Array, act: Callable[..., Any]) -> jax.Array:
        return act(x) ** power

    traced = trace(step, 3, batch()[0], jnp.tanh, static_argnums=(0, 2))
    assert traced.in_names == ("x",)
    np.testing.assert_allclose(evaluate(traced, batch()[0]), jnp.tanh(batch()[0]) ** 3, rtol=1e-6)


def test_abstract_arguments() -> None:
    shapes = jax.eval_shape(lambda: (weights(), batch()[0]))
    assert plain_text(trace(loss, *shapes)) == plain_text(trace(loss, weights(), batch()[0]))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "bool", "float16", "uint32"])
def test_dtypes(dtype: str) -> None:
    x = jnp.ones((2, 3), dtype)
    step = named_computation(lambda x: (x, x.sum()), name="n")
    check_same(step, lambda x: (x, x.sum()), x)


def test_typed_keys_are_passed_as_their_data() -> None:
    keys = jax.random.split(jax.random.key(0), 3)

    def step(keys: jax.Array, x: jax.Array) -> Any:
        noise = named_computation(lambda k, s: jax.random.normal(k, s.shape), name="noise")
        return x + noise(keys[0], x), jax.random.fold_in(keys[1], 7)

    traced = trace(step, keys, batch()[0])
    assert traced.inputs[0].key_impl == "threefry2x32"
    assert traced.inputs[0].physical == ((3, 2), "uint32")
    assert traced.outputs[1].key_impl == "threefry2x32"
    assert traced.inputs[1].key_impl is None
    assert "%arg0: tensor<3x2xui32>" in _main(plain_text(traced))
    result, key = evaluate(traced, keys, batch()[0])
    expected, expected_key = step(keys, batch()[0])
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert (jax.random.key_data(key) == jax.random.key_data(expected_key)).all()


def test_raw_keys() -> None:
    step = named_computation(lambda k: jax.random.uniform(k, (3,)), name="noise")
    check_same(step, lambda k: jax.random.uniform(k, (3,)), jax.random.PRNGKey(3))


def test_large_constants_become_leading_inputs() -> None:
    table = np.arange(10000, dtype=np.float32).reshape(100, 100)
    small = np.arange(4, dtype=np.float32)
    lookup = named_computation(lambda i: jnp.asarray(table)[i].sum() + small.sum(), name="lookup")

    def step(i: jax.Array) -> Any:
        return call(lookup, 0)(i) + call(lookup, 1)(i + 1)

    def plain(i: jax.Array) -> Any:
        return jnp.asarray(table)[i].sum() + jnp.asarray(table)[i + 1].sum() + 2 * small.sum()

    traced = check_same(step, plain, jnp.int32(2))
    assert [c.shape for c in traced.constants] == [(100, 100)]
    text = plain_text(traced)
    assert "(%arg0: tensor<100x100xf32>, %arg1: tensor<i32>)" in _main(text)
    assert len(text) < 20_000
    assert traced.in_names == ("i",)


def test_calls_of_a_function_made_anew_share_one_body() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return sum(call(lambda w, y: loss(w, y) * 2, i)(ws, x[i]) for i in range(3))

    assert len(functions(plain_text(trace(step, weights(), batch())))) == 1


def test_calls_that_differ_have_bodies_of_their_own() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return sum(call(lambda w, y, i=i: loss(w, y) * i, i)(ws, x[i]) for i in range(1, 3))

    text = plain_text(trace(step, weights(), batch()))
    assert len(functions(text)) == 2
    assert [counter for _, counter in calls(text)] == [1, 2]


def test_static_argnames_and_settings_in_objects() -> None:
    @functools.partial(named_computation, name="n", static_argnames="times")
    def repeat(x: jax.Array, times: int) -> jax.Array:
        return jnp.tile(x, times)

    assert repeat(jnp.ones(2), times=3).shape == repeat(jnp.ones(2), 3).shape == (6,)
    with pytest.raises(FrontendError, match="static_argnames \\['n'\\] are not arguments"):
        named_computation(lambda x: x, name="n", static_argnames="n")


def test_named_computation_is_a_decorator() -> None:
    @named_computation(name="double")
    def double(x: jax.Array) -> jax.Array:
        """Twice x."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Twice x.")
    assert origins(plain_text(trace(double, jnp.ones(2)))) == ["double"]


def test_broadcast_and_reduce() -> None:
    def step(x: jax.Array) -> Any:
        y = broadcast({"a": x})["a"]
        return reduce(y.sum()), reduce(x, y, kind="max"), reduce(x, x, x, kind="add")

    traced = check_same(step, lambda x: (x.sum(), x, 3 * x), jnp.arange(3.0))
    text = plain_text(traced)
    assert text.count("mpmd.reduce<none>") == 3
    assert text.count("mpmd.broadcast") == 1
    gradient = plain_text(trace(jax.grad(lambda x: broadcast(x).sum()), jnp.ones(2)))
    assert "mpmd.reduce<none>" in gradient


def test_named_tensor_of_a_pytree() -> None:
    tree = {"a": jnp.ones(2), "b": None, "c": "text"}
    assert named_tensor(tree, "t")["c"] == "text"
    text = plain_text(trace(lambda t: named_tensor(t, "t"), {"a": jnp.ones(2), "b": jnp.ones(3)}))
    assert text.count('name="t"') == 2


def test_argument_and_result_shardings() -> None:
    traced = trace(
        lambda ws, x: first(ws[0], x),
        weights(),
        jnp.ones((4, 4)),
        in_shardings=([_sharded(None, "model"), None], _sharded(("data", "model"))),
        out_shardings=_sharded("data"),
    )
    text = plain_text(traced)
    assert 'sdy.mesh @mesh = <["data"=2, "model"=2]>' in text
    main = _main(text)
    assert '%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}' in main
    assert '%arg2: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}, {}]>}' in main
    assert main.count("sdy.sharding<") == 3


def test_sharding_constraints_inside_computations_and_loops() -> None:
    def layer(x: jax.Array) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.with_sharding_constraint(c * 2, _sharded("data")), None

        y = jax.lax.scan(body, x, length=2)[0]
        spec = PartitionSpec.UNCONSTRAINED
        return jax.lax.with_sharding_constraint(y, _sharded(spec, "model"))

    text = plain_text(trace(named_computation(layer, name="layer"), jnp.ones((4, 4))))
    assert '<@mesh, [{"data"}, {}]>' in text
    assert '<@mesh, [{?}, {"model"}]>' in text


def test_meshes_with_different_axes() -> None:
    other = AbstractMesh((4,), ("data",))
    with pytest.raises(FrontendError, match="must have the same axes"):
        trace(
            lambda a, b: a + b, jnp.ones(4), jnp.ones(4), in_shardings=(_sharded("data"), _sharded("data", mesh=other))
        )


def _closure_over_a_leak() -> Callable[..., Any]:
    kept: list[Any] = []
    jax.make_jaxpr(lambda x: kept.append(x))(1.0)
    return lambda x: x + kept[0]


def _prints(x: jax.Array) -> jax.Array:
    """In an order that devices do not have."""

    def body(x: jax.Array) -> jax.Array:
        jax.debug.print("x = {}", x, ordered=True)
        return x

    everywhere = jax.sharding.PartitionSpec()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    found: jax.Array = jax.shard_map(body, mesh=mesh, in_specs=everywhere, out_specs=everywhere)(x)
    return found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trace(lambda m: m, {"f": jnp.tanh}), r"argument m\['f'\] is not an array"),
        (lambda: trace(lambda x: "text", 1.0), "result is not an array but a str: 'text'"),
        (lambda: trace(3, 1.0), "trace needs a function, got int"),
        (lambda: trace(lambda x: x, 1.0, donate_argnums=1), "out of range"),
        (lambda: trace(lambda x: x, 1.0, donate_argnums=0, static_argnums=0), "both static and donated"),
        (lambda: trace(_closure_over_a_leak(), 1.0), "belongs to another trace"),
        (lambda: trace(_prints, 1.0), "ordered callbacks occur inside jax.shard_map"),
        (
            lambda: trace(lambda x: x, jnp.ones(3), in_shardings=(_sharded("data"),)),
            "size 3 .* cannot be divided into 2 parts",
        ),
        (lambda: trace(lambda x: x, jnp.ones(4), in_shardings=(None, None)), "in_shardings does not fit the arguments"),
        (
            lambda: trace(lambda x, y: x, {"x": 1.0}, {"y": 1.0}, in_shardings=(None, {"z": None})),
            r"it must be a pytree prefix of them.* at key path in_shardings\[1\]",
        ),
        (lambda: named_computation(jnp.tanh, name=""), "needs a non-empty string"),
        (lambda: named_computation(jnp.tanh, name="a,b"), "separate entries"),
        (lambda: named_computation(7, name="a"), "needs a function, got int"),
        (lambda: call(jnp.tanh, call_counter=-1), "must be a Python int from 0"),
        (lambda: call(jnp.tanh, call_counter=jnp.int32(1)), "use fori_loop"),
        (lambda: reduce(1.0, kind="avg"), "no kind 'avg'"),
        (lambda: reduce(1.0, 2.0), "needs kind="),
        (lambda: named_computation(lambda s: 1.0, name="a")({1, 2}), "neither an array nor hash"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        make()


def test_a_name_in_a_conditional_is_an_error_with_its_place() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.cond(x.sum() > 0, lambda: first(w, x), lambda: x)

    with pytest.raises(FrontendError) as error:
        trace(step, weights()[0], batch()[0])
    assert "'first' occurs inside a conditional" in str(error.value)
    assert "test_trace.py:" in str(error.value)
    inside = named_computation(step, name="whole")
    assert origins(plain_text(trace(inside, weights()[0], batch()[0]))) == ["whole"]


class _Assigned:
    def __init__(self, mesh: str, stage: int | None) -> None:
        self.mesh, self.stage = mesh, stage
        self.memory_kind: str | None = None


def _check(traced: Traced, **assigned: tuple[str, int | None]) -> None:
    check_names(traced, {name: _Assigned(*mesh_and_stage) for name, mesh_and_stage in assigned.items()})


def test_check_names() -> None:
    traced = trace(loss, weights(), batch()[0])
    _check(traced, first=("m0", 0), second=("m1", 1))
    with pytest.raises(FrontendError) as error:
        _check(traced, first=("m0", 0), secnd=("m1", 1))
    message = str(error.value)
    assert "the named computation 'second' is not assigned" in message
    assert "Did you mean 'second' by 'secnd', which occurs nowhere?" in message
    assert "programs.py:" in message


def test_of_many_names_a_few_are_reported_one_by_one() -> None:
    """So that what is said is not as long as the product of their numbers."""
    computations = {f"block{i}": None for i in range(100)}
    assignments: dict[str, Any] = {f"layer{i}": _Assigned("m0", None) for i in range(50)}
    problems, warnings = name_problems(dict.fromkeys(computations, ()), computations, {}, assignments)
    assert (len(problems), len(warnings)) == (9, 9)
    assert "which assigns 'layer0', 'layer1'" in problems[0].message and "and 34 more" in problems[0].message
    assert problems[-1].message == (
        "not assigned to a mesh either: 'block8', 'block9', 'block10', 'block11', 'block12', 'block13', 'block14', "
        "'block15' and 84 more"
    )
    assert warnings[-1].startswith("also assigned, and nowhere in the program: 'layer8', 'layer9'")


def test_names_for_other_programs_are_warned_of() -> None:
    traced = trace(loss, weights(), batch()[0])
    text = r"'secnd' is assigned to mesh 'm1' but occurs nowhere in the program; did you mean 'second'\?"
    with pytest.warns(MpmdWarning, match=text):
        _check(traced, first=("m0", 0), second=("m1", 1), secnd=("m1", None))


def test_check_names_of_nested_computations() -> None:
    """An unassigned computation between the two has the mesh of the outer one."""
    inner = named_computation(loss, name="unassigned")
    for fn in (loss, inner):
        traced = trace(named_computation(fn, name="outer"), weights(), batch()[0])
        _check(traced, outer=("m0", None))
        _check(traced, outer=("m0", None), first=("m0", None))
        with pytest.raises(FrontendError, match=r"'first' .* occurs inside the named computation 'outer'"):
            _check(traced, outer=("m0", None), first=("m1", None))


def test_check_names_where_computations_share_an_unassigned_name() -> None:
    """Each name is checked against the computation that it is in."""

    def stage(name: str, inner: str) -> Callable[[jax.Array], jax.Array]:
        block = named_computation(named_computation(jnp.sin, name=inner), name="block")
        return named_computation(block, name=name)

    traced = trace(lambda x: stage("a", "first")(stage("b", "second")(x)), jnp.ones(3))
    _check(traced, a=("m0", None), first=("m0", None), b=("m1", None), second=("m1", None))
    with pytest.raises(FrontendError) as raised:
        _check(traced, a=("m0", None), first=("m1", None), b=("m1", None), second=("m1", None))
    assert len(raised.value.diagnostics) == 1 and "'first'" in str(raised.value) and "'a'" in str(raised.value)

    traced = trace(lambda x: stage("a", "first")(stage("b", "first")(x)), jnp.ones(3))
    for a, b, outer in (("m0", "m1", "a"), ("m1", "m0", "b")):
        with pytest.raises(FrontendError, match=f"'first' .* occurs inside the named computation '{outer}'"):
            _check(traced, a=(a, None), b=(b, None), first=("m1", None))


def test_tracing_twice_gives_the_same_text() -> None:
    texts = {trace(jax.grad(loss), weights(), batch()[0]).mlir_text() for _ in range(2)}
    assert len(texts) == 1


def test_equal_bodies_are_written_out_where_names_have_them() -> None:
    def inner(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return 2 * x

    def outer(x: jax.Array) -> jax.Array:
        return named_computation(inner, name="inner")(x) + 1

    def step(x: jax.Array) -> jax.Array:
        for i in range(2):
            x = named_computation(outer, name=f"outer{i}")(x)
        return x

    text = plain_text(trace(step, jnp.ones(3)))
    assert origins(text) == ["outer0", "inner", "outer1", "inner"]
    assert text.count("stablehlo.custom_call") == 2
    assert " call @" not in text


def test_names_that_are_nested_too_deeply_for_python() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        f = first
        for i in range(60):
            f = named_computation(functools.partial(lambda f, w, x: jnp.sin(f(w, x)), f), name=f"level{i}")
        return f(w, x)

    with pytest.raises(FrontendError, match=r"test_trace.py:\d+: error: .* call sys.setrecursionlimit\(4000\)"):
        trace(step, weights()[0], batch()[0]).rewritten  # noqa: B018
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(4 * before)
    try:
        assert "level59" in trace(step, weights()[0], batch()[0]).rewritten.names
    finally:
        sys.setrecursionlimit(before)
