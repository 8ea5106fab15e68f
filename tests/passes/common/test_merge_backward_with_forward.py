"""`mpmd-merge-backward-with-forward`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fragment_texts import frag, function
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, max_examples

STEP = st.tuples(st.sampled_from(["alpha", "beta"]), st.booleans(), st.integers(0, 9))


@max_examples(30)
@given(st.lists(STEP, min_size=4, max_size=14))
def test_any_program_means_the_same(steps: list[tuple[str, bool, int]]) -> None:
    """Fragments that read any value there is, from either mesh; each mesh keeps its order."""
    lines: list[str] = []
    known = [("alpha", "%p"), ("beta", "%q")]
    labels: dict[str, list[str]] = {"alpha": [], "beta": []}
    for i, (mesh, backward, pick) in enumerate(steps):
        where, value = known[pick % len(known)]
        if where != mesh:
            types = "(!B) -> !A" if where == "beta" else "(!A) -> !B"
            lines.append(f"  %t{i} = mpmd.transfer {value} : {types}")
            value = f"%t{i}"
        labels[mesh].append(f'"f{i}"(1)' if backward else f'"f{i}"')
        known.append((mesh, f"%f{i}"))
        lines.append(f"  %f{i} = {frag(mesh, labels[mesh][-1], value, 'sine', f'{{call_counter = {i} : ui32}}')}")
    results = ", ".join(value for _, value in known[2:])
    types = ", ".join("!A" if mesh == "alpha" else "!B" for mesh, _ in known[2:])
    before = parse(PRELUDE + function("\n".join(lines), results, types))
    after = run_passes(before.clone(), "mpmd-merge-backward-with-forward")
    assert_same_meaning(before, after)
    parse(after.to_generic())  # the dialect's verifier agrees
    for mesh, wanted in labels.items():
        fragments = [op for op in after.main.body if isinstance(op, FragmentOp) and op.mesh == mesh]
        assert [o.short for op in fragments for o in op.origin] == wanted
