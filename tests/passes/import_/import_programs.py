"""The prelude of examples of the import passes."""

from __future__ import annotations

import functools

import util

PRELUDE = """
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">
!D2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>, memory_kind="device">
"""


run = functools.partial(util.run, prelude=PRELUDE)
diagnostics = functools.partial(util.diagnostics, prelude=PRELUDE)
