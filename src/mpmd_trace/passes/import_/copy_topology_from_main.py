"""`mpmd-copy-topology-from-main`."""

from __future__ import annotations

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, Module
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.greedy import walk_mutable


class CopyTopologyFromMain(Pass):
    """Make functions called by `mpmd.call` private, and give them the topology of their caller.

    Callers are visited in the order of the module. A function that has received a topology is itself a caller.

    Before:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %0 = mpmd.call @f(%x) : (!t) -> !t
          return %0 : !t
        }
        func.func @f(%x: !t) -> !t {
          return %x : !t
        }

    After:

        func.func public @main(%arg0: !t) -> !t attributes {topology = #meshes} {
          %0 = mpmd.call @f(%arg0) : (!t) -> !t
          return %0 : !t
        }
        func.func private @f(%arg0: !t) -> !t attributes {topology = #meshes} {
          return %arg0 : !t
        }
    """

    name = "mpmd-copy-topology-from-main"
    summary = "give callees of mpmd.call the topology of their caller and hide them"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = {f.sym_name: f for f in module.functions}
        changed = False
        for caller in module.functions:
            topology = caller.attrs.get("topology")
            if topology is None:
                continue
            for op in walk_mutable(caller.regions[0]):
                if not isinstance(op, CallOp):
                    continue
                callee = functions.get(op.callee)
                if callee is None:
                    raise diagnostics.fatal(
                        op, f"@{caller.sym_name} calls @{op.callee}, which is not a function of the module"
                    )
                if callee.attrs.get("topology") is not topology or callee.visibility != "private":
                    callee.attrs["topology"] = topology
                    callee.visibility = "private"
                    changed = True
        return changed
