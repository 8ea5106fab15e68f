"""What `plan` predicts, beside what the compiled program is: bytes, transfers, step and memory."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError, MpmdWarning
from mpmd_trace.backend.collectives import KINDS
from mpmd_trace.backend.plan import Plan, Run, Transfer
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.collective_overlap import HiddenShare
from mpmd_trace.jax_compat.runtime import keeps_barriers
from mpmd_trace.report import plan_costs
from mpmd_trace.report.link_times import fit_link, measure_links
from mpmd_trace.report.plan_copies import WORDS, Copies, cost_of
from mpmd_trace.report.plan_costs import Layer, LayerValues, Study, program_costs, study, values_of_layers
from mpmd_trace.report.plan_search import Option, check_best, check_option, layer_cuts, options_of
from mpmd_trace.report.plan_values import at_fraction
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.schedules import Action, Cut, load_csv
from mpmd_trace.scheduling import transfers
from mpmd_trace.scheduling.stage_costs import StageCosts
from mpmd_trace.scheduling.transfers import Link, Links, Traffic, Value, crossings
from mpmd_trace_cli.plan_text import as_data, as_text


def _program_file(name: str) -> Any:
    """A file of `tests/programs`, as a module."""
    where = Path(__file__).parent.parent / "programs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"planned_{name}", where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tied, uneven = _program_file("tied"), _program_file("uneven")
SPEED, WIDTH = 20e9, 10e9
LINKS = Links(Link(5e-6, 2e9))


def phases_apart(program: mpmd_trace.Program) -> mpmd_trace.Program:
    """A forward and a backward that follow each other stay two programs, each with its own cost."""
    return dataclasses.replace(program, config=program.config.with_options(mpmd_merge_forward_with_backward=False))


def compiled(program: mpmd_trace.Program) -> tuple[Any, FragmentActions]:
    program, actions = phases_apart(program), FragmentActions()
    lowered = program.jitted().lower(*program.args, hooks=[actions])
    return lowered.compile(), actions


def studied(program: mpmd_trace.Program, links: Links | None = LINKS) -> tuple[Any, Study]:
    found, actions = compiled(program)
    return found, study(
        found.lowered, found.program, actions, flops_per_second=SPEED, bytes_per_second=WIDTH, links=links
    )


def played(plan: Plan, cost: list[float], links: Links) -> float:
    """The end of a step whose every program and transfer runs as soon as it can, in ms."""
    ready: dict[int, float] = {}
    free = dict.fromkeys(plan.meshes, 0.0)
    wire: dict[tuple[str, str], float] = {}
    for one in plan.instructions:
        if isinstance(one, Run):
            end = max([free[one.mesh], *(ready.get(s, 0.0) for s in one.inputs)]) + cost[one.program]
            free[one.mesh] = end
        elif isinstance(one, Transfer):
            link = links.between(one.source, one.target)
            start = max(wire.get((one.source, one.target), 0.0), *(ready.get(s, 0.0) for s in one.inputs))
            busy = 1e3 * sum(plan.slots[o].bytes for o in one.outputs) / (link.bandwidth or float("inf"))
            wire[one.source, one.target] = start + busy
            end = start + busy + 1e3 * link.latency
        else:
            continue
        ready.update(dict.fromkeys(one.outputs, end))
    return max(ready.values())


def with_option(program: mpmd_trace.Program, option: Option, known: Study) -> mpmd_trace.Program:
    """The program as the option wants it."""
    config = mpmd_trace.make_config(
        dict(program.config.topology),
        option.name_to_mesh(known.meshes),
        pipeline_schedule=option.choice.schedule,
        partitioning_options=program.config.options.changed(),
    )
    return dataclasses.replace(program, config=config)


def assert_as_predicted(found: Any, option: Option, known: Study, step: float, memory: float) -> None:
    cost, unit = program_costs(found.program, [], SPEED, WIDTH)
    assert unit == known.unit == "ms" and known.links is not None
    assert option.step == pytest.approx(played(found.program.plan, cost, known.links), rel=step)
    for mesh, peak in zip(known.meshes, option.peak_bytes, strict=True):
        assert peak == pytest.approx(found.memory_analysis()[mesh].peak, rel=memory), mesh


@pytest.fixture(scope="module")
def uneven_study() -> tuple[mpmd_trace.Program, Any, Study]:
    program = uneven.program()
    return program, *studied(program)


def pick(options: list[Option], schedule: str, assignment: str, stages: int) -> Option:
    return next(
        o for o in options if (o.choice.schedule.name, o.assignment, len(o.mesh_of)) == (schedule, assignment, stages)
    )


def test_bytes_are_those_of_the_types(uneven_study: Any) -> None:
    _, _, known = uneven_study
    rows = 8 * uneven.WIDTH * 4
    assert known.stages.sends == {(0, 1): rows, (1, 0): rows}
    assert not known.before and not known.rest
    assert [layer.sends for layer in known.layers] == [rows] * 5 + [0]
    assert [layer.receives for layer in known.layers] == [rows] * 5 + [0]


def test_predicted_step_and_memory_of_the_program_itself(uneven_study: Any) -> None:
    _, found, known = uneven_study
    now = pick(options_of(known), "1f1b", "as assigned", 2)
    assert_as_predicted(found, now, known, step=0.1, memory=0.02)


@pytest.mark.parametrize(
    ("schedule", "assignment", "stages"),
    [("gpipe", "as assigned", 2), ("1f1b", "balanced", 2), ("zb-v", "balanced", 4)],
)
def test_predicted_step_and_memory_of_alternatives(
    uneven_study: Any, schedule: str, assignment: str, stages: int
) -> None:
    """They were never compiled when they were predicted."""
    program, _, known = uneven_study
    option = pick(options_of(known), schedule, assignment, stages)
    found, _ = compiled(with_option(program, option, known))
    assert_as_predicted(found, option, known, step=0.15, memory=0.2)


def test_layers_tell_what_stages_send(uneven_study: Any) -> None:
    """What crosses between layers, each on a mesh of its own, is what crosses between the stages they make."""
    _, _, known = uneven_study
    assert isinstance(known.layer_values, LayerValues)
    stage_of = {layer: int(layer >= 2) for layer in range(6)}
    sent = crossings(known.layer_values.values, stage_of, known.meshes)
    assert sent.sends == known.stages.sends
    held = [sum(layer.activations for layer in known.layers[a:b]) for a, b in ((0, 2), (2, 6))]
    assert held == pytest.approx(known.activations, rel=0.25)
    assert sum(layer.static for layer in known.layers) == pytest.approx(
        sum(max(p) - max(s) for p, s in zip(known.static, known.scratch, strict=True)), rel=0.2
    )


def test_layers_keep_their_own_parameters_when_gradients_are_divided_by_a_sum_of_weights() -> None:
    size = 32

    def loss(ws: list[jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        for i, w in enumerate(ws):
            x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"b{i}")(w, x)
        return jnp.sum(x**2), jnp.sum(x > 0)

    def step(ws: list[jax.Array], momenta: list[jax.Array], x: jax.Array) -> Any:
        value, grads = mpmd_trace.value_and_grad(loss, microbatches=4, reduce="weighted")(ws, x)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, grads)
        return jax.tree.map(lambda w, m: w - m, ws, momenta), momenta, value

    topology = {f"m{i}": Mesh(np.array([d]), ("x",)) for i, d in enumerate(jax.devices()[:2])}
    config = mpmd_trace.make_config(topology, {f"b{i}": f"m{i // 2}" for i in range(4)}, pipeline_schedule="1F1B")
    weights = [jnp.eye(size)] * 4
    momenta = jax.tree.map(jnp.zeros_like, weights)
    program = mpmd_trace.Program(step, (weights, momenta, jnp.ones((4, size))), config, donate_argnums=(0, 1))
    _, known = studied(program)
    # Weight, momentum, and the sum of the gradients; on the first also the batch, on all some scalars.
    assert [layer.static for layer in known.layers] == pytest.approx([3 * size * size * 4] * 4, rel=0.06)


def test_shared_parameters() -> None:
    """A table of the first and the last layer goes there once, and its gradient, which is summed there, back once."""
    found, known = studied(tied.program())
    rows, table = tied.ROWS * tied.WIDTH * 4 // 2, tied.WORDS * tied.WIDTH * 4
    assert known.stages.sends == {(0, 1): rows, (1, 0): rows}
    tokens = tied.MICROBATCHES * tied.ROWS * 4 // 2
    assert known.before == {("m0", "m1"): Traffic(2, table + tokens)}
    assert known.rest == {("m1", "m0"): Traffic(1, table)}
    now = pick(options_of(known), "gpipe", "as assigned", 2)
    assert_as_predicted(found, now, known, step=0.12, memory=0.1)  # zeros for the sums are made before


@pytest.mark.parametrize(("make", "schedule"), [(tied.inference, "forward"), (tied.inference_in_a_loop, "forward")])
def test_programs_without_backwards(make: Any, schedule: str) -> None:
    found, known = studied(make())
    assert known.stages.forward_only and not any(known.activations)
    options = options_of(known)
    now = pick(options, schedule, "as assigned", len(known.stages.mesh_of))
    assert_as_predicted(found, now, known, step=0.05, memory=0.02)
    assert all(action.kind == "F" for o in options for _, _, action in o.choice.schedule.actions())
    orders = [(o.mesh_of, o.names, o.microbatches, o.choice.schedule.orders) for o in options]
    assert len(set(orders)) == len(orders), "without backwards many schedules are the same"


def test_the_best_is_checked(uneven_study: Any) -> None:
    """The order that the compiler gives the program is what counts.

    Sums of gradients that are merged with some of the backwards make it a worse one than the opposite order would be.
    """
    program, found, known = uneven_study
    program = dataclasses.replace(program, config=program.config.with_options(mpmd_equal_microbatches=False))
    lowered, traced = found.lowered, parse(found.lowered.traced.mlir_text())
    lowered = dataclasses.replace(lowered, config=program.config)
    options = options_of(known)
    assert all(o.checked is None for o in options)
    asked: list[str] = []
    checked = check_best(options, known, lowered, traced, asked.append)
    assert checked[0].checked is not None and 1 <= len(asked) <= 4
    other = pick(options, "looped-bfs", "balanced", 4)
    assert not other.choice.in_order
    changed = check_option(other, known, lowered, traced)
    assert changed.checked == "the program's data flow changes its order"
    assert changed.step > 1.02 * other.step
    orders = [[str(a) for a in row] for row in changed.choice.schedule.orders]
    assert orders != [[str(a) for a in row] for row in other.choice.schedule.orders]
    # It is the order that compiling gives.
    actions = FragmentActions()
    again = with_option(program, other, known)
    with pytest.warns(MpmdWarning, match="the schedule cannot be followed exactly"):
        again.jitted().lower(*again.args, hooks=[actions])
    ran = [[str(a) for a in row if a.kind != "O"] for row in actions.of_mesh.values()]
    assert ran == orders


# Links.


def test_fit_of_a_link() -> None:
    sizes = [1e3, 1e5, 1e6, 4e6]
    link = fit_link(sizes, [20e-6 + n / 12e9 for n in sizes])
    assert link.latency == pytest.approx(20e-6) and link.bandwidth == pytest.approx(12e9)
    flat = fit_link(sizes, [3e-6] * 4)  # size does not matter
    assert flat.latency == pytest.approx(3e-6) and flat.bandwidth is None
    steep = fit_link(sizes, [n / 1e9 for n in sizes])
    assert steep.latency == pytest.approx(0, abs=1e-12) and steep.bandwidth == pytest.approx(1e9)


def test_measured_links() -> None:
    config = tied.program().config
    names: list[str] = []
    links = measure_links(config.topology, [("m0", "m1"), ("m0", "m1")], sizes=(256, 1 << 16), progress=names.append)
    assert names == ["m0 to m1"] and list(links.single) == [("m0", "m1")]
    assert links.between("m0", "m1").seconds(1 << 16) > 0
    assert links.between("m1", "m0") == links.default


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link(-1.0), "latency of a link is -1.0"),
        (lambda: Link(0.0, 0.0), "bandwidth of a link is 0.0"),
        (lambda: Links(transfers="sometimes"), "transfers is 'sometimes'; it is one of async, exposed"),
    ],
)
def test_wrong_links(make: Any, message: str) -> None:
    with pytest.raises(MpmdError, match=message):
        make()


# Divisions, on made-up numbers.


def made_up(links: Links | None, sends: tuple[float, ...], **changes: Any) -> Study:
    """Six equal layers on two meshes, 1 ms forward and 2 ms back, that hold 1000 bytes of each microbatch and
    send `sends`."""
    values = []
    for i, m in itertools.product(range(6), range(4)):
        values.append(Value(1000, f"layer{i}", Action(i, "F", m), ((f"layer{i}", Action(i, "B", m)),)))
    for i, size in enumerate(sends):
        for m in range(4):
            there = ((f"layer{i + 1}", Action(i + 1, "F", m)),)
            values.append(Value(size, f"layer{i}", Action(i, "F", m), there))
            back = ((f"layer{i}", Action(i, "B", m)),)
            values.append(Value(size, f"layer{i + 1}", Action(i + 1, "B", m), back))
    names = tuple(f"name_{i}" for i in range(6))
    cuts = tuple((size, size) for size in sends)
    between = LayerValues(tuple(f"layer{i}" for i in range(6)), tuple(values), ((100.0,),) * 6, cuts)
    stages = StageCosts(
        meshes=2,
        microbatches=4,
        mesh_of=(0, 1),
        forward=(5.0, 1.0),
        input_grad=(0.0, 1.0),
        weight_grad=(10.0, 1.0),
        sends={(0, 1): sends[4], (1, 0): sends[4]},
    )
    known = Study(
        unit="ms",
        meshes=("a", "b"),
        stages=stages if links is None else stages.linked(links, ("a", "b"), 1e-3),
        activations=(5000.0, 1000.0),
        static=((500.0,), (100.0,)),
        scratch=((0.0,), (0.0,)),
        layers=tuple(Layer(n, 1.0, 2.0, 1000.0, 100.0, *c) for n, c in zip(names, (*cuts, (0.0, 0.0)), strict=True)),
        names=(names[:5], names[5:]),
        copies=(Copies(), Copies()),
        input_share=0.5,
        once=(0.0, 0.0),
        before={},
        rest={},
        links=links,
        layer_values=between,
    )
    return dataclasses.replace(known, **changes)


def two_stages(options: list[Option]) -> Option:
    return next(o for o in options if o.assignment == "balanced" and len(o.mesh_of) == 2)


def test_slices_send_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices are a slice here; the third mesh is on both, and each sends to the other slice."""
    monkeypatch.setattr(transfers, "slice_of", lambda device: device.id // 2)
    monkeypatch.setattr(transfers, "network_speed_of", lambda device: 2e9)
    devices = np.array(jax.devices()[:4])
    meshes = {"a": Mesh(devices[:1], ("x",)), "b": Mesh(devices[1:2], ("x",)), "c": Mesh(devices[1:], ("x",))}
    links = transfers.over_network(Links(Link(1e-6, 5e9), {("c", "a"): Link(0.0, 9e9)}), meshes)
    assert links.between("a", "b") == links.between("b", "a") == Link(1e-6, 5e9)
    assert links.between("a", "c") == links.between("b", "c") == Link(1e-6, 2e9)
    assert links.between("c", "a") == Link(0.0, 9e9)  # as it is given
    assert transfers.over_network(Links(Link(0.0, 1e9)), meshes).between("a", "c") == Link(0.0, 1e9)
    assert transfers.over_network(Links(), meshes).between("a", "c") == Link(0.0, 2e9)


def test_cuts_go_where_little_is_sent() -> None:
    wide, narrow = 64e6, 1e3
    sends = (wide, wide, wide, narrow, wide)
    free = two_stages(options_of(made_up(None, sends)))
    assert len(free.names[0]) == 3
    slow = two_stages(options_of(made_up(Links(Link(0.0, 1e9)), sends)))
    assert len(slow.names[0]) == 4, "the link would be busy for 64 ms"
    assert slow.stages.sends == {(0, 1): narrow, (1, 0): narrow}


def test_kinds_of_transfers() -> None:
    sends = (1e6,) * 5
    made = {m: made_up(Links(Link(1e-4, 1e9), transfers=m), sends) for m in ("async", "exposed", "blocking")}
    assert layer_cuts(made["async"]) == [Cut(link=pytest.approx(1.0))] * 5
    assert layer_cuts(made["exposed"]) == [Cut(pytest.approx(1.1), pytest.approx(1.1))] * 5
    assert layer_cuts(made["blocking"]) == [Cut(pytest.approx(2.2), pytest.approx(2.2))] * 5
    steps = {m: pick(options_of(s), "1f1b", "as assigned", 2).step for m, s in made.items()}
    assert steps["async"] < steps["exposed"] < steps["blocking"]
    nothing = pick(options_of(made_up(None, sends)), "1f1b", "as assigned", 2).step
    assert nothing < steps["async"]


def test_what_moves_besides() -> None:
    links = Links(Link(1e-3), {("b", "a"): Link(2e-3)})
    early, late = {("a", "b"): Traffic(2, 0.0)}, {("b", "a"): Traffic(1, 0.0), ("a", "b"): Traffic(1, 0.0)}
    known = made_up(links, (0.0,) * 5, before=early, rest=late)
    # Two arguments arrive after 2 ms; from then on they are hidden.
    assert [known.besides({"a": 0.0, "b": b}, {}) for b in (0.0, 1.5, 9.0)] == pytest.approx([4.0, 2.5, 2.0])
    # What leaves b does so while a still works.
    assert [known.besides({"b": 9.0}, {"b": b}) for b in (0.5, 1.5)] == pytest.approx([1.5, 1.0])
    exposed = dataclasses.replace(known, links=dataclasses.replace(links, transfers="exposed"))
    assert exposed.besides({}, {}) == pytest.approx(3.0)  # mesh a sends three
    blocking = dataclasses.replace(known, links=dataclasses.replace(links, transfers="blocking"))
    assert blocking.besides({}, {}) == pytest.approx(5.0)


def test_divisions_that_fit() -> None:
    """1F1B keeps two microbatches on the first mesh, so that it can have fewer layers than the second."""
    known = made_up(None, (0.0,) * 5)
    held = [2 * 3 * 1000 + 300, 3 * 1000 + 300]  # of three layers each
    at_once = two_stages(options_of(known, memory_limit=max(held)))
    assert at_once.fits and len(at_once.names[0]) == 3
    options = options_of(known, memory_limit=5000.0)
    fitting = [o for o in options if o.fits and o.choice.schedule.name == "1f1b"]
    assert [[len(n) for n in o.names] for o in fitting] == [[2, 4]]
    assert max(fitting[0].peak_bytes) <= 5000
    assert not any(o.fits for o in options_of(known, memory_limit=1000.0))


def test_gathered_copies_are_kept_as_long_as_they_fit() -> None:
    """A mesh with several stages in turns has the copies of one of them; that takes gathers, and their time."""
    gathered = [Copies(1200.0 * n, 1200.0, 0.25 * n, frozenset("FB")) for n in (5, 1)]
    static = ((500.0 + 6000.0,), (100.0 + 1200.0,))
    known = made_up(None, (0.0,) * 5, static=static, copies=tuple(gathered))

    def looped(limit: float | None) -> Option:
        found = [o for o in options_of(known, memory_limit=limit) if len(o.mesh_of) == 6]
        return pick(found, "interleaved-1f1b", "balanced", 6)

    free = looped(None)
    phase = looped(max(free.peak_bytes) - 1)
    each = looped(max(phase.peak_bytes) - 1)
    assert [o.gather for o in (free, phase)] == ["step", "phase"] and phase.fits
    assert max(free.peak_bytes) - max(phase.peak_bytes) == 2 * 1200 and not each.fits
    costs = {word: cost_of(word, free.choice.schedule, free.copies) for word in WORDS}
    assert [costs[word].bytes for word in WORDS] == [3600, 1200, 1200]
    assert costs["step"].time == 3 * 0.25 and costs["microbatch"].time == 3 * 2 * 4 * 0.25
    assert costs["step"].time < costs["phase"].time < costs["microbatch"].time
    assert phase.step - free.step == pytest.approx(costs["phase"].time - costs["step"].time)
    text = as_text(known, [phase], None, 1)
    assert re.search(r"^step +0\.0034 +0\.0034 +0\.75$", text, re.M) and "gather = 'phase'" in text
    assert as_data("it", known, [phase], None)["gather"][2]["time"] == 6.0


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_products_of_one_activation_gather_together(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three projections and one after them: six copies at most.  All of them where XLA does not keep barriers."""
    meshes = {f"m{i}": Mesh(np.array(jax.devices()[2 * i : 2 * i + 2]), ("data",)) for i in (0, 1)}
    mesh, width = meshes["m0"], 16
    rows, shards = NamedSharding(mesh, P(None, "data")), NamedSharding(mesh, P("data"))

    def attention(ws: Any, x: jax.Array) -> jax.Array:
        query, key, value = (x @ w for w in ws[:3])
        x = jax.lax.with_sharding_constraint(jnp.tanh(query * key + value), shards)
        for w in ws[3:]:
            x = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), shards)
        return x

    def step(ws: Any, batch: jax.Array) -> Any:
        def microbatch(i: Any, total: jax.Array, x: jax.Array) -> jax.Array:
            x = mpmd_trace.named_computation(attention, name="f")(ws, x)
            return total + mpmd_trace.named_computation(jnp.tanh, name="g")(x)

        return mpmd_trace.enumerated_for(microbatch, jnp.zeros((8, width)), batch)

    args = ([jnp.ones((width, width)) * i for i in range(1, 9)], jnp.ones((2, 8, width)))
    config = mpmd_trace.make_config(meshes, {"f": "m0", "g": "m1"}, gather="step")
    program = mpmd_trace.Program(step, args, config, in_shardings=(shards, rows))
    monkeypatch.setattr(plan_costs, "keeps_barriers", lambda name: platform != "cpu")
    found, _ = studied(program)[1].copies
    own = 4.0 * width * width
    assert found.bytes == 8 * own
    assert found.held("microbatch", True) == (8 if platform == "cpu" else 6) * own


def test_xla_orders_by_barriers_where_it_is_said_to() -> None:
    """Eight weights that are made whole before their products, each behind a barrier."""

    def step(x: jax.Array, parts: list[jax.Array]) -> jax.Array:
        for part in parts:
            part, x = jax.lax.optimization_barrier((part, x))
            x = jnp.tanh(x @ jnp.tile(part, (8, 1)))
        return x

    x, part = jax.ShapeDtypeStruct((8, 256), "float32"), jax.ShapeDtypeStruct((32, 256), "float32")
    scratch = jax.jit(step).lower(x, [part] * 8).compile().memory_analysis().temp_size_in_bytes
    assert (scratch < 3 * 4 * 256**2) == keeps_barriers(jax.default_backend())


def test_memory_grows_with_the_backwards() -> None:
    """Gradients that are kept until the end do not add to the activations of a time when there are none."""
    known = made_up(None, (0.0,) * 5, static=((100.0, 100.0, 100.0, 100.0, 5000.0), (100.0,)))
    gpipe = pick(options_of(known), "gpipe", "as assigned", 2)
    assert gpipe.peak_bytes[0] == 4 * 5000 + 100
    more = dataclasses.replace(known, activations=(1000.0, 1000.0))
    assert pick(options_of(more), "gpipe", "as assigned", 2).peak_bytes[0] == 1000 + 5000
    assert [at_fraction((1.0, 2.0, 3.0), k, 4) for k in range(5)] == [1, 2, 2, 3, 3]


def test_saved_schedules_compile(uneven_study: Any, tmp_path: Any) -> None:
    program, _, known = uneven_study
    best = pick(options_of(known), "zb-auto", "as assigned", 2)
    table = tmp_path / "best.csv"
    table.write_text(best.choice.schedule.to_csv())
    assert load_csv(table).orders == best.choice.schedule.orders
    config = dataclasses.replace(program.config, pipeline_schedule=load_csv(table))
    changed = phases_apart(dataclasses.replace(program, config=config))
    actions = FragmentActions()
    changed.jitted().lower(*changed.args, hooks=[actions]).partitioned  # noqa: B018
    kinds = [[a.microbatch for a in row if a.kind == "F"] for row in actions.of_mesh.values()]
    assert kinds == [[a.microbatch for a in row if a.kind == "F"] for row in best.choice.schedule.orders]


def test_programs_that_cannot_be_divided(uneven_study: Any) -> None:
    _, found, known = uneven_study
    lowered = found.lowered
    traced = parse(lowered.traced.mlir_text())
    config = dataclasses.replace(lowered.config, assignments={**lowered.config.assignments, "layer_0": _host(lowered)})
    with pytest.raises(MpmdError, match="'layer_0' is assigned to a memory of its mesh"):
        values_of_layers(dataclasses.replace(lowered, config=config), traced, ["layer_0", "layer_1"])
    assert all(o.assignment == "as assigned" for o in options_of(dataclasses.replace(known, layer_values="no")))


def _host(lowered: Any) -> Any:
    return dataclasses.replace(lowered.config.assignments["layer_0"], memory_kind="pinned_host")


def test_collectives_cost_what_their_bytes_take() -> None:
    """Each forward ends with a sum over devices; the link of a mesh says how long it takes."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    meshes = {f"m{i}": Mesh(devices[i], ("x",)) for i in range(2)}

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"f{i}")(w, x)
        return jnp.sum(x)

    def step(ws: Any, xs: jax.Array) -> Any:
        return mpmd_trace.value_and_grad(loss, microbatches=4)(ws, xs)

    config = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B")
    args = [jnp.ones((8, 8)), jnp.ones((8, 8))], jnp.ones((16, 8))
    rows = [NamedSharding(mesh, P("x")) for mesh in meshes.values()]
    found, actions = compiled(mpmd_trace.Program(step, args, config, in_shardings=(rows, None)))
    link = Link(1e-3, 1e6)
    speeds: Any = {"flops_per_second": SPEED, "bytes_per_second": WIDTH}
    free = study(found.lowered, found.program, actions, **speeds).stages
    known = study(found.lowered, found.program, actions, **speeds, collectives=link, overlap="pairs").stages
    assert known.exposed == known.collectives  # of these devices it is not known what they hide
    half = {"m0": dict.fromkeys(KINDS, HiddenShare(0.0, 0.0, 0.5, 0.5))}
    hidden = study(found.lowered, found.program, actions, **speeds, collectives=link, hiding=half).stages
    assert hidden.collectives == known.collectives
    for kind, sent in known.collectives.items():
        assert hidden.exposed[kind] == pytest.approx((sent[0] / 2, sent[1]))
    assert free.collectives == {} and free.overlap is None and known.overlap == "pairs"
    assert known.forward == free.forward
    sums = found.collectives()["m0"].total
    assert known.collectives["F"][0] >= 1e3 * link.seconds(4 * 8 * 4, 1) > 0
    in_all = 4 * sum(known.collectives[kind][0] for kind in "FIW")
    assert in_all <= 1e3 * link.seconds(sums.bytes, sums.runs) + 1e-6
