"""`mpmd-merge-backward-with-forward`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fragment_texts import frag, function
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.fragment_info import merged_parts
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, max_examples, run

PASS = "mpmd-merge-backward-with-forward"


def counted(i: int) -> str:
    return f"{{call_counter = {i} : ui32}}"


def transfer(value: str, back: bool = False) -> str:
    types = "(!B) -> !A" if back else "(!A) -> !B"
    return f"mpmd.transfer {value} : {types}"


def lines(*ops: str) -> str:
    return "\n".join(f"  %{i} = {op}" for i, op in enumerate(ops))


def merged(text: str) -> list[tuple[str, list[str]]]:
    """The mesh of each fragment, and what it was merged from; the program must mean what it meant before."""
    before = parse(PRELUDE + text)
    after = run(text, PASS)
    assert_same_meaning(before, after)
    fragments = [op for op in after.main.body if isinstance(op, FragmentOp)]
    return [(op.mesh, [f"{part.kind}{part.microbatch}" for part in merged_parts(op)]) for op in fragments]


def test_where_the_backward_is() -> None:
    """What the backward sends is used before the forward runs: the forward moves up, its input is there."""
    body = lines(
        frag("alpha", '"f"(1)', "%p", attrs=counted(0)),
        transfer("%0"),
        frag("beta", '"g"(1)', "%1", "abs", counted(0)),
        frag("alpha", '"f"', "%p", "sine", counted(1)),
    )
    assert merged(function(body, "%2, %3", "!B, !A")) == [("alpha", ["B0", "F1"]), ("beta", [])]


def test_blocks_take_in_no_third_fragment() -> None:
    kinds = [('"f"(1)', 0), ('"f"', 2), ('"f"(1)', 1), ('"f"', 3), ('"f"', 4)]
    body = lines(*(frag("alpha", origin, "%p", "sine", counted(i)) for origin, i in kinds))
    text = function(body, "%0, %1, %2, %3, %4", ", ".join(["!A"] * 5))
    assert merged(text) == [("alpha", ["B0", "F2"]), ("alpha", ["B1", "F3"]), ("alpha", [])]


STEP = st.tuples(st.sampled_from(["alpha", "beta"]), st.booleans(), st.integers(0, 9))


@max_examples(30)
@given(st.lists(STEP, min_size=4, max_size=14))
def test_any_program_means_the_same(steps: list[tuple[str, bool, int]]) -> None:
    """Fragments that read any value there is, from either mesh; each mesh keeps its order."""
    ops: list[str] = []
    known = [("alpha", "%p"), ("beta", "%q")]
    labels: dict[str, list[str]] = {"alpha": [], "beta": []}
    for i, (mesh, backward, pick) in enumerate(steps):
        where, value = known[pick % len(known)]
        if where != mesh:
            ops.append(transfer(value, back=where == "beta"))
            value = f"%{len(ops) - 1}"
        labels[mesh].append(f'"f{i}"(1)' if backward else f'"f{i}"')
        known.append((mesh, f"%{len(ops)}"))
        ops.append(frag(mesh, labels[mesh][-1], value, "sine", counted(i)))
    results = [value for _, value in known[2:]]
    types = ", ".join("!A" if mesh == "alpha" else "!B" for mesh, _ in known[2:])
    text = function(lines(*ops), ", ".join(results), types)
    merged(text)
    after = run(text, PASS)
    parse(after.to_generic())  # the dialect's verifier agrees
    for mesh, wanted in labels.items():
        fragments = [op for op in after.main.body if isinstance(op, FragmentOp) and op.mesh == mesh]
        assert [o.short for op in fragments for o in op.origin] == wanted


def test_results_that_a_loop_reads() -> None:
    """A loop between the two reads the backward's result: it cannot wait for the forward, which can come first."""
    loop = (
        "mpmd.for (%0) {iterations = 2 : ui32, unroll_factor = 1 : ui32} (%a: !A, %i: tensor<ui32>) {\n"
        + "    %b = "
        + frag("alpha", "", "%0")
        + "\n    mpmd.return %b : !A\n  } : !A"
    )
    body = lines(frag("alpha", '"f"(1)', "%p", attrs=counted(0)), loop, frag("alpha", '"f"', "%p", "sine", counted(1)))
    assert merged(function(body, "%1, %2", "!A, !A"))[0] == ("alpha", ["B0", "F1"])
