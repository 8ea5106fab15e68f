"""`mpmd-shardy-propagation`: reducing a program changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from microbatched_programs import Step

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import IntegerAttr, StringAttr, TopologyAttr
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat import repeated_bodies
from mpmd_trace.jax_compat.mlir import module_to_generic
from mpmd_trace.passes import mlir_pass
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.dedup_bodies import share_equal_bodies
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.pipelines import passes_of
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.passes.sharding.equivalence_classes import Kinds
from mpmd_trace.passes.sharding.reduced_program import NUMBER, Reduction, reducible
from mpmd_trace.passes.sharding.shardy import propagation_pipeline, run_shardy, run_shardy_on_numbered
from mpmd_trace.passes.sharding.shardy_propagation import ShardyPropagation
from util import distinct_bodies


def propagated(module: Module, whole_up_to: int) -> Module:
    return run_passes(module.clone(), [ShardyPropagation(whole_up_to=whole_up_to)])


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("stages", "seed", "counters"), [(1, 1, True), (2, 2, False), (3, 3, True), (3, 4, False)])
def test_a_reduced_program_gives_the_same_shardings(
    stages: int, seed: int, counters: bool, constants: bool, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = parse(Step(stages, 14, seed, counters, constants, split).text())
    whole, reduced = propagated(module, 10**9), propagated(module, 0)
    _, seen = _fragments_of_runs(module, monkeypatch)
    fragments = sum(isinstance(op, FragmentOp) for op in module.main.body)
    assert len(seen) == 1, "the reduction was not consistent"
    if not constants:  # each of those bodies is there once, which may not be worth it
        assert seen[0] < fragments * 0.5
    steps = (
        "mpmd-populate-unreduced-out-sharding,mpmd-enforce-user-shardings,"
        "mpmd-extract-reshards-from-inter-mesh-transfers,mpmd-convert-sdy-shardings-to-mpmd-types,"
        "mpmd-convert-sdy-constants,mpmd-simplify-program"
    )
    if not constants and not split:  # else shardings inside of bodies, which go away, may differ
        assert str(whole) == str(reduced)
    assert str(run_passes(whole, steps)) == str(run_passes(reduced, steps))


@pytest.mark.parametrize(("stages", "seed", "rows"), [(1, 2, False), (3, 5, False), (2, 7, True)])
def test_a_reduced_program_with_long_sums(stages: int, seed: int, rows: bool) -> None:
    module = parse(Step(stages, 12, seed, rows=rows, summed=True).text())
    reduced = str(propagated(module, 0))
    assert reduced == str(propagated(module, 10**9))
    assert reduced.count("stablehlo.add") == stages * 11


def _fragments_of_runs(module: Module, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[int]]:
    """What the reduced program gives, and how many fragments each module had that Shardy got."""
    seen: list[int] = []

    def spied(run: Callable[..., Any], text_of: Callable[[Any], str]) -> Callable[..., Any]:
        def spy(given: Any, *args: Any, **options: Any) -> Any:
            count = text_of(given).count('"mpmd.fragment"')
            if count > 1:  # the first one alone tells whether stages may be taken for one
                seen.append(count)
            return run(given, *args, **options)

        return spy

    with monkeypatch.context() as patch:
        patch.setattr(mlir_pass, "run_pipeline", spied(mlir_pass.run_pipeline, str))
        patch.setattr(repeated_bodies, "_run", spied(repeated_bodies._run, module_to_generic))
        return str(propagated(module, 0)), seen


@pytest.mark.parametrize("split", [False, True])
def test_equal_stages_are_propagated_once(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are sharded, nothing is in their way: as many fragments for 12 stages or 9 microbatches as for 8 or 5.

    Neither is where microbatches are cut out of a batch and have their own rows sharded.
    """
    found = []
    for stages, microbatches in ((8, 5), (12, 5), (8, 9)):
        module = parse(Step(stages, microbatches, 0, rows=True, split=split).text())
        reduced, seen = _fragments_of_runs(module, monkeypatch)
        assert reduced == str(propagated(module, 10**9))
        assert reduced.count('[{"d"}, {}]') > 10 * stages
        found += seen
    assert found == [found[0]] * 3
    assert found[0] < 20, "the first and the last microbatch are as the others"


@pytest.mark.parametrize(("seed", "in_first"), [(1127, False), (3254, True)])
def test_where_shardings_meet_every_stage_counts(seed: int, in_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, results and the batch shard the activations in different ways, which one after the other decides.

    Where they meet in the first fragment, no stage is tried in place of others.
    """
    module = parse(Step(7, 5, seed, alike=True).text())
    reduced, seen = _fragments_of_runs(module, monkeypatch)
    assert reduced == str(propagated(module, 10**9))
    assert len(seen) == 2 - in_first
    across = Reduction(module, module.main, Kinds(module.main, across=True))
    assert seen[-1] > sum(isinstance(op, FragmentOp) for op in across.kept)


def test_equal_bodies_are_one_object_afterwards() -> None:
    module = parse(Step(2, 8, 0).text())
    assert distinct_bodies(module) > 10
    assert distinct_bodies(propagated(module, 10**9)) <= 2 * 3 * 2


def test_bodies_that_differ_afterwards_are_different_objects() -> None:
    """One body gets different shardings, and bodies of the same ops have different attributes.

    jaxlib cannot read the complex numbers in them.
    """

    def called(operand: str, target: str) -> str:
        return f"""mpmd.fragment<mesh="m0", origin=["f"]> ({operand}) (%u: tensor<8xf32>) {{
      %i = stablehlo.constant dense<(0.0, 1.0)> : tensor<8xcomplex<f32>>
      %c = stablehlo.imag %i : (tensor<8xcomplex<f32>>) -> tensor<8xf32>
      %s = stablehlo.add %u, %c : tensor<8xf32>
      %v = stablehlo.custom_call @{target}(%s) : (tensor<8xf32>) -> tensor<8xf32>
      mpmd.return %v : tensor<8xf32>
    }} : (!a) -> !a"""

    module = parse(f"""
!a = !mpmd.mesh_tensor<"m0", tensor<8xf32>>
module {{
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a {{sdy.sharding = #sdy.sharding<@mesh, [{{"d"}}]>}}, %q: !a) -> (!a, !a, !a)
      attributes {{topology = #mpmd.topology<<"m0" : <["d"=2]>>>}} {{
    %0 = {called("%p", "one")}
    %1 = {called("%q", "one")}
    %2 = {called("%p", "other")}
    return %0, %1, %2 : !a, !a, !a
  }}
}}
""")
    share_equal_bodies(module.functions)
    assert distinct_bodies(module) == 2
    for number, op in enumerate(list(module.main.body)[:-1]):
        op.attrs[NUMBER] = IntegerAttr.get(number, "i64")
    whole, once = run_shardy(module, Diagnostics()), run_shardy_on_numbered(module, "main", NUMBER, Diagnostics())
    assert whole is not None and once is not None
    assert str(once[0]) == str(whole[0])
    assert distinct_bodies(once[0]) == 3


def test_functions_with_loops_are_propagated_as_they_are() -> None:
    text = """
!a = !mpmd.mesh_tensor<"m0", tensor<8xf32>>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}) -> !a
      attributes {topology = #mpmd.topology<<"m0" : <["d"=2]>>>} {
    %r = mpmd.for (%p) {iterations = 3 : ui32} (%x: !a, %i: tensor<ui32>) {
      %f = mpmd.fragment<mesh="m0", origin=["f"]> (%x) (%y: tensor<8xf32>) {
        %z = stablehlo.sine %y : tensor<8xf32>
        mpmd.return %z : tensor<8xf32>
      } : (!a) -> !a
      mpmd.return %f : !a
    } : !a
    return %r : !a
  }
}
"""
    module = parse(text)
    assert not reducible(module.main)
    after = str(propagated(module, 0))
    assert 'in_shardings=[<@mesh, [{"d"}]>]' in after


def test_errors_of_shardy_are_reported() -> None:
    text = """
!a = !mpmd.mesh_tensor<"m0", tensor<8xf32>>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a) -> !a attributes {topology = #mpmd.topology<<"m0" : <["d"=2]>>>} {
    return %p : !a
  }
}
"""
    module = parse(text)
    module.main.attrs["topology"], module.body.ops[0].props["mesh"] = (
        module.body.ops[0].props["mesh"],
        module.main.attrs["topology"],
    )
    with pytest.raises(MpmdError):
        propagated(module, 10**9)


def test_pipeline_text_parses_and_leaves_partitioning_out() -> None:
    text = propagation_pipeline()
    assert "sdy-user-priority-propagate" in text
    assert "sdy-insert-explicit-reshards" not in text
    assert "sdy-save-module" not in text


def test_memory_kinds_that_the_verifier_does_not_want_do_not_matter() -> None:
    text = """
!a = !mpmd.mesh_tensor<"m0", tensor<8xf32>>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}) -> !a
      attributes {topology = #mpmd.topology<<"m0" : <["d"=2]>>>} {
    %t = mpmd.transfer %p : (!a) -> !a
    return %t : !a
  }
}
"""
    module = parse(text)
    module.main.set_arg_attr(0, "mhlo.memory_kind", StringAttr.get("pinned_host"))
    after = propagated(module, 10**9).main
    assert list(after.arg_attrs[0].entries) == ["mhlo.memory_kind", "sdy.sharding"]
    assert '[{"d"}]' in after.res_attrs[0].text


@pytest.mark.parametrize(("placement", "whole_up_to"), [("reference", 5_000), ("cut", 1_000)])
def test_programs_of_the_reference_are_whole_for_longer(placement: Any, whole_up_to: int) -> None:
    request = PartitionRequest("f", TopologyAttr.get({}), options=CompileOptions(placement=placement))
    found = [one for phase in passes_of(request) for one in phase if isinstance(one, ShardyPropagation)]
    assert [one.whole_up_to for one in found] == [whole_up_to]
