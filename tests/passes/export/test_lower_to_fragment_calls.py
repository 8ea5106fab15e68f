"""`mpmd-lower-to-fragment-calls`."""

from __future__ import annotations

import logging

import pytest

from fragment_texts import frag, function
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.dedup_bodies import share_equal_bodies
from mpmd_trace.passes.export.lower_to_fragment_calls import LowerToFragmentCalls
from mpmd_trace.passes.manager import run_passes
from util import PRELUDE, run

PASS = "mpmd-lower-to-fragment-calls"


MANUAL = """
!a = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a) -> !a attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<8xf32>) {
      %c = sdy.sharding_constraint %x <@mesh, [{}]> : tensor<8xf32>
      %m = sdy.manual_computation(%c) in_shardings=[<@mesh, [{"d"}]>] out_shardings=[<@mesh, [{"d"}]>]
          manual_axes={"d"} (%y: tensor<4xf32>) {
        %z = stablehlo.sine %y {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : tensor<4xf32>
        sdy.return %z : tensor<4xf32>
      } : (tensor<8xf32>) -> tensor<8xf32>
      mpmd.return %m : tensor<8xf32>
    } : (!a) -> !a
    return %f : !a
  }
}
"""


def test_manual_computations_name_the_mesh_of_the_fragment() -> None:
    lowered = str(run(MANUAL, PASS, ""))
    assert lowered.index('sdy.mesh @s0 = <["d"=2]>') < lowered.index("sdy.mesh @mesh")
    assert 'in_shardings=[<@s0, [{"d"}]>] out_shardings=[<@s0, [{"d"}]>]' in lowered
    assert "sdy.sharding_per_value<[<@s0, [{}]>]>" in lowered
    assert "sdy.sharding_constraint %arg0 <@mesh, [{}]>" in lowered


def test_functions_with_manual_computations_share_no_body() -> None:
    """They speak of their mesh."""
    module = parse(MANUAL)
    run_passes(module, [LowerToFragmentCalls(alias_bodies=True)])
    assert str(module) == str(run(MANUAL, PASS, ""))
    assert not module.functions[1].regions[0].frozen


def test_functions_of_one_body_may_share_it() -> None:
    fragments = f"  %0 = {frag('alpha', '', '%p')}\n  %1 = {frag('beta', '', '%q')}"
    text = PRELUDE + function(fragments, "%0, %1", "!A, !B")
    apart, shared = parse(text), parse(text)
    for module, shares in ((apart, False), (shared, True)):
        share_equal_bodies(module.functions)
        run_passes(module, [LowerToFragmentCalls(alias_bodies=shares)])
        assert not verify(module)
    assert apart.to_generic(debug_info=True) == shared.to_generic(debug_info=True)
    assert [f.regions[0].frozen for f in apart.functions] == [False] * len(apart.functions)
    _, one, other = (f.regions[0] for f in shared.functions)
    assert one is other and one.frozen
    own = [f.regions[0] for f in shared.clone().functions]
    assert len({id(region) for region in own}) == 3 and not any(region.frozen for region in own)
    run_passes(shared, "mpmd-cse")  # a pass that follows finds functions that it may change
    assert not any(f.regions[0].frozen for f in shared.functions)


def test_verbose_logging_says_what_each_mesh_runs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = """
module @jit_step {
  func.func public @main(%p: !a, %q: !b) -> (!a, !a, !b) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>} {
    %a = mpmd.fragment<mesh="s0", origin=["f", "g"(1)], stage=2> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
      %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!a) -> !a
    %b = mpmd.fragment<mesh="s1", origin=[]> (%q) (%x: tensor<4xf32>) {
      %y = stablehlo.cosine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!b) -> !b
    %c = mpmd.fragment<mesh="s0", origin=["h"(1)]> (%a) (%x: tensor<4xf32>) {
      %y = stablehlo.tanh %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!a) -> !a
    return %a, %c, %b : !a, !a, !b
  }
}
"""  # noqa: E501 (MLIR text)
    types = '!a = !mpmd.mesh_tensor<"s0", tensor<4xf32>>\n!b = !mpmd.mesh_tensor<"s1", tensor<4xf32>>\n'
    said = """\
Module jit_step on mesh s0 will execute the following XLA programs:
  p0_stage2_fwd_bwd_call3.step origins=["f", "g"(1)] stage=2 call_counter=3
  p2_h_bwd.step origins=["h"(1)] stage=none call_counter=none
Module jit_step on mesh s1 will execute the following XLA programs:
  p1_inferred.step origins=[] stage=none call_counter=none
"""
    run(text, PASS, types)
    assert capsys.readouterr().err == ""
    run(text, f"{PASS}{{verbose-logging=true}}", types)
    assert capsys.readouterr().err == said
    with caplog.at_level(logging.INFO, "mpmd_trace"):
        run(text, f"{PASS}{{verbose-logging=true}}", types)
    assert caplog.messages == said.splitlines()
    assert capsys.readouterr().err == ""
