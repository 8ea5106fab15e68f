"""`mpmd-shard-optimizer-state`: what a value is made of."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.memory import shard_optimizer_state

MODULE = """
!a = !mpmd.mesh_tensor<"a", tensor<i1>>
func.func public @main(%p: !a, %q: !a) -> (!a, !a) attributes {topology = #mpmd.topology<<"a": <["x"=2]>>>} {
  %0:2 = mpmd.fragment<mesh="a", origin=[]> (%p, %q) (%x: tensor<i1>, %y: tensor<i1>) {
    %c = "stablehlo.if"(%x) ({
      stablehlo.return %y : tensor<i1>
    }, {
      stablehlo.return %x : tensor<i1>
    }) : (tensor<i1>) -> tensor<i1>
    %n = stablehlo.not %x : tensor<i1>
    mpmd.return %c, %n : tensor<i1>, tensor<i1>
  } : (!a, !a) -> (!a, !a)
  return %0#0, %0#1 : !a, !a
}
"""


def test_a_branch_reads_what_it_captures() -> None:
    fragment = parse(MODULE).main.body.ops[0]
    assert isinstance(fragment, FragmentOp)
    assert not shard_optimizer_state._depends_only_on(fragment.body, 0, 0)
    assert shard_optimizer_state._depends_only_on(fragment.body, 1, 0)
