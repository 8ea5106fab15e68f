"""`mpmd-mark-offloaded-input-output`."""

from __future__ import annotations

import pytest

from util import run

PASS = "mpmd-mark-offloaded-input-output"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>
"""


def body(ops: str, result: str, operand: str = "%p", host: bool = False) -> str:
    kind = 'mhlo.memory_kind = "pinned_host"' if host else ""
    return f"""
func.func public @main(%p: !s) -> (!s {{{kind}}}) attributes {{topology = #topo}} {{
  %f = mpmd.fragment<mesh="s0", origin=["f"]> ({operand}) (%x: tensor<4xf32>) {{
    {ops}
    mpmd.return {result} : tensor<4xf32> }} : (!s) -> !s
  return %f : !s
}}
"""


def place(name: str, value: str, where: str) -> str:
    attrs = f'{{mhlo.frontend_attributes = {{_xla_buffer_placement = "{where}"}}}}'
    return (
        f"{name} = stablehlo.custom_call @annotate_device_placement({value}) {attrs} "
        ": (tensor<4xf32>) -> tensor<4xf32>\n"
    )


HOST = place("%h", "%x", "pinned_host")


@pytest.mark.parametrize(
    ("ops", "on_host"),
    [
        (HOST + "%r = stablehlo.optimization_barrier %h : tensor<4xf32>", True),
        (HOST + place("%r", "%h", "device"), False),
        (HOST + "%r = stablehlo.custom_call @Sharding(%h) : (tensor<4xf32>) -> tensor<4xf32>", True),
        (HOST + "%r = stablehlo.custom_call @Other(%h) : (tensor<4xf32>) -> tensor<4xf32>", False),
        (HOST + "%r = stablehlo.sine %h : tensor<4xf32>", False),
        (
            HOST + '%r = stablehlo.sine %x {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : tensor<4xf32>',
            True,
        ),
        (
            HOST
            + "%q = stablehlo.reshape %h : (tensor<4xf32>) -> tensor<1x4xf32>\n"
            + "%r = stablehlo.reshape %q : (tensor<1x4xf32>) -> tensor<4xf32>",
            True,
        ),
        (
            HOST
            + "%q = stablehlo.reshape %h : (tensor<4xf32>) -> tensor<2x2xf32>\n"
            + "%r = stablehlo.reshape %q : (tensor<2x2xf32>) -> tensor<4xf32>",
            False,
        ),
        (
            HOST + "%i = stablehlo.constant dense<0> : tensor<i32>\n"
            "%r = stablehlo.dynamic_update_slice %x, %h, %i "
            ": (tensor<4xf32>, tensor<4xf32>, tensor<i32>) -> tensor<4xf32>",
            True,
        ),
        (
            HOST + "%r = stablehlo.while(%i = %x) : tensor<4xf32> cond { "
            "%c = stablehlo.constant dense<true> : tensor<i1> stablehlo.return %c : tensor<i1> } do { "
            + HOST.replace("%h", "%j").replace("%x", "%i")
            + " stablehlo.return %j : tensor<4xf32> }",
            True,
        ),
    ],
)
def test_which_ops_let_host_memory_pass(ops: str, on_host: bool) -> None:
    module = run(body(ops, "%r", host=on_host), PASS, PRELUDE)
    fragment = module.main.body.first
    assert fragment is not None
    assert ("pinned_host" in fragment.attrs["res_attrs"].text) is on_host
