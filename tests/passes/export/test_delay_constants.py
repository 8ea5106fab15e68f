"""`mpmd-delay-constants`: large constants are not in front of what could begin without them."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager
from oracle import assert_same_meaning
from util import PRELUDE

#: A scalar that the first user takes and an array that the second one adds to.
CONSTANTS = """
  %c:2 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %i = stablehlo.constant dense<2.0> : tensor<f32>
    %z = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %i, %z : tensor<f32>, tensor<4xf32>
  } : () -> (!S, !A)"""
#: An argument that is sent, and what another mesh makes of it.
SENT = "\n  %s = mpmd.transfer %q : (!B) -> !A"
MADE = """
  %m = mpmd.fragment<mesh="beta", origin=["g"]> (%q) (%u: tensor<4xf32>) {
    %v = stablehlo.sine %u : tensor<4xf32>
    mpmd.return %v : tensor<4xf32>
  } : (!B) -> !B
  %t = mpmd.transfer %m : (!B) -> !A"""


def first(operands: str, kinds: str = "!A, !S", ops: str = "") -> str:
    """The first user, `%f`, of an array, a scalar, and perhaps another array."""
    third = ", %z: tensor<4xf32>" if kinds.endswith("!S, !A") else ""
    added = "%x" if third else "%w"
    more = "\n    %x = stablehlo.add %w, %z : tensor<4xf32>" if third else ""
    return f"""
  %f = mpmd.fragment<mesh="alpha", origin=["f"]> ({operands}) (%u: tensor<4xf32>, %i: tensor<f32>{third}) {{
    %b = stablehlo.broadcast_in_dim %i, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %w = stablehlo.multiply %u, %b : tensor<4xf32>{more}
    mpmd.return {added} : tensor<4xf32>
  }} : ({kinds}) -> !A"""


SECOND = """
  %r = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%f, %c#1) (%u: tensor<4xf32>, %z: tensor<4xf32>) {
    %w = stablehlo.add %u, %z : tensor<4xf32>
    mpmd.return %w : tensor<4xf32>
  } : (!A, !A) -> !A
  return %r : !A"""


def after(*ops: str, least: int = 16) -> list[str]:
    """What the fragments are, in their order: the constants by how many there are."""
    text = f"func.func public @main(%p: !A, %q: !B) -> !A attributes {{topology = #topo}} {{{''.join(ops)}\n}}"
    before = parse(PRELUDE + text)
    work = before.clone()
    PassManager(f"mpmd-delay-constants{{least={least}}}", verify=True).run(work)
    parse(work.to_generic())
    assert_same_meaning(before, work)
    found = [op for op in work.main.body if isinstance(op, FragmentOp)]
    return [op.origin[0].short.replace('"', "") if op.origin else str(len(op.results)) for op in found]


def test_what_is_needed_later_is_made_later() -> None:
    assert after(CONSTANTS, first("%p, %c#0"), SECOND) == ["1", "f", "1", "f(1)"]


def test_an_argument_that_is_sent_is_soon_there() -> None:
    assert after(SENT, CONSTANTS, first("%s, %c#0"), SECOND) == ["1", "f", "1", "f(1)"]


def test_who_waits_for_another_mesh_makes_them_meanwhile() -> None:
    assert after(CONSTANTS, MADE, first("%t, %c#0"), SECOND) == ["2", "g", "f", "f(1)"]


def test_what_the_first_user_needs_is_there_in_time() -> None:
    assert after(CONSTANTS, first("%p, %c#0, %c#1", "!A, !S, !A"), SECOND) == ["2", "f", "f(1)"]


@pytest.mark.parametrize(("least", "count"), [(16, 4), (17, 3)])
def test_a_program_more_must_pay(least: int, count: int) -> None:
    """The array has 16 bytes."""
    assert len(after(CONSTANTS, first("%p, %c#0"), SECOND, least=least)) == count


def test_what_is_sharded_is_smaller_on_a_device() -> None:
    sharded = 'sdy.mesh @mesh = <["x"=2]>\n'
    type = '!mpmd.mesh_tensor<"alpha", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>'
    aliases = PRELUDE.replace('!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>', f"!A = {type}")
    ops = CONSTANTS + first("%p, %c#0") + SECOND
    main = f"func.func public @main(%p: !A) -> !A attributes {{topology = #topo}} {{{ops}\n}}"
    module = parse(aliases + sharded + main)
    for least, count in ((9, 3), (8, 4)):
        work = module.clone()
        PassManager(f"mpmd-delay-constants{{least={least}}}", verify=True).run(work)
        assert sum(isinstance(op, FragmentOp) for op in work.main.body) == count
