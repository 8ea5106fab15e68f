"""The order of a plan over several processes: who sends what to whom, and which parts of arrays."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from exported import PIPELINE
from jax.sharding import Mesh

from mpmd_trace.backend.distribution.order import (
    LocalCopy,
    Order,
    Receive,
    RunProgram,
    Send,
    describe,
    distribute,
    processes_of,
)
from mpmd_trace.backend.distribution.shard_slices import ShardSlice, shard_slices, slice_overlaps
from mpmd_trace.backend.placement import named_sharding
from mpmd_trace.backend.plan import Free, Plan
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.sharding_attributes import parse_sharding_body
from mpmd_trace.ir.text import parse
from pipelines import mesh

ONE_EACH = {"a": (0, 0), "b": (1, 1)}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(parse(PIPELINE))


def test_the_parts_of_two_processes(plan: Plan) -> None:
    order = distribute(plan, ONE_EACH)
    assert [describe(plan, action) for action in order.of(0)] == [
        "run @p0_f.step (f) on mesh 'a'",
        "free %0",
        "send %4 f32[4,8]{{\"x\"}, {}} from mesh 'a' to 'b', to process 1, tag 0",
        "free %3",
        "run @p2_inferred.step (inferred) on mesh 'a'",
        "free %1",
    ]
    assert [describe(plan, action) for action in order.of(1)] == [
        "receive %4 f32[4,8]{{\"x\"}, {}} from mesh 'a' to 'b', from process 0, tag 0",
        "have %4 f32[4,8]{{\"x\"}, {}} on mesh 'b'",
        "run @p1_g.step (g) on mesh 'b'",
        "free %2, %4",
    ]


def test_one_process_has_no_messages(plan: Plan) -> None:
    order = distribute(plan, {"a": (3, 3), "b": (3, 3)})
    assert not order.messages
    assert [type(a) for a in order.of(3)] == [
        RunProgram if not isinstance(i, Free) else Free for i in plan.instructions
    ]
    assert order.of(0) == ()


def test_a_mesh_over_processes_works_together(plan: Plan) -> None:
    order = distribute(plan, {"a": (0, 1), "b": (1, 2)})
    runs = [a.members for a in order.actions if isinstance(a, RunProgram)]
    assert runs == [(0, 1), (0, 1), (1, 2)]
    assert [(m.source, m.destination, [p.box for p in m.pieces]) for m in order.messages] == [
        (0, 1, [((0, 2), (0, 8))]),
        (1, 2, [((2, 4), (0, 8))]),
    ]


def test_every_process_has_its_part_of_one_order(plan: Plan) -> None:
    order = distribute(plan, {"a": (2, 0), "b": (1, 0)})
    assert order == distribute(plan, {"a": (2, 0), "b": (1, 0)})
    parts = {p: [a for a in order.of(p) if not isinstance(a, Free)] for p in range(3)}
    everything = [a for a in order.actions if not isinstance(a, Free)]
    assert {p: [a for a in everything if p in processes_of(a)] for p in range(3)} == parts
    _check_tags(order)


def _check_tags(order: Order) -> None:
    sent = [a.message for a in order.actions if isinstance(a, Send)]
    received = [a.message for a in order.actions if isinstance(a, Receive)]
    assert sent == received == list(order.messages)
    assert [m.tag for m in sent] == list(range(len(sent)))
    seen: set[int] = set()
    for action in order.actions:
        if isinstance(action, Receive):
            seen.add(action.message.tag)
        elif isinstance(action, LocalCopy):
            assert seen.issuperset(action.tags)


MESHES = [(("x", 2),), (("x", 4),), (("x", 2), ("y", 2)), (("x", 1),), (("x", 4), ("y", 2)), (("x", 3),)]
SHARDINGS = ["[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]', '[{"x", "y"}, {}]', '[{"y"}, {"x"}]', '[{"x":(2)2}, {"x":(1)2}]']


def _cases() -> list[tuple[Mesh, str]]:
    found = []
    for axes, text in itertools.product(MESHES, SHARDINGS):
        sizes = dict(axes)
        if ("y" not in text or "y" in sizes) and ("(" not in text or sizes["x"] == 4):
            found.append((mesh(0, tuple(sizes.values()), *sizes), text))
    return found


def _boxes(on: Mesh, text: str, shape: tuple[int, ...]) -> tuple[ShardSlice, ...]:
    sharding = parse_sharding_body(f"<@mesh, {text}>")
    return shard_slices(shape, sharding, MeshAttr.get((str(a), n) for a, n in on.shape.items()))


@pytest.mark.parametrize(("on", "text"), _cases(), ids=lambda x: str(getattr(x, "shape", x)))
def test_devices_hold_the_parts_that_jax_gives_them(on: Mesh, text: str) -> None:
    shape = (24, 24)
    found = _boxes(on, text, shape)
    wanted = named_sharding(on, parse_sharding_body(f"<@mesh, {text}>"), 2).devices_indices_map(shape)
    for device, box in zip(on.devices.flat, found, strict=True):
        assert box == tuple(s.indices(n)[:2] for s, n in zip(wanted[device], shape, strict=True))


def test_pieces_make_up_the_target() -> None:
    generator = random.Random(0)
    cases = _cases()
    shape = (24, 24)
    array = np.arange(24 * 24).reshape(shape)
    for _ in range(200):
        (left, a), (right, b) = generator.choice(cases), generator.choice(cases)
        source, target = _boxes(left, a, shape), _boxes(right, b, shape)
        owners = [generator.randrange(3) for _ in source]
        wanted = [generator.randrange(3) for _ in target]
        made = [np.full([stop - start for start, stop in box], -1) for box in target]
        for piece in slice_overlaps(source, target, owners, wanted):
            held = source[piece.source]
            assert all(h[0] <= p[0] and p[1] <= h[1] for h, p in zip(held, piece.box, strict=True))
            assert len({wanted[t] for t in piece.targets}) == 1
            for t in piece.targets:
                inside = tuple(slice(p[0] - w[0], p[1] - w[0]) for p, w in zip(piece.box, target[t], strict=True))
                assert (made[t][inside] == -1).all(), "a part comes twice"
                made[t][inside] = array[tuple(slice(*p) for p in piece.box)]
        for box, found in zip(target, made, strict=True):
            assert (found == array[tuple(slice(*p) for p in box)]).all()


def test_what_a_process_has_is_not_sent() -> None:
    four = _boxes(mesh(0, (4,), "x"), '[{"x"}, {}]', (8, 2))
    whole = _boxes(mesh(0, (2,), "x"), "[{}, {}]", (8, 2))
    found = slice_overlaps(four, whole, owners=(0, 0, 1, 1), wanted=(1, 1))
    assert [(p.source, p.targets) for p in found] == [(n, (0, 1)) for n in range(4)]  # once for both devices
    copies = slice_overlaps(whole, four, owners=(0, 1), wanted=(1, 1, 2, 2))
    assert [p.source for p in copies] == [1, 1, 0, 1]  # the same process, or in turns


def test_values_without_elements_are_not_sent() -> None:
    empty = _boxes(mesh(0, (2,), "x"), '[{}, {"x"}]', (0, 4))
    assert slice_overlaps(empty, empty, owners=(0, 0), wanted=(1, 1)) == []


def test_scalars_are_sent() -> None:
    assert len(slice_overlaps(((),), ((), ()), owners=(0,), wanted=(1, 1))) == 1
