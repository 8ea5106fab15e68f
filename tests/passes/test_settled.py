"""Passes find the same whether or not they look if a function is settled."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mpmd_trace.ir.core import Block, Region
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.common.walks import function_fragments
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.settled import settled_bodies
from util import max_examples, run

PASSES = {
    "mpmd-simplify-program": "sharding.simplify_program",
    "mpmd-cse": "cse_native",
    "mpmd-canonicalize": "canonicalize_mpmd",
}
#: Bodies of one or two arguments: their ops and what they return.
BODIES = [
    ("%v = stablehlo.negate %x : !t", ["%v"]),
    ("%v = stablehlo.add %x, %y : !t", ["%v"]),
    ("%v = stablehlo.add %x, %y : !t\n%w = stablehlo.negate %v : !t", ["%v", "%w"]),
    ("%v = stablehlo.negate %x : !t\n%w = stablehlo.negate %x : !t", ["%v", "%w"]),
    ("%v = stablehlo.negate %x : !t", ["%v", "%x"]),
    ("%v = stablehlo.negate %x : !t\n%w = stablehlo.sine %x : !t", ["%v"]),
    ("%c = sdy.constant dense<0.0> : !t\n%v = stablehlo.add %x, %c : !t", ["%v"]),
    ("%c = stablehlo.constant dense<2.0> : !t\n%v = stablehlo.multiply %x, %c : !t", ["%v", "%c"]),
]


@st.composite
def programs(draw: st.DrawFn) -> str:
    lines, values = [], {"a": ["%p"], "b": ["%q"]}
    for i in range(draw(st.integers(1, 8))):
        mesh = draw(st.sampled_from("ab"))
        if draw(st.integers(0, 4)) == 0:
            other = "b" if mesh == "a" else "a"
            lines.append(f"%{i} = mpmd.transfer {draw(st.sampled_from(values[mesh]))} : (!{mesh}) -> !{other}")
            values[other].append(f"%{i}")
            continue
        ops, returned = draw(st.sampled_from(BODIES))
        operands = [draw(st.sampled_from(values[mesh])) for _ in range(2 if "%y" in ops else 1)]
        args = ", ".join(f"{name}: !t" for name in ("%x", "%y")[: len(operands)])
        names = ", ".join(["!t"] * len(returned))
        types = ", ".join([f"!{mesh}"] * len(returned))
        origin = draw(st.sampled_from(['["f"]', '["f"]', "[]"]))
        counter = draw(st.sampled_from(["", "{call_counter = 0 : ui32} ", "{call_counter = 1 : ui32} "]))
        lines.append(
            f'%{i}:{len(returned)} = mpmd.fragment<mesh="{mesh}", origin={origin}> ({", ".join(operands)}) '
            f"{counter}({args}) {{\n"
            f"{ops}\nmpmd.return {', '.join(returned)} : {names}\n"
            f"}} : ({', '.join([f'!{mesh}'] * len(operands))}) -> ({types})"
        )
        values[mesh] += [f"%{i}#{k}" for k in range(len(returned))]
    returned = draw(st.lists(st.sampled_from([(v, m) for m in "ab" for v in values[m]]), min_size=1, max_size=6))
    types = ", ".join(f"!{mesh}" for _, mesh in returned)
    body = "\n".join(lines)
    return (
        f"func.func public @main(%p: !a, %q: !b) -> ({types}) attributes {{topology = #topology}} {{\n{body}\n"
        f"return {', '.join(v for v, _ in returned)} : {types}\n}}"
    )


PRELUDE = """
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
#topology = #mpmd.topology<<"a" : <["x"=1]>>, <"b" : <["x"=1]>>>
"""


@max_examples(60)
@given(programs(), st.lists(st.sampled_from(sorted(PASSES)), min_size=1, max_size=4))
def test_passes_give_the_same_without_looking(program: str, passes: list[str]) -> None:
    pipeline = ",".join(passes)
    event(f"settled: {settled_bodies(parse(PRELUDE + program).main) is not None}")
    with pytest.MonkeyPatch.context() as patch:
        for module in PASSES.values():
            patch.setattr(f"mpmd_trace.passes.{module}.settled_bodies", lambda function: None)
        wanted = str(run(program, pipeline, PRELUDE))
    assert str(run(program, pipeline, PRELUDE)) == wanted


FRAGMENT = (
    'mpmd.fragment<mesh="a", origin=["f"]> (%p) (%x: !t) {\n'
    "%v = stablehlo.negate %x : !t\nmpmd.return %v : !t\n} : (!a) -> !a"
)
SETTLED = (
    "func.func public @main(%p: !a, %q: !a) -> (!a, !a) attributes {topology = #topology} {\n"
    f"%0 = {FRAGMENT}\n%1 = {FRAGMENT.replace('(%p)', '(%q)')}\nreturn %0, %1 : !a, !a\n}}"
)


NEGATE = "%v = stablehlo.negate %x : !t"
DEAD = SETTLED.replace(NEGATE, f"{NEGATE}\n%w = stablehlo.sine %x : !t", 1)
TWICE = (
    SETTLED.replace(
        f"{NEGATE}\nmpmd.return %v : !t\n}} : (!a) -> !a",
        f"{NEGATE}\n{NEGATE.replace('%v', '%w')}\nmpmd.return %v, %w : !t, !t\n}} : (!a) -> (!a, !a)",
        1,
    )
    .replace("%0 =", "%0:2 =")
    .replace("return %0, %1 : !a, !a", "return %0#0, %0#1, %1 : !a, !a, !a")
    .replace("-> (!a, !a) attr", "-> (!a, !a, !a) attr")
)


CONSTANT = "stablehlo.constant dense<2.0> : !t"
CONSTANTS = SETTLED.replace(
    NEGATE, f"%c = {CONSTANT}\n%d = {CONSTANT}\n%w = stablehlo.add %x, %c : !t\n%v = stablehlo.multiply %w, %d : !t", 1
)


@pytest.mark.parametrize(
    ("program", "passes", "ops"),
    [
        (DEAD, ["mpmd-simplify-program"], 2),
        (DEAD, ["mpmd-canonicalize"], 2),
        (TWICE, ["mpmd-cse", "mpmd-simplify-program"], 2),
        (CONSTANTS, ["mpmd-simplify-program"], 4),
    ],
)
def test_bodies_of_settled_functions_change(program: str, passes: list[str], ops: int) -> None:
    module = parse(PRELUDE + program)
    assert settled_bodies(module.main) is not None
    run_passes(module, ",".join(passes))
    first, _ = function_fragments(module.main)
    assert (len(first.body.block.ops), len(first.results)) == (ops, 1)


TRANSFERS = (
    "func.func public @main(%p: !a) -> !b attributes {topology = #topology} {\n"
    "%0 = mpmd.transfer %p : (!a) -> !b\nreturn %0 : !b\n}"
)
WITHOUT_OPERANDS = (
    "func.func public @main() -> (!a, !a) attributes {topology = #topology} {\n"
    + "".join(
        f'%{i} = mpmd.fragment<mesh="a", origin=["f"]> () () {{\n%v = stablehlo.constant dense<{i}.0> : !t\n'
        "mpmd.return %v : !t\n} : () -> !a\n"
        for i in range(2)
    )
    + "return %0, %1 : !a, !a\n}"
)


@pytest.mark.parametrize(
    ("program", "is_settled"),
    [
        pytest.param(SETTLED, True, id="fragments"),
        pytest.param(TRANSFERS, True, id="transfers"),
        pytest.param(WITHOUT_OPERANDS, False, id="two without operands"),
        pytest.param(SETTLED.replace("return %0, %1", "return %0, %0"), False, id="unused result"),
        pytest.param(SETTLED.replace("(%q) (", "(%p) ("), False, id="fragments that read the same"),
        pytest.param(SETTLED.replace("(%q) (", "(%p) {remat} ("), True, id="fragment that recomputes"),
        pytest.param(SETTLED.replace("mpmd.return %v", "mpmd.return %x", 1), False, id="forwarded argument"),
        pytest.param(
            SETTLED.replace("(%p) (%x: !t)", "(%p, %p) (%x: !t, %y: !t)")
            .replace("negate %x", "add %x, %y", 1)
            .replace("(!a) -> !a", "(!a, !a) -> !a", 1),
            False,
            id="operand given twice",
        ),
        pytest.param(
            TRANSFERS.replace("%p: !a", "%p: !a, %x: !t")
            .replace("return %0 : !b", "%1 = mpmd.broadcast %x : !t\nreturn %0, %1 : !b, !t")
            .replace("-> !b attr", "-> (!b, !t) attr"),
            False,
            id="another op",
        ),
        pytest.param(TRANSFERS.replace("!b", "!a"), False, id="transfer to the same type"),
        pytest.param(
            TRANSFERS.replace("return %0 : !b", "%1 = mpmd.transfer %0 : (!b) -> !a\nreturn %1 : !a").replace(
                "-> !b attr", "-> !a attr"
            ),
            False,
            id="transfer of a transfer",
        ),
        pytest.param(
            TRANSFERS.replace("return %0 : !b", "%1 = mpmd.transfer %p : (!a) -> !b\nreturn %0, %1 : !b, !b").replace(
                "-> !b attr", "-> (!b, !b) attr"
            ),
            False,
            id="two transfers of a value",
        ),
        pytest.param(TRANSFERS.replace("return", "cf.br ^next\n^next:\nreturn"), False, id="two blocks"),
        pytest.param(
            SETTLED.replace("mpmd.return %v : !t\n} : (!a) -> !a", "mpmd.return\n} : (!a) -> ()", 1)
            .replace("%0 = ", "", 1)
            .replace("return %0, %1 : !a, !a", "return %1 : !a")
            .replace("-> (!a, !a) attr", "-> !a attr"),
            False,
            id="fragment without results",
        ),
    ],
)
def test_what_is_settled(program: str, is_settled: bool) -> None:
    assert (settled_bodies(parse(PRELUDE + program).main) is not None) == is_settled


def test_control_operands_are_not_settled() -> None:
    function = parse(PRELUDE + SETTLED).main
    first, _ = function_fragments(function)
    first.append_operands([function.args[1]])
    assert settled_bodies(function) is None


@pytest.mark.parametrize("blocks", [0, 2])
def test_bodies_without_their_only_block_are_not_settled(blocks: int) -> None:
    function = parse(PRELUDE + SETTLED).main
    first, _ = function_fragments(function)
    first.regions[0] = freeze(Region([Block(), Block()][:blocks]))
    assert settled_bodies(function) is None


def test_bodies_that_may_change_are_not_settled() -> None:
    function = parse(PRELUDE + SETTLED).main
    first, _ = function_fragments(function)
    first.regions[0] = first.body.clone()
    assert settled_bodies(function) is None
