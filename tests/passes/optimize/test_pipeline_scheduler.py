"""`mpmd-pipeline-scheduler` and the sort it relies on."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.passes.optimize.pipeline_programs import orders, pipeline

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp, TransferOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.block_order import Join, scan_order
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Comparator, Order, ScheduleError, Unit
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import max_examples

VECTORS: list[tuple[str, int, int, dict[str, str]]] = [
    (
        "1F1B", 3, 5,
        {
            "m0": "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
            "m1": "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
            "m2": "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
        },
    ),
    ("GPipe", 2, 3, {"m0": "F0 F1 F2 B0 B1 B2", "m1": "F0 F1 F2 B0 B1 B2"}),
    (
        "GPipeBut1F1BForLastMesh", 3, 4,
        {
            "m0": "F0 F1 F2 F3 B0 B1 B2 B3",
            "m1": "F0 F1 F2 F3 B0 B1 B2 B3",
            "m2": "F0 B0 F1 B1 F2 B2 F3 B3",
        },
    ),
    (
        "ZeroBubbleH1", 3, 5,
        {
            "m0": "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
            "m1": "F0 F1 B0 F2 B1 W0 F3 B2 W1 F4 W4 B3 W2 B4 W3",
            "m2": "F0 B0 F1 B1 F2 B2 W0 F3 B3 W3 W1 F4 B4 W4 W2",
        },
    ),
    (
        "ZeroBubbleH2ZeroTxLatency", 3, 6,
        {
            "m0": "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
            "m1": "F0 F1 F2 B0 F3 B1 F4 W4 B2 F5 W5 W0 B3 W1 B4 W2 B5 W3",
            "m2": "F0 B0 F1 B1 F2 B2 W2 F3 B3 W3 F4 B4 W4 W0 F5 B5 W5 W1",
        },
    ),
    (
        "ZeroBubbleH2HalfTxLatency", 3, 7,
        {
            "m0": "F0 F1 F2 F3 F4 F5 F6 B0 B1 B2 B3 B4 B5 B6",
            "m1": "F0 F1 F2 F3 B0 F4 W4 B1 F5 W5 B2 F6 W6 B3 W0 B4 W1 B5 W2 B6 W3",
            "m2": "F0 B0 F1 B1 W1 F2 B2 W2 F3 B3 W3 F4 B4 W4 F5 B5 W5 F6 B6 W6 W0",
        },
    ),
    (
        "ZeroBubbleH2FullTxLatency", 3, 8,
        {
            "m0": "F0 F1 F2 F3 F4 F5 F6 F7 B0 B4 B5 B1 B6 B2 B7 B3",
            "m1": "F0 F1 F2 F3 F4 B4 W4 B0 W0 F5 B5 W5 B1 W1 F6 B6 W6 B2 W2 F7 B7 W7 B3 W3",
            "m2": "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3 F4 B4 W4 F5 B5 W5 F6 B6 W6 F7 B7 W7",
        },
    ),
    (
        "Circular", 2, 4,
        {
            "m0": "F0.0 F0.1 F2.0 F2.1 F0.2 F0.3 F2.2 F2.3 B2.0 B2.1 B0.0 B0.1 B2.2 B2.3 B0.2 B0.3",
            "m1": "F1.0 F1.1 F3.0 F3.1 F1.2 F1.3 F3.2 F3.3 B3.0 B3.1 B1.0 B1.1 B3.2 B3.3 B1.2 B1.3",
        },
    ),
    (
        "CircularWithReversedBackward", 2, 4,
        {
            "m0": "F0.0 F0.1 F2.0 F2.1 F0.2 F0.3 F2.2 F2.3 B2.3 B2.2 B0.3 B0.2 B2.1 B2.0 B0.1 B0.0",
            "m1": "F1.0 F1.1 F3.0 F3.1 F1.2 F1.3 F3.2 F3.3 B3.3 B3.2 B1.3 B1.2 B3.1 B3.0 B1.1 B1.0",
        },
    ),
    ("ParallelPipelinesWithWrapAround", 3, 3, {"m0": "F0 F2 F1", "m1": "F1 F0 F2", "m2": "F2 F1 F0"}),
]  # fmt: skip


def _program(name: str, meshes: int, microbatches: int) -> str:
    return pipeline(
        meshes,
        microbatches,
        stages_per_mesh=2 if name.startswith("Circular") else 1,
        split_backward=name.startswith("ZeroBubble"),
        forward_only=name.startswith("Parallel"),
    )


@pytest.mark.parametrize("pair_by_pair", [False, True], ids=["sparse", "pair by pair"])
@pytest.mark.parametrize(("name", "meshes", "microbatches", "wanted"), VECTORS, ids=[v[0] for v in VECTORS])
def test_conformance(name: str, meshes: int, microbatches: int, wanted: dict[str, str], pair_by_pair: bool) -> None:
    before = parse(_program(name, meshes, microbatches))
    module = before.clone()
    schedule: Order = SCHEDULES[name]
    run_passes(module, [PipelineScheduler(Comparator(name, schedule.before) if pair_by_pair else schedule)])
    assert orders(module, stages=name.startswith("Circular")) == wanted
    assert_same_meaning(before, module)


def test_whole_block_of_1f1b() -> None:
    module = parse(pipeline(3, 4))
    run_passes(module, "mpmd-pipeline-scheduler{must-happen-before=1F1B}")
    shown = []
    for op in module.main.body.ops[:-1]:
        if isinstance(op, TransferOp):
            shown.append("t")
        elif isinstance(op, FragmentOp):
            letter = "B" if op.origin[0].transpose_count else "F"
            shown.append(f"{op.mesh}{letter}{op.call_counter}")
    wanted = (
        "m0F0 t m1F0 t m2F0 m2B0 t m0F1 t m1F1 t m2F1 m2B1 t m0F2 t m1B0 t m0B0 m1F2 t "
        "m2F2 m2B2 t m0F3 t m1B1 t m0B1 m1F3 t m2F3 m2B3 t m1B2 t m0B2 m1B3 t m0B3"
    )
    assert [s for s in shown if s != "t"] == [s for s in wanted.split() if s != "t"]
    # Transfers stand where their operands let the scans take them.
    assert shown.count("t") == 16


@st.composite
def shuffled_programs(draw: st.DrawFn) -> tuple[str, str, list[int]]:
    name = draw(st.sampled_from([n for n in SCHEDULES if n not in ("none", "ParallelPipelinesWithWrapAround")]))
    meshes, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    return name, _program(name, meshes, microbatches), draw(st.lists(st.integers(0, 10**6), max_size=40))


@max_examples(60)
@given(shuffled_programs())
def test_the_sparse_form_gives_the_order_of_the_pairs(case: tuple[str, str, list[int]]) -> None:
    name, text, moves = case
    module = parse(text)
    body = module.main.body
    for move in moves:  # another legal program order
        ops = body.ops[:-1]
        op = ops[move % len(ops)]
        following = op.next_op
        if following is not None and following is not body.last and following not in op.users:
            op.move_after(following)
    other = module.clone()
    run_passes(module, [PipelineScheduler(SCHEDULES[name])])
    run_passes(other, [PipelineScheduler(Comparator(name, SCHEDULES[name].before))])
    assert module.to_generic() == other.to_generic()


def test_units_that_depend_on_each_other_need_no_order() -> None:
    def before(a: Unit, b: Unit) -> bool:
        if a.counter == b.counter:  # a forward and its backward
            raise ScheduleError("no order of these")
        return SCHEDULES["1F1B"].before(a, b)

    module, other = parse(pipeline(2, 3)), parse(pipeline(2, 3))
    run_passes(module, [PipelineScheduler(Comparator("mine", before))])
    run_passes(other, [PipelineScheduler(SCHEDULES["1F1B"])])
    assert str(module) == str(other)


@pytest.mark.parametrize("name", ["Circular", "CircularWithReversedBackward"])
def test_the_halves_of_a_backward_stay_together(name: str) -> None:
    before = parse(pipeline(2, 4, stages_per_mesh=2, split_backward=True))
    module = before.clone()
    run_passes(module, f"mpmd-pipeline-scheduler{{must-happen-before={name}}}")
    assert_same_meaning(before, module)
    whole = parse(pipeline(2, 4, stages_per_mesh=2))
    run_passes(whole, f"mpmd-pipeline-scheduler{{must-happen-before={name}}}")
    found, wanted = orders(module, stages=True), orders(whole, stages=True)
    assert found["m0"] == wanted["m0"]
    split = [action for action in found["m1"].split() if not action.startswith("W")]
    assert split == wanted["m1"].split()
    halves = [b[1:] for a, b in itertools.pairwise(found["m1"].split()) if a[0] == "B" and b == "W" + a[1:]]
    assert len(halves) == 8


def test_unknown_schedule_names_the_nearest() -> None:
    with pytest.raises(MpmdError, match="there is no schedule '1F1'; did you mean 1F1B"):
        run_passes(parse(pipeline(1, 1)), "mpmd-pipeline-scheduler{must-happen-before=1F1}")


def test_names_are_found_in_any_case() -> None:
    module = parse(pipeline(2, 3))
    run_passes(module, "mpmd-pipeline-scheduler{must-happen-before=gpipe}")
    assert orders(module)["m0"] == "F0 F1 F2 B0 B1 B2"


def test_a_host_mesh_cannot_be_scheduled_by_1f1b() -> None:
    text = pipeline(1, 2).replace("m0", "m0/cpu")
    with pytest.raises(MpmdError, match="mesh 'm0/cpu' is a host mesh"):
        run_passes(parse(text), "mpmd-pipeline-scheduler{must-happen-before=1F1B}")


def test_backward_programs_have_no_wrap_around() -> None:
    with pytest.raises(MpmdError, match="forward-only"):
        run_passes(parse(pipeline(2, 2)), "mpmd-pipeline-scheduler{must-happen-before=ParallelPipelinesWithWrapAround}")


def test_circular_leaves_fragments_without_stage_alone(caplog: pytest.LogCaptureFixture) -> None:
    module = parse(pipeline(2, 3))
    before = module.to_generic()
    run_passes(module, "mpmd-pipeline-scheduler{must-happen-before=Circular}")
    assert module.to_generic() == before
    assert "the Circular schedule orders by stage" in caplog.text


def test_control_operands_can_be_kept() -> None:
    module = parse(pipeline(1, 2))
    run_passes(module, "mpmd-pipeline-scheduler{must-happen-before=GPipe remove-control-dependencies=false}")
    marked = [op for op in module.main.body if "mpmd.control_operand_start_idx" in op.attrs]
    assert marked and all(op.num_operands > 1 for op in marked)


def test_the_textual_pipeline_knows_three_schedules() -> None:
    module = parse(pipeline(2, 3))
    run_passes(module, "mpmd-optimize-pipeline{pipeline-schedule=1F1B}")
    assert orders(module)["m0"] == "F0 F1 B0 F2 B1 B2"
    with pytest.raises(MpmdError, match="is one of none, 1F1B, Circular"):
        run_passes(parse(pipeline(1, 1)), "mpmd-optimize-pipeline{pipeline-schedule=GPipe}")


def test_spec_prints_back() -> None:
    one = PipelineScheduler(SCHEDULES["GPipe"])
    assert one.spec == "mpmd-pipeline-scheduler{must-happen-before=GPipe}"


# The sort.


def _scans(preds: list[list[int]]) -> list[int]:
    todo, done, order = list(range(len(preds))), set(), []
    while todo:
        left = []
        for i in todo:
            if all(p in done for p in preds[i]):
                done.add(i)
                order.append(i)
            else:
                left.append(i)
        assert len(left) < len(todo)
        todo = left
    return order


@given(st.permutations(range(10)), st.integers(1, 9), st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_a_join_is_the_product_of_its_sets(rank: list[int], cut: int, pairs: set[tuple[int, int]]) -> None:
    preds: list[list[int]] = [[] for _ in rank]
    for a, b in sorted(pairs):
        if rank[a] < rank[b]:
            preds[b].append(a)
    first = [i for i in range(10) if rank[i] < cut]
    second = [i for i in range(10) if rank[i] >= cut]
    product = [list({*p, *(first if i in second else ())}) for i, p in enumerate(preds)]
    assert scan_order(preds, joins=[Join(first, second)]) == _scans(product)


def test_a_cycle_has_no_order() -> None:
    assert scan_order([[1], [0]]) is None
