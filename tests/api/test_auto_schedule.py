"""`pipeline_schedule="auto"`: counted operations, simulated schedules, and a choice that can be explained."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_schedules_run import Model, data, training

import mpmd_trace
from mpmd_trace import MpmdError, named_computation, schedules
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.text import parse
from mpmd_trace.report.plan_values import values_of_plan
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.scheduling.auto_schedule import AutoSchedule, best_schedule, program_costs, rank_schedules
from mpmd_trace.scheduling.costs import collective_bytes
from mpmd_trace.scheduling.stage_costs import StageCosts
from mpmd_trace.scheduling.transfers import Link, Links, crossings
from pipelines import assert_same, topology
from util import filled

#: How newer versions of JAX write over which axes of a mesh a group of devices goes.
AXES, END = '#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "', '">'


def counted(fn: Any, *args: Any) -> float:
    lowered = jax.jit(fn).lower(*args)
    module = parse(lowered.as_text())
    return flops(module.main.regions[0], module)


def test_flops_are_those_of_xla() -> None:
    x, w = jnp.ones((8, 16)), jnp.ones((16, 32))
    assert counted(lambda x, w: x @ w, x, w) == 2 * 8 * 16 * 32
    assert counted(lambda x, w: jnp.tanh(x @ w), x, w) == 2 * 8 * 16 * 32 + 8 * 32
    assert counted(lambda x: x.reshape(16, 8).T, x) == 0
    batched = jnp.einsum, jnp.ones((3, 8, 16)), jnp.ones((3, 16, 4))
    assert counted(lambda a, b: batched[0]("bij,bjk->bik", a, b), *batched[1:]) == 2 * 3 * 8 * 16 * 4
    image, kernel = jnp.ones((1, 3, 8, 8)), jnp.ones((5, 3, 2, 2))
    found = counted(lambda a, k: jax.lax.conv(a, k, (1, 1), "VALID"), image, kernel)
    assert found == 2 * (5 * 7 * 7) * (3 * 2 * 2)
    model = filled(lambda: eqx.nn.MLP(16, 16, 64, 2, key=jax.random.key(0)))
    parameters, static = eqx.partition(model, eqx.is_array)

    def loss(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(eqx.combine(p, static))(x) ** 2)

    ours = counted(jax.grad(loss), parameters, x)
    analysis = jax.jit(jax.grad(loss)).lower(parameters, x).compile().cost_analysis()
    assert analysis is not None
    assert ours == pytest.approx(analysis["flops"], rel=0.1)


def test_flops_of_loops_branches_and_calls() -> None:
    w, x = jnp.ones((16, 16)), jnp.ones((8, 16))
    once = 2 * 8 * 16 * 16

    def repeated(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (x @ w, None), x, length=7)[0]

    assert counted(repeated, w, x) == pytest.approx(7 * once, rel=0.01)

    def chosen(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ w @ w, lambda x: x, x)

    assert counted(chosen, w, x) == pytest.approx(2 * once, rel=0.01)
    inner = jax.jit(lambda w, x: x @ w)
    assert counted(lambda w, x: inner(w, inner(w, x)), w, x) == 2 * once


def test_collectives_that_are_written_out_are_counted() -> None:
    """What a device sends to others: a half of it stays at home; sums come back."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))

    def sent(function: Any) -> float:
        rows = jax.sharding.PartitionSpec("x")
        mapped = jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
        module = parse(jax.jit(mapped).lower(jnp.ones((16, 4))).as_text())
        return collective_bytes(module.main.regions[0], module)

    part = 4 * 8 * 4
    assert sent(lambda x: jax.lax.all_to_all(x, "x", 0, 0, tiled=True)) == part / 2
    assert sent(lambda x: jax.lax.all_gather(x, "x", tiled=True).sum(0, keepdims=True) + x) == part
    assert sent(lambda x: jax.lax.psum(x, "x")) == part
    assert sent(lambda x: jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])) == part
    assert sent(lambda x: jax.lax.scan(lambda c, _: (jax.lax.psum(c, "x"), None), x, None, 3)[0]) == 3 * part
    assert sent(jnp.sin) == 0


@pytest.mark.parametrize(
    ("groups", "members"),
    [
        ("dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>", 2),
        ("dense<[[0], [1], [2], [3]]> : tensor<4x1xi64>", 1),
        ("dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>", 4),
        (f"{AXES}x{END}]>", 2),
        (f'{AXES}x{END}, #stablehlo.axis_ref<name = "y{END}]>', 8),
        (f'{AXES}y", sub_axis_info = #stablehlo.sub_axis_info<pre_size = 1, size = 2>>]>', 2),
        (f"{AXES}z{END}]>", 1),
    ],
)
def test_collectives_send_to_the_others_of_their_group(groups: str, members: int) -> None:
    """As groups of devices, and as the axes of a mesh over which a group goes, as newer versions of JAX write them."""
    module = parse("""module @jit_f {
  sdy.mesh @mesh = <["x"=2, "y"=4, "z"=1]>
  func.func public @main(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}""")
    [reduces] = [op for op in module.main.body if op.name == "stablehlo.all_reduce"]
    reduces.props["replica_groups"] = parse_attribute(groups)  # older versions do not parse all of them
    assert collective_bytes(module.main.regions[0], module) == 2 * 4 * 8 * 4 * (1 - 1 / members)


def test_the_schedule_that_hides_collectives_is_chosen() -> None:
    ones = costs(4, 32, (0, 1, 2, 3, 0, 1, 2, 3))
    halves = dict.fromkeys("FI", (0.5,) * 8)
    apart = best_schedule(dataclasses.replace(ones, collectives=halves))
    together = best_schedule(dataclasses.replace(ones, collectives=halves, overlap="pairs"))
    assert together.result.makespan < apart.result.makespan
    assert any(isinstance(step, schedules.Fused) for row in together.schedule.orders for step in row)
    assert best_schedule(dataclasses.replace(ones, overlap="pairs")).schedule == best_schedule(ones).schedule


def test_no_schedule_has_blocks_where_the_program_makes_none() -> None:
    sending = dataclasses.replace(costs(2, 8, (0, 1)), collectives=dict.fromkeys("FI", (1.0,) * 2))
    for overlap in (None, "pairs"):
        ranked = rank_schedules(dataclasses.replace(sending, overlap=overlap))
        steps = [step for choice in ranked for row in choice.schedule.orders for step in row]
        assert any(isinstance(step, schedules.Fused) for step in steps) == (overlap is not None)


def test_a_schedule_has_no_blocks_that_do_not_fit_into_memory() -> None:
    ones = costs(4, 16, (0, 1, 2, 3, 3, 2, 1, 0))
    sending = dataclasses.replace(ones, collectives=dict.fromkeys("FIW", (0.2,) * 8), overlap="pairs")
    for limit, has_blocks in ((None, True), (4, False)):
        [choice] = [choice for choice in rank_schedules(sending, limit) if choice.schedule.name == "zb-v"]
        assert choice.fits and choice.schedule.has_blocks == has_blocks


def costs(meshes: int, microbatches: int, mesh_of: tuple[int, ...], **times: tuple[float, ...]) -> StageCosts:
    ones = (1.0,) * len(mesh_of)
    own = {"forward": ones, "input_grad": ones, "weight_grad": ones, **times}
    return StageCosts(meshes=meshes, microbatches=microbatches, mesh_of=mesh_of, **own)


def test_best_schedule_of_equal_stages() -> None:
    four = costs(4, 16, (0, 1, 2, 3))
    best = best_schedule(four)
    whole = min(c.result.makespan for c in rank_schedules(four) if c.in_order)
    assert best.result.makespan == whole and best.schedule.splits_backward
    # ZB-H1 is as fast as ZB-H2 by the makespan, so the one with less memory is chosen.
    assert best.peak == 4
    limited = best_schedule(four, 2)
    assert limited.peak <= 2 and limited.schedule.splits_backward
    assert limited.result.makespan > best.result.makespan
    with pytest.raises(MpmdError, match=r"activations of 0.5 microbatches per mesh; .* comes closest"):
        best_schedule(four, 0.5)
    assert not best_schedule(four, whole_backwards=True).schedule.splits_backward


def test_split_backwards_must_pay() -> None:
    """With nearly all of the time in one stage nothing beats 1F1B by much."""
    heavy = costs(
        2, 32, (0, 1), forward=(0.01, 1), input_grad=(0.01, 1), weight_grad=(0.01, 1)
    )  # fmt: skip
    best = best_schedule(heavy)
    assert not best.schedule.splits_backward
    assert best.schedule.name == "1f1b"  # among equals that with the least memory
    assert best.result.makespan <= 1.02 * rank_schedules(heavy)[0].result.makespan


@pytest.mark.parametrize(("mesh_of", "placement"), [((0, 1, 0, 1), "in a loop"), ((0, 1, 1, 0), "in a V")])
def test_the_schedule_fits_the_placement(mesh_of: tuple[int, ...], placement: str) -> None:
    found = rank_schedules(costs(2, 8, mesh_of))
    assert found and all(c.schedule.placement.mesh_of == mesh_of for c in found)
    assert placement in schedules.find_entry(best_schedule(costs(2, 8, mesh_of)).schedule.name).placement


def test_two_chains_are_told_from_a_v() -> None:
    down, up = (0, 1, 2, 3), (4, 5, 6, 7)
    chains = costs(2, 8, (0, 1, 1, 0))
    chains = dataclasses.replace(chains, visits=(down, down, up, up))
    assert [c.schedule.name for c in rank_schedules(chains)] == ["dualpipe"]


def test_stages_that_no_schedule_has() -> None:
    assert best_schedule(costs(2, 4, (1, 0, 0, 1))).schedule.name == "stages-1f1b"
    some = dataclasses.replace(costs(2, 4, (1, 0, 0, 1)), visits=((0, 1), (0, 1), (2, 3), (2, 3)))
    with pytest.raises(MpmdError, match=r"finds no schedule for these stages \(0 on mesh 1, 1 on mesh 0"):
        best_schedule(some)
    with pytest.raises(MpmdError, match="memory_limit is 0"):
        AutoSchedule(memory_limit=0)


def compiled(schedule: Any, names: dict[str, Any], stages: int, microbatches: int = 4) -> Any:
    config = mpmd_trace.make_config(topology(2, size=1), names, pipeline_schedule=schedule)
    model = Model(stages)
    step, args = training(model, microbatches), data(model, microbatches)
    lowered = mpmd_trace.jit(step, config).lower(*args)
    return lowered, lambda: assert_same(lowered.compile()(*args), jax.jit(step)(*args))


def test_auto_runs_and_says_what_it_chose() -> None:
    names = {"blocks_0": "m0", "blocks_1": "m1"}
    lowered, check = compiled("auto", names, 2)
    again, _ = compiled("AUTO", names, 2)
    known = [*schedules.schedule_names(), "1F1B", "GPipe"]
    assert lowered.schedule.name in known and lowered.schedule.name != "none"
    assert again.schedule.name == lowered.schedule.name
    assert again.as_text() == lowered.as_text()
    check()
    limited, _ = compiled(AutoSchedule(memory_limit=2), names, 2)
    assert limited.schedule.name in known
    with pytest.raises(MpmdError, match=r"\.py:\d+: error: no schedule .* comes closest with"):
        compiled(AutoSchedule(memory_limit=0.5), names, 2)
    own, _ = compiled(AutoSchedule(memory_limit={"m0": 1}), names, 2)
    unlimited = own.placement_report().meshes
    assert lowered.placement_report().meshes[0].activations > unlimited[0].activations
    with pytest.raises(MpmdError, match=r"memory_limit names 'm7'; the meshes are m0, m1"):
        compiled(AutoSchedule(memory_limit={"m7": 1}), names, 2)
    for wrong in (
        {"memory_limit": float("nan")},
        {"memory_limit": {"m0": float("nan")}},
        {"flops_per_second": float("nan")},
    ):
        with pytest.raises(MpmdError, match=f"{next(iter(wrong))} is .*nan"):
            AutoSchedule(**wrong)


@pytest.mark.parametrize(("meshes", "kind"), [((0, 1, 1, 0), "in a V"), ((0, 1, 0, 1), "in a loop")])
def test_auto_of_several_stages_per_mesh(meshes: tuple[int, ...], kind: str) -> None:
    names = {f"blocks_{s}": (f"m{mesh}", s) for s, mesh in enumerate(meshes)}
    lowered, check = compiled("auto", names, 4)
    assert kind in schedules.find_entry(lowered.schedule.name).placement
    check()


def test_auto_without_a_backward() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            x = named_computation(lambda w, x: x @ w, name=f"f{i}")(w, x)
        return x

    config = mpmd_trace.make_config(topology(2, size=1), {"f0": "m0", "f1": "m1"}, pipeline_schedule="auto")
    ws = list(jnp.ones((2, 4, 4)))
    assert mpmd_trace.jit(step, config).lower(ws, jnp.ones((2, 4))).schedule.name == "GPipe"


LINKS = Links(Link(2e-6, 1e9))


def test_links_need_a_speed() -> None:
    with pytest.raises(MpmdError, match="links are in seconds, but the work of the program is counted"):
        AutoSchedule(links=LINKS)
    with pytest.raises(MpmdError, match="flops_per_second is -1"):
        AutoSchedule(links=LINKS, flops_per_second=-1)
    with pytest.raises(MpmdError, match=r"links is 5; make it with mpmd_trace\.scheduling\.Links"):
        AutoSchedule(links=5, flops_per_second=1e9)  # type: ignore[arg-type]


def test_costs_of_links_are_those_of_the_plan() -> None:
    """What "auto" counts before XLA, and what the compiled program sends: the same values."""
    model = Model(2)
    config = mpmd_trace.make_config(
        topology(2, size=1),
        {"blocks_0": "m0", "blocks_1": "m1"},
        partitioning_options={"mpmd_infer_transfers": True, "mpmd_merge_forward_with_backward": False},
        pipeline_schedule="1F1B",
    )
    actions = FragmentActions()
    lowered = mpmd_trace.jit(training(model, 4), config).lower(*data(model, 4), hooks=[actions])
    auto = AutoSchedule(links=LINKS, flops_per_second=1e9)
    counted = program_costs(lowered.imported(), auto)
    free = program_costs(lowered.imported(), AutoSchedule())
    assert counted is not None and free is not None
    assert counted.forward == pytest.approx([c / 1e9 for c in free.forward])
    assert counted.latency == {(0, 1): 2e-6, (1, 0): 2e-6} and counted.bandwidth == {(0, 1): 1e9, (1, 0): 1e9}
    plan = make_plan(lowered.partitioned.module)
    sent = crossings(values_of_plan(plan, actions), {0: 0, 1: 1}, ["m0", "m1"])
    assert counted.sends == sent.sends and set(counted.sends) == {(0, 1), (1, 0)}


def test_slow_links_change_the_choice() -> None:
    """The choice is the best one of the simulation with these links, and another one than without."""
    names = {"blocks_0": "m0", "blocks_1": "m1"}

    def chosen(latency: float) -> Any:
        links = Links(Link(latency))
        return compiled(AutoSchedule(links=links, flops_per_second=1e9), names, 2, microbatches=8)

    lowered, _ = chosen(0.0)
    slow, check = chosen(3e-6)
    imported = lowered.imported()
    for found, latency in ((lowered, 0.0), (slow, 3e-6)):
        auto = AutoSchedule(links=Links(Link(latency)), flops_per_second=1e9)
        costs = program_costs(imported, auto)
        assert costs is not None
        known = best_schedule(costs).schedule.name
        assert schedules.find_entry(found.schedule.name).name == known
    assert slow.schedule.name != lowered.schedule.name
    check()


@pytest.mark.parametrize("kind", ["exposed", "blocking"])
def test_meshes_that_wait_for_transfers(kind: Any) -> None:
    free = costs(4, 8, (0, 1, 2, 3))
    known = dataclasses.replace(free, sends={(s, s + 1): 1.0 for s in range(3)})
    known = known.linked(Links(Link(0.5, 10.0), transfers=kind), ("a", "b", "c", "d"), 1.0)
    assert known.transfers == kind and known.bandwidth is not None
    ranked = rank_schedules(known)
    assert ranked and ranked[0].makespan > rank_schedules(free)[0].makespan
    assert all(c.result.transfers == kind for c in ranked)


def test_what_stages_send_past_their_neighbours() -> None:
    """A skip connection is a transfer of its own, and its gradient another."""
    free = costs(3, 4, (0, 1, 2))
    links = Links(Link(0.0, 1.0))
    sends = {(0, 1): 0.1, (1, 2): 0.1, (1, 0): 0.1, (2, 1): 0.1}

    def step(more: dict[tuple[int, int], float]) -> float:
        known = dataclasses.replace(free, sends={**sends, **more}).linked(links, ("a", "b", "c"), 1.0)
        return next(c for c in rank_schedules(known) if c.schedule.name == "1f1b").makespan

    assert step({}) == step({(0, 2): 0.1}), "it has all the time that stage 1 takes"
    assert step({(0, 2): 5.0}) > step({}) and step({(2, 0): 5.0}) > step({})


@pytest.mark.parametrize(("mesh_of", "makespan"), [((0, 1), 5), ((0, 1, 0, 1), 9), ((0, 1, 0), 8)])
def test_programs_without_backwards_have_one_schedule(mesh_of: tuple[int, ...], makespan: float) -> None:
    zero = (0.0,) * len(mesh_of)
    (found,) = rank_schedules(dataclasses.replace(costs(2, 4, mesh_of), input_grad=zero, weight_grad=zero))
    assert found.schedule.name == "forward" and found.schedule.forward_only and found.in_order and found.fits
    assert found.makespan == makespan
