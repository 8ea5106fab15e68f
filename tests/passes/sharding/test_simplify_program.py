"""`mpmd-simplify-program`."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from util import distinct_bodies

PASS = "mpmd-simplify-program"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
"""


def fragment(results: str, body: str, operands: str = "(%a, %b)", kinds: str = "!s", inner: str = "") -> str:
    count = operands.count("%")
    args = ", ".join(f"%{n}: tensor<4xf32>" for n in "xyz"[:count])
    return (
        f'{results} = mpmd.fragment<mesh="s0", origin=["f"]> {operands} {inner} ({args}) {{ {body} }} '
        f": ({', '.join(['!s'] * count)}) -> ({kinds})\n"
    )


def program(body: str, returned: str, kinds: str) -> str:
    return (
        f"func.func public @main(%a: !s, %b: !s) -> ({kinds}) "
        f'attributes {{topology = #mpmd.topology<<"s0" : <["d"=2]>>>}} '
        f"{{\n{body}\nreturn {returned} : {kinds}\n}}"
    )


def test_equal_changes_give_one_body() -> None:
    text = "%u = stablehlo.sine %y : tensor<4xf32> mpmd.return %u : tensor<4xf32>"
    body = "".join(fragment(f"%f{i}", text) for i in range(5))
    module = parse(PRELUDE + program(body, "%f0, %f1, %f2, %f3, %f4", "!s, !s, !s, !s, !s"))
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    for op in fragments:
        op.body = fragments[0].body
    run_passes(module, PASS)
    assert distinct_bodies(module) == 1
