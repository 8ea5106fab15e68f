"""Passes look closely only at fragments that can change; counted, since results are the same either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpmd_trace.passes.common import call_inline, fragment_dce, fragment_dedup
from mpmd_trace.passes.common.fragment_groups import Groups
from mpmd_trace.passes.common.merge_user_fragments_into_scheduling_units import MergeUserFragmentsIntoSchedulingUnits
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.variants import MergeUnitsInCallees
from util import run


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """A list that grows with each call of `owner.name`."""
    calls: list[str] = []
    original: Callable[..., Any] = getattr(owner, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, count)
    return calls


def chain(microbatches: int, tail: str = "") -> str:
    """A callee that adds its argument to itself, called for each microbatch; then `tail`."""
    calls = "\n".join(
        f"%{m + 1} = mpmd.call @f(%{m}) {{call_counter = {m} : ui32}} : (!A) -> !A" for m in range(microbatches)
    )
    return f"""
      func.func @main(%0: !A) -> !A attributes {{topology = #topo}} {{
        {calls}
        {tail}
        return %{microbatches + bool(tail)} : !A
      }}
      func.func private @f(%p: !A) -> !A attributes {{topology = #topo}} {{
        %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {{
          %1 = stablehlo.add %x, %x : tensor<4xf32>
          mpmd.return %1 : tensor<4xf32>
        }} : (!A) -> !A
        return %0 : !A
      }}
    """


def test_operands_of_a_callee_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = counted(monkeypatch, call_inline._Copier, "__init__")
    mappings = counted(monkeypatch, call_inline, "copied_ops")
    module = run(chain(8), "mpmd-call-inline")
    assert len(lookups) == 1 and mappings == []
    assert len(module.main.body.ops) == 9


@pytest.mark.parametrize(
    "spec",
    [
        "mpmd-merge-inferred-fragments",
        "mpmd-merge-inferred-fragments{merge-sideways=true}",
        "mpmd-merge-user-fragments-into-scheduling-units",
    ],
)
def test_fragments_with_nobody_to_merge_with_form_no_group(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = run(chain(8), "mpmd-call-inline")
    run_passes(module, "mpmd-symbol-dce")
    calls = counted(monkeypatch, Groups, "add")
    run_passes(module, spec)
    assert calls == []


def test_use_lists_are_restored_only_for_results_with_several_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    update = """%9 = mpmd.fragment<mesh="alpha", origin=[]> (%8, %0) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
          %z = stablehlo.add %x, %y : tensor<4xf32>
          mpmd.return %z : tensor<4xf32>
        } : (!A, !A) -> !A"""
    module = run(chain(8, update), "mpmd-call-inline")
    calls = counted(monkeypatch, Groups, "uses_of")
    run_passes(module, "mpmd-merge-inferred-fragments")
    assert len(module.main.body.ops) == 9  # the update is part of the last fragment
    assert calls == []


def test_one_look_at_each_clean_body(monkeypatch: pytest.MonkeyPatch) -> None:
    module = run(chain(8), "mpmd-call-inline")
    cleaned = counted(monkeypatch, fragment_dce, "prune")
    deduplicated = counted(monkeypatch, fragment_dedup, "alias_arguments")
    run_passes(module, ["mpmd-symbol-dce", "mpmd-fragment-dedup", "mpmd-fragment-dce"])
    assert len(cleaned) == 1
    assert deduplicated == []


def test_layers_of_a_stage_merge_once_for_all_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the callee, where that is wanted; with the same result as behind the inlining of its calls."""
    text = chain(8).replace(
        "return %0 : !A\n      }",
        """%9 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
          %1 = stablehlo.abs %x : tensor<4xf32>
          mpmd.return %1 : tensor<4xf32>
        } : (!A) -> !A
        return %9 : !A
      }""",
    )
    last = ["mpmd-call-inline", "mpmd-symbol-dce", MergeUserFragmentsIntoSchedulingUnits()]
    merges = counted(monkeypatch, Groups, "merge")
    later = run(text, last)
    assert len(merges) == 8
    merges.clear()
    sooner = run(text, [MergeUnitsInCallees(), *last])
    assert len(merges) == 1
    assert str(sooner) == str(later)
