"""The greedy pattern driver."""

from __future__ import annotations

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.ops import FragmentOp, make_transfer
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.greedy import Rewriter, apply_greedily
from util import PRELUDE, run

TEXT = """
func.func @main(%p: !A, %q: !A) -> (!B, !B) attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !B
  %1 = mpmd.transfer %q : (!A) -> !B
  %2 = mpmd.transfer %q : (!A) -> !B
  return %0, %1 : !B, !B
}
"""


class Watch:
    """Records the transfers it sees, by their argument; fails always."""

    op_name: str | None = "mpmd.transfer"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        self.seen.append(op.operand(0).index)
        return False


class Copy:
    """Replaces each original transfer by a new one, once."""

    op_name: str | None = "mpmd.transfer"

    def __init__(self, forever: bool = False) -> None:
        self.made: list[Op] = []
        self.forever = forever

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if op in self.made:
            return False
        new = make_transfer(op.operand(0), op.results[0].type)
        if not self.forever:
            self.made.append(new)
        rewriter.insert_before(op, new)
        rewriter.replace_op(op, new.results)
        return True


def test_last_op_first_and_dead_ops_go() -> None:
    """The unused transfer is erased; the second round sees the others again."""
    module = run(TEXT, [])
    watch = Watch()
    result = apply_greedily(module.main, [watch])
    assert result.changed and result.converged
    assert watch.seen == [1, 0, 1, 0]


def test_new_ops_are_visited_next() -> None:
    """Both patterns see a new op before the driver goes on."""
    module = run(TEXT, [])
    watch, copy = Watch(), Copy()
    result = apply_greedily(module.main, [watch, copy])
    assert result.converged
    assert watch.seen == [1, 1, 0, 0, 1, 0]


def test_rounds_are_limited() -> None:
    """A pattern that never stops matching in later rounds is reported."""

    class Blink:
        op_name: str | None = "func.return"

        def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
            return True

    result = apply_greedily(run(TEXT, []).main, [Blink()])
    assert result.changed and not result.converged


def test_region_dce_and_module_root() -> None:
    """With the module as root every function is covered."""
    module = run(TEXT + TEXT.replace("@main", "@other"), [])
    assert apply_greedily(module, [], region_dce=True).changed
    assert all(len(f.body.ops) == 3 for f in module.functions)


def test_constants_of_functions_move_to_the_front() -> None:
    """Equal ones are unified; one that stands alone goes before all others."""
    text = """
func.func @main(%p: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
  %c = stablehlo.constant dense<1.0> : tensor<4xf32>
  %0 = stablehlo.add %p, %c : tensor<4xf32>
  %d = stablehlo.constant dense<1.0> : tensor<4xf32>
  %e = stablehlo.constant dense<2.0> : tensor<4xf32>
  %1 = stablehlo.add %0, %d : tensor<4xf32>
  %2 = stablehlo.add %1, %e : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
    module = run(text, [])
    apply_greedily(module.main, [], unique_constants=True)
    names = [op.name.rpartition(".")[2] for op in module.main.body]
    assert names == ["constant", "constant", "add", "add", "add", "return"]
    assert "2.0" in module.main.body.ops[0].props["value"].text


def test_a_body_that_two_fragments_have_is_cleaned_in_both() -> None:
    fragment = """mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
        %c = stablehlo.constant dense<1.0> : tensor<4xf32>
        %d = stablehlo.constant dense<1.0> : tensor<4xf32>
        %unused = stablehlo.negate %x : tensor<4xf32>
        %s = stablehlo.add %c, %d : tensor<4xf32>
        mpmd.return %s : tensor<4xf32>
      } : (!A) -> !A"""
    text = "func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {\n"
    main = parse(f"{PRELUDE}{text} %0 = {fragment}\n %1 = {fragment}\n return %0, %1 : !A, !A\n}}").main
    first, second = (op for op in main.body if isinstance(op, FragmentOp))
    second.body = first.body
    apply_greedily(main, [], unique_constants=True)
    assert first.body is second.body
    assert [op.name for op in first.body.block] == ["stablehlo.constant", "stablehlo.add", "mpmd.return"]


def test_moving_constants_alone_is_a_change() -> None:
    module = parse("""
        func.func @main(%a: tensor<f32>) -> tensor<f32> {
          %0 = stablehlo.negate %a : tensor<f32>
          %c = stablehlo.constant dense<1.0> : tensor<f32>
          %1 = stablehlo.add %0, %c : tensor<f32>
          return %1 : tensor<f32>
        }
    """)
    assert apply_greedily(module.main, [], unique_constants=True).changed
    assert module.main.body.ops[0].name == "stablehlo.constant"
    assert not apply_greedily(module.main, [], unique_constants=True).changed
