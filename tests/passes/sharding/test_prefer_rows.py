"""`mpmd-prefer-rows` looks at each value once, and knows what belongs to a microbatch where two were merged."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes

LAYERS = 400
HEAD = """
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", !t>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>>
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>},
    %w: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !a attributes {topology = #meshes} {
"""


def _layer(number: int, before: str, microbatch: str = "") -> str:
    return f"""  %{number}:2 = mpmd.fragment<mesh="a", origin=["f"]> ({before}) {microbatch} (%v: !t, %u: !t) {{
      mpmd.return %v, %u : !t, !t
    }} : (!a, !a) -> (!a, !a)
"""


@pytest.mark.parametrize("microbatch", ["{call_counter = 0 : ui32}", ""])
def test_a_deep_step_without_microbatches_in_which_all_is_read_twice(microbatch: str) -> None:
    """As many ways through it as 2 to the number of layers; what a microbatch reads at the end of them are rows."""
    layers = [_layer(i, f"%{i - 1}#0, %{i - 1}#1" if i else "%p, %p") for i in range(LAYERS)]
    last = _layer(LAYERS, f"%{LAYERS - 1}#0, %{LAYERS - 1}#1", microbatch)
    found = run_passes(parse(f"{HEAD}{''.join(layers)}{last}  return %w : !a\n}}\n"), "mpmd-prefer-rows")
    shardings = [found.main.arg_attrs[i].text for i in range(2)]
    assert "p1" not in shardings[0] and ("p1" in shardings[1]) == bool(microbatch)


def _microbatches(*fragments: tuple[str, str, str]) -> str:
    """Fragments with origins and attributes, each of which reads a part of the batch and the weight."""
    text = "".join(
        f"""  %{i} = mpmd.fragment<mesh="a", origin=[{origins}]> (%{part}, %w) {{{attributes}}} (%v: !t, %u: !t) {{
      %s = stablehlo.add %v, %u : !t
      mpmd.return %s : !t
    }} : (!a, !a) -> !a
"""
        for i, (origins, part, attributes) in enumerate(fragments)
    )
    arguments = ", ".join(
        f'%{name}: !a {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}' for name in ("p0", "p1", "w")
    )
    head = HEAD.partition("func.func")[0] + f"func.func public @main({arguments}) -> !a"
    return f"{head} attributes {{topology = #meshes}} {{\n{text}  return %w : !a\n}}\n"


def test_a_part_of_the_batch_that_two_merged_fragments_read() -> None:
    """Forward of 0, forward of 1 merged with backward of 0, backward of 1: each part is read by two of them."""
    merged = "mpmd.merged_call_counters = [0 : ui32, 1 : ui32]"
    text = _microbatches(
        ('"f"', "p0", "call_counter = 0 : ui32"),
        ('"f", "f"(1)', "p0", merged),
        ('"f", "f"(1)', "p1", merged),
        ('"f"(1)', "p1", "call_counter = 1 : ui32"),
    )
    found = run_passes(parse(text), "mpmd-prefer-rows")
    assert ["p1" in attributes.text for attributes in found.main.arg_attrs] == [False, False, True]
