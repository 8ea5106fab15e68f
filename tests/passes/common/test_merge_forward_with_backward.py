# ruff: noqa: E501
"""`mpmd-merge-forward-with-backward`."""

from __future__ import annotations

from fragment_texts import frag, function

from util import check, run


def test_last_stage() -> None:
    """Forward and backward of the last stage become one fragment."""
    check(
        """
func.func @fb(%p: !A, %q: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"], stage=2> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="beta", origin=["h"]> (%q) (%x: tensor<4xf32>) {
    %n = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!B) -> !B
  %2 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=2> (%0) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %n = stablehlo.exponential %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  return %2, %1 : !A, !B
}
""",
        "mpmd-merge-forward-with-backward",
        """
func.func @fb(%arg0: !A, %arg1: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="beta", origin=["h"]> (%arg1) (%arg2: tensor<4xf32>) {
    %2 = stablehlo.abs %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!B) -> !B
  %1 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)], stage=2> (%arg0) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    %3 = stablehlo.exponential %2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  return %1, %0 : !A, !B
}
""",
    )


def test_something_between_prevents_merging() -> None:
    """Another fragment on the mesh between the two, even one that is independent of both."""
    body = (
        "  %0 = "
        + frag("alpha", '"f"', "%p")
        + "\n  %1 = "
        + frag("alpha", '"g"', "%p", "abs")
        + "\n  %2 = "
        + frag("alpha", '"f"(1)', "%0", "sine")
    )
    text = function(body, "%1, %2", "!A, !A")
    check(text, "mpmd-merge-forward-with-backward", text)


def test_mixed_fragment_merges_no_further() -> None:
    """What was merged is neither forward nor backward."""
    body = (
        "  %0 = "
        + frag("alpha", '"f"', "%p", attrs="{call_counter = 0 : ui32}")
        + "\n  %1 = "
        + frag("alpha", '"f"(1)', "%0", "abs", attrs="{call_counter = 1 : ui32}")
        + "\n  %2 = "
        + frag("alpha", '"g"(1)', "%1", "sine")
    )
    text = str(run(function(body, "%2", "!A"), "mpmd-merge-forward-with-backward"))
    assert text.count("mpmd.fragment") == 2
    assert 'origin=["f", "f"(1)]' in text and 'origin=["g"(1)]' in text
    assert "call_counter" not in text
