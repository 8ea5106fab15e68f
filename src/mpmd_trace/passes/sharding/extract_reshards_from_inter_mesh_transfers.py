"""`mpmd-extract-reshards-from-inter-mesh-transfers`: transfers copy, fragments reshard."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import cast

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, MeshAttr, StringAttr, TensorShardingAttr
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import OpResult, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp, make_fragment, make_transfer
from mpmd_trace.ir.shardings import equivalent_shardings, local_shape
from mpmd_trace.ir.types import MeshTensorType, TensorType, mesh_tensor
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.fragment_info import is_homogeneous
from mpmd_trace.passes.sharding.edges import (
    SHARDING,
    ValueShardings,
    set_fragment_shardings,
    set_result_shardings,
    sharding_list,
)

_TAG = ArrayAttr.get([StringAttr.get("extract_reshards")])


@dataclasses.dataclass(frozen=True)
class ExtractReshardsFromInterMeshTransfers(FunctionPass):
    """Reshard in a fragment before or after a transfer, so that both ends have the same sharding.

    Transfers with different shardings are visited in the order of the program. The value is resharded before the
    transfer if a device has fewer bytes after it (or if the result is in host memory): the fragment that computes the
    value changes its `out_shardings`, and other transfers of the value get a fragment that restores the sharding; if no
    fragment computes the value, one is inserted. Otherwise the value is resharded after the transfer: fragments that
    read it change their `in_shardings`, and other users get an inserted fragment. Inserted fragments are inferred by
    `extract_reshards` and return their argument. A reshard from host to host is an error. Programs whose meshes have
    different axes are not changed.

    Before:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !b attributes
            {topology = #meshes} {
          %0 = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} %p : (!a) -> !b
          %1 = mpmd.fragment<mesh="b", origin=["f"], in_shardings=[<@mesh, [{}]>]> (%0) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!b) -> !b
          return %1 : !b
        }

    After:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%arg0: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !b attributes
            {topology = #meshes} {
          %0 = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} %arg0 : (!a) -> !b
          %1 = mpmd.fragment<mesh="b", origin=["f"], in_shardings=[<@mesh, [{"x"}]>]> (%0) (%arg1: !t) {
            %2 = stablehlo.negate %arg1 : !t
            mpmd.return %2 : !t
          } : (!b) -> !b
          return %1 : !b
        }
    """

    name = "mpmd-extract-reshards-from-inter-mesh-transfers"
    summary = "move resharding from transfers into fragments"

    def copies_between_hosts(self, source: TensorShardingAttr | None, target: TensorShardingAttr | None) -> bool:
        """Return whether a transfer from host memory to host memory is left as it is; all are refused here."""
        return False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        topology = function.topology
        if topology is None:
            raise diagnostics.fatal(
                function,
                f"@{function.sym_name} runs on one mesh (it has no topology attribute), so it has no transfers "
                "between meshes whose resharding could be moved; run this pass on mpmd functions only",
            )
        if not is_homogeneous(topology):
            return False
        mesh = next(iter(topology.meshes.values()))
        return _Extraction(function, mesh, diagnostics, self.copies_between_hosts).run()


#: Whether a transfer between host memories may stay, by the shardings that it comes from and goes to.
_Allows = Callable[[TensorShardingAttr | None, TensorShardingAttr | None], bool]


class _Extraction:
    def __init__(self, function: FuncOp, mesh: MeshAttr, diagnostics: Diagnostics, may_copy: _Allows) -> None:
        self.may_copy = may_copy
        self.function = function
        self.mesh = mesh
        self.diagnostics = diagnostics
        self.identities: dict[TensorType, Region] = {}
        self.shardings = ValueShardings(function)

    def run(self) -> bool:
        changed = False
        for op in self.function.body.ops:
            if not isinstance(op, TransferOp):
                continue
            source, target = self.shardings.of(op.operand(0)), self.shardings.of(op.results[0])
            between_hosts = op.source_type.on_host and op.target_type.on_host
            if between_hosts and not self.may_copy(source, target):
                self.diagnostics.error(
                    op,
                    f"the transfer goes from host memory of mesh '{op.source_type.mesh}' to host memory of mesh "
                    f"'{op.target_type.mesh}', where nothing can change its sharding; move the value to device "
                    "memory first",
                )
                continue
            if equivalent_shardings(source, target):
                continue
            self.diagnostics.warn_once(
                "resharding transfer",
                op,
                f"a transfer from mesh '{op.source_type.mesh}' to mesh '{op.target_type.mesh}' changes the "
                f"sharding from {_shown(source)} to {_shown(target)}; the resharding becomes a computation of "
                f"its own and may be slow. Give both computations the same sharding to avoid it",
            )
            changed = True
            if self.at_producer(op, source, target):
                self.reshard_at_producer(op, source, target)
            else:
                self.reshard_at_consumer(op, source, target)
        return changed

    def at_producer(self, op: TransferOp, source: TensorShardingAttr | None, target: TensorShardingAttr | None) -> bool:
        if op.target_type.on_host:
            return True
        if op.source_type.on_host:
            return False
        tensor = op.source_type.tensor
        return self.local_count(tensor, source) > self.local_count(tensor, target)

    def local_count(self, tensor: TensorType, sharding: TensorShardingAttr | None) -> int:
        return math.prod(local_shape(tensor, sharding, self.mesh))

    def reshard(self, value: Value, type: MeshTensorType, sharding: TensorShardingAttr | None) -> FragmentOp:
        """Return a detached fragment that gives `value` with another sharding."""
        tensor = type.tensor
        body = self.identities.get(tensor)
        if body is None:
            builder = BodyBuilder()
            body = self.identities[tensor] = builder.finish([builder.arg(tensor)])
        attrs: dict[str, Attribute] = {"mpmd.inferred_by": _TAG}
        fragment = make_fragment(type.mesh, [value], [type], body, attrs=attrs, loc=value.location)
        if sharding is not None:
            set_fragment_shardings(fragment, "out_shardings", {0: sharding})
        return fragment

    def reshard_at_producer(
        self, op: TransferOp, source: TensorShardingAttr | None, target: TensorShardingAttr | None
    ) -> None:
        value = op.operand(0)
        plain = mesh_tensor(op.source_type.mesh, op.target_type.tensor)
        assert op.block is not None
        if not isinstance(value, OpResult) or isinstance(value.op, TransferOp):
            fragment = self.reshard(value, plain, target)
            op.block.insert_before(op, fragment)
            op.set_operand(0, fragment.results[0])
            return
        others = [use for use in value.uses if use.owner is not op and self.passes_on(use.owner)]
        if others:
            fragment = self.reshard(value, cast(MeshTensorType, value.type), source)
            op.block.insert_before(op, fragment)
            for use in others:
                use.set(fragment.results[0])
        value.type = plain
        if target is not None:
            set_result_shardings(value, target)

    def passes_on(self, op: object) -> bool:
        return isinstance(op, TransferOp) or op is self.function.body.terminator

    def reshard_at_consumer(
        self, op: TransferOp, source: TensorShardingAttr | None, target: TensorShardingAttr | None
    ) -> None:
        plain = mesh_tensor(op.target_type.mesh, op.target_type.tensor)
        transfer = make_transfer(op.operand(0), plain, loc=op.loc)
        if source is not None:
            transfer.attrs[SHARDING] = sharding_list((source,))
        assert op.block is not None
        op.block.insert_after(op, transfer)
        op.results[0].replace_all_uses_with(transfer.results[0])
        op.erase()
        value = transfer.results[0]
        passed_on = []
        for use in value.uses:
            if self.passes_on(use.owner):
                passed_on.append(use)
            elif isinstance(use.owner, FragmentOp) and source is not None:
                set_fragment_shardings(use.owner, "in_shardings", {use.index: source})
        if passed_on:
            fragment = self.reshard(value, plain, target)
            assert transfer.block is not None
            transfer.block.insert_after(transfer, fragment)
            for use in passed_on:
                use.set(fragment.results[0])


def _shown(sharding: TensorShardingAttr | None) -> str:
    return "unsharded" if sharding is None else sharding.stripped
