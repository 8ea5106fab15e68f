"""Text -> IR -> text is the identity after one round."""

from __future__ import annotations

import itertools
import pathlib
import random
import re
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dialect_module import BASE
from mlir_cases import FOLDER, cases
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.diagnostics.mlir_text import matching_bracket, quote, split_top_level, unquote
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import FunctionType, parse_type
from mpmd_trace.jax_compat.mlir import prettify_or_fail, to_generic
from shared_work import own_contexts
from util import PRELUDE, max_examples, spelled

TESTS = pathlib.Path(__file__).parent.parent
ODD = (TESTS / "ir/data/odd.mlir").read_text().split("// -----\n")


def check_round_trip(text: str) -> None:
    """What jaxlib prints of the text and what it prints of our IR are the same, with locations, too."""
    with own_contexts() if "dense_resource" in text else nullcontext():
        _check_round_trip(text)


def _check_round_trip(text: str) -> None:
    generic = to_generic(text, allow_unregistered=True)
    module = parse_generic(generic)
    for debug in (False, True):
        wanted = prettify_or_fail(generic, enable_debug_info=debug)
        ours = module.to_generic(debug_info=debug)
        if debug:
            assert prettify_or_fail(ours, enable_debug_info=True) == wanted
        else:
            assert prettify_or_fail(ours) == wanted
    again = parse_generic(to_generic(module.to_generic(debug_info=True), allow_unregistered=True))
    assert again.to_generic(debug_info=True) == module.to_generic(debug_info=True)
    assert module.clone().to_generic() == module.to_generic()


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_modules(number: int) -> None:
    check_round_trip(ODD[number])


def _blocks() -> list[str]:
    """The modules in the test-suite that stand for themselves."""
    found = []
    for path in sorted(TESTS.rglob("*.mlir")):
        if path.name != "odd.mlir" and FOLDER not in path.parents:
            found += path.read_text().split("// -----\n")
    together: dict[str, list[str]] = {}  # a module of many programs takes little longer than one of one
    for case in cases():
        together.setdefault(case.aliases, []).append(f"module {{\n{spelled(case.before)}}}\n")
    found += [aliases + "".join(dict.fromkeys(modules)) for aliases, modules in together.items()]
    for path in sorted(TESTS.rglob("*.py")):
        for match in re.finditer(r'"""(.*?)"""', path.read_text(), re.S):
            if "func.func" in match.group(1):
                found.append(PRELUDE + match.group(1))
    return found


def test_every_module_of_the_test_suite() -> None:
    checked = 0
    for text in _blocks():
        try:
            to_generic(text, allow_unregistered=True)
        except MpmdError:
            continue  # invalid on purpose, or a template
        check_round_trip(text)
        checked += 1
    assert checked > 100


names = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=6)
numbers = st.integers(-(2**31), 2**31 - 1)


def _quoted(text: str) -> str:
    return '"' + "".join(c if c.isalnum() else "".join(f"\\{b:02X}" for b in c.encode()) for c in text) + '"'


leaf_attributes = st.one_of(
    names.map(_quoted),
    numbers.map(lambda n: f"{n} : i32"),
    numbers.map(lambda n: f"{n}"),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda f: f"{f:.6e} : f32"),
    st.lists(numbers, max_size=4).map(lambda v: f"array<i32{': ' if v else ''}{', '.join(map(str, v))}>"),
    st.lists(numbers, min_size=1, max_size=4).map(lambda v: f"dense<{v}> : tensor<{len(v)}xi32>"),
    names.map(lambda n: f"@{_quoted(n)}" if n else "@x"),
    st.sampled_from(
        [
            "unit",
            "true",
            "(i32) -> (tensor<2x?xf32>, i1)",
            "affine_map<(d0, d1) -> (d1 + 1, d0)>",
            "affine_set<(d0) : (d0 - 1 >= 0)>",
            '#foo.bar<"x(" -> [y]>',
            'loc(fused["a(":1:2, "b"])',
            '#mpmd.user_origin<"f"(2)>',
            '#sdy.sharding<@mesh, [{"x", ?}p1, {}]>',
        ]
    ),
)
attributes = st.recursive(
    leaf_attributes,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]"),
        st.dictionaries(names.filter(bool), inner, max_size=3).map(
            lambda d: "{" + ", ".join(f"{_quoted(k)} = {v}" for k, v in d.items()) + "}"
        ),
    ),
    max_leaves=6,
)
types = st.sampled_from(["i32", "tensor<2xf32>", "tuple<i32, tuple<>>", '!foo.x<"->(">', "(i32) -> ((i1) -> i32)"])


#: The same for all ops: making a strategy takes longer than drawing from it.
used_values = st.lists(st.sampled_from(["%out#0", "%out#1"]), max_size=3)
result_types = st.lists(types, max_size=3)
entries_of_ops = st.dictionaries(names.filter(bool), attributes, max_size=2)
places = st.sampled_from(["", ' loc("f(.py":3:4)', " loc(unknown)", ' loc("n"(callsite("a" at "b":1:2)))'])


def region(draw: st.DrawFn, depth: int, counter: Iterator[int]) -> str:
    """A region of unregistered ops: blocks in a chain, forward references, values of outer regions."""
    lines = []
    blocks = draw(st.integers(0, 3)) if depth else 0
    for block in range(blocks):
        if block or draw(st.booleans()):
            lines.append(f"^bb{depth}_{block}:")
        for _ in range(draw(st.integers(1, 3))):
            lines.append(op(draw, depth - 1, counter))
        successors = "" if block + 1 >= blocks else f"[^bb{depth}_{block + 1}]"
        lines.append(f'"foo.end"(){successors} : () -> ()')
    return "{\n" + "\n".join(lines) + "\n}"


def op(draw: st.DrawFn, depth: int, counter: Iterator[int]) -> str:
    number, used, results, entries = next(counter), draw(used_values), draw(result_types), draw(entries_of_ops)
    inside = [region(draw, depth, counter) for _ in range(draw(st.integers(0, 2)))] if depth > 0 else []
    head = f"%v{number}:{len(results)} = " if results else ""
    body = f" ({', '.join(inside)})" if inside else ""
    attrs = " {" + ", ".join(f"{_quoted(k)} = {v}" for k, v in entries.items()) + "}" if entries else ""
    return (
        f'{head}"foo.op"({", ".join(used)}){body}{attrs} : ({", ".join(["i32"] * len(used))}) -> '
        f"({', '.join(results)}){draw(places)}"
    )


@st.composite
def modules(draw: st.DrawFn) -> str:
    counter = itertools.count()
    lines = [op(draw, 3, counter) for _ in range(draw(st.integers(1, 3)))]
    # The definition comes last: everything above refers to it ahead.
    lines.append('%out:2 = "foo.def"() : () -> (i32, i32)')
    return '"foo.graph"() ({\n' + "\n".join(lines) + "\n}) : () -> ()"


@max_examples(8, suppress_health_check=[HealthCheck.too_slow])
@given(modules())
def test_generated_modules(text: str) -> None:
    try:
        to_generic(text, allow_unregistered=True)
    except MpmdError:  # e.g. a use ahead in a region where order counts
        return
    check_round_trip(text)


def test_big_constants_keep_their_digits() -> None:
    rng = random.Random(1)
    data = "".join(f"{rng.randrange(256):02X}" for _ in range(4 * 5000))
    check_round_trip(f'func.func @f() {{ %0 = stablehlo.constant dense<"0x{data}"> : tensor<5000xf32>\n return }}')


def test_what_passes_leave_round_trips() -> None:
    check_round_trip(BASE)


def test_names_of_files_reach_locations() -> None:
    module = parse("func.func @f() { return }", filename='a "b" \\ (c).mlir')
    position = module.functions[0].loc.file
    assert position == ('a "b" \\ (c).mlir', 1, 1)


@max_examples(30)
@given(st.text(st.characters(exclude_categories=["Cs"])))  # as by default, but for 2 s of work on codecs
def test_strings(text: str) -> None:
    assert unquote(quote(text)) == text
    assert re.fullmatch(r'"(?:[ !#-\[\]-~]|\\\\|\\[0-9A-F]{2})*"', quote(text))


_TENSORS = st.sampled_from(["tensor<f32>", "tensor<4x?xbf16>", "tensor<2xi1>"])
_MESH_TENSOR = '!mpmd.mesh_tensor<"m,(", tensor<4xf32>, sharding=<@m, [{"x"}]>>'
_OTHERS = ["tuple<i32, tensor<2xi1>>", "tensor<3x4xf32, #e<[a, b]>>", "(i32, tensor<f32>) -> (f32, f32)"]
_TYPES = _TENSORS | st.sampled_from(["!stablehlo.token", _MESH_TENSOR, *_OTHERS])


@given(*[st.one_of(st.lists(_TENSORS), st.lists(_TYPES))] * 2)
def test_types_of_functions(inputs: list[str], results: list[str]) -> None:
    found = parse_type(f"({', '.join(inputs)}) -> ({', '.join(results)})")
    assert isinstance(found, FunctionType)
    assert found.inputs == tuple(map(parse_type, inputs)) and found.results == tuple(map(parse_type, results))


def test_thousands_of_plain_tensors_are_taken_apart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpmd_trace.ir.types.split_top_level", None)
    found = parse_type(f"({', '.join(['tensor<7x13xf32>'] * 3000)}) -> tensor<13xf32>")
    assert isinstance(found, FunctionType) and len(found.inputs) == 3000


@pytest.mark.parametrize("start, text", [(0, ""), (3, "()"), (0, "((f32)"), (0, '(")"'), (0, "(")])
def test_a_bracket_that_is_never_closed(start: int, text: str) -> None:
    with pytest.raises(ValueError, match="unbalanced bracket"):
        matching_bracket(text, start)


_PIECES = st.recursive(
    st.sampled_from(["x", '"(,"', r'"\" >"', "4 -> 5", "a <= b", "a >= b"]),
    lambda inner: st.builds(
        lambda around, parts: f"n{around[0]}{', '.join(parts)}{around[1]}",
        st.sampled_from(["<>", "()", "[]", "{}"]),
        st.lists(inner, max_size=3),
    ),
)


@given(st.lists(_PIECES, min_size=1))
def test_parts_between_commas(parts: list[str]) -> None:
    text = ", ".join(parts)
    assert split_top_level(text) == parts
    assert matching_bracket(f"n<{text}>, (", 1) == len(text) + 2


def test_bodies_that_are_spelled_alike_are_one_object() -> None:
    named = """
        %{0} = mpmd.named_computation<"{0}"> (%x) (%y: tensor<f32>) {{
          %z = stablehlo.custom_call @target(%y) {{backend_config = "{1}"}} : (tensor<f32>) -> tensor<f32>
          mpmd.return {2} : tensor<f32>
        }} : (tensor<f32>) -> tensor<f32>"""
    given = {"a": ("%p", "%z"), "b": ("%p", "%z"), "c": ("%q", "%z"), "d": ("%p", "%y")}
    ops = "".join(named.format(name, *rest) for name, rest in given.items())
    module = parse(f"func.func @f(%x: tensor<f32>) {{{ops} return }}")
    generic = re.sub(r" loc\([^()]*\)", "", module.to_generic(debug_info=False))
    a, b, c, d = (op.regions[0] for op in parse_generic(generic).functions[0].body if op.regions)
    assert a is b
    assert len({a, c, d}) == 3
    check_round_trip(generic)
    located = to_generic(module.to_generic(debug_info=True))
    assert " loc(#loc" in located
    for any_location, number in ((False, 4), (True, 3)):
        again = parse_generic(located, any_location=any_location)
        assert len({op.regions[0] for op in again.functions[0].body if op.regions}) == number


def test_bodies_that_differ_in_the_name_of_an_op_are_two_objects() -> None:
    ops = "".join(
        f"""
        %{name} = mpmd.named_computation<"{name}"> (%x) (%y: tensor<f32>) {{
          %z = stablehlo.{name} %y : tensor<f32>
          mpmd.return %z : tensor<f32>
        }} : (tensor<f32>) -> tensor<f32>"""
        for name in ("abs", "sine")
    )
    generic = parse(f"func.func @f(%x: tensor<f32>) {{{ops} return }}").to_generic()
    assert len({op.regions[0] for op in parse_generic(generic).functions[0].body if op.regions}) == 2
