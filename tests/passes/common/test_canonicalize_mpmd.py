"""Canonicalization and CSE that keep bodies shared, against MLIR itself."""

from __future__ import annotations

import pytest
from fragment_texts import frag, function

from fuzz.traced import imported_modules, traced_programs
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from util import distinct_bodies, run

CANONICALIZE = (
    "canonicalize{max-iterations=10 max-num-rewrites=-1 region-simplify=disabled test-convergence=false top-down=false}"
)


def test_same_as_mlir() -> None:
    """Generated steps, and the functions that they call: the printed result is MLIR's."""
    for module in [*imported_modules(range(300, 308)), *(parse(one.text) for one in traced_programs(range(308, 310)))]:
        for name, mlir in (("mpmd-canonicalize", CANONICALIZE), ("mpmd-cse", "cse")):
            ours, theirs = module.clone(), module.clone()
            run_passes(ours, name)
            run_passes(theirs, mlir)
            assert str(ours) == str(theirs), name


@pytest.mark.parametrize("name", ["mpmd-canonicalize", "mpmd-cse"])
def test_functions_with_other_ops(name: str) -> None:
    """Ops outside of fragments are MLIR's business; fragments next to them keep their place."""
    text = function(
        "  %0 = "
        + frag("alpha", '"f"', "%p")
        + "\n  %1 = "
        + frag("alpha", '"f"', "%p")
        + """
  %2 = stablehlo.add %t, %t : tensor<4xf32>
  %3 = stablehlo.add %t, %t : tensor<4xf32>
  %4 = "stablehlo.if"(%b) ({
    stablehlo.return %2 : tensor<4xf32>
  }, {
    stablehlo.return %3 : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>""",
        "%0, %1, %4",
        "!A, !A, tensor<4xf32>",
        "%p: !A, %t: tensor<4xf32>, %b: tensor<i1>",
    )
    ours = run(text, name)
    assert str(ours) == str(run(text, CANONICALIZE if name == "mpmd-canonicalize" else "cse"))
    assert name == "mpmd-canonicalize" or distinct_bodies(ours) == 1


def test_bodies_go_through_mlir_once() -> None:
    """Many fragments with one body still have one body."""
    lines = "\n".join(f"  %c{i} = mpmd.call @f(%p) : (!A) -> !A" for i in range(5))
    callee = function(
        "  %0 = "
        + frag("alpha", '"f"', "%p").replace(
            "    mpmd.return", "    %z = stablehlo.abs %x : tensor<4xf32>\n    mpmd.return"
        ),
        "%0",
        "!A",
        "%p: !A",
        "private",
    ).replace("@main", "@f")
    names = ", ".join(f"%c{i}" for i in range(5))
    text = callee + "\n" + function(lines, names, ", ".join(["!A"] * 5))
    module = run(text, "mpmd-call-inline,mpmd-symbol-dce,mpmd-canonicalize")
    assert "abs" not in str(module)
    assert distinct_bodies(module) == 1
