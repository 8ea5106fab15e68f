"""`mpmd-delay-inferred-fragments`."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from util import run

PASS = "mpmd-delay-inferred-fragments"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>
"""


def order(body: str) -> list[str]:
    """The names of the ops that the body's fragments hold, in the new order."""
    text = f"func.func public @main(%p: !s) -> !s attributes {{topology = #topo}} {{\n{body}\n}}"
    ops = [op for op in run(text, PASS, PRELUDE).main.body if isinstance(op, FragmentOp)]
    return [first.name.removeprefix("stablehlo.") for op in ops if (first := op.body.block.first)]


def fragment(result: str, operand: str, op: str, origin: str = "") -> str:
    return (
        f'{result} = mpmd.fragment<mesh="s0", origin=[{origin}]> ({operand}) (%x: tensor<4xf32>) '
        f"{{ %y = stablehlo.{op} %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> }} : (!s) -> !s\n"
    )


def test_many_fragments_with_one_user() -> None:
    count = 300
    body = "".join(fragment(f"%f{i}", "%p", "sine" if i % 2 else "cosine") for i in range(count))
    operands = ", ".join(f"%f{i}" for i in range(count))
    args = ", ".join(f"%x{i}: tensor<4xf32>" for i in range(count))
    body += (
        f'%v = mpmd.fragment<mesh="s0", origin=["v"]> ({operands}) ({args}) '
        f"{{ mpmd.return %x0 : tensor<4xf32> }} : ({', '.join(['!s'] * count)}) -> !s\nreturn %v : !s"
    )
    assert order(body)[:count] == ["sine" if i % 2 else "cosine" for i in reversed(range(count))]
