"""remat="auto" and offload="auto": a step fits into the memory that it is given, at the least cost."""

from __future__ import annotations

import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError, MpmdWarning
from mpmd_trace.backend.plan import Run, Transfer
from pipelines import assert_same, loss_of, topology
from util import normal

WIDTH, STAGES, MICROBATCHES = 16, 3, 4


def layer(p: Any, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(jax.nn.gelu(x @ p["up"])) @ p["down"]


def step_of(layer: Any = layer) -> Any:
    def step(ps: Any, batch: jax.Array) -> Any:
        value, grads = mpmd_trace.value_and_grad(loss_of(layer), microbatches=MICROBATCHES)(ps, batch)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, ps, grads)

    return step


def arguments() -> Any:
    ps = [
        {"up": 0.3 * normal(2 * i, WIDTH, 4 * WIDTH), "down": 0.3 * normal(2 * i + 1, 4 * WIDTH, WIDTH)}
        for i in range(STAGES)
    ]
    return ps, normal(2 * STAGES, MICROBATCHES * 32, WIDTH)


def lowered(layer: Any = layer, devices: int = 1, **options: Any) -> mpmd_trace.stages.Lowered:
    return jitted(layer, devices, **options).lower(*arguments())


def jitted(layer: Any, devices: int = 1, **options: Any) -> mpmd_trace.stages.Jitted:
    meshes = topology(STAGES, devices, "data")
    names = {f"f{i}": mesh for i, mesh in enumerate(meshes)}
    config = mpmd_trace.make_config(meshes, names, pipeline_schedule="1F1B", **options)
    places = (None, NamedSharding(meshes["m0"], P("data"))) if devices > 1 else None
    return mpmd_trace.jit(step_of(layer), config, in_shardings=places)


def peaks(found: Any) -> dict[str, int]:
    return {mesh: analysis.peak for mesh, analysis in found.memory_analysis().items()}


def remarks(found: mpmd_trace.stages.Lowered) -> str:
    return "\n".join(d.message for d in found.partitioned.diagnostics if d.severity == "remark")


def test_the_step_fits_and_recomputes_no_more_than_it_has_to() -> None:
    whole = lowered().compile()
    wanted = peaks(whole)
    expected = whole(*arguments())
    assert_same(expected, jax.jit(step_of())(*arguments()))
    # Room for the activations of all stages but the first.
    compiled = lowered(remat="auto", device_memory=wanted["m0"] - 1).compile()
    found = peaks(compiled)
    assert found["m0"] < wanted["m0"] and all(found[m] == wanted[m] for m in ("m1", "m2"))
    assert_same(compiled(*arguments()), expected)
    said = remarks(compiled.lowered)
    assert re.search(r"a forward of f0 leaves \([\d,]+ bytes\) is recomputed where that takes no product, at the", said)
    assert re.search(r"a forward of f1 leaves \([\d,]+ bytes\) is kept", said)
    # Less room: all is made again, and what XLA needs besides was found out by compiling.
    least = found["m0"] - 10_000
    smaller = lowered(remat="auto", device_memory=least).compile()
    assert max(peaks(smaller).values()) <= least
    assert re.search(r"a forward of f0 leaves \([\d,]+ bytes\) is recomputed, at", remarks(smaller.lowered))
    assert_same(smaller(*arguments()), expected)


def test_a_step_fits_though_the_plan_holds_more_than_the_passes_expected() -> None:
    """Activations for the second stage of a mesh arrive before its first stage has let go of its own."""
    meshes = topology(2, 1, "data")
    names = {f"f{i}": (f"m{i % 2}", i) for i in range(4)}
    ps, batch = arguments()

    def most(limit: int) -> int:
        options = {"pipeline_schedule": "interleaved-1f1b", "remat": "auto", "device_memory": limit}
        step = mpmd_trace.jit(step_of(), mpmd_trace.make_config(meshes, names, **options))
        return max(peaks(step.lower([*ps, ps[0]], batch).compile()).values())

    first = most(240_000)
    assert most(first - 1) < first


def masked(p: Any, x: jax.Array) -> jax.Array:
    """Leaves the backward eight masks, such as those of dropout, and what they give."""
    for i in range(8):
        x = jnp.where(x > 0.1 * i, 0.9 * x, x)
    return layer(p, x)


def test_masks_count_with_a_byte_per_element() -> None:
    def left_by_f1(layer: Any) -> int:
        said = remarks(lowered(layer, remat="auto", device_memory=10**5))
        found = re.search(r"a forward of f1 leaves \(([\d,]+) bytes\)", said)
        assert found is not None
        return int(found[1].replace(",", ""))

    masks, masked_rows = 8 * 32 * WIDTH, 4 * 32 * WIDTH
    assert left_by_f1(masked) - left_by_f1(layer) == masks + masked_rows


def sharded(p: Any, x: jax.Array) -> jax.Array:
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return layer(p, jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))))


def test_activations_go_to_the_host_and_come_back() -> None:
    """Over sharded rows; where recomputing is allowed as well, it is cheaper here."""
    whole = lowered(sharded, 2).memory_analysis()["m0"].peak
    compiled = lowered(sharded, 2, offload="auto", device_memory=whole - 40_000).compile()
    assert peaks(compiled)["m0"] <= whole - 40_000
    assert compiled.placement_report().causes["host memory"][0] > 0
    assert_same(compiled(*arguments()), jax.jit(step_of())(*arguments()))
    both = lowered(sharded, 2, remat="auto", offload="auto", device_memory=whole - 40_000)
    assert re.search(r"a forward of f0 leaves \([\d,]+ bytes\) is recomputed", remarks(both))
    assert "host memory" not in both.placement_report().causes


def runs_after_fetches(compiled: mpmd_trace.stages.Compiled) -> list[int]:
    """For each transfer from host memory to `m0`, which of the following programs there reads it first."""
    plan = compiled.program.plan
    own = [one for one in plan.instructions if isinstance(one, Run | Transfer) and "m0" in one.meshes]
    found = []
    for at, fetch in enumerate(own):
        if isinstance(fetch, Transfer) and plan.slots[fetch.inputs[0]].memory_kind == "pinned_host":
            runs = [one for one in own[at:] if isinstance(one, Run)]
            found.append(next(i for i, run in enumerate(runs) if set(run.inputs) & set(fetch.outputs)))
    return found


def test_what_is_offloaded_comes_back_a_program_early_if_there_is_memory() -> None:
    wanted = peaks(lowered())["m0"]
    early = lowered(offload="auto", device_memory=wanted - 20_000).compile()
    assert runs_after_fetches(early) == [1] * MICROBATCHES
    assert "comes back while the program before its backward runs" in remarks(early.lowered)
    least = peaks(early)["m0"] - 1
    late = lowered(offload="auto", device_memory=least).compile()
    assert runs_after_fetches(late) == [0] * MICROBATCHES
    assert "is in host memory in between, for which its backward waits" in remarks(late.lowered)
    expected = jax.jit(step_of())(*arguments())
    for compiled, limit in ((early, wanted - 20_000), (late, least)):
        assert peaks(compiled)["m0"] <= limit
        assert_same(compiled(*arguments()), expected)


def test_a_checkpoint_says_itself_what_is_recomputed() -> None:
    policy = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)
    plain = lowered(policy)
    found = lowered(policy, remat="auto", device_memory=100_000)
    assert "is kept; jax.checkpoint says what is recomputed" in remarks(found)
    assert found.as_text("plan") == plain.as_text("plan")


def test_what_does_not_fit_anyhow_is_a_warning() -> None:
    with pytest.warns(MpmdWarning, match=r"does not fit into 1,000 bytes of a device.* too many on mesh 'm0'"):
        lowered(remat="auto", device_memory=1000).compile()
    with pytest.warns(MpmdWarning, match="do not say how much memory they have: give make_config.device_memory"):
        found = lowered(remat="auto").compile()
    assert not remarks(found.lowered)


def test_mistakes() -> None:
    with pytest.raises(MpmdError, match="remat is 'auto' or None, not 'full'"):
        lowered(remat="full")
    with pytest.raises(MpmdError, match="offload is 'auto' or None, not True"):
        lowered(offload=True)
    with pytest.raises(MpmdError, match="both recompute"):
        lowered(remat="auto", partitioning_options={"mpmd_fragment_remat": True})


def test_enough_memory_changes_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lowered(remat="auto", offload="auto", device_memory=10**9)
    assert found.as_text("plan") == lowered().as_text("plan")


def traced_for(platform: str, layer: Any = layer, **options: Any) -> list[str]:
    """What is said of memory in a program that is lowered for a platform."""
    lowered = jitted(layer, **options).trace(*arguments()).lower(lowering_platforms=(platform,))
    return [d.message for d in lowered.partitioned.diagnostics if d.severity == "remark"]


def test_nothing_is_offloaded_where_recomputing_saves_as_much_and_copies_cost_more_than_a_fifth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deep(p: Any, x: jax.Array) -> jax.Array:
        y = x @ p["up"] @ p["down"] @ p["up"] @ p["down"]
        return x + y * y

    whole = max(memory.peak for memory in lowered(deep).memory_analysis().values())
    options: Any = {"layer": deep, "offload": "auto", "remat": "auto", "device_memory": whole - 20_000}
    monkeypatch.setattr("mpmd_trace.passes.memory.activations.PER_HOST_BYTE", 2)  # copies cost less than recomputing
    assert any("is in host memory in between" in text for text in traced_for("cpu", **options))
    on_gpu = traced_for("cuda", **options)
    [why] = {text.partition("'m0'")[2] for text in on_gpu if "'m0' nothing is offloaded" in text}
    assert re.search(r"would cost \d{2,}% of the work of a step, more than 20%", why)
    assert any("is recomputed" in text for text in on_gpu)
    assert not any("is in host memory in between" in text for text in on_gpu)


def test_copies_to_the_host_that_cost_much_are_the_last_resort() -> None:
    whole = max(memory.peak for memory in lowered().memory_analysis().values())
    on_cpu = traced_for("cpu", offload="auto", device_memory=whole - 20_000)
    assert any("is in host memory in between" in text for text in on_cpu)
    expected = (
        r"on mesh 'm0' cost about \d{2,}% of the work of a step, and without them .* allow remat='auto', use more"
    )
    with pytest.warns(mpmd_trace.MpmdWarning, match=expected):
        on_gpu = traced_for("cuda", offload="auto", device_memory=whole - 20_000)
    assert any("is in host memory in between" in text for text in on_gpu)
