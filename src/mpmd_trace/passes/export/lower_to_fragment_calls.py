"""`mpmd-lower-to-fragment-calls`: one function per distinct fragment body, mesh and sharding."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import re
import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import cast

from mpmd_trace.ir.attributes import (
    UNIT,
    ArrayAttr,
    Attribute,
    DictAttr,
    IntegerAttr,
    MeshAttr,
    StringAttr,
    SymbolRefAttr,
    TensorShardingAttr,
    UserOriginAttr,
)
from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.fast_ops import become
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.functions import make_function
from mpmd_trace.ir.ops import FragmentCallOp, FragmentOp, FuncOp, Module, make_return
from mpmd_trace.ir.shardings import map_attributes, map_shardings, sharding_class
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.export.value_attrs import EMPTY, value_dicts
from mpmd_trace.passes.greedy import walk_mutable

_COUNTED = re.compile(r"(.*)_(-?[0-9]+)", re.S)
_LONGEST = 200
_CUT = 195


def is_forward_only(fragments: Sequence[FragmentOp]) -> bool:
    """Return whether nothing in the program is transposed."""
    return all(o.transpose_count == 0 for op in fragments for o in op.origin)


def module_suffix(module: Module) -> str:
    """Return the part behind the dot: the module's name without one `jit_` in front."""
    return (module.name or "main").removeprefix("jit_")


def function_name(group: int, members: Sequence[FragmentOp], forward_only: bool, suffix: str) -> str:
    """Return the name of the function of group number `group`, e.g. `p0_block_1:2_fwd_calls0to3.step`."""
    return f"{_truncated(f'p{group}_{_summary(members, forward_only)}')}.{suffix}"


def _truncated(name: str) -> str:
    data = name.encode("utf-8", "surrogateescape")
    if len(data) <= _LONGEST:
        return name
    return data[:_CUT].decode("utf-8", "surrogateescape") + "<...>"


def _summary(members: Sequence[FragmentOp], forward_only: bool) -> str:
    base = _member_name(members[0], forward_only)
    counters = [op.call_counter for op in members]
    if len(members) == 1:
        return base if counters[0] is None else f"{base}_call{counters[0]}"
    known = [c for c in counters if c is not None]
    if len(known) < len(counters):
        return base
    steps = {b - a for a, b in itertools.pairwise(known)}
    if steps not in ({1}, {-1}):
        return base
    names: dict[tuple[object, ...], str] = {}
    for op in members:
        key = (op.stage, op.props.get("origin"))
        if key not in names:
            names[key] = _member_name(op, forward_only)
        if names[key] != base:
            return base
    word = "to" if steps == {1} else "from"
    return f"{base}_calls{known[0]}{word}{known[-1]}"


def _member_name(op: FragmentOp, forward_only: bool) -> str:
    origins = op.origin
    if op.stage is not None:
        first = f"stage{op.stage}"
    elif not origins:
        first = "inferred"
    else:
        first = _frequent_name(origins)
    parts = [first]
    if not forward_only:
        for count in sorted({o.transpose_count for o in origins}):
            parts.append({0: "fwd", 1: "bwd"}.get(count, f"transpose{count}"))
    return "_".join(parts)


def _split(name: str) -> tuple[str, int | None]:
    """`block_7` is `block` and 7; a number that 64 bits cannot hold is part of the name."""
    match = _COUNTED.fullmatch(name)
    if match is None or not -(2**63) <= (number := int(match.group(2))) < 2**63:
        return name, None
    return match.group(1), number


def _frequent_name(origins: Sequence[UserOriginAttr]) -> str:
    """Return the name that most origins share, with the range of the numbers behind it."""
    heads: dict[str, list[int | None]] = {}
    for origin in origins:
        head, number = _split(origin.name)
        heads.setdefault(head, []).append(number)
    head = min(heads, key=lambda h: (-len(heads[h]), h.encode("utf-8", "surrogateescape")))
    numbers = sorted({n for n in heads[head] if n is not None})
    text = head
    if len(numbers) == 1:
        text += f"_{numbers[0]}"
    elif numbers:
        low, high = numbers[0], numbers[-1]
        backward = all(o.transpose_count == 1 for o in origins)
        text += f"_{high}:{low}" if backward else f"_{low}:{high}"
    return text + ("..." if len(heads) > 1 else "")


_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Group:
    """Fragments that call one function."""

    number: int
    members: list[FragmentOp]
    function: FuncOp | None = None


@dataclasses.dataclass(frozen=True)
class LowerToFragmentCalls(Pass):
    """Replace each fragment by a call of a function with its body.

    Fragments on one mesh with the same body, argument and result attributes and shardings share a function (with
    `share_across_shardings`, shardings may differ); its `reserved_hbm_bytes` is their maximum. Groups are numbered in
    the order of the program; docs/rewriting.md defines the names of the functions. The functions are added at the end
    of the module, with the mesh as `mesh_shape`, and the shardings of operands and results as `sdy.sharding`. Calls
    keep the origins and `remat`.

    Before:

        func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) {call_counter = 1 : ui32} (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %1 : !a
        }

    After:

        func.func public @main(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment_call<mesh="a", origin=["f"]> @p0_f_calls0to1.main(%arg0) : (!a) -> !a
          %1 = mpmd.fragment_call<mesh="a", origin=["f"]> @p0_f_calls0to1.main(%0) : (!a) -> !a
          return %1 : !a
        }
        func.func @p0_f_calls0to1.main(%arg0: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
          %0 = stablehlo.negate %arg0 : !t
          return %0 : !t
        }
    """

    name = "mpmd-lower-to-fragment-calls"
    summary = "turn fragments into calls of one function per distinct body and mesh"

    verbose_logging: bool = option(False, "log the fragments of every mesh with their functions")
    share_across_shardings: bool = option(
        False, "let fragments of different shardings share a function, which has those of the first"
    )
    #: Whether functions made of one body have one frozen body, too: for modules that no pass gets after this one.
    alias_bodies: bool = False

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        regions = [region for function in module.functions for region in function.regions]
        fragments = [op for region in regions for op in walk_mutable(region) if isinstance(op, FragmentOp)]
        if not fragments:
            return False
        groups, group_of = _grouped(fragments, not self.share_across_shardings)
        taken = {symbol.value for op in module.body if isinstance(symbol := op.attr("sym_name"), StringAttr)}
        taken |= {function.sym_name for function in module.outlined}
        forward_only, suffix = is_forward_only(fragments), module_suffix(module)
        topology = module.topology
        for group in groups:
            first = group.members[0]
            mesh = None if topology is None else topology.meshes.get(first.mesh)
            if mesh is None:
                raise diagnostics.fatal(
                    first, f"the mesh '{first.mesh}' of the fragment is not in the topology of the module"
                )
            name = function_name(group.number, group.members, forward_only, suffix)
            if name in taken:
                raise diagnostics.fatal(
                    first,
                    f"the fragment is to become the function @{name}, but the module has a symbol of that name "
                    "already; rename that symbol",
                )
            taken.add(name)
            group.function = _make_function(group, name, mesh, self.alias_bodies)
            rename_meshes(module, group.function, first.mesh, mesh)
        if self.verbose_logging:
            _report(module, fragments, group_of)
        callees = {group: SymbolRefAttr.get(cast(FuncOp, group.function).sym_name) for group in groups}
        for op in fragments:
            _replace_by_call(op, callees[group_of[op]])
        for group in groups:
            module.body.append(cast(FuncOp, group.function))
        return True


def _grouped(fragments: list[FragmentOp], by_sharding: bool) -> tuple[list[_Group], dict[FragmentOp, _Group]]:
    """Return the groups in order of their first members.  Bodies that are one object are not compared."""
    representative = first_equal(dict.fromkeys([op.regions[0] for op in fragments]))
    classes: dict[object, int] = {}  # of shardings in effect
    groups: dict[Hashable, _Group] = {}
    group_of: dict[FragmentOp, _Group] = {}

    @functools.cache
    def sharding_of(type: Type) -> int:
        key = sharding_class(type.sharding) if isinstance(type, MeshTensorType) else None
        return classes.setdefault(key, len(classes))

    def shardings_of(types: tuple[Type, ...]) -> tuple[int, ...]:
        """Of the operands or the results of an op."""
        return tuple([sharding_of(type) for type in types])

    known: dict[Hashable, _Group] = {}  # by what groups differ in, looked up as it is
    for op in fragments:
        attrs = op.attrs
        given = tuple([use.value.type for use in op.operand_uses])
        made = tuple([result.type for result in op.results])
        like = op.props["mesh_name"], op.regions[0], attrs.get("arg_attrs"), attrs.get("res_attrs"), given, made
        group = known.get(like)
        if group is None:
            shardings = (shardings_of(given), shardings_of(made)) if by_sharding else ()
            key = (like[0], representative[op.body], *like[2:4], shardings)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(len(groups), [])
            known[like] = group
        group.members.append(op)
        group_of[op] = group
    return list(groups.values()), group_of


def _for_function(body: Region) -> Region:
    """Return a copy of the body that ends as a function does."""
    region = body.clone()
    block = region.block
    terminator = block.terminator
    returned = terminator.operands
    loc = terminator.loc
    terminator.erase()
    new_return = make_return(returned, "func.return")
    new_return.loc = loc
    block.append(new_return)
    return region


@remembers
def _shared(body: Region) -> Region | None:
    """Return the frozen `_for_function`; None where functions on different meshes have different ones."""
    region = _for_function(body)
    return None if has_manual_ops(region) else freeze(region)


def _make_function(group: _Group, name: str, mesh: MeshAttr, alias_bodies: bool) -> FuncOp:
    first = group.members[0]
    region = (_shared(first.body) if alias_bodies else None) or _for_function(first.body)
    attrs: dict[str, Attribute] = {"mesh_shape": mesh}
    reserved = [
        size.value for op in group.members if isinstance(size := op.attrs.get("reserved_hbm_bytes"), IntegerAttr)
    ]
    if reserved:
        attrs["reserved_hbm_bytes"] = IntegerAttr.get(max(reserved), "i64")
    function = make_function(name, region, attrs=attrs, loc=first.loc)
    function.set_all_arg_attrs(_signature(first, "arg_attrs", first.operands))
    function.set_all_res_attrs(_signature(first, "res_attrs", list(first.results)))
    return function


def _signature(op: FragmentOp, which: str, values: list[Value]) -> list[DictAttr]:
    """Return the attributes of the function's arguments or results: those of the fragment plus the shardings."""
    dicts = list(value_dicts(op, which) or [EMPTY] * len(values))
    for i, value in enumerate(values):
        if isinstance(value.type, MeshTensorType) and value.type.sharding is not None:
            dicts[i] = dicts[i].with_("sdy.sharding", value.type.sharding)
    return dicts


def _replace_by_call(op: FragmentOp, callee: SymbolRefAttr) -> None:
    props: dict[str, Attribute] = {
        "callee": callee,
        "mesh_name": op.props["mesh_name"],
        "origin": op.props.get("origin") or ArrayAttr.get(()),
    }
    become(op, FragmentCallOp, props, {"remat": UNIT} if "remat" in op.attrs else {})


def _report(module: Module, fragments: list[FragmentOp], group_of: dict[FragmentOp, _Group]) -> None:
    """Say which functions each mesh runs, in program order."""
    topology = module.topology
    assert topology is not None
    for mesh in topology.meshes:
        _say(f"Module {module.name or 'main'} on mesh {mesh} will execute the following XLA programs:")
        for op in fragments:
            if op.mesh == mesh:
                function = group_of[op].function
                assert function is not None
                origins = ", ".join(o.short for o in op.origin)
                stage = "none" if op.stage is None else op.stage
                counter = "none" if op.call_counter is None else op.call_counter
                _say(f"  {function.sym_name} origins=[{origins}] stage={stage} call_counter={counter}")


def _say(text: str) -> None:
    """Log what was asked for by an option: it is seen also where logging is not set up."""
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", text)
    else:
        print(text, file=sys.stderr)


# Manual computations of a lowered function speak of the mesh by the name that it has in the topology.


def _manual_computations(body: Region) -> Iterator[Op]:
    return (op for op in body.walk() if op.name == "sdy.manual_computation")


def has_manual_ops(body: Region) -> bool:
    return any(_manual_computations(body))


def rename_meshes(module: Module, function: FuncOp, mesh_name: str, mesh: MeshAttr) -> None:
    """Make the manual computations of `function` refer to `@mesh_name`, which is added where it is missing."""
    renamed = False

    def rename(sharding: TensorShardingAttr) -> TensorShardingAttr:
        nonlocal renamed
        if not sharding.mesh.startswith("@") or sharding.mesh_name == mesh_name:
            return sharding
        renamed = True
        return sharding.with_mesh(mesh_name)

    for manual in _manual_computations(function.regions[0]):
        for op in manual.walk():
            map_attributes(op, functools.partial(map_shardings, change=rename))
    name = StringAttr.get(mesh_name)
    if renamed and not any(op.attr("sym_name") is name for op in module.body):
        module.body.insert_front(make_op("sdy.mesh", props={"sym_name": name, "mesh": mesh}))
