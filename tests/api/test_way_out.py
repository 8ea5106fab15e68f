"""Programs that come back to a mesh: "auto" orders them, and messages about other schedules name what is followed."""

from __future__ import annotations

import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpmd_trace
from mpmd_trace import MpmdError, MpmdWarning, named_computation, schedules
from mpmd_trace.api.partitioned import way_out
from mpmd_trace.scheduling import AutoSchedule
from pipelines import assert_same, topology
from util import max_examples, nightly, normal


def layer(name: str) -> Any:
    return named_computation(lambda w, *xs: jnp.tanh(sum(xs) @ w), name=name)


def unet(w: Any, x: jax.Array) -> jax.Array:
    down = layer("down0")(w["down0"], x)
    deep = layer("down1")(w["down1"], down)
    up = layer("up1")(w["up1"], layer("mid")(w["mid"], deep), deep)
    return jnp.mean(layer("up0")(w["up0"], up, down) ** 2)


def chain(w: Any, x: jax.Array) -> jax.Array:
    for name in ("l0", "l1", "l2", "l3"):
        x = layer(name)(w[name], x)
    return jnp.mean(x**2)


def towers(w: Any, x: jax.Array) -> jax.Array:
    a = layer("a1")(w["a1"], layer("a0")(w["a0"], x))
    b = layer("b1")(w["b1"], layer("b0")(w["b0"], x[:, ::-1]))
    return named_computation(lambda a, b: jnp.mean((a - b) ** 2), name="head")(a, b)


CASES = {
    "U-Net, ends on one mesh": (unet, 3, "down0:m0 down1:m1 mid:m2 up1:m1 up0:m0"),
    "U-Net, unequal": (unet, 2, "down0:m0 down1:m0 mid:m1 up1:m0 up0:m0"),
    "U-Net in a loop": (unet, 2, "down0:m0 down1:m1 mid:m0 up1:m1 up0:m0"),
    "in a loop": (chain, 2, "l0:m0 l1:m1 l2:m0 l3:m1"),
    "in a V": (chain, 2, "l0:m0 l1:m1 l2:m1 l3:m0"),
    "towers that cross": (towers, 2, "a0:m0 a1:m1 b0:m1 b1:m0 head:m0"),
}


def trained(case: str, schedule: Any) -> tuple[Any, list[str], Any]:
    """The lowered step, what was warned of, and a check of its values."""
    loss, meshes, names = CASES[case]
    assignment = dict(pair.split(":") for pair in names.split())
    w = {name: 0.5 * normal(i, 4, 4) for i, name in enumerate(assignment) if name != "head"}
    x = normal(len(assignment), 8, 4)

    def step(w: Any, x: jax.Array) -> Any:
        return mpmd_trace.value_and_grad(loss, microbatches=4)(w, x)

    config = mpmd_trace.make_config(topology(meshes, size=1), assignment, pipeline_schedule=schedule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lowered = mpmd_trace.jit(step, config).lower(w, x)
    texts = [str(one.message) for one in caught if issubclass(one.category, MpmdWarning)]
    return lowered, texts, lambda: assert_same(lowered.compile()(w, x), jax.jit(jax.value_and_grad(loss))(w, x))


@pytest.mark.parametrize(
    ("case", "schedule"),
    [
        ("U-Net, ends on one mesh", "interleaved-1f1b"),
        ("U-Net, unequal", "1F1B"),
        nightly("U-Net in a loop", "zb-v"),
        ("in a loop", "zb-h1"),
        nightly("in a V", "ZeroBubbleH1"),
        ("towers that cross", "1F1B"),
    ],
)
def test_messages_name_a_schedule_that_is_followed(case: str, schedule: str) -> None:
    try:
        (text,) = trained(case, schedule)[1]
        assert "cannot be followed exactly" in text
    except MpmdError as error:
        text = str(error)
    (name,) = re.findall(r'pipeline_schedule="([^"]+)" would be followed exactly', text)
    lowered, texts, check = trained(case, name)
    assert not texts
    assert (re.findall(r"it chooses '([^']+)'", text) or [name]) == [lowered.schedule.name]
    if case.startswith("in"):
        assert name == {"in a loop": "interleaved-zero-bubble", "in a V": "zb-v"}[case]
        assert "for several stages on a mesh orders them" in text
    if schedule in ("1F1B", "zb-h1"):
        check()


def test_a_schedule_is_named_where_none_can_be_ranked() -> None:
    """An encoder has microbatches of its own, which do not run through all stages."""
    w = {name: 0.5 * normal(i, 4, 4) for i, name in enumerate(("encoder", "decoder"))}
    x = normal(2, 8, 4)

    def encode(w: Any, x: jax.Array) -> jax.Array:
        return layer("encoder")(w["encoder"], x)

    def loss(w: Any, encoded: Any) -> jax.Array:
        return jnp.mean(layer("decoder")(w["decoder"], encoded["i"]) ** 2)

    def lower(schedule: str) -> Any:
        step = mpmd_trace.gradients.encoded_value_and_grad(loss, {"i": (encode, 2)}, microbatches=4)
        assignment = {"encoder": "m0", "decoder": "m1"}
        config = mpmd_trace.make_config(topology(2, size=1), assignment, pipeline_schedule=schedule)
        return mpmd_trace.jit(step, config).lower(w, {"i": x})

    with pytest.raises(MpmdError, match="puts 2 stages on mesh 'm0'") as error:
        lower("interleaved-1f1b")
    (name,) = re.findall(r'pipeline_schedule="([^"]+)" would be followed exactly', str(error.value))
    assert_same(lower(name).compile()(w, {"i": x}), jax.value_and_grad(lambda w: loss(w, {"i": encode(w, x)}))(w))


@pytest.mark.parametrize("followed", ["zb-h1", None])
def test_a_program_that_cannot_be_imported_for_costs_keeps_its_warning(followed: str | None) -> None:
    config = mpmd_trace.make_config(topology(2, size=1), {}, pipeline_schedule="1F1B")

    def importing(stages: str) -> Any:
        raise MpmdError("no stages")

    text = way_out(config, importing, lambda config, choice: choice.name == followed, overlap=None)
    if followed is None:
        assert text.startswith("None of the schedules tried ('auto', 'zb-h1', 'GPipe') would be followed exactly")
    else:
        assert text == f'pipeline_schedule="{followed}" would be followed exactly'


def two_losses(kind: str, schedule: Any, microbatches: int) -> tuple[list[str], Any]:
    """Texts and a check of a step that trains two networks over the same meshes, one after the other.

    "actor": the critic learns from data alone; "generator": the discriminator sees what is generated, then data;
    "data first": the other way round.
    """
    w = {name: 0.5 * normal(i, 4, 4) for i, name in enumerate(("a0", "a1", "c0", "c1"))}
    x, noise = normal(5, 2, 8, 4)

    def made(w: Any, noise: jax.Array) -> jax.Array:
        return layer("a1")(w["a1"], layer("a0")(w["a0"], noise))

    def judged(w: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(layer("c1")(w["c1"], layer("c0")(w["c0"], x)))

    def step(w: Any, x: jax.Array, noise: jax.Array) -> Any:
        def of_critic(c: Any, batch: Any) -> jax.Array:
            x, noise = batch
            real = judged(c, x) if kind == "data first" else None
            fake = 0.0 if kind == "actor" else judged(c, jax.lax.stop_gradient(made(w, noise)))
            return fake - (judged(c, x) if real is None else real)

        critic = {"c0": w["c0"], "c1": w["c1"]}
        value, grads = mpmd_trace.value_and_grad(of_critic, microbatches=4)(critic, (x, noise))
        critic = jax.tree.map(lambda w, g: w - 0.1 * g, critic, grads)
        actor = mpmd_trace.value_and_grad(lambda a, noise: judged(critic, made(a, noise)), microbatches=microbatches)
        return critic, value, actor({"a0": w["a0"], "a1": w["a1"]}, noise)

    assignment = {"a0": "m0", "a1": "m1", "c0": "m0", "c1": "m1"}
    config = mpmd_trace.make_config(topology(2, size=1), assignment, pipeline_schedule=schedule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lowered = mpmd_trace.jit(step, config).lower(w, x, noise)
    return [str(one.message) for one in caught], lambda: assert_same(
        lowered.compile()(w, x, noise), jax.jit(step)(w, x, noise)
    )


@pytest.mark.parametrize(
    ("kind", "microbatches"), [("actor", 4), nightly("actor", 2), ("generator", 4), nightly("data first", 4)]
)
def test_auto_is_followed_by_steps_that_train_two_networks(kind: str, microbatches: int) -> None:
    texts, check = two_losses(kind, "auto", microbatches)
    assert not texts
    check()


def test_auto_keeps_to_a_limit_of_memory_where_losses_have_microbatches_of_their_own() -> None:
    """The only schedule that is followed holds all microbatches."""
    texts, _ = two_losses("actor", AutoSchedule(memory_limit={"m0": 4}), 2)
    assert not texts
    with pytest.raises(MpmdError, match=r"no schedule that the program can follow .* 3 .* GPipe comes closest with 4"):
        two_losses("actor", AutoSchedule(memory_limit=3), 2)


def test_messages_name_gpipe_where_loops_have_stages_and_microbatches_of_their_own() -> None:
    (text,), _ = two_losses("actor", "1F1B", 2)
    assert text.endswith('pipeline_schedule="GPipe" would be followed exactly')
    assert two_losses("actor", "GPipe", 2)[0] == []


def test_meshes_come_behind_what_they_need() -> None:
    """The towers meet on the second mesh of one and the second of the other, which no order of depths tells."""
    CASES["towers that meet inside"] = (towers, 4, "a0:m0 a1:m1 b0:m3 b1:m2 head:m1")
    try:
        lowered, texts, check = trained("towers that meet inside", "1F1B")
    finally:
        del CASES["towers that meet inside"]
    assert not texts and lowered.schedule.name == "1F1B"
    check()


@max_examples(30)
@given(st.data())
def test_stages_anywhere_get_a_schedule(data: st.DataObject) -> None:
    stages, microbatches = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 6))
    mesh_of = data.draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages))
    edges = [(a, b) for b in range(stages) for a in range(b) if data.draw(st.booleans())]
    graph = schedules.StageGraph.from_edges(stages, edges)
    in_flight = data.draw(st.integers(1, microbatches))
    made = schedules.training_passes(schedules.Placement.of(mesh_of, 3), microbatches, graph, in_flight=in_flight)
    schedules.validate(made)
    result = schedules.simulate(made)
    assert all(
        peak <= in_flight * max(1, held) + 1e-9
        for peak, held in zip(result.peak_activations, map(len, made.placement.stages_on), strict=True)
    )
    for stage in range(stages):
        for kind in "FB":
            numbers = [a.microbatch for _, _, a in made.actions() if (a.stage, a.kind) == (stage, kind)]
            assert numbers == list(range(microbatches)), "sums are added up in the order of the microbatches"


@pytest.mark.parametrize("meshes", [2, 3, 5])
def test_stages_in_a_row_take_as_long_as_with_1f1b(meshes: int) -> None:
    made = schedules.training_passes(schedules.Placement.loop(meshes), 8, in_flight=meshes)
    assert schedules.simulate(made).makespan == schedules.simulate(schedules.get_schedule("1f1b", meshes, 8)).makespan


@pytest.mark.parametrize("schedule", ["auto", "zb-h1"])
def test_a_stage_that_needs_what_comes_after_it(schedule: str) -> None:
    """No schedule has such stages, and none is advised: "down0" is a stage that runs before and after another one."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        x = layer("down0")(w, layer("mid")(w, layer("down0")(w, x)))
        return named_computation(lambda x: jnp.mean(x**2), name="head")(x)

    def step(w: Any, x: jax.Array) -> Any:
        return mpmd_trace.value_and_grad(loss, microbatches=4)(w, x)

    stages = {"down0": ("m0", 0), "mid": ("m1", 1), "head": ("m1", 2)}
    config = mpmd_trace.make_config(topology(2, size=1), stages, pipeline_schedule=schedule)
    with pytest.raises(MpmdError) as raised:
        mpmd_trace.jit(step, config).lower(jnp.ones((4, 4)), jnp.ones((8, 4))).as_text()
    text = str(raised.value)
    if schedule == "auto":
        assert "no schedule has these stages, since stages 0, 1, 2 wait for each other in a cycle" in text
    else:
        assert "and without pipeline_schedule: stage 0 runs twice on mesh 'm0'" in text
    assert "leave pipeline_schedule out" not in text


@pytest.mark.filterwarnings("ignore:the loss is not linear")  # a step of gradient descent is inside of it
def test_a_second_gradient_where_meshes_have_two_stages() -> None:
    """A stage runs twice for a microbatch, which schedules with several stages on a mesh do not allow."""

    def step(w: Any, x: jax.Array) -> Any:
        def loss(w: Any, x: jax.Array) -> jax.Array:
            moved = jax.tree.map(lambda a, g: a - 0.1 * g, w, jax.grad(chain)(w, x))
            return chain(moved, x)

        return mpmd_trace.value_and_grad(loss, microbatches=4)(w, x)

    w, x = {f"l{i}": 0.5 * normal(i, 4, 4) for i in range(4)}, normal(9, 8, 4)
    names = dict(zip(w, ("m0", "m1", "m1", "m0"), strict=True))
    made = {s: mpmd_trace.make_config(topology(2, size=1), names, pipeline_schedule=s) for s in ("auto", "zb-v")}
    assert_same(mpmd_trace.jit(step, made["auto"])(w, x), jax.jit(step)(w, x))
    with pytest.raises(MpmdError, match=r'runs twice on mesh .*pipeline_schedule="GPipe" would be followed exactly'):
        mpmd_trace.jit(step, made["zb-v"]).lower(w, x)
    # Stages of the user's own are the same under every schedule.
    numbered = {name: (mesh, i) for i, (name, mesh) in enumerate(names.items())}
    config = mpmd_trace.make_config(topology(2, size=1), numbered, pipeline_schedule="zb-v")
    with pytest.raises(MpmdError, match="runs twice on mesh") as error:
        mpmd_trace.jit(step, config).lower(w, x)
    assert "would be followed exactly" not in str(error.value)


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("schedule", ["auto", "interleaved-1f1b"])
def test_named_layers_outside_of_the_loop_over_microbatches(schedule: str, numbered: bool) -> None:
    """They are of no microbatch, so a mesh runs them there as often as they are called."""

    def step(w: Any, x: jax.Array, v: Any) -> Any:
        value, gradients = mpmd_trace.value_and_grad(chain, microbatches=2)(w, x)
        _, product = jax.jvp(jax.grad(chain), (w, x), (v, jnp.zeros_like(x)))
        return value, gradients, product, chain(w, x * chain(w, -x))

    w, x = {f"l{i}": 0.5 * normal(i, 4, 4) for i in range(4)}, normal(9, 8, 4)
    args = (w, x, jax.tree.map(jnp.ones_like, w))
    names = {name: (f"m{i % 2}", i) if numbered else f"m{i % 2}" for i, name in enumerate(w)}
    config = mpmd_trace.make_config(topology(2, size=1), names, pipeline_schedule=schedule)
    assert_same(mpmd_trace.jit(step, config)(*args), jax.jit(step)(*args))
