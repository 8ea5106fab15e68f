"""Encoders before a model, with microbatches of their own."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import mpmd_trace as mt
from util import nightly, normal

WIDTH, ROWS = 4, 8


def dense(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def encode(name: str) -> Any:
    def run(params: Any, x: jax.Array) -> jax.Array:
        return mt.named_computation(dense, name=name)(params[name], x)

    return run


def loss(params: Any, encoded: Any, x: jax.Array) -> jax.Array:
    x = mt.named_computation(dense, name="lower")(params["lower"], x + encoded["image"] + encoded["text"])
    return mt.named_computation(lambda w, x: jnp.mean(dense(w, x) ** 2), name="upper")(params["upper"], x)


def data() -> tuple[Any, Any, Any]:
    params = {name: normal(i, WIDTH, WIDTH) for i, name in enumerate(("image", "text", "lower", "upper"))}
    rows = normal(4, 3, ROWS, WIDTH)
    return params, {"image": rows[0], "text": rows[1]}, rows[2]


def step(image: int, text: int, microbatches: int) -> Any:
    encoders = {"image": (encode("image"), image), "text": (encode("text"), text)}

    def run(params: Any, inputs: Any, x: Any) -> Any:
        value, grads = mt.gradients.encoded_value_and_grad(loss, encoders, microbatches=microbatches)(params, inputs, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value

    return run


def wanted(params: Any, inputs: Any, x: Any) -> Any:
    def whole(p: Any) -> jax.Array:
        return loss(p, {name: encode(name)(p, inputs[name]) for name in inputs}, x)

    value, grads = jax.value_and_grad(whole)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value


def lower(names: dict[str, str], schedule: Any, *numbers: int) -> mt.stages.Lowered:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    config = mt.make_config(dict.fromkeys(names.values(), mesh), names, pipeline_schedule=schedule)
    return mt.jit(step(*numbers), config).lower(*data())


def check(lowered: mt.stages.Lowered) -> None:
    """It computes what `jax.jit` does."""
    got, want = mt.fetch(lowered.compile()(*data())), jax.jit(wanted)(*data())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


@pytest.mark.parametrize(
    ("schedule", "numbers"),
    [nightly("1F1B", (1, 2, 4)), ("zb-h1", (2, 4, 8)), nightly("GPipe", (2, 4, 8)), ("auto", (1, 2, 4))],
)
def test_each_encoder_has_its_microbatches(schedule: str, numbers: tuple[int, int, int]) -> None:
    check(lower({"image": "vision", "text": "words", "lower": "m0", "upper": "m1"}, schedule, *numbers))


@pytest.mark.filterwarnings("ignore:.*one microbatch to order")
@pytest.mark.parametrize(
    ("schedule", "numbers"),
    [
        ("1F1B", (2, 2, 4)),
        nightly("zb-h1", (2, 2, 4)),
        ("auto", (4, 4, 2)),
        nightly("auto", (4, 4, 4)),
        ("zb-h1", (4, 4, 2)),
    ],
)
def test_encoders_may_share_the_meshes_of_the_model(schedule: str, numbers: tuple[int, int, int]) -> None:
    """Each loop follows the schedule by itself: no warning says that it cannot be followed."""
    lowered = lower({"image": "m0", "text": "m1", "lower": "m0", "upper": "m1"}, schedule, *numbers)
    check(lowered)
    assert lowered.schedule.name != "GPipe"


def runs(lowered: mt.stages.Lowered) -> list[tuple[str, str]]:
    """The mesh and the named computations of each run of the plan, backwards with (1)."""
    return [
        (mesh, names)
        for mesh, names in re.findall(r"run p\d+ on (\w+) .*  # (.+)", lowered.as_text("plan"))
        if names != "inferred"
    ]


def of_mesh(lowered: mt.stages.Lowered, mesh: str) -> str:
    return "; ".join(names for where, names in runs(lowered) if where == mesh)


def test_the_model_begins_with_the_first_microbatch_of_its_encoders() -> None:
    """The encoders run ahead, and again while the model works; their backwards begin before its last one."""
    names = {"image": "vision", "text": "words", "lower": "m0", "upper": "m1"}
    lowered = lower(names, "1F1B", 2, 4, 4)
    assert of_mesh(lowered, "vision") == "image; image; image; image; image(1); image(1)"
    assert of_mesh(lowered, "words") == "; ".join(["text"] * 7 + ["text(1)", "text"] + ["text(1)"] * 3)
    order = runs(lowered)
    first, last = order.index(("m0", "lower")), max(i for i, run in enumerate(order) if run == ("m0", "lower(1)"))
    assert order[:first].count(("words", "text")) < 4  # microbatches of that encoder
    assert ("vision", "image(1)") in order[:last]


def test_meshes_of_the_model_encode_again_while_they_wait() -> None:
    lowered = lower({"image": "m0", "text": "m1", "lower": "m0", "upper": "m1"}, "1F1B", 2, 2, 4)
    assert of_mesh(lowered, "m0") == (
        "image; image, lower; lower; lower; image; lower(1); image; lower(1); lower; lower(1); image(1); lower(1); "
        "image(1)"
    )


def tower(name: str) -> Any:
    """An encoder of two layers."""

    def run(params: Any, x: jax.Array) -> jax.Array:
        return encode("text")(params, encode(name)(params, x))

    return run


def lower_tower(schedule: Any, encoder: int, model: int) -> mt.stages.Lowered:
    """The step with a tower in front, which computes what `jax.jit` does."""
    names = {"image": "v0", "text": "v1", "lower": "m0", "upper": "m1"}
    params, inputs, x = data()

    def of_rows(params: Any, encoded: Any, x: jax.Array) -> jax.Array:
        return loss(params, {"image": encoded["image"], "text": jnp.zeros_like(x)}, x)

    encoders = {"image": (tower("image"), encoder)}
    run = mt.gradients.encoded_value_and_grad(of_rows, encoders, microbatches=model)
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    config = mt.make_config(dict.fromkeys(names.values(), mesh), names, pipeline_schedule=schedule)
    given = params, {"image": inputs["image"]}, x
    want = jax.value_and_grad(lambda p: of_rows(p, {"image": tower("image")(p, inputs["image"])}, x))(params)
    lowered = mt.jit(run, config).lower(*given)
    got = mt.fetch(lowered.compile()(*given))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)
    return lowered


TOWER, MODEL = ("v0", "v1"), ("m0", "m1")


def test_a_schedule_for_each_group_of_meshes() -> None:
    """The tower is a pipeline of two meshes, as the model is; forward first, then its own schedule."""
    lowered = lower_tower({TOWER: "GPipe", MODEL: "1F1B"}, 4, 4)
    assert of_mesh(lowered, "v0") == "; ".join(["image"] * 8 + ["image(1)"] * 4)
    assert of_mesh(lowered, "v1") == "; ".join(["text"] * 8 + ["text(1)"] * 4)
    assert of_mesh(lowered, "m0") == (
        "lower; lower; lower(1); lower; lower(1); lower; lower(1); lower(1)"  # two in flight
    )
    lowered = lower_tower({TOWER: "1F1B", MODEL: "GPipe"}, 4, 4)
    again = "image; image; image(1); image; image(1); image; image(1); image(1)"
    assert of_mesh(lowered, "v0") == "; ".join(["image"] * 4) + "; " + again
    assert of_mesh(lowered, "m0") == "; ".join(["lower"] * 4 + ["lower(1)"] * 4)


@pytest.mark.parametrize(
    ("schedule", "numbers"),
    [
        nightly({TOWER: "1F1B", MODEL: "zb-h1"}, (4, 8)),
        ({"v0": "none", "v1": "GPipe", MODEL: "zb-h2"}, (8, 4)),
        nightly({TOWER: "auto", MODEL: "auto"}, (4, 4)),
        ({TOWER: mt.schedules.get_schedule("1f1b", 2, 2), MODEL: "auto"}, (2, 8)),
    ],
)
@pytest.mark.filterwarnings("error:.*cannot be followed")
def test_schedules_of_groups(schedule: Any, numbers: tuple[int, int]) -> None:
    lowered = lower_tower(schedule, *numbers)
    assert "auto" not in lowered.schedule.name


def lower_chains(names: dict[str, str], schedule: Any) -> mt.stages.Lowered:
    """The step with an encoder of the layers a0, a1, ... before a model of b0, b1, ..."""
    params = {name: jnp.eye(WIDTH) for name in names}
    x = jnp.ones((ROWS, WIDTH))

    def chain(letter: str, params: Any, x: jax.Array) -> jax.Array:
        for name in sorted(names):
            x = encode(name)(params, x) if name.startswith(letter) else x
        return x

    def of_rows(params: Any, encoded: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(chain("b", params, x + encoded["image"]) ** 2)

    encoders = {"image": (lambda params, x: chain("a", params, x), 4)}
    run = mt.gradients.encoded_value_and_grad(of_rows, encoders, microbatches=4)
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    config = mt.make_config(dict.fromkeys(names.values(), mesh), names, pipeline_schedule=schedule)
    return mt.jit(run, config).lower(params, {"image": x}, x)


def test_a_group_may_turn_back() -> None:
    """The turns of both flows have two stages each, on the second mesh of the group."""
    names = {"a0": "v0", "a1": "v1", "a2": "v1", "a3": "v0", "b0": "m0", "b1": "m1", "b2": "m1", "b3": "m0"}
    lowered = lower_chains(names, {TOWER: "zb-v", MODEL: "zb-v"})
    assert of_mesh(lowered, "m1").startswith("b1; b2; b1; b2; b2(1)")
    assert of_mesh(lowered, "v1").count("a1; a2") >= 4


def test_stages_of_a_group_are_numbered_by_themselves() -> None:
    """Those of the model are 1, 2, 3 and 4 of the program, but 0 to 3 of its schedule."""
    names = {"a0": "v0", "b0": "m0", "b1": "m1", "b2": "m0", "b3": "m1"}
    lowered = lower_chains(names, {"v0": "GPipe", MODEL: "interleaved-1f1b"})
    assert of_mesh(lowered, "m0").startswith("b0; b0; b2; b2; b0; b2(1); b0; b2(1)")


def test_loops_stay_apart_where_a_schedule_cannot_be_followed() -> None:
    """The sums of the encoder's gradients want another order than its schedule, not its first loop."""
    names = {"a0": "v0", "a1": "v1", "a2": "v0", "a3": "v1", "b0": "m0", "b1": "m1"}
    with pytest.warns(UserWarning, match=r'(?s)"a3"\(1\) of microbatch 1 on \'v1\' before.*"auto" for v0, v1 would be'):
        lowered = lower_chains(names, {TOWER: "looped-bfs", MODEL: "1F1B"})
        assert of_mesh(lowered, "v0").startswith("; ".join(["a0"] * 4 + ["a2"] * 4))
    assert of_mesh(lowered, "m0") == "b0; b0; b0(1); b0; b0(1); b0; b0(1); b0(1)"


ACROSS = ("v0", "m0"), ("v1", "m1")


@pytest.mark.parametrize(
    ("schedules", "chosen"), [(("1F1B", "auto"), ("1F1B", "1F1B")), (("auto", "GPipe"), ("GPipe", "GPipe"))]
)
@pytest.mark.filterwarnings("error:.*cannot be followed")
def test_auto_leaves_the_schedules_of_other_groups(schedules: tuple[str, str], chosen: tuple[str, str]) -> None:
    """By costs it is another one, which the program cannot follow together with the schedule of the other group."""
    lowered = lower_tower(dict(zip(ACROSS, schedules, strict=True)), 4, 4)
    assert lowered.schedule.name == "v0, m0: {}; v1, m1: {}".format(*chosen)


def test_limits_of_groups() -> None:
    limited = mt.scheduling.AutoSchedule(memory_limit={"m0": 1})
    with pytest.raises(mt.MpmdError, match=r"keeps the activations of inf, inf, 1, inf microbatches per mesh"):
        lower_tower({ACROSS[0]: limited, ACROSS[1]: "GPipe"}, 4, 4)
    with pytest.raises(mt.MpmdError, match="memory_limit names 'm0'; the meshes are v1, m1"):
        lower_tower({ACROSS[0]: "GPipe", ACROSS[1]: limited}, 4, 4)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (
            mt.schedules.get_schedule("1f1b", 2, 8),
            "the schedule is for 2 meshes and 8 microbatches, but the program has",
        ),
        ("interleaved-1f1b", "schedule 'interleaved-1f1b' puts 2 stages on mesh 'm0', but the program has 1 there"),
    ],
)
def test_errors_name_the_group(schedule: Any, text: str) -> None:
    with pytest.raises(mt.MpmdError, match=f"on m0, m1: {text}"):
        lower_tower({TOWER: "GPipe", MODEL: schedule}, 4, 4)


def test_configurations_list_the_schedules_of_groups_by_name() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    schedule = {TOWER: mt.schedules.get_schedule("1f1b", 2, 4), MODEL: "auto"}
    config = mt.make_config(dict.fromkeys((*TOWER, *MODEL), mesh), {}, pipeline_schedule=schedule)
    assert "pipeline_schedule={('v0', 'v1'): '1f1b', ('m0', 'm1'): 'auto'}" in repr(config)
    assert "orders" not in config._repr_html_()


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ({TOWER: "GPipe", "m0": "1F1B"}, "mesh 'm1' has no schedule"),
        ({TOWER: "GPipe", ("m0", "m1", "v0"): "1F1B"}, "mesh 'v0' has 2 schedules"),
        ({"v0": "GPipe", ("v0",): "1F1B", "v1": "GPipe", MODEL: "1F1B"}, "mesh 'v0' has 2 schedules"),
        ({TOWER: "GPipe", MODEL: "1F1B", "x": "auto"}, "there is no mesh 'x' for stages; there are: v0, v1, m0, m1"),
        ({TOWER: "1F2B", MODEL: "auto"}, "unknown schedule '1F2B'; did you mean 1f1b"),
        ({TOWER: 3, MODEL: "auto"}, "a group of meshes has a schedule, the name of one, or 'auto', not 3"),
        ({0: "auto"}, "a schedule is for a mesh or a tuple of meshes, as in"),
    ],
)
def test_mistakes_in_groups(schedule: Any, text: str) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    with pytest.raises(mt.MpmdError, match=text):
        mt.make_config(dict.fromkeys((*TOWER, *MODEL), mesh), {}, pipeline_schedule=schedule)


def test_outside_of_a_pipeline_it_is_the_gradient() -> None:
    args = data()
    got = jax.jit(step(2, 4, 2))(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, wanted(*args))


def test_the_loss_is_traced_once() -> None:
    traces = []

    def counted(*args: Any) -> Any:
        traces.append(args)
        return loss(*args)

    encoders = {"image": (encode("image"), 2), "text": (encode("text"), 4)}
    jax.make_jaxpr(mt.gradients.encoded_value_and_grad(counted, encoders, microbatches=4))(*data())
    assert len(traces) == 1


def test_mistakes() -> None:
    with pytest.raises(mt.MpmdError, match="encoders maps names to pairs"):
        mt.gradients.encoded_value_and_grad(loss, {}, microbatches=2)
    with pytest.raises(mt.MpmdError, match=r"the encoder 'image' is .*; give a function and its number"):
        mt.gradients.encoded_value_and_grad(loss, {"image": encode("image")}, microbatches=2)  # type: ignore[dict-item]
    params, inputs, x = data()
    with pytest.raises(mt.MpmdError, match=r"the encoders are \['image', 'text'\], and what they read is given for"):
        step(1, 1, 1)(params, {"image": inputs["image"]}, x)
    with pytest.raises(mt.MpmdError, match="cannot be cut into 3 microbatches"):
        step(3, 1, 1)(params, inputs, x)
    bad = {"image": (lambda p, x: x[:1], 2)}
    with pytest.raises(mt.MpmdError, match=r"the encoder 'image' .* it has to have a row for each"):
        mt.gradients.encoded_value_and_grad(loss, bad, microbatches=2)(params, {"image": inputs["image"]}, x)
    with pytest.raises(mt.MpmdError, match=r"\['image', 'text'\], and what they read is given for \[3, 'image'\]"):
        step(1, 1, 1)(params, {"image": inputs["image"], 3: x}, x)
    with pytest.raises(mt.MpmdError, match=r"different numbers of rows: encoded\['image'\] has 8, x has 4"):
        step(2, 2, 4)(params, inputs, x[:4])
    one = {"image": (encode("image"), 2)}
    for wrong, what in ((lambda p, e, x: (jnp.sum(x), 3), "tuple"), (lambda p, e, x: x, r"shape \[4, 4\]")):
        with pytest.raises(mt.MpmdError, match=rf"the loss \(.*\) returns a scalar, the mean .* got {what}"):
            mt.gradients.encoded_value_and_grad(wrong, one, microbatches=2)(params, {"image": inputs["image"]}, x)


def test_masks_and_empty_axes_among_what_encoders_return() -> None:
    params, inputs, x = data()

    def masked(p: Any, x: jax.Array) -> Any:
        return encode("image")(p, x), x[:, 0] > 0, jnp.arange(x.shape[0]), x[:, :0], None

    def of_masked(p: Any, encoded: Any, x: jax.Array) -> jax.Array:
        rows, mask, *_ = encoded["image"]
        return jnp.mean((jnp.where(mask[:, None], rows, 0) + x @ p["lower"]) ** 2)

    run = mt.gradients.encoded_value_and_grad(of_masked, {"image": (masked, 2)}, microbatches=4)
    want = jax.value_and_grad(lambda p: of_masked(p, {"image": masked(p, inputs["image"])}, x))(params)
    got = run(params, {"image": inputs["image"]}, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)
