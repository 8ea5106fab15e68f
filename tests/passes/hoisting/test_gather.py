"""How long gathered copies are kept: as it was asked for, or as memory allows."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.shardings import mesh_symbols
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager
from mpmd_trace.passes.memory.liveness import Liveness
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import max_examples

W, X, R = "tensor<64x16xf32>", "tensor<4x16xf32>", "tensor<4x64xf32>"
COPY = 64 * 16 * 4


def on_mesh(type: str) -> str:
    return f'!mpmd.mesh_tensor<"a", {type}>'


@functools.cache
def program(order: str) -> Module:
    """One fragment for each letter, the name of its weight, with rows sharded over the axis of the weights."""
    sharded = '<@mesh, [{"data"}, {}]>'
    fragments = [
        f"""
      %{i} = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[{sharded}, {sharded}], out_shardings=[{sharded}]>
          (%{weight}, %in{i}) {{call_counter = {i} : ui32}} (%w: {W}, %x: {X}) {{
        %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
            {{sdy.sharding = #sdy.sharding_per_value<[{sharded}]>}} : ({X}, {W}) -> {R}
        mpmd.return %r : {R}
      }} : ({on_mesh(W)}, {on_mesh(X)}) -> {on_mesh(R)}"""
        for i, weight in enumerate(order)
    ]
    attributes = f"{{sdy.sharding = #sdy.sharding{sharded}}}"
    weights = ", ".join(f"%{name}: {on_mesh(W)} {attributes}" for name in sorted(set(order)))
    batches = ", ".join(f"%in{i}: {on_mesh(X)} {attributes}" for i in range(len(order)))
    results = ", ".join([on_mesh(R)] * len(order))
    return parse(f"""
    #meshes = #mpmd.topology<<"a" : <["data"=2]>>>
    sdy.mesh @mesh = <["data"=2]>
    func.func public @main({weights}, {batches}) -> ({results}) attributes {{topology = #meshes}} {{
      {"".join(fragments)}
      return {", ".join(f"%{i}" for i in range(len(order)))} : {results}
    }}""")


def kept(order: str, **options: object) -> tuple[int, float]:
    """How many gathers the program has in front of its fragments, and its peak in bytes."""
    after = program(order).clone()
    text = " ".join(f"{name}={value}" for name, value in options.items())
    PassManager(f"mpmd-hoist-invariants{{launch=0 {text}}}", verify=True).run(after)
    assert_same_meaning(program(order), after)
    first = [op for op in after.main.body if isinstance(op, FragmentOp) and op.origin[0].name == "hoisted"]
    return sum(len(op.results) for op in first), peak(after)


def peak(module: Module) -> float:
    return max(Liveness(module.main, "a", mesh_symbols(module)).profile())


@pytest.mark.parametrize(
    ("order", "gather", "gathers", "copies"),
    [
        ("ppqqpp", "step", 2, 2),
        ("ppqqpp", "phase", 3, 1),
        ("ppqqpp", "microbatch", 0, 0),
        ("pppp", "phase", 1, 1),
        ("pqpqpq", "phase", 0, 0),  # each phase has one fragment
        ("ppqp", "phase", 2, 1),
    ],
)
def test_copies_are_kept_as_asked_for(order: str, gather: str, gathers: int, copies: int) -> None:
    found, most = kept(order, gather=gather)
    assert found == gathers
    assert most <= peak(program(order)) + copies * COPY


def test_words_hold_whatever_the_memory() -> None:
    assert kept("ppqqpp", gather="step", limit=1) == kept("ppqqpp", gather="step")
    assert kept("ppqqpp", gather="phase", limit=1) == kept("ppqqpp", gather="phase")


def test_as_much_is_kept_as_fits() -> None:
    """The cheapest that does: once a step, again where there is no room in between, with the microbatches."""
    gathers, most = kept("ppqqqpp")
    assert gathers == 2
    gathers, less = kept("ppqqqpp", limit=int(most) - 1)
    assert gathers == 3 and less < most
    base = int(peak(program("ppqqqpp")))
    assert kept("ppqqqpp", limit=base - 1)[0] == 0
    # What programs need besides is no room for copies.
    assert kept("ppqqqpp", limit=int(most) + 99, reserved="a=100") == (3, less)


@given(st.text("pqt", min_size=2, max_size=9), st.integers(-1, 3 * COPY))
@max_examples(60)
def test_copies_never_raise_the_peak_above_the_limit(order: str, room: int) -> None:
    base = peak(program(order))
    limit = int(base) + room
    assert kept(order, limit=limit)[1] <= max(limit, base)


def test_other_words_are_refused() -> None:
    with pytest.raises(MpmdError, match="gather is auto, step, phase or microbatch, not 'often'"):
        kept("pp", gather="often")
