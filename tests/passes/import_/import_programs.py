"""The prelude of examples of the import passes."""

from __future__ import annotations

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.ir.ops import Module
from util import check as _check
from util import diagnostics as _diagnostics
from util import run as _run

PRELUDE = """
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">
!D2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>, memory_kind="device">
"""


def run(before: str, pipeline: str) -> Module:
    return _run(before, pipeline, prelude=PRELUDE)


def check(before: str, pipeline: str, after: str) -> Module:
    return _check(before, pipeline, after, prelude=PRELUDE)


def diagnostics(before: str, pipeline: str) -> tuple[bool, list[Diagnostic]]:
    return _diagnostics(before, pipeline, prelude=PRELUDE)
