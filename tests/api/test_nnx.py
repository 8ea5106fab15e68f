"""Flax NNX: modules and optimizers that a step changes in place, over several meshes."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace as mt
import mpmd_trace.nnx as mnnx
from pipelines import assert_same, topology


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.dropout(jnp.tanh(self.norm(self.linear(x))))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Linear(4, 4, use_bias=False, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(4, 4, use_bias=False, rngs=rngs)
        self.head.kernel = self.embed.kernel  # tied

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Counting(nnx.Module):
    """The cheapest module with a state."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones((4,)))
        self.count = nnx.BatchStat(jnp.zeros(()))
        self.mode = "train"

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.mode == "train":
            self.count[...] += 1
        return x * self.weight[...]


class Pair(nnx.Module):
    def __init__(self) -> None:
        self.layers = nnx.List([Counting(), Counting()])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


def loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - y) ** 2)


def train(model: Any, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    value, grads = mnnx.value_and_grad(loss, microbatches=2)(model, x, y)
    optimizer.update(model, grads)
    return value


def sgd(model: Any, x: jax.Array) -> jax.Array:
    grads = nnx.grad(lambda m: jnp.sum(m(x)))(model)
    nnx.update(model, jax.tree.map(lambda w, g: w - 0.1 * g, nnx.state(model, nnx.Param), grads))
    return jnp.sum(x)


def config(*names: str, **options: Any) -> mt.config.Config:
    half = (len(names) + 1) // 2
    return mt.make_config(topology(size=1), {n: "m0" if i < half else "m1" for i, n in enumerate(names)}, **options)


def pair_config() -> mt.config.Config:
    return config("layers_0", "layers_1")


def named_pair() -> Pair:
    return mnnx.name_layers(Pair(), "layers")


def values(*objects: Any) -> dict[Any, np.ndarray]:
    def plain(x: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return {path: plain(v.get_raw_value()) for path, v in nnx.to_flat_state(nnx.state(objects))}


def device(variable: nnx.Variable) -> int:
    (found,) = variable.get_raw_value().devices()
    return int(found.id)


X = jnp.arange(16.0).reshape(4, 4) / 16


def test_training_is_that_of_nnx_jit_and_every_layer_stays_on_its_mesh(tmp_path: Path) -> None:
    def make() -> tuple[Model, nnx.Optimizer]:
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    tx = optax.adam(1e-2)
    (theirs, their_state), (ours, our_state) = make(), make()
    mnnx.name_layers(ours, ["embed", Block, "head"])
    kernel, mean = ours.blocks[1].linear.kernel, ours.blocks[1].norm.mean
    names = ("embed", "blocks_0", "blocks_1", "head")
    step = mnnx.jit(train, config(*names, pipeline_schedule="1F1B", placement="cut"))
    reference = nnx.jit(train)
    for _ in range(3):
        found, wanted = step(ours, our_state, X, X[::-1]), reference(theirs, their_state, X, X[::-1])
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    expected = values(theirs, their_state)
    for path, value in values(ours, our_state).items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-4, atol=1e-6, err_msg=str(path))
    assert expected[0, "blocks", 1, "dropout", "rngs", "count"] == 6, "microbatches have their own random numbers"
    assert ours.blocks[1].linear.kernel is kernel and ours.blocks[1].norm.mean is mean, "the same objects"
    assert ours.head.kernel is ours.embed.kernel, "and tied ones are tied"
    moments = our_state.opt_state[0].mu
    for block, where in ((0, 0), (1, 1)):
        layer, moment = ours.blocks[block], moments.blocks[block]
        held = (layer.linear.kernel, layer.norm.mean, layer.dropout.rngs.count, moment.linear.kernel)
        assert [device(v) for v in held] == [where] * 4

    mt.save(tmp_path / "saved", (nnx.state(ours), nnx.state(our_state)))
    wanted = values(ours, our_state)
    [[compiled]] = step._compiled.values()
    restored, state = make()
    mnnx.name_layers(restored, ["embed", Block, "head"])
    for one, found in zip((restored, state), mt.restore(tmp_path / "saved", compiled, argnums=(0, 1)), strict=True):
        nnx.update(one, found)
    assert device(state.opt_state[0].mu.blocks[1].linear.kernel) == 1
    for path, value in values(restored, state).items():
        np.testing.assert_array_equal(value, wanted[path], err_msg=str(path))
    np.testing.assert_array_equal(compiled(restored, state, X, X), compiled(ours, our_state, X, X))


def test_objects_go_to_the_meshes_and_a_compiled_program_changes_them() -> None:
    model = named_pair()
    step = mnnx.jit(sgd, pair_config(), donate_argnums=0)
    compiled = step.lower(model, X).compile()
    assert compiled.lowered.traced.in_names[:2] == ("model.layers[0].count", "model.layers[0].weight")
    before = model.layers[1].weight.get_raw_value()
    assert mnnx.place(compiled, model)[0] is model
    assert [device(layer.weight) for layer in model.layers] == [0, 1]
    made = mnnx.create(named_pair, compiled)
    assert [device(layer.count) for layer in made.layers] == [0, 1]
    for one in (model, made):
        np.testing.assert_allclose(compiled(one, X), jnp.sum(X))
        assert [int(layer.count[...]) for layer in one.layers] == [1, 1]
        np.testing.assert_allclose(one.layers[1].weight[...], 1 - 0.1 * jnp.sum(X, 0), rtol=1e-5)
    assert not before.is_deleted(), "what was placed was given away, and not what it was made of"
    shardings = compiled.input_shardings[0][0]
    assert isinstance(shardings, nnx.State), "facts about a program are states"
    assert {d.id for d in shardings["layers"][1]["count"].get_raw_value().device_set} == {1}
    other = named_pair()
    other.layers[0].mode = "test"
    with pytest.raises(mt.MpmdError, match="sgd was compiled for other arguments"):
        compiled(other, X)


def test_attributes_and_new_variables_are_kept() -> None:
    def call(model: Pair, x: jax.Array, mode: str) -> tuple[jax.Array, Pair]:
        for layer in model.layers:
            layer.mode = mode
        y = model(x)
        model.last = nnx.Intermediate(y)
        return y, model

    model = named_pair()
    run = mnnx.jit(call, pair_config(), static_argnames="mode")
    y, same = run(model, X, mode="test")
    np.testing.assert_array_equal(y, X)
    assert same is model and device(model.last) == 1 and model.layers[0].mode == "test"
    assert isinstance(model.layers[0], mnnx.NamedLayer), "what it does to a layer does not undo its name"
    assert [int(layer.count[...]) for layer in model.layers] == [0, 0]

    @nnx.jit
    def outer(model: Pair, x: jax.Array) -> jax.Array:
        return run(model, x, mode="train")[0]

    model = named_pair()
    with pytest.warns(mt.MpmdWarning, match="call is called within another transformation of JAX"):
        outer(model, X)  # names mean nothing there, and changes are kept as well
    assert [int(layer.count[...]) for layer in model.layers] == [1, 1]


def test_what_a_layer_only_reads_is_no_result_of_it() -> None:
    lowered = mnnx.jit(lambda model, x: model(x), pair_config()).lower(named_pair(), X)
    calls = [line for line in lowered.as_text("stablehlo").splitlines() if "mpmd.named_computation" in line]
    assert len(calls) == 2 and all(line.count("tensor<4xf32>") <= 1 for line in calls), calls


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("blocks", ["blocks_0", "blocks_1"]),
        ("blocks[*]", ["blocks_0", "blocks_1"]),
        ("blocks.*.norm", ["blocks_0_norm", "blocks_1_norm"]),
        (["embed", "blocks[1]"], ["embed", "blocks_1"]),
        (Block, ["blocks_0", "blocks_1"]),
        (lambda m: {"a": m.head, "b": [m.blocks[1]]}, ["head", "blocks_1"]),
        (lambda m: m, ["model"]),
    ],
)
def test_layers_are_selected(where: Any, names: list[str]) -> None:
    model = Model(nnx.Rngs(0))
    paths = list(values(model))
    assert mnnx.name_layers(model, where) is model
    found = [m for _, m in nnx.iter_modules(model) if isinstance(m, mnnx.NamedLayer)]
    assert {m.mpmd_name for m in found} == set(names)
    assert list(values(model)) == paths, "variables are where they were"
    for copied in (nnx.clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        again = [m.mpmd_name for _, m in nnx.iter_modules(copied) if isinstance(m, mnnx.NamedLayer)]
        assert set(again) == set(names)


def test_names_are_chosen_and_replaced() -> None:
    model = named_pair()
    assert [layer.mpmd_name for layer in model.layers] == ["layers_0", "layers_1"]
    assert all(isinstance(layer, Counting) and type(layer).__doc__ == Counting.__doc__ for layer in model.layers)
    mnnx.name_layers(model, "layers", name=lambda name: name.upper())
    assert [layer.mpmd_name for layer in model.layers] == ["LAYERS_0", "LAYERS_1"]
    mnnx.name_layers(model, Counting, name="same")
    assert [layer.mpmd_name for layer in model.layers] == ["same", "same"]


@pytest.mark.parametrize(
    ("where", "name", "text"),
    [
        ("blocs", None, "selects no layer: there is no 'blocs' in the Pair, which has layers.0, layers.1, layers"),
        (nnx.Linear, None, "there is no 'Linear' in the Pair"),
        (lambda m: m.layers[0].weight, None, "selects a Param, which is not a layer"),
        (lambda m: Counting(), None, "the Counting that `where` returns is not part of the model"),
        (lambda m: [], None, "selects a list, which is not a layer"),
        (3, None, "made of paths, classes or a function, not 3"),
        ("layers", ["a"], r"1 names for 2 layers \(layers_0, layers_1\)"),
        ("layers", "a,b", "name 'a,b' contains ','"),
    ],
)
def test_wrong_selections_are_errors(where: Any, name: Any, text: str) -> None:
    with pytest.raises(mt.MpmdError, match=text):
        mnnx.name_layers(Pair(), where, name=name)


def _in_body(model: Pair, x: jax.Array) -> jax.Array:
    def body(i: jax.Array, carry: jax.Array, x: jax.Array) -> jax.Array:
        return carry + jnp.sum(model(x))

    return mt.enumerated_for(body, jnp.zeros(()), x)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda m: mt.jit(sgd, pair_config())(m, X),
            r"sgd changes .* mpmd_trace.jit would lose, as jax.jit does: "
            r"model.layers\[0\].count, .*\. Use mpmd_trace.nnx.jit",
        ),
        (lambda m: mt.filter_jit(sgd, pair_config())(m, X), "mpmd_trace.filter_jit would lose"),
        (lambda m: mt.jit(lambda x: m(x), pair_config())(X), "changes an object that is not among the arguments"),
        (lambda m: mnnx.jit(lambda x: m(x), pair_config())(X), "changes an object that is not among the arguments"),
        (lambda m: mnnx.jit(_in_body, pair_config())(m, X), "changes an object that is not among the arguments"),
        (
            lambda m: mnnx.jit(
                lambda m, x: mt.named_computation(lambda a, x: a(x), name="layers_0")(m.layers[0], x), pair_config()
            )(m, X),
            "which named_computation would lose, as jax.jit does: a.count. Use mpmd_trace.nnx.named_computation",
        ),
        (
            lambda m: mnnx.jit(lambda m, x: mt.named_computation(m.layers[0], name="layers_0")(x), pair_config())(m, X),
            "which named_computation would lose, as jax.jit does: self.count",
        ),
        (
            lambda m: mnnx.jit(
                lambda m, x: mt.named_computation(m.layers[0].__call__, name="layers_0")(x), pair_config()
            )(m, X),
            "which named_computation would lose, as jax.jit does: self.count",
        ),
        (
            lambda m: mt.value_and_grad(loss, microbatches=2)(m, X, X),
            "which value_and_grad would lose, as jax.jit does: model.layers.*Use mpmd_trace.nnx.value_and_grad",
        ),
        (lambda m: mnnx.value_and_grad(loss, microbatches=2, argnums=1), "has no argnums"),
        (lambda m: mnnx.value_and_grad(loss, microbatches=2)(3.0, X, X), "takes a module as the first argument"),
        (
            lambda m: mnnx.value_and_grad(lambda m, x: setattr(m, "new", nnx.Param(X)) or jnp.sum(x), microbatches=2)(
                m, X
            ),
            "gives the model new variables or attributes",
        ),
    ],
)
def test_changes_that_would_be_lost_are_errors(call: Any, text: str) -> None:
    with pytest.raises(mt.MpmdError, match=text):
        call(named_pair())


def test_functions_that_change_nothing_need_no_other_jit() -> None:
    model = named_pair()
    for layer in model.layers:
        layer.mode = "test"
    for run in (mt.jit(lambda m, x: m(x), pair_config()), mt.jit(lambda m, x: (m, m(x))[1], pair_config())):
        np.testing.assert_array_equal(run(model, X), X)


def test_a_method_of_metrics_is_named_and_they_stay_on_one_mesh() -> None:
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), largest=nnx.metrics.Average("largest"))

    def step(metrics: nnx.MultiMetric, x: jax.Array) -> None:
        mnnx.named_computation(metrics.update, name="metrics")(loss=x, largest=jnp.max(x))

    run = mnnx.jit(step, mt.make_config(topology(size=1), {"metrics": "m1"}))
    for x in ([1.0, 2.0], [3.0, 4.0]):
        run(metrics, jnp.array(x))
    assert {name: float(value) for name, value in metrics.compute().items()} == {"loss": 2.5, "largest": 3.0}
    assert metrics.loss.count[...].devices() == {jax.devices()[1]}


@pytest.mark.parametrize("metric", [nnx.metrics.Average, nnx.metrics.Welford])
def test_numbers_of_a_metric_are_on_one_mesh_though_its_update_has_no_name(metric: Any) -> None:
    """A count alone would be on the first mesh, where `compute` could not put it together with the total."""
    model, metrics = named_pair(), nnx.MultiMetric(loss=metric("loss"), first=metric("first"))

    def step(model: Pair, metrics: nnx.MultiMetric, x: jax.Array) -> None:
        y = model(x)
        metrics.update(loss=jnp.mean(y), first=model.layers[0](x)[0])

    run = mnnx.jit(step, pair_config())
    with warnings.catch_warnings(action="error"):
        run(model, metrics, X)
        run(model, metrics, X)
    places = [{d.id for x in jax.tree.leaves(nnx.state(m)) for d in x.devices()} for m in (metrics.first, metrics.loss)]
    assert places == [{0}, {1}]
    expected = nnx.MultiMetric(loss=metric("loss"), first=metric("first"))
    for _ in range(2):
        step(named_pair(), expected, X)
    jax.tree.map(np.testing.assert_allclose, metrics.compute(), expected.compute())


def test_metrics_on_several_meshes_are_a_warning_that_says_what_to_do() -> None:
    """They have names, which say where they are."""

    class Both(nnx.Metric):
        def __init__(self) -> None:
            self.first = nnx.metrics.MetricState(jnp.zeros((4, 4)))
            self.second = nnx.metrics.MetricState(jnp.zeros((4, 4)))

        def reset(self) -> None: ...

        def update(self, *, first: jax.Array, second: jax.Array) -> None:
            self.first[...] = mt.named_computation(jnp.add, name="layers_0")(self.first[...], first)
            self.second[...] = mt.named_computation(jnp.add, name="layers_1")(self.second[...], second)

    model, metrics = named_pair(), Both()

    def step(model: Pair, metrics: Both, x: jax.Array) -> None:
        y = model.layers[0](x)
        metrics.update(first=y, second=model.layers[1](y))

    run = mnnx.jit(step, pair_config())
    text = r"\(Both\) are on several meshes.*nnx.named_computation\(metrics.update"
    with pytest.warns(mt.MpmdWarning, match=text) as caught:
        run(model, metrics, X)
    assert len(caught) == 1
    assert len({metrics.first[...].sharding, metrics.second[...].sharding}) == 2
    run(model, metrics, X)  # said once


def with_metrics() -> tuple[Any, Pair, nnx.Optimizer, nnx.MultiMetric]:
    """A step of tied objects that changes all of them and an array, and the objects."""

    def step(model: Pair, average: jax.Array, optimizer: nnx.Optimizer, metrics: nnx.MultiMetric, x: jax.Array) -> Any:
        value, grads = mnnx.value_and_grad(lambda model, x: jnp.mean(model(x) ** 2), microbatches=2)(model, x)
        optimizer.update(model, grads)
        metrics.update(loss=value)
        return 0.9 * average + 0.1 * model.layers[0].weight[...], value

    model = named_pair()
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    return step, model, optimizer, nnx.MultiMetric(loss=nnx.metrics.Average("loss"))


@pytest.mark.parametrize("has_advance", [True, False])
def test_a_program_of_objects_runs_as_the_step_does(has_advance: bool) -> None:
    step, model, optimizer, metrics = with_metrics()
    average = jnp.zeros(4)
    before = jax.tree.map(np.asarray, nnx.state((model, optimizer, metrics)))
    program = mnnx.program(
        step,
        (model, average, optimizer, metrics, X),
        pair_config(),
        steps=3,
        advance=(lambda i, args, result: (args[0], result[0], *args[2:4], X + i)) if has_advance else None,
        loss=lambda result: result[1],
    )
    expected, batch = [], X
    args = program.args
    compiled = program.jitted().lower(*args).compile()
    losses = []
    for i in range(3):
        result = compiled(*args)
        losses.append(program.loss(result))
        args = program.advance(i, args, result)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state((model, optimizer, metrics)))  # nothing is changed
    for i in range(3):
        now, value = step(model, average, optimizer, metrics, batch)
        expected.append(value)
        average, batch = (now, X + i) if has_advance else (average, batch)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    wanted = [*jax.tree.leaves(nnx.state((model, optimizer, metrics))), average]
    got = [*jax.tree.leaves([args[0], args[2], args[3]]), args[1]]
    assert_same(got, wanted)


def test_a_program_without_objects_is_an_error() -> None:
    with pytest.raises(mt.MpmdError, match="no argument is an NNX object"):
        mnnx.program(lambda x: x, (X,), pair_config())


@pytest.mark.filterwarnings("ignore:step is called within another transformation")
@pytest.mark.parametrize("outer", [nnx.jit, lambda fn: mnnx.jit(fn, pair_config())], ids=["nnx.jit", "mnnx.jit"])
def test_a_step_with_metrics_is_a_part_of_another(outer: Any) -> None:
    step, model, optimizer, metrics = with_metrics()
    inner = mnnx.jit(step, pair_config())
    outer(lambda *args: inner(*args))(model, jnp.zeros(4), optimizer, metrics, X)
    plain, expected, state, wanted = with_metrics()
    plain(expected, jnp.zeros(4), state, wanted, X)
    np.testing.assert_allclose(metrics.compute()["loss"], wanted.compute()["loss"], rtol=1e-6)


def test_stacked_layers_are_cut_and_stay_one_variable() -> None:
    class Stacked(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.vmap(lambda _: Counting(), in_axes=0, out_axes=0)(jnp.arange(4))

        def run(self, x: jax.Array) -> jax.Array:
            forward = nnx.scan(lambda layer, x: layer(x), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            return forward(self.layers, x)

    def step(model: Stacked, x: jax.Array) -> jax.Array:
        return mnnx.name_scans(model.run, "layers")(x)

    model = Stacked()
    meshes = topology(size=1)
    run = mnnx.jit(step, mt.make_config(meshes, {"layers": ["m0", "m1"]}))
    np.testing.assert_array_equal(run(model, X), X)
    assert [s.device.id for s in model.layers.count.get_raw_value().addressable_shards] == [0, 1]
    np.testing.assert_array_equal(model.layers.count[...], [1, 1, 1, 1])

    on_last = NamedSharding(meshes["m1"], PartitionSpec())
    for place, x in ((on_last, X), ({"x": on_last}, {"x": X})):
        run = mnnx.jit(
            lambda model, x: step(model, jax.tree.leaves(x)[0]),
            mt.make_config(meshes, {"layers": ["m0", "m1"]}),
            in_shardings=(None, place),
        )
        compiled = run.lower(model, x).compile()
        assert compiled.function_named_shardings.inputs[0][1] == place
        np.testing.assert_array_equal(run(model, x), X)


def test_a_function_may_close_over_a_model_that_it_does_not_change() -> None:
    model = Pair()
    for layer in model.layers:
        layer.mode, layer.weight[...] = "test", X[1]
    wanted = model(X)
    mnnx.name_layers(model, "layers")
    for run in (mt.jit(lambda x: model(x), pair_config()), mnnx.jit(lambda x: model(x), pair_config())):
        np.testing.assert_allclose(run(X), wanted, rtol=1e-6)
    np.testing.assert_allclose(model(X), wanted, rtol=1e-6)


def test_layers_are_named_in_the_loss_of_value_and_grad() -> None:
    def named_loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return loss(mnnx.name_layers(model, "layers"), x, y)

    value, grads = mnnx.jit(mnnx.value_and_grad(named_loss, microbatches=2), pair_config())(Pair(), X, 0 * X)
    wanted, wanted_grads = nnx.value_and_grad(loss)(Pair(), X, 0 * X)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), grads, wanted_grads)


@pytest.mark.parametrize(
    "call",
    [
        lambda step: nnx.jit(step)(Pair(), X),
        lambda step: nnx.grad(step)(Pair(), X),
        lambda step: mnnx.jit(step, pair_config())(Pair(), X),
        lambda step: mnnx.jit(lambda m, x: nnx.value_and_grad(step)(m, x)[0], pair_config())(Pair(), X),
    ],
)
def test_naming_the_layers_of_a_model_that_a_transformation_lends_is_an_error(call: Any) -> None:
    with pytest.raises(
        mt.MpmdError, match=r"takes back the arrays of objects but not their names. Name the layers bef"
    ):
        call(lambda model, x: jnp.sum(mnnx.name_layers(model, "layers")(x)))


def test_layers_are_named_where_a_model_is_made() -> None:
    made = nnx.jit(lambda: mnnx.name_layers(Pair(), "layers"))()
    assert [layer.mpmd_name for layer in made.layers] == ["layers_0", "layers_1"]
