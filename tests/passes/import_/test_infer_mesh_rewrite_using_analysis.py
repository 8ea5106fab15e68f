"""mpmd-infer-mesh-rewrite-using-analysis: ops and fragments"""

from import_programs import run

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.manager import run_passes

PASS = "mpmd-infer-mesh-rewrite-using-analysis"


def test_equal_fragments_keep_sharing_their_body() -> None:
    """What many fragments take in is built into one body for all of them."""
    lines, n = [], 6
    for i in range(n):
        lines.append(
            f"""
          %k{i} = stablehlo.constant dense<2.0> : !T
          %s{i} = stablehlo.add %k{i}, %a : !T
          %t{i} = stablehlo.multiply %s{i}, %k{i} : !T
          %m{i} = mpmd.assign %t{i} : (!T) -> !P0
          %f{i} = mpmd.fragment<mesh="p0", origin=["s"]> (%m{i}, %b) (%x: !T, %y: !T) {{
            %9 = stablehlo.add %x, %y : !T
            mpmd.return %9 : !T
          }} : (!P0, !P0) -> !P0"""
        )
    values = ", ".join(f"%f{i}" for i in range(n))
    module = run(
        f"""
        func.func @main(%a: !T, %b: !P0) -> ({", ".join(["!P0"] * n)}) attributes {{topology = #topo}} {{
          {"".join(lines)}
          return {values} : {", ".join(["!P0"] * n)}
        }}
        """,
        # A body is shared by the fragments that have it in the input once they are merged by their text.
        [],
    )
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    for fragment in fragments[1:]:
        fragment.body = fragments[0].body
    run_passes(module, PASS)
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert len(fragments) == n
    assert len({id(f.body) for f in fragments}) == 1
    assert [op.name for op in fragments[0].body.block] == [
        "stablehlo.constant",
        "stablehlo.add",
        "stablehlo.multiply",
        "stablehlo.add",
        "mpmd.return",
    ]


def test_body_is_copied_once_however_many_ops_are_absorbed() -> None:
    chain = "".join(f"%c{i + 1} = stablehlo.add %c{i}, %c{i} : !T\n" for i in range(300))
    module = run(
        f"""
        func.func @main(%c0: !T) -> !P0 attributes {{topology = #topo}} {{
          {chain}
          %0 = mpmd.assign %c300 : (!T) -> !P0
          return %0 : !P0
        }}
        """,
        PASS,
    )
    (fragment,) = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert len(fragment.body.block.ops) == 301
    assert fragment.num_operands == 1
