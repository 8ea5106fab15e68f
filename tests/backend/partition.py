"""Partitions `data/mlp_traced.mlir` with jaxlib's C++ partitioner; a program, because it may abort.

    python partition.py SCHEDULE > exported.mlir

Exit status 77: this jaxlib has no partitioner.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path


def main(schedule: str) -> int:
    import jaxlib._jax

    alias = types.ModuleType("jax.jaxlib")
    alias._jax = jaxlib._jax  # type: ignore[attr-defined]
    sys.modules["jax.jaxlib"] = alias
    sys.modules["jax.jaxlib._jax"] = jaxlib._jax
    try:
        from jaxlib import _sdy_mpmd
    except ImportError:
        return 77
    from jaxlib.mlir import ir

    from mpmd_trace.jax_compat.mlir import new_context

    out = os.dup(1)
    os.dup2(2, 1)  # the partitioner logs to stdout
    text = (Path(__file__).parent / "data" / "mlp_traced.mlir").read_text()
    parameters = [f"m{i // 4}" for i in range(8)]
    with new_context():
        module = ir.Module.parse(text)
        result = _sdy_mpmd.apply_mpmd_partitioning(
            module,
            "main",
            [("m0", [("x", 2)]), ("m1", [("x", 2)])],
            {"stage0": ("m0", 0), "stage1": ("m1", 1)},
            [*parameters, None, None],
            [*parameters, None],
            list(range(8)),
            partitioning_options={
                "mpmd_infer_transfers": True,
                "mpmd_infer_cross_mesh_reductions": True,
                "mpmd_pipeline_schedule": schedule,
            },
            fragment_merge_rules=[],
            fragment_schedule_rules=[],
            phases=_sdy_mpmd.PartitioningPhase.ALL,
        )
        os.write(out, str(result.mpmd_module).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
