# ruff: noqa: E501
"""`mpmd-merge-user-fragments-into-scheduling-units`."""

from __future__ import annotations

import pytest
from fragment_texts import frag, function

from util import check, diagnostics


def test_one_phase_and_microbatch() -> None:
    """Stage and counter come from whichever fragment has them."""
    check(
        """
func.func @units(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"(1), "f"(1)], stage=0> (%0) {call_counter = 4 : ui32} (%x: tensor<4xf32>) {
    %n = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
""",
        "mpmd-merge-user-fragments-into-scheduling-units",
        """
func.func @units(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1), "g"(1)], stage=0> (%arg0) {call_counter = 4 : ui32} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
""",
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (('"f"', "", ""), ('"f"(1)', "", "")),
        (('"f"', "{call_counter = 0 : ui32}", ""), ('"g"', "{call_counter = 1 : ui32}", "")),
        (('"f"', "", ", stage=0"), ('"g"', "", ", stage=1")),
        (('"f"', "", ""), ("", "", "")),
    ],
    ids=["phase", "microbatch", "stage", "inferred"],
)
def test_what_is_not_one_unit(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    """Different phases, microbatches or stages stay apart, and so do inferred fragments."""
    body = (
        "  %0 = "
        + frag("alpha", first[0], "%p", attrs=first[1], stage=first[2])
        + "\n  %1 = "
        + frag("alpha", second[0], "%0", "abs", attrs=second[1], stage=second[2])
    )
    text = function(body, "%1", "!A")
    check(text, "mpmd-merge-user-fragments-into-scheduling-units", text)


def test_mixed_phases_are_refused() -> None:
    """A fragment with forward and backward origins belongs to no unit."""
    body = "  %0 = " + frag("alpha", '"f", "g"(1)', "%p") + "\n  %1 = " + frag("alpha", '"f"', "%0")
    ok, found = diagnostics(function(body, "%1", "!A"), "mpmd-merge-user-fragments-into-scheduling-units")
    assert not ok and "mixes phases" in found[0].message
