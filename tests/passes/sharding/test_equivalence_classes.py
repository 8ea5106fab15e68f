"""Which ops propagation cannot tell apart."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.sharding.equivalence_classes import Kinds

T = "tensor<4xf32>"


def fragment(result: str, op: str, *operands: str) -> str:
    """Return the text of a fragment of one op."""
    args = ", ".join(f"%x{i}: {T}" for i in range(len(operands)))
    reads = ", ".join(f"%x{i}" for i in range(len(operands)))
    return (
        f'%{result} = mpmd.fragment<mesh="a", origin=["f"]> ({", ".join(operands)}) ({args}) {{\n'
        f"  %r = stablehlo.{op} {reads} : {T}\n  mpmd.return %r : {T}\n"
        f"}} : ({', '.join('!a' for _ in operands)}) -> !a\n"
    )


@pytest.mark.parametrize(("last", "kinds"), [("tanh", 6), ("cosine", 12)])
def test_ops_differ_in_what_becomes_of_their_results_and_of_what_is_beside_them(last: str, kinds: int) -> None:
    """Two chains that differ in their last op at most, to which four steps back and forth lead from the others."""
    body = "".join(
        fragment(f"near{n}", "negate", "%p")
        + fragment(f"middle{n}", "abs", f"%near{n}")
        + fragment(f"last{n}", end, f"%middle{n}")
        + fragment(f"far{n}", "sine", "%p")
        + fragment(f"both{n}", "add", f"%near{n}", f"%far{n}")
        + fragment(f"beside{n}", "exponential", f"%far{n}")
        for n, end in enumerate(("tanh", last))
    )
    returned = [f"%{name}{n}" for n in (0, 1) for name in ("last", "both", "beside")]
    types = ", ".join("!a" for _ in returned)
    module = parse(
        f'!a = !mpmd.mesh_tensor<"a", {T}>\nfunc.func public @main(%p: !a) -> ({types}) attributes '
        f'{{topology = #mpmd.topology<<"a" : <["x"=1]>>>}} {{\n{body}return {", ".join(returned)} : {types}\n}}'
    )
    found = Kinds(module.main)
    assert found.stable
    assert len(set(found.op.values())) == kinds
