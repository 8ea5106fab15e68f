"""`mpmd-reuse-programs` (ours): what contains the program of another stage runs that one, and the rest apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpmd_trace.ir.attributes import UserOriginAttr
from mpmd_trace.ir.core import Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp, make_fragment
from mpmd_trace.ir.shardings import sharding_class
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.fragment_info import BLOCK, runs_in_step
from mpmd_trace.passes.import_.building_blocks import INFERRED_BY
from mpmd_trace.passes.programs.subgraph_match import Division, divided, moving_ops

#: How many ops more it must be for each further launch in a step.  To compile an op takes XLA milliseconds, a launch
#: some ten microseconds, which are hidden when programs are large: a few hundred steps later both cost the same.
OPS_OF_A_LAUNCH = 4
#: Likewise for each further transfer.
OPS_OF_A_TRANSFER = 2


@dataclasses.dataclass(frozen=True)
class ReusePrograms(FunctionPass):
    """Split fragments that contain the program of another stage, so that both run that program.

    The first and the last stage have an embedding and a head in addition to layers like those of the other meshes, and
    so do their updates. The common part becomes a fragment with the body of the other stages, so XLA compiles it once
    for all of them. Each run of it costs an additional launch, and a transfer if both parts compute the value that is
    sent, so programs that run often must be large. The meshes must have the same axes, the values the same shardings,
    and it must be possible to run one of the parts first. Scalars that both parts need are computed in both. Named
    fragments outside of microbatches are not split.

    Before, with {least=2}:

        %0 = mpmd.fragment<mesh="a", origin=[]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          %w = stablehlo.negate %v : !t
          mpmd.return %w : !t
        } : (!a) -> !a
        %1:2 = mpmd.fragment<mesh="b", origin=[]> (%q) (%u: !t) {
          %v = stablehlo.sine %u : !t
          %w = stablehlo.negate %v : !t
          %y = stablehlo.cosine %u : !t
          mpmd.return %y, %w : !t, !t
        } : (!b) -> (!b, !b)
        return %0, %1#0, %1#1 : !a, !b, !b

    After:

        %0 = mpmd.fragment<mesh="a", origin=[]> (%p) (%u: !t) {
          %3 = stablehlo.sine %u : !t
          %4 = stablehlo.negate %3 : !t
          mpmd.return %4 : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="b", origin=[]> (%q) (%u: !t) {
          %3 = stablehlo.cosine %u : !t
          mpmd.return %3 : !t
        } : (!b) -> !b
        %2 = mpmd.fragment<mesh="b", origin=[]> (%q) (%u: !t) {
          %3 = stablehlo.sine %u : !t
          %4 = stablehlo.negate %3 : !t
          mpmd.return %4 : !t
        } : (!b) -> !b
        return %0, %1, %2 : !a, !b, !b
    """

    name = "mpmd-reuse-programs"
    summary = "let fragments run the programs of other stages as far as they contain them"
    mpmd_only = True
    entry_only = True

    least: int = option(64, "the smallest number of ops worth compiling once and launching separately")

    def _is_large(self, op: FragmentOp) -> bool:
        """Return whether a program of its ops pays; what runs once a step, such as a norm, may be a quarter smaller."""
        return len(moving_ops(op.body)) >= (self.least * 3 // 4 if op.call_counter is None else self.least)

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        topology = function.topology
        assert topology is not None
        alike: dict[object, list[FragmentOp]] = {}
        for op in function.body:
            if not isinstance(op, FragmentOp) or op.num_operands != len(op.body.block.args):
                continue
            if op.is_user and op.call_counter is None:  # without microbatches a step is short, such as that of a token
                continue
            if op.attrs.keys() <= {INFERRED_BY, "call_counter", BLOCK}:
                mesh = topology.meshes.get(op.mesh)
                if mesh is not None and self._is_large(op):
                    alike.setdefault(mesh.axes, []).append(op)
        changed, runs = False, runs_in_step(function)
        for fragments in alike.values():
            same = first_equal(op.body for op in fragments)
            for op in fragments:
                op.body = same[op.body]
            of_body: dict[Region, list[FragmentOp]] = {}
            for op in fragments:
                of_body.setdefault(op.body, []).append(op)
            times_of = {body: runs(own) - 1 for body, own in of_body.items()}
            kept: dict[Region, FragmentOp] = {}
            for whole in sorted(fragments, key=lambda op: len(moving_ops(op.body))):
                times = times_of[whole.body]
                pending = [whole]
                while pending:
                    op = pending.pop()
                    if op.body in kept or not self._is_large(op):
                        continue
                    parts = [p for body, p in kept.items() if len(moving_ops(body)) >= OPS_OF_A_LAUNCH * times]
                    pending += next((made for part in reversed(parts) if (made := _divide(op, part, times))), [])
                    if op.block is None:
                        changed = True
                    else:
                        kept[op.body] = op
        return changed


def _divide(op: FragmentOp, other: FragmentOp, times: int) -> list[FragmentOp]:
    """Replace the fragment by one with the body of the other, and one for the rest, and give them.

    Gives none where that cannot be, or does not pay as it runs so many further times.
    """
    division = divided(op.body, other.body)
    types = None if division is None else _types(division, op, other)
    block = op.block
    if division is None or types is None or block is None:
        return []
    if _sends_twice(op, division) and len(moving_ops(other.body)) < (OPS_OF_A_LAUNCH + OPS_OF_A_TRANSFER) * times:
        return []
    made: dict[bool, list[Value]] = {True: [], False: []}  # by the part, by the rest
    both: list[FragmentOp] = []
    bodies = {True: (other.body, division.operands), False: (division.rest, division.rest_operands)}
    for is_part in (not division.rest_first, division.rest_first):
        body, operands = bodies[is_part]
        if body is not None:
            given = [made[not is_part][i] if inner else op.operand(i) for inner, i in operands]
            origin = _origin(op.origin, len(other.origin), is_part, is_part != division.rest_first)
            new = make_fragment(
                op.mesh, given, types[is_part], body, origin=origin, stage=op.stage, attrs=op.attrs, loc=op.loc
            )
            block.insert_before(op, new)
            both.append(new)
            made[is_part] = list(new.results)
    for result, (is_part, i) in zip(op.results, division.results, strict=True):
        result.replace_all_uses_with(made[is_part][i])
    op.erase()
    return both


def _origin(all: Sequence[UserOriginAttr], of_part: int, is_part: bool, is_first: bool) -> Sequence[UserOriginAttr]:
    """Return the names in a part of a fragment: as many as there, the first ones or the last; all if that is none."""
    count = of_part if is_part else len(all) - of_part
    return all if not 0 < of_part < len(all) else all[:count] if is_first else all[len(all) - count :]


def _sends_twice(op: FragmentOp, division: Division) -> bool:
    """Return whether both would make values that are sent, which travel together as long as one fragment makes them."""
    pairs = zip(op.results, division.results, strict=True)
    return len({part for value, (part, _) in pairs if any(isinstance(u, TransferOp) for u in value.users)}) > 1


def _types(division: Division, op: FragmentOp, other: FragmentOp) -> dict[bool, list[Type]] | None:
    """Return the types of the results of the part (True) and of the rest; None where shardings differ."""
    rest: dict[int, Type] = {}
    part: dict[int, Type] = {}
    for result, (is_part, i) in zip(op.results, division.results, strict=True):
        if (part if is_part else rest).setdefault(i, result.type) is not result.type:
            return None
    for (made, i), value in zip(division.operands, other.operands, strict=True):
        type = rest.setdefault(i, _moved(value, op.mesh)) if made else op.operand(i).type
        if not _alike(type, value.type):
            return None
    for i, value in enumerate(other.results):
        if not _alike(part.setdefault(i, _moved(value, op.mesh)), value.type):
            return None
    return {True: [part[i] for i in range(len(part))], False: [rest[i] for i in range(len(rest))]}


def _moved(value: Value, mesh: str) -> Type:
    return value.type.with_mesh(mesh) if isinstance(value.type, MeshTensorType) else value.type


def _alike(a: Type, b: Type) -> bool:
    """Return whether values of these types, on different meshes, are arguments or results of one program."""
    if not isinstance(a, MeshTensorType) or not isinstance(b, MeshTensorType):
        return False
    one, two = sharding_class(a.sharding), sharding_class(b.sharding)
    same = (one is None) == (two is None) and (one is None or two is None or one[1:] == two[1:])
    return a.tensor is b.tensor and same and a.memory_kind is None and b.memory_kind is None
