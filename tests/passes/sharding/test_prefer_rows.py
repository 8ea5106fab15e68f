"""`mpmd-prefer-rows` looks at each value once."""

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
