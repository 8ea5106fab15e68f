"""A named layer is a layer: of its class, with its fields and methods, wherever Equinox or a model looks."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from traced_programs import check_same, origins, plain_text

from mpmd_trace.equinox import NamedLayer, name_layers
from mpmd_trace.frontend import FrontendError, trace
from mpmd_trace.frontend.naming import named_computation

X = jnp.arange(4.0)
KEY = jax.random.key(0)


class Branching(eqx.Module):
    """Decides in Python: by an argument, a keyword argument, a field, a function."""

    linear: eqx.nn.Linear
    scale: float
    how: str = eqx.field(static=True)

    def __init__(self, how: str = "add") -> None:
        self.linear = eqx.nn.Linear(4, 4, key=KEY)
        self.scale, self.how = 2.0, how

    def __call__(self, x: jax.Array, double: bool = False, *, inference: bool = False, then: Any = None) -> Any:
        x = self.linear(x)
        x = x * self.scale if double else x
        x = x if inference else -x
        x = x if then is None else then(x)
        return x + 1 if self.how == "add" else x

    @property
    def width(self) -> int:
        return self.linear.in_features

    def twice(self, x: jax.Array) -> jax.Array:
        return self(self(x))


@dataclasses.dataclass(frozen=True)
class Setting:
    value: int


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((True,), {}),
        ((1,), {}),
        ((), {"double": True}),
        ((False,), {"inference": True}),
        ((), {"inference": 1, "then": jnp.tanh}),
        ((None,), {"then": None}),
        (("yes",), {}),
        ((Setting(3),), {}),
    ],
)
@pytest.mark.parametrize("transform", ["none", "jit", "trace"])
def test_flags_are_static(args: tuple[Any, ...], kwargs: dict[str, Any], transform: str) -> None:
    layer = Branching()
    named = name_layers(layer, lambda m: m, name="f")
    if transform == "trace":
        text = plain_text(check_same(lambda x: named(x, *args, **kwargs), lambda x: layer(x, *args, **kwargs), X))
        assert origins(text) == ["f"]
    else:
        run = eqx.filter_jit if transform == "jit" else lambda f: f
        assert jnp.allclose(run(named)(X, *args, **kwargs), layer(X, *args, **kwargs))


def test_equal_flags_of_other_types_are_other_programs() -> None:
    @named_computation(name="f")
    def kind(x: jax.Array, flag: Any) -> jax.Array:
        return x + {bool: 1, int: 2, float: 3}[type(flag)] + (1 if str(flag).startswith("-") else 0)

    assert [int(kind(jnp.int32(0), flag)) for flag in (1, True, 1.0, 1, 0.0, -0.0)] == [2, 1, 3, 2, 3, 4]


def test_flags_of_functions_are_static_and_calls_take_numbers_as_data() -> None:
    @named_computation(name="f")
    def f(x: jax.Array, *, flag: bool = False, scale: float = 1.0, then: Any = jnp.sin, what: str = "") -> jax.Array:
        x = then(x) * scale if flag else x
        return x if what else -x

    for kwargs in ({}, {"flag": True}, {"flag": True, "scale": 2, "then": jnp.cos}, {"what": "a"}):
        assert jnp.allclose(f(X, **kwargs), f.__wrapped__(X, **kwargs))
    with pytest.raises(FrontendError, match=r"the argument leaf \{1\} of type set is neither an array nor hashable"):
        f(X, what={1})
    with pytest.raises(FrontendError, match=r"\[1\] of type list is static \(static_argnames\) and cannot be hashed"):
        named_computation(f.__wrapped__, name="f", static_argnames="what")(X, what=[1])


def test_what_is_no_array_in_a_result_is_passed_through() -> None:
    @named_computation(name="f")
    def f(x: jax.Array, word: str) -> Any:
        return {"x": x * 2, "word": word.upper(), "then": jnp.sin, "none": None, "number": 3}

    def step(x: jax.Array) -> Any:
        found = f(x, "a")
        assert found["word"] == "A" and found["then"] is jnp.sin and found["none"] is None
        return found["x"], found["number"]

    check_same(step, lambda x: (x * 2, 3), X)
    assert jax.vmap(lambda x: f(x, "b"), out_axes={"x": 0, "word": None, "then": None, "none": None, "number": None})


def test_a_named_layer_is_of_its_class() -> None:
    layer = Branching()
    named = name_layers(layer, lambda m: m, name="f")
    assert isinstance(named, Branching) and isinstance(named, NamedLayer)
    assert named.mpmd_name == "f" and type(named).__doc__ == Branching.__doc__
    assert named.width == 4 and named.how == "add"
    assert jnp.allclose(named.twice(X), layer.twice(X))
    assert inspect.signature(named) == inspect.signature(layer)
    assert dataclasses.fields(named) == dataclasses.fields(layer)
    assert repr(named).startswith("Branching['f'](")
    assert "_mpmd" not in repr(jax.tree_util.tree_leaves_with_path(named))
    assert eqx.tree_equal(named, name_layers(layer, lambda m: m, name="f")) is not False
    assert eqx.tree_equal(named, name_layers(layer, lambda m: m, name="g")) is False
    with pytest.raises(dataclasses.FrozenInstanceError):
        named.scale = 3.0
    activation = name_layers(eqx.nn.Lambda(jnp.tanh), lambda m: m, name="f")
    assert hash(activation) == hash(name_layers(eqx.nn.Lambda(jnp.tanh), lambda m: m, name="f"))


def test_a_method_that_calls_the_layer_runs_it_by_name() -> None:
    named = name_layers(Branching(), lambda m: m, name="f")
    assert origins(plain_text(trace(named.twice, X))) == ["f", "f"]
    assert origins(plain_text(trace(lambda m, x: jax.vmap(m)(x), *(_arrays(named), jnp.ones((2, 4)))))) == ["f"]


def _arrays(model: Any) -> Any:
    """The model as it is an argument of `trace`, which takes arrays alone."""
    return eqx.tree_at(lambda m: m.scale, model, jnp.float32(2.0))


def test_surgery() -> None:
    mlp = eqx.nn.MLP(4, 4, 4, 2, key=KEY)
    named = name_layers(mlp, lambda m: m.layers)
    other = eqx.tree_at(lambda m: m.layers[1].weight, named, jnp.zeros((4, 4)))
    assert other.layers[1].mpmd_name == "layers_1" and not other.layers[1].weight.any()
    assert jnp.allclose(other.layers[1](X), other.layers[1].bias)
    doubled = jax.tree.map(lambda x: 2 * x if eqx.is_array(x) else x, named)
    assert doubled.layers[2].mpmd_name == "layers_2"
    arrays, rest = eqx.partition(named, eqx.is_array)
    assert eqx.tree_equal(eqx.combine(arrays, rest), named)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, named)
    file.seek(0)
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(file, mlp), mlp)
    quiet = eqx.nn.inference_mode(name_layers([eqx.nn.Dropout()], lambda m: m[0]))
    assert quiet[0].inference and quiet[0].mpmd_name == "0"
    assert jnp.allclose(quiet[0](X), X)


def test_replacing_a_field_keeps_the_name() -> None:
    class Scale(eqx.Module):
        weight: jax.Array
        power: int = 1

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.weight * x**self.power

    named = name_layers(Scale(X), lambda m: m, name="f")
    squared = dataclasses.replace(named, power=2)
    assert squared.mpmd_name == "f" and jnp.allclose(squared(X), X**3)


def _activation(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


def test_copies_and_pickles() -> None:
    for layer in (eqx.nn.Linear(4, 4, key=KEY), _activation):
        named = name_layers([layer], lambda m: m)[0]
        for other in (copy.copy(named), copy.deepcopy(named), pickle.loads(pickle.dumps(named))):
            assert type(other) is type(named) and other.mpmd_name == "0"
            assert jnp.allclose(other(X), layer(X))


def test_naming_twice_and_inside() -> None:
    mlp = eqx.nn.MLP(4, 4, 4, 2, key=KEY)
    named = name_layers(mlp, lambda m: m.layers)
    again = name_layers(named, lambda m: m.layers[0], name="first")
    assert [layer.mpmd_name for layer in again.layers] == ["first", "layers_1", "layers_2"]
    assert origins(plain_text(trace(again, X))) == ["first", "layers_1", "layers_2"]
    for outer in (
        name_layers(named, lambda m: m, name="all"),
        name_layers(mlp, lambda m: [m, *m.layers], name=lambda n: "all" if n == "model" else n),
    ):
        assert isinstance(outer, eqx.nn.MLP)
        traced = trace(outer, X)
        assert ("all", "layers_1") in traced.rewritten.nested and list(traced.rewritten.computations) == ["all"]
        assert jnp.allclose(outer(X), mlp(X))
        inside = name_layers(outer, lambda m: m.layers[2], name="last")
        assert ("all", "last") in trace(inside, X).rewritten.nested


def test_functions_that_a_list_of_layers_holds_twice_are_layers() -> None:
    layers = [jnp.sin, jnp.tanh, jnp.sin]
    named = name_layers(layers, lambda m: m)
    assert [layer.mpmd_name for layer in named] == ["0", "1", "2"]
    assert named[2](0.5) == jnp.sin(0.5)


def test_functions_are_named_where_they_occur_once() -> None:
    mlp = eqx.nn.MLP(4, 4, 4, 1, activation=jnp.tanh, final_activation=jnp.sin, key=KEY)
    named = name_layers(mlp, lambda m: [m.activation, m.layers[0]])
    text = plain_text(check_same(lambda x: named(x), lambda x: mlp(x), X))
    assert sorted(origins(text)) == ["activation", "layers_0"]
    same = name_layers(eqx.nn.MLP(4, 4, 4, 1, jnp.tanh, jnp.tanh, key=KEY), lambda m: m.layers[0])
    with pytest.raises(FrontendError, match=r"2 times \(activation, final_activation\).*as eqx.nn.Lambda\(tanh\)"):
        name_layers(same, lambda m: m.activation)


def test_a_layer_that_occurs_twice_has_one_name() -> None:
    layer = eqx.nn.Linear(4, 4, key=KEY)
    model = name_layers([layer, jnp.tanh, layer], lambda m: m[0])
    assert [model[0].mpmd_name, model[2].mpmd_name] == ["0", "0"]


def test_hooks_of_subclasses_do_not_see_ours() -> None:
    seen = []

    class Registered(eqx.Module):
        weight: jax.Array

        def __init_subclass__(cls, **kwargs: Any) -> None:
            seen.append(cls.__name__)
            super().__init_subclass__(**kwargs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.weight * x

    assert jnp.allclose(name_layers(Registered(X), lambda m: m, name="f")(X), X * X)
    assert not seen


def test_layers_whose_call_is_compiled_by_equinox() -> None:
    class Compiled(eqx.Module):
        weight: jax.Array

        @eqx.filter_jit
        def __call__(self, x: jax.Array, negative: bool = False) -> jax.Array:
            return self.weight * (-x if negative else x)

    named = name_layers(Compiled(X), lambda m: m, name="f")
    text = plain_text(check_same(lambda x: named(x, True), lambda x: -X * x, X))
    assert origins(text) == ["f"]
    wrapped = name_layers({"f": eqx.filter_vmap(eqx.nn.Linear(4, 4, key=KEY))}, lambda m: m["f"])
    assert origins(plain_text(trace(wrapped["f"], jnp.ones((3, 4))))) == ["f"]
