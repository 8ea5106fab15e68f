"""`mpmd-gather-indices` (ours): the indices of microbatches come from one fragment a mesh."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import UNIT
from mpmd_trace.ir.bodies import BodyBuilder, remembers
from mpmd_trace.ir.core import Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, make_fragment
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.merge_neighbours import STAYS
from mpmd_trace.passes.microbatches.cut_in_calls import INDEX


@dataclasses.dataclass(frozen=True)
class GatherIndices(FunctionPass):
    """The indices that `mpmd-cut-in-calls` made are results of one fragment on each mesh, the first one there.

    It is marked as one that is never merged: with its index inside, each microbatch would be a program of its own.

    Before:

        func.func public @main(%p: !a) -> (!a, !mpmd.mesh_tensor<"a", tensor<i32>>, !mpmd.mesh_tensor<"a", tensor<i32>>)
            attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=[]> () () {
            %c = stablehlo.constant {mpmd.index} dense<0> : tensor<i32>
            mpmd.return %c : tensor<i32>
          } : () -> !mpmd.mesh_tensor<"a", tensor<i32>>
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          %2 = mpmd.fragment<mesh="a", origin=[]> () () {
            %c = stablehlo.constant {mpmd.index} dense<1> : tensor<i32>
            mpmd.return %c : tensor<i32>
          } : () -> !mpmd.mesh_tensor<"a", tensor<i32>>
          return %1, %0, %2 : !a, !mpmd.mesh_tensor<"a", tensor<i32>>, !mpmd.mesh_tensor<"a", tensor<i32>>
        }

    After:

        func.func public @main(%arg0: !a)
            -> (!a, !mpmd.mesh_tensor<"a", tensor<i32>>, !mpmd.mesh_tensor<"a", tensor<i32>>)
            attributes {topology = #meshes} {
          %0:2 = mpmd.fragment<mesh="a", origin=[]> () {mpmd.stays} () {
            %c = stablehlo.constant dense<0> : tensor<i32>
            %c_0 = stablehlo.constant dense<1> : tensor<i32>
            mpmd.return %c, %c_0 : tensor<i32>, tensor<i32>
          } : () -> (!mpmd.mesh_tensor<"a", tensor<i32>>, !mpmd.mesh_tensor<"a", tensor<i32>>)
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0) (%arg1: !t) {
            %2 = stablehlo.negate %arg1 : !t
            mpmd.return %2 : !t
          } : (!a) -> !a
          return %1, %0#0, %0#1 : !a, !mpmd.mesh_tensor<"a", tensor<i32>>, !mpmd.mesh_tensor<"a", tensor<i32>>
        }
    """

    name = "mpmd-gather-indices"
    summary = "make the indices of microbatches by one fragment a mesh"
    only_with = ("mpmd.call",)
    mpmd_only = True
    entry_only = True
    stay: bool = option(True, "mark the fragment, which else might be merged with one of a microbatch")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        by_mesh: dict[str, list[FragmentOp]] = {}
        for op in function.body:
            if isinstance(op, FragmentOp) and not op.is_user and not op.num_operands and _makes_indices(op.body):
                by_mesh.setdefault(op.mesh, []).append(op)
        for mesh, fragments in reversed(by_mesh.items()):
            builder = BodyBuilder()
            returned: list[Value] = []
            for fragment in fragments:
                returned += builder.inline(fragment.body, [])
            for op in builder.block:
                op.attrs.pop(INDEX)
            gathered = make_fragment(
                mesh,
                (),
                [value.type for fragment in fragments for value in fragment.results],
                builder.finish(returned),
                attrs={**fragments[0].attrs, **({STAYS: UNIT} if self.stay else {})},
                loc=fragments[0].loc,
            )
            function.body.insert_front(gathered)
            results = iter(gathered.results)
            for fragment in fragments:
                fragment.replace_all_uses_with([next(results) for _ in fragment.results])
                fragment.erase()
        return bool(by_mesh)


@remembers
def _makes_indices(body: Region) -> bool:
    return all(INDEX in op.attrs or op is body.block.terminator for op in body.block)
