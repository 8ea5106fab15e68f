"""Schedules of groups of meshes: two networks that are trained in one step, each on meshes of its own."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace import MpmdError, schedules
from mpmd_trace.diagnostics.messages import MpmdWarning
from mpmd_trace.scheduling.resolve_schedule import refusal
from mpmd_trace_cli import plan
from mpmd_trace_cli._plan_options import PlanOptions
from mpmd_trace_cli.status import CallError
from pipelines import assert_same, topology
from util import normal

GENERATOR, DISCRIMINATOR = ("m0", "m1"), ("m2", "m3")
NAMES = {"g0": "m0", "g1": "m1", "d0": "m2", "d1": "m3"}
LOOP = {"g0": "m0", "g1": "m1", "g2": "m0", "g3": "m1", "d0": "m2", "d1": "m3"}
MICROBATCHES = 4


def layers(letter: str, w: Any, x: jax.Array) -> jax.Array:
    for name in w:
        if name.startswith(letter):
            x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=name)(w[name], x)
    return x


def judged(w: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(layers("d", w, x))


def apart(w: Any, x: jax.Array, noise: jax.Array) -> Any:
    """Two networks that have nothing to do with each other."""
    g, d = ({name: one for name, one in w.items() if name.startswith(letter)} for letter in "gd")
    gradient = mpmd_trace.value_and_grad(
        lambda g, noise: jnp.mean(layers("g", g, noise) ** 2), microbatches=MICROBATCHES
    )
    return gradient(g, noise), mpmd_trace.value_and_grad(judged, microbatches=MICROBATCHES)(d, x)


def from_the_last(w: Any, x: jax.Array, noise: jax.Array) -> Any:
    """As `apart`, with gradients of the first network that are added up from its last microbatch to the first one."""
    g, d = ({name: one for name, one in w.items() if name.startswith(letter)} for letter in "gd")

    def total(g: Any) -> jax.Array:
        rows = noise.reshape(MICROBATCHES, -1, noise.shape[-1])
        return mpmd_trace.enumerated_for(lambda i, sum, x: sum + jnp.mean(layers("g", g, x) ** 2), jnp.zeros(()), rows)

    return jax.value_and_grad(total)(g), mpmd_trace.value_and_grad(judged, microbatches=MICROBATCHES)(d, x)


def adversarial(w: Any, x: jax.Array, noise: jax.Array) -> Any:
    """A step of the discriminator, then one of the generator, whose gradients come through the discriminator."""
    g, d = ({name: one for name, one in w.items() if name.startswith(letter)} for letter in "gd")

    def of_discriminator(d: Any, batch: Any) -> jax.Array:
        x, noise = batch
        return judged(d, jax.lax.stop_gradient(layers("g", g, noise))) - judged(d, x)

    value, gradients = mpmd_trace.value_and_grad(of_discriminator, microbatches=MICROBATCHES)(d, (x, noise))
    d = jax.tree.map(lambda w, g: w - 0.1 * g, d, gradients)
    gradient = mpmd_trace.value_and_grad(lambda g, z: judged(d, layers("g", g, z)), microbatches=MICROBATCHES)
    return d, value, gradient(g, noise)


def lower(
    step: Any, schedule: Any, names: dict[str, str] = NAMES, **options: Any
) -> tuple[dict[str, list[str]], list[str]]:
    """Return what each mesh runs, and the warnings, of a step that computes what `jax.jit` does."""
    w = {name: 0.5 * normal(i, 4, 4) for i, name in enumerate(names)}
    x, noise = normal(len(names), 2, 8, 4)
    config = mpmd_trace.make_config(topology(4, size=1), names, pipeline_schedule=schedule, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = mpmd_trace.jit(step, config).lower(w, x, noise).compile()
    assert_same(compiled(w, x, noise), jax.jit(step)(w, x, noise))
    rows: dict[str, list[str]] = {mesh: [] for mesh in names.values()}
    for mesh, name in re.findall(r"run p\d+ on (\w+) .*  # (.+)", compiled.lowered.as_text("plan")):
        if name != "inferred":
            rows[mesh].append(name)
    return rows, [str(one.message) for one in caught]


def test_backwards_are_split_where_the_schedule_of_the_group_has_them_apart() -> None:
    rows, warned = lower(apart, {GENERATOR: "zb-h1", DISCRIMINATOR: "1F1B"})
    assert not warned
    assert rows["m1"].count("g1(1)") == MICROBATCHES and "; ".join(rows["m3"]) == "; ".join(
        ["d1, d1(1)"] * MICROBATCHES
    )
    rows, _ = lower(apart, {GENERATOR: "1F1B", DISCRIMINATOR: "zb-h1"})
    assert "g1(1)" not in rows["m1"] and rows["m3"].count("d1(1)") == MICROBATCHES


def test_backwards_of_all_groups_are_split_where_the_option_says_so() -> None:
    plain = {GENERATOR: "1F1B", DISCRIMINATOR: "1F1B"}
    rows, _ = lower(apart, plain, partitioning_options={"mpmd_split_bwd_fragments": True})
    assert rows["m1"].count("g1(1)") == rows["m3"].count("d1(1)") == MICROBATCHES


def test_groups_may_add_up_gradients_in_different_orders() -> None:
    rows, warned = lower(from_the_last, {GENERATOR: "looped-bfs", DISCRIMINATOR: "1F1B"}, LOOP)
    assert not warned
    assert "; ".join(rows["m0"]) == "; ".join(
        name for name in ("g0", "g2", "g2(1)", "g0(1)") for _ in range(MICROBATCHES)
    )
    assert "; ".join(rows["m2"]) == "d0; d0; d0(1); d0; d0(1); d0; d0(1); d0(1)"


@pytest.mark.parametrize(
    ("step", "given", "names", "instead"),
    [
        (apart, ("looped-bfs", "1F1B"), LOOP, '"auto" for m0, m1'),
        (adversarial, ("1F1B", "1F1B"), NAMES, '"GPipe" for m0, m1'),
    ],
)
def test_the_schedule_of_one_group_is_proposed_where_that_is_enough(
    step: Any, given: tuple[str, str], names: dict[str, str], instead: str
) -> None:
    schedule = dict(zip((GENERATOR, DISCRIMINATOR), given, strict=True))
    _, [warned] = lower(step, schedule, names)
    assert warned.startswith("the schedule cannot be followed exactly")
    assert f"pipeline_schedule with {instead} would be followed exactly, as m0, m1: " in warned
    _, warned_again = lower(step, {**schedule, GENERATOR: re.findall('"(.*)"', instead)[0]}, names)
    assert not warned_again


def test_a_schedule_of_the_other_group_remains_where_one_has_other_stages() -> None:
    with pytest.raises(MpmdError) as error:
        lower(apart, {GENERATOR: "looped-bfs", DISCRIMINATOR: "1F1B"})
    assert "on m0, m1: schedule 'looped-bfs' puts 2 stages on mesh 'm0'" in str(error.value)
    assert 'pipeline_schedule with "auto" for m0, m1 would be followed exactly' in str(error.value)


def test_plans_have_a_schedule_for_each_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The generator cannot follow what is best for its meshes alone, since it waits for the other group."""
    names = NAMES | {"g0": "m1", "g1": "m0"}  # not in the order of the topology
    config = mpmd_trace.make_config(
        topology(4, size=1), names, pipeline_schedule={GENERATOR: "1F1B", DISCRIMINATOR: "1F1B"}
    )
    x, noise = normal(0, 2, 8, 4)
    args = {name: jnp.eye(4) for name in names}, x, noise
    given = mpmd_trace.Program(adversarial, args, config, name="two networks")
    monkeypatch.setattr(plan, "load_program", lambda *_: given)
    with pytest.warns(MpmdWarning, match="cannot be followed exactly"):
        plan.plan_program("file", PlanOptions(), (), as_json=False)
    told = capsys.readouterr().out
    for group in ("m0, m1", "m2, m3"):
        assert f"On {group}, as a pipeline of its own:" in told
    for name, mesh in names.items():
        assert re.search(rf"^ +\d  {mesh} .*  {name}$", told, re.MULTILINE)
    proposed = ast.literal_eval(told.partition("pipeline_schedule = ")[2].partition("}")[0] + "}")
    assert list(proposed) == [GENERATOR, DISCRIMINATOR] and proposed[GENERATOR] == "gpipe"
    assert len(re.findall(r"(?:  |, )chosen", told)) == 2 and len(re.findall(r"(?:  |, )now", told)) == 2
    _, warned = lower(adversarial, proposed, names)
    assert not warned
    with pytest.raises(CallError, match="--microbatches is for one schedule of all meshes"):
        plan.plan_program("file", PlanOptions(microbatches="2,4"), (), as_json=False)
    with warnings.catch_warnings(), pytest.raises(MpmdError, match=r"on m0, m1: nothing fits in 0\.0001 MiB") as error:
        warnings.simplefilter("ignore", MpmdWarning)
        plan.plan_program("file", PlanOptions(memory_limit=0.0001), (), as_json=False)
    assert "--microbatches" not in str(error.value)


def test_microbatches_that_no_group_can_have_are_refused_before_tracing() -> None:
    other = schedules.get_schedule("1f1b", 2, 8)
    with pytest.raises(MpmdError) as error:
        lower(apart, {GENERATOR: other, DISCRIMINATOR: other})
    for group in ("m0, m1", "m2, m3"):
        assert f"on {group}: the schedule '1f1b' is for 8 microbatches, but the program has 4" in str(error.value)
    with pytest.raises(
        MpmdError, match="on m0, m1: the schedule is for 2 meshes and 8 microbatches, but the program has 2"
    ):
        lower(apart, {GENERATOR: other, DISCRIMINATOR: "1F1B"})


def test_a_mesh_without_names_does_not_count_in_the_schedule_of_its_group() -> None:
    """DualPipe-V wants two microbatches for each mesh."""
    wanted = {GENERATOR: "dualpipe-v", DISCRIMINATOR: schedules.get_schedule("1f1b", 2, 8)}

    def refused(names: dict[str, str]) -> str | None:
        return refusal(mpmd_trace.make_config(topology(4, size=1), names, pipeline_schedule=wanted), 3)

    told = refused(NAMES)
    assert told is not None and "on m0, m1: dualpipe-v needs at least 4 microbatches" in told
    assert refused({**NAMES, "g1": "m0"}) is None
