"""`mpmd-populate-unreduced-out-sharding`: results keep the unreduced axes that the user asked for."""

from __future__ import annotations

from mpmd_trace.ir.attributes import TensorShardingAttr, TensorShardingPerValueAttr, parse_sharding_body
from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.shardings import fully_closed, mesh_ref, sharding_like
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.walks import function_fragments
from mpmd_trace.passes.sharding.edges import CONSTRAINT, rank_of


class PopulateUnreducedOutSharding(FunctionPass):
    """Add the unreduced axes of a returned sharding constraint to `out_shardings`.

    If a fragment directly returns an `sdy.sharding_constraint` with unreduced axes, the entry of the result keeps its
    dimensions and gets these axes. If an entry changes, all entries refer to the mesh of the constraint.

    Before:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
            %v = sdy.sharding_constraint %u <@mesh, [{}], unreduced={"x"}> : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"], out_shardings=[<@mesh, [{}], unreduced={"x"}>]> (%arg0)
              (%arg1: !t) {
            %1 = sdy.sharding_constraint %arg1 <@mesh, [{}], unreduced={"x"}> : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-populate-unreduced-out-sharding"
    summary = "put the unreduced axes of sharding constraints into out_shardings"
    only_with = ("shardings",)

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = [_populate(op) for op in function_fragments(function)]
        return any(changed)


@remembers
def _requested(body: Region) -> list[TensorShardingAttr | None]:
    """Per returned value the sharding of the constraint that makes it, if that has unreduced axes; [] if none."""
    requests: list[TensorShardingAttr | None] = []
    for value in body.returned:
        op = value.defining_op
        sharding = op.attr("sharding") if op is not None and op.name == CONSTRAINT else None
        requests.append(sharding if isinstance(sharding, TensorShardingAttr) and sharding.unreduced else None)
    return requests if any(requests) else []


def _populate(op: FragmentOp) -> bool:
    requested = _requested(op.body)
    if not requested:
        return False
    shardings = _current(op)
    last: str | None = None
    for i, wanted in enumerate(requested):
        if wanted is None or shardings[i].unreduced == wanted.unreduced:
            continue
        current = shardings[i]
        parts = [wanted.mesh, f"[{', '.join(current.dims)}]"]
        for kind, axes in (("replicated", current.replicated), ("unreduced", wanted.unreduced)):
            if axes:
                parts.append(f"{kind}={{{', '.join(a.text for a in axes)}}}")
        shardings[i] = parse_sharding_body(f"<{', '.join(parts)}>")
        last = wanted.mesh
    if last is None:
        return False
    op.props["out_shardings"] = TensorShardingPerValueAttr.get(sharding_like(s, mesh_ref=last) for s in shardings)
    return True


def _current(op: FragmentOp) -> list[TensorShardingAttr]:
    if op.out_shardings is not None:
        return list(op.out_shardings.shardings)
    return [fully_closed(mesh_ref(op.mesh), rank_of(result)) for result in op.results]
