"""Fragments of the unnamed ops of a mesh: one for all between what comes from elsewhere."""

from __future__ import annotations

import random

import pytest

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.import_.mesh_sets import is_meshless
from mpmd_trace.passes.placement.groups import group_ops
from mpmd_trace_devtools.comparison import assert_same_meaning

HEAD = """
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", !t>
!b = !mpmd.mesh_tensor<"b", !t>
!c = !mpmd.mesh_tensor<"c", !t>
func.func public @main(%p: !a, %q: !b, %r: !c) -> RESULTS attributes {
    topology = #mpmd.topology<<"a": <["x"=1]>>, <"b": <["x"=1]>>, <"c": <["x"=1]>>>} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %w = mpmd.unassign %r : (!c) -> !t
"""


def grouped(body: str, results: str, free: tuple[str, ...] = ()) -> tuple[Module, Module]:
    """The module before and after; a mesh is written behind an op, as `// a`."""
    before = parse(HEAD.replace("RESULTS", results) + body + "}")
    after = before.clone()
    lines = [line for line in body.splitlines() if "// " in line]
    ops = [op for op in after.main.body if is_meshless(op) and op.name not in free]
    meshes = {op: line.rsplit("// ", 1)[1] for op, line in zip(ops, lines, strict=True)}
    made: dict[Op, object] = {op: None for op in after.main.body if op.name in free}
    group_ops(after.main, meshes, made)
    assert not verify(after)
    assert_same_meaning(before, after)
    return before, after


def fragments(module: Module) -> list[tuple[str, list[str]]]:
    """The mesh and ops of each fragment."""
    found = [op for op in module.main.body if isinstance(op, FragmentOp)]
    return [(op.mesh, [inner.name.removeprefix("stablehlo.") for inner in op.body.block][:-1]) for op in found]


def test_what_comes_back_from_another_mesh_is_in_another_fragment() -> None:
    """A norm: squares on both meshes, their sum on one of them, and what is scaled by it on both."""
    _, after = grouped(
        """
  %0 = stablehlo.multiply %u, %u : !t // a
  %1 = stablehlo.multiply %v, %v : !t // b
  %2 = stablehlo.tanh %0 : !t // a
  %3 = stablehlo.add %2, %1 : !t // a
  %4 = stablehlo.sqrt %3 : !t // a
  %5 = stablehlo.divide %u, %4 : !t // a
  %6 = stablehlo.divide %v, %4 : !t // b
  %7 = stablehlo.negate %6 : !t // b
  return %5, %7 : !t, !t
""",
        "(!t, !t)",
    )
    assert fragments(after) == [
        ("b", ["multiply"]),
        ("a", ["multiply", "tanh", "add", "sqrt"]),
        ("a", ["divide"]),
        ("b", ["divide", "negate"]),
    ]


def test_an_op_is_with_what_reads_it_as_late_as_possible() -> None:
    """The sine could be computed before the named computation, but only the end needs it."""
    _, after = grouped(
        """
  %0 = stablehlo.sine %u : !t // a
  %1 = stablehlo.tanh %u : !t // a
  %2 = mpmd.assign %1 : (!t) -> !a
  %3 = mpmd.fragment<mesh="a", origin=["f"]> (%2) (%x: !t) {
    %y = stablehlo.cosine %x : !t
    mpmd.return %y : !t
  } : (!a) -> !a
  %4 = mpmd.unassign %3 : (!a) -> !t
  %5 = stablehlo.add %4, %0 : !t // a
  return %5 : !t
""",
        "!t",
    )
    assert fragments(after) == [("a", ["tanh"]), ("a", ["cosine"]), ("a", ["sine", "add"])]


def test_free_ops_are_made_where_they_are_read_and_stay_for_what_is_not_grouped() -> None:
    _, after = grouped(
        """
  %0 = stablehlo.constant dense<2.0> : !t
  %1 = stablehlo.multiply %u, %0 : !t // a
  %2 = stablehlo.multiply %v, %0 : !t // b
  %3 = mpmd.assign %0 : (!t) -> !c
  return %1, %2, %3 : !t, !t, !c
""",
        "(!t, !t, !c)",
        free=("stablehlo.constant",),
    )
    assert fragments(after) == [("a", ["constant", "multiply"]), ("b", ["constant", "multiply"])]
    assert [op.name for op in after.main.body].count("stablehlo.constant") == 1


def test_equal_ops_are_one_body() -> None:
    """However many meshes compute the same, each pass that follows looks at one of them."""
    _, after = grouped(
        """
  %0 = stablehlo.sine %u : !t // a
  %1 = stablehlo.sine %v : !t // b
  %2 = stablehlo.add %0, %u : !t // a
  %3 = stablehlo.sine %w : !t // c
  %4 = stablehlo.add %1, %v : !t // b
  %5 = stablehlo.add %w, %3 : !t // c
  return %2, %4, %5 : !t, !t, !t
""",
        "(!t, !t, !t)",
    )
    first, second, third = [op.body for op in after.main.body if isinstance(op, FragmentOp)]
    assert first is second and first is not third


def test_what_nothing_reads_goes() -> None:
    _, after = grouped("  %0 = stablehlo.sine %u : !t // a\n  return %p : !a\n", "!a")
    assert not fragments(after)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """They mean the same, each fragment stands behind what it reads, and no op is in two of them."""
    rng = random.Random(seed)
    values, lines = ["%u", "%v", "%w"], []
    for i in range(rng.randrange(5, 40)):
        left, right = rng.choice(values), rng.choice(values[-5:])
        kind = rng.random()
        if kind < 0.15:
            mesh = rng.choice("abc")
            lines.append(f"""  %x{i} = mpmd.assign {left} : (!t) -> !{mesh}
  %y{i} = mpmd.fragment<mesh="{mesh}", origin=["f"]> (%x{i}) (%i: !t) {{
    %o = stablehlo.cosine %i : !t
    mpmd.return %o : !t
  }} : (!{mesh}) -> !{mesh}
  %{i} = mpmd.unassign %y{i} : (!{mesh}) -> !t""")
        elif kind < 0.3:
            lines.append(f"  %{i} = stablehlo.negate {left} : !t")
        else:
            lines.append(f"  %{i} = stablehlo.subtract {left}, {right} : !t // {rng.choice('abc')}")
        values.append(f"%{i}")
    returned = rng.sample(values[3:], min(3, len(values) - 3))
    types = ", ".join("!t" for _ in returned)
    body = "\n".join(lines) + f"\n  return {', '.join(returned)} : {types}\n"
    before, after = grouped(body, f"({types})", free=("stablehlo.negate",))
    assert not [op for op in after.main.body if op.name == "stablehlo.subtract"]
    unnamed = sum(op.name == "stablehlo.subtract" for op in before.main.body)
    assert sum(not op.is_user for op in after.main.body if isinstance(op, FragmentOp)) <= unnamed
    assert sum(ops.count("subtract") for _, ops in fragments(after)) <= unnamed


def test_named_computations_do_not_wait_for_what_others_need() -> None:
    """Both sines are one step away from the end, but `f` could not begin before `g` ended were they one fragment."""
    named = """
  %ASSIGNED = mpmd.assign %IN : (!t) -> !a
  %RAN = mpmd.fragment<mesh="a", origin=["NAME"]> (%ASSIGNED) (%x: !t) {
    %y = stablehlo.cosine %x : !t
    mpmd.return %y : !t
  } : (!a) -> !a
  %OUT = mpmd.unassign %RAN : (!a) -> !t
"""

    def computation(name: str, operand: str) -> str:
        text = named.replace("NAME", name).replace("IN", operand)
        return text.replace("ASSIGNED", f"{name}1").replace("RAN", f"{name}2").replace("OUT", name)

    _, after = grouped(
        "  %0 = stablehlo.sine %u : !t // a"
        + computation("f", "0")
        + computation("g", "u")
        + "  %1 = stablehlo.sine %g : !t // a"
        + computation("h", "1")
        + "  return %f, %h : !t, !t\n",
        "(!t, !t)",
    )
    assert [mesh_ops[1] for mesh_ops in fragments(after)] == [["sine"], ["cosine"], ["cosine"], ["sine"], ["cosine"]]
