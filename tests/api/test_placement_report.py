"""What a step keeps on which mesh and what it sends, against numbers counted by hand."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh, Mesh

import mpmd_trace as mt
from mpmd_trace.api.lowered import placement_warnings
from mpmd_trace.backend.placement_tables import (
    MeshMemory,
    MisplacedParam,
    PlacementReport,
    ReplacedOnOtherMesh,
    Traffic,
)
from mpmd_trace.passes.compile_options import OUR_OPTIONS
from mpmd_trace.report.placement_reasons import reasons
from pipelines import layer, loss_of, summed_gradients, topology

NAMES = {"layer0": "first", "layer1": "first", "layer2": "second", "layer3": "second"}
#: Bytes of a weight (16 x 16 float32), and of the activations of a microbatch (4 x 16).
WEIGHT, ROWS = 1024, 256
ADAM = optax.adam(1e-3)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def config(names: dict[str, str] = NAMES, devices: int = 2, **more: Any) -> mt.config.Config:
    mesh = AbstractMesh((devices,), ("data",))
    return mt.make_config({"first": mesh, "second": mesh}, names, **{"pipeline_schedule": "1F1B", **more})


loss = loss_of(layer, "layer")


def train(weights: Any, batch: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, summed_gradients(loss, weights, batch))


def train_with_momentum(weights: Any, momentum: Any, batch: Any, loss: Any = loss) -> Any:
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, summed_gradients(loss, weights, batch))
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum


def train_with_adam(weights: Any, opt_state: Any, batch: Any, loss: Any = loss) -> Any:
    updates, opt_state = ADAM.update(summed_gradients(loss, weights, batch), opt_state)
    return optax.apply_updates(weights, updates), opt_state


def on_devices() -> dict[str, Mesh]:
    return dict(zip(("first", "second"), topology(size=1).values(), strict=True))


def report_of(step: Any, *args: Any, config: mt.config.Config = config(), **options: Any) -> PlacementReport:  # noqa: B008
    return mt.jit(step, config, **options).lower(*args).placement_report()


def test_a_pipeline_of_two_meshes() -> None:
    found = report_of(train, [array(16, 16)] * 4, array(8, 4, 16))
    # 8 microbatches, each there and back, to two devices.
    assert found.causes == {"activations": (8, 8 * 2 * ROWS), "cotangents": (8, 8 * 2 * ROWS)}
    assert found.bytes == 2 * 8 * 2 * ROWS
    assert found.misplaced == () and found.returning == ()
    first, second = found.meshes
    # At the peak of the first mesh: two microbatches of 4 values each (3 from JAX 0.12 on), a cotangent, and where the
    # microbatches are in the batch.
    saved = 4 if first.peak == 8480 else 3
    activations = (2 * saved + 1) * ROWS + 8 * 4
    total = 2 * WEIGHT + 8 * ROWS + 2 * WEIGHT + activations
    assert first == MeshMemory("first", 2 * WEIGHT, 0, 8 * ROWS, 2 * WEIGHT, activations, total)
    assert (second.parameters, second.arguments, second.gradients) == (2 * WEIGHT, 0, 2 * WEIGHT)
    assert second.peak == second.parameters + second.gradients + second.activations
    assert set(found.roles.values()) == {"parameters", "arguments"} and found.roles["batch"] == "arguments"
    assert found.links.rows == [
        ["first", "second", "8", f"{8 * 2 * ROWS:,}"],
        ["second", "first", "8", f"{8 * 2 * ROWS:,}"],
    ]


def test_what_a_running_program_takes_and_makes_counts() -> None:
    args = [array(16, 16)] * 4, array(8, 4, 16)
    config = mt.make_config(on_devices(), NAMES, pipeline_schedule="1F1B")
    compiled = mt.jit(train, config, donate_argnums=0).lower(*args).compile()
    values, found = compiled.lowered.placement_report(), compiled.placement_report()
    for mesh, one in zip(values.meshes, found.meshes, strict=True):
        columns = [getattr(one, column) for column in found.columns if column != "peak"]
        assert sum(columns) == one.peak and min(columns) >= 0
        # The second mesh runs a backward right after its forward, so its peak is when that reads the activations.
        assert one.activations >= mesh.activations // 2 > 0


def tied_loss(p: Any, x: Any) -> Any:
    x = mt.named_computation(lambda e, x: x @ e, name="layer0")(p["e"], x)
    x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name="layer2")(p["w"], x)
    x = mt.named_computation(lambda e, x: x @ e.T, name="layer3")(p["e"], x)
    return jnp.mean(x**2)


def test_tied_weights_and_the_state_of_an_optimizer() -> None:
    """`e` is sent to the mesh that uses it, too, once; its gradient comes back for each microbatch, or once."""

    def step(p: Any, momentum: Any, batch: Any) -> Any:
        return train_with_momentum(p, momentum, batch, tied_loss)

    p = {"e": array(32, 16), "w": array(16, 16)}
    names = {n: m for n, m in NAMES.items() if n != "layer1"}
    found = report_of(step, p, p, array(4, 4, 32), config=config(names, devices=1), donate_argnums=(0, 1))
    assert found.roles == {
        "p['e']": "parameters",
        "p['w']": "parameters",
        "momentum['e']": "state",
        "momentum['w']": "state",
        "batch": "arguments",
    }
    assert found.causes["parameters"] == (1, 2 * WEIGHT)
    count, size = found.causes["gradients"]
    assert count in (1, 4) and size == count * 2 * WEIGHT
    assert found.causes["activations"] == (4, 4 * ROWS) == found.causes["cotangents"]
    first, second = found.meshes
    assert (first.parameters, first.state) == (2 * WEIGHT, 2 * WEIGHT)
    assert (second.parameters, second.state) == (WEIGHT, WEIGHT)
    assert found.misplaced == ()
    # It may as well be on the other mesh that uses it, where a forward and its backward are one program.
    home = {"e": "second", "w": None}
    last = config(names, devices=1, input_mesh_assignment=(home, home, None))
    found = report_of(step, p, p, array(4, 4, 32), config=last, donate_argnums=(0, 1))
    assert found.misplaced == () and found.meshes[1].parameters == 3 * WEIGHT


def test_state_of_optax_is_told_by_its_paths() -> None:
    weights = [array(16, 16)] * 4
    found = report_of(train_with_adam, weights, jax.eval_shape(ADAM.init, weights), array(2, 4, 16))
    assert [name for name, role in found.roles.items() if role == "parameters"] == [f"weights[{i}]" for i in range(4)]
    assert [h.state // (2 * WEIGHT) for h in found.meshes] == [2, 2]  # two moments per weight; the counter is small


def test_without_training_nothing_is_known_of_arguments() -> None:
    found = report_of(loss, [array(16, 16)] * 4, array(4, 16))
    assert set(found.roles.values()) == {"arguments"}
    assert found.causes == {"activations": (1, 2 * ROWS)}


def test_a_parameter_away_from_its_use() -> None:
    where = config(input_mesh_assignment=([None, None, None, "first"], None))
    found = report_of(train, [array(16, 16)] * 4, array(8, 4, 16), config=where)
    (one,) = found.misplaced
    assert (one.name, one.number, one.bytes) == ("weights[3]", 3, 2 * WEIGHT)
    assert (one.mesh, one.used_on) == ("first", ("second",))
    assert found.causes["parameters"] == (1, 2 * WEIGHT)
    # Its update is where the gradient is, and leaves there; it stays at home if that is asked for.
    assert "gradients" not in found.causes and found.returning == (
        ReplacedOnOtherMesh("weights[3]", 2 * WEIGHT, "first", "second", 3),
    )
    same = dataclasses.replace(where, output_mesh_assignment=mt.MeshOfInput(0))
    found = report_of(train, [array(16, 16)] * 4, array(8, 4, 16), config=same)
    assert found.misplaced == (one,) and found.returning == ()
    assert found.bytes == 2 * 8 * 2 * ROWS + 2 * 2 * WEIGHT, "there, and its update back"


def test_a_tied_embedding_is_not_misplaced_on_the_mesh_of_its_last_use() -> None:
    """Code without a name looks up rows of it on the first mesh, and multiplies by it on the second."""

    def tied(params: Any, tokens: Any) -> Any:
        x = params["table"][tokens]
        for i, w in enumerate(params["layers"]):
            x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
        return jnp.mean(jax.nn.logsumexp(x @ params["table"].T, axis=-1))

    def step(params: Any, tokens: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, summed_gradients(tied, params, tokens))

    params = {"table": array(8, 16), "layers": [array(16, 16)] * 4}
    for mesh in ("first", "second"):
        where = config(input_mesh_assignment=({"table": mesh, "layers": None}, None), gather="step")
        apart = where.with_options(**dict.fromkeys(OUR_OPTIONS, False))
        found = report_of(step, params, array(4, 4, dtype=jnp.int32), config=apart)
        assert found.roles["params['table']"] == "parameters" and found.causes["parameters"] == (1, WEIGHT)
        assert found.misplaced == ()


def test_reasons_name_uses_without_the_steps_between() -> None:
    lowered = mt.jit(train, config()).lower([array(16, 16)] * 4, array(8, 4, 16))
    one = MisplacedParam("weights[0]", 0, 2 * WEIGHT, "second", ("first",))
    text = reasons(dataclasses.replace(lowered.placement_report(), misplaced=(one,)), lowered)[0]
    rule, use = text.split("; needed (")
    assert rule.startswith('it is used on mesh "first"') and use.endswith(") on first")
    assert "pipelines.py:" in use and " -> " not in text


def test_a_parameter_that_leaves_on_another_mesh() -> None:
    where = config(output_mesh_assignment=["second", None, None, None])
    found = report_of(train, [array(16, 16)] * 4, array(2, 4, 16), config=where)
    assert found.returning == (ReplacedOnOtherMesh("weights[0]", 2 * WEIGHT, "first", "second", 0),)
    (text,) = placement_warnings(found, costly=1)
    assert "weights[0] (2,048 bytes) from second to first" in text and "MeshOfInput keeps both" in text
    assert list(placement_warnings(found, results={0}, costly=1)) == [], "it was put there"


# Warnings.


def test_nothing_is_said_of_a_good_placement() -> None:
    found = report_of(train, [array(16, 16)] * 4, array(4, 4, 16))
    assert list(placement_warnings(found, costly=1)) == []


def test_parameters_away_from_home_are_said() -> None:
    where = config(input_mesh_assignment=([None, None, None, "first"], None))
    found = report_of(train, [array(16, 16)] * 4, array(4, 4, 16), config=where)
    text, back = placement_warnings(found, costly=1)
    assert "weights[3] (2,048 bytes) from second to first" in back
    assert "weights[3] (2,048 bytes) is on first and used on second" in text and "input_mesh_assignment" in text
    assert list(placement_warnings(found, {"weights[3]"}, costly=1)) == [], "it was put there"
    assert list(placement_warnings(found)) == [], "a megabyte at least"


def test_states_away_from_their_parameters_are_said() -> None:
    """The update of the last layer is computed on the first mesh, by order; its momentum is there."""

    where = config(input_mesh_assignment=(None, [None, None, None, "first"], None))
    weights = [array(16, 16)] * 4
    found = report_of(train_with_momentum, weights, weights, array(4, 4, 16), config=where)
    (one,) = found.misplaced
    assert (one.name, one.of, one.mesh, one.used_on) == ("momentum[3]", "weights[3]", "first", ("second",))
    assert any(
        "momentum[3] (2,048 bytes) is on first and belongs to weights[3] on second" in text
        for text in placement_warnings(found, costly=1)
    )


def step_with_median(weights: Any, x: Any, *, over_all: bool) -> Any:
    value, grads = jax.value_and_grad(loss)(weights, x)
    flat = [jnp.abs(g).ravel() for g in grads]
    return value, jnp.median(jnp.concatenate(flat)) if over_all else [jnp.median(g) for g in flat]


@pytest.mark.parametrize("over_all", [True, False])
def test_large_values_for_unnamed_code_are_said(over_all: bool) -> None:
    """The median of all gradients needs them on one mesh; a median of each weight is computed at home."""
    step = functools.partial(step_with_median, over_all=over_all)
    found = report_of(step, [array(16, 16)] * 4, array(4, 16), config=config(pipeline_schedule=None))
    texts = list(placement_warnings(found, costly=1))
    if not over_all:
        assert texts == [] and set(found.causes) == {"activations", "cotangents"}
        return
    assert found.causes["unnamed code"] == (2, 2 * 2 * WEIGHT)
    assert found.causes["activations"] == (1, 2 * ROWS) == found.causes["cotangents"]
    (text,) = texts
    assert text.startswith("4,096 of the 5,120 bytes that a step sends are for unnamed code: tensor<256xf32>")
    assert "from second to first" in text and "named_computation" in text


def test_values_that_are_sent_again_are_said() -> None:
    twice = Traffic("p['e']", "parameters", "first", "second", 3, 3 * WEIGHT)
    (text,) = placement_warnings(PlacementReport((), (twice,), (), (), {}), costly=2 * WEIGHT)
    assert text.startswith("2,048 bytes of a step are values that are sent to the same mesh again")
    assert "p['e'], 3 times from first to second" in text
    once = dataclasses.replace(twice, times=1, bytes=WEIGHT)
    assert list(placement_warnings(PlacementReport((), (once,), (), (), {}), costly=1)) == []


@pytest.mark.parametrize("width", [16, 512])
def test_compiling_warns_at_the_line_of_the_config(width: int) -> None:
    """The threshold is a megabyte: 512 x 512 numbers of four bytes."""
    assigned = mt.make_config(on_devices(), NAMES)
    step = functools.partial(step_with_median, over_all=True)
    lowered = mt.jit(step, assigned).lower([array(width, width)] * 4, array(2, width))
    if width == 16:
        lowered.compile()
        return
    with pytest.warns(mt.MpmdWarning, match="unnamed code") as caught:
        lowered.compile()
    assert caught[0].filename == __file__


def test_the_name_of_before_warns() -> None:
    lowered = mt.jit(loss, config()).lower([array(16, 16)] * 4, array(4, 16))
    with pytest.warns(DeprecationWarning, match=r"residence\(\) is called placement_report\(\)"):
        assert lowered.residence() == lowered.placement_report()


def test_parameters_that_unnamed_code_reads() -> None:
    """However its backwards are split: `head` may be read by a program of its own, or by a backward alone."""

    def with_head(weights: Any, x: Any) -> Any:
        *layers, head = weights
        for i, w in enumerate(layers):
            x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
        return jnp.mean(jax.nn.log_softmax(x @ head)[:, 0])

    def step(weights: Any, opt_state: Any, batch: Any) -> Any:
        return train_with_adam(weights, opt_state, batch, with_head)

    weights = [*[array(16, 16)] * 4, array(16, 32)]
    args = weights, jax.eval_shape(ADAM.init, weights), array(2, 4, 16)
    for one in (config(), config().with_options(**dict.fromkeys(OUR_OPTIONS, False))):
        found = report_of(step, *args, config=one)
        assert [n for n, role in found.roles.items() if role == "parameters"] == [f"weights[{i}]" for i in range(5)]
        assert [mesh.parameters for mesh in found.meshes] == [2 * WEIGHT, 4 * WEIGHT]


def test_keys_are_no_activations() -> None:
    def with_dropout(weights: Any, x: Any, keys: Any) -> Any:
        def layer(w: Any, x: Any, keys: Any) -> Any:
            keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (16,)))(keys)
            return jnp.where(keep, jnp.tanh(x @ w), 0), jax.vmap(jax.random.fold_in, (0, None))(keys, 1)

        for i, w in enumerate(weights):
            x, keys = mt.named_computation(layer, name=f"layer{i}")(w, x, keys)
        return jnp.mean(x**2)

    def step(weights: Any, batch: Any, keys: Any) -> Any:
        return mt.value_and_grad(with_dropout, batch_argnums=(1, 2), microbatches=4)(weights, batch, keys)

    keys = jax.eval_shape(lambda key: jax.random.split(key, 64), jax.random.key(0))
    found = report_of(step, [array(16, 16)] * 4, array(64, 16), keys, config=config(devices=1))
    sent = {(cause, count) for cause, (count, _) in found.causes.items()}
    assert sent == {("activations", 4), ("cotangents", 4), ("arguments", 4)}


def test_tables_leave_out_what_no_mesh_has() -> None:
    found = report_of(loss, [array(16, 16)] * 4, array(8, 16))
    assert found.columns == tuple(found.held.head[1:]) == ("arguments", "activations", "peak")
