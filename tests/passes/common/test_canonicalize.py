"""Canonicalization and CSE that keep bodies shared, against MLIR itself."""

from __future__ import annotations

from fuzz.traced import imported_modules, traced_programs
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes

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
