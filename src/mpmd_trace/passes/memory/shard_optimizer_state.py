"""`mpmd-shard-optimizer-state` (ours): each device has a part of the optimizer's state.  See `docs/memory.md`.

The method is ZeRO-1 (Rajbhandari et al., arXiv:1910.02054); what XLA makes of the shardings is that of Xu et al.,
arXiv:2004.13336.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import UNIT, MeshAttr, StringAttr, TensorShardingAttr
from mpmd_trace.ir.bodies import BodyBuilder, effective_operands, remembered
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import SHARDED_STATE, FragmentOp, FuncOp, Module
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.shardings import fully_closed, mesh_ref, mesh_symbols
from mpmd_trace.ir.stablehlo_attributes import shape_of
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.memory.remarks import MEMORY
from mpmd_trace.passes.reachable import reachable
from mpmd_trace.passes.sharding.axes import axes_of, with_axes
from mpmd_trace.passes.sharding.edges import SHARDING, constrained, rank_of, set_fragment_shardings, user_sharding
from mpmd_trace.passes.sharding.plain_bodies import EXPRESSIONS
from mpmd_trace.passes.sharding.reduced_program import is_plain_fragment

_TEXT = re.compile(r"(\d+):(\d+)(?::(\d+))?")


class Replaced(NamedTuple):
    """An argument that a result replaces in the next step: `argument:result`, or `argument:result:like`.

    `like`: the argument whose path is the end of its path, with the same type, as `params['w']` for `mu['w']`.
    """

    argument: int
    result: int
    like: int | None = None

    @classmethod
    def parse(cls, text: str) -> Replaced:
        """Read a replacement.  Raises `MpmdError` for text that is not of this form."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            forms = "ARGUMENT:RESULT or ARGUMENT:RESULT:LIKE, e.g. 1:0"
            raise MpmdError(f"'{text}' is not a replaced argument: write {forms}")
        return cls(int(match[1]), int(match[2]), None if match[3] is None else int(match[3]))

    def __str__(self) -> str:
        return ":".join(str(n) for n in self if n is not None)


@dataclasses.dataclass(frozen=True)
class ShardOptimizerState(FunctionPass):
    """Shard the arrays that a step replaces, except parameters, over `axes` of their mesh.

    The axes are added to existing shardings. A parameter is an argument that a named forward reads, directly or through
    unnamed code; if update and forward are one fragment, arrays that are `like` a parameter are state. The sharded
    dimension is the first one that the axes divide, preferably one that is not sharded yet. Fragments that compute new
    state take their part of the values that they add to it, such as the gradient. Arrays whose replacement is on
    another mesh, arrays in host memory, and arrays that other ops than fragments read are not changed.

    Before, with {axes=x replaced=0:0:1,1:1:1}:

        func.func public @main(%m: !a, %w: !a) -> (!a, !a) attributes {topology = #meshes} {
          %g = mpmd.fragment<mesh="a", origin=["f"]> (%w) (%u: !t) {
            %0 = stablehlo.sine %u : !t
            mpmd.return %0 : !t
          } : (!a) -> !a
          %n:2 = mpmd.fragment<mesh="a", origin=[]> (%m, %g, %w) (%u: !t, %v: !t, %y: !t) {
            %0 = stablehlo.add %u, %v : !t
            %1 = stablehlo.subtract %y, %0 : !t
            mpmd.return %0, %1 : !t, !t
          } : (!a, !a, !a) -> (!a, !a)
          return %n#0, %n#1 : !a, !a
        }

    After:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%m: !a {mpmd.sharded_state, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %w: !a)
            -> (!a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, !a) attributes {topology = #meshes} {
          %g = mpmd.fragment<mesh="a", origin=["f"]> (%w) (%u: !t) {
            %0 = stablehlo.sine %u : !t
            mpmd.return %0 : !t
          } : (!a) -> !a
          %n:2 = mpmd.fragment<mesh="a", origin=[], in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{?}]>, <@mesh, [{?}]>],
              out_shardings=[<@mesh, [{"x"}]>, <@mesh, [{}]>]> (%m, %g, %w) {mpmd.unset_in_shardings = array<i64: 1, 2>}
              (%u: !t, %v: !t, %y: !t) {
            %z = sdy.sharding_constraint %v <@mesh, [{"x"}]> : !t
            %0 = stablehlo.add %u, %z : !t
            %1 = stablehlo.subtract %y, %0 : !t
            mpmd.return %0, %1 : !t, !t
          } : (!a, !a, !a) -> (!a, !a)
          return %n#0, %n#1 : !a, !a
        }
    """

    name = "mpmd-shard-optimizer-state"
    summary = "shard optimizer state over axes of its mesh"
    mpmd_only = True
    entry_only = True

    axes: tuple[str, ...] = option((), "the axes; those that a mesh does not have are left out there")
    replaced: tuple[Replaced, ...] = option((), "the arguments that results replace, as ARGUMENT:RESULT:LIKE")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        assert function.topology is not None
        state = _State(function, module, function.topology.meshes)
        chosen = state.choose(self.replaced, self.axes)
        for mesh, (count, whole) in state.counts.items():
            over = " and ".join(self.axes)
            text = f"{MEMORY}on mesh '{mesh}' {count} arrays of optimizer state are sharded over {over}"
            diagnostics.remark(function.loc, text + (f"; {whole} stay as they are" if whole else ""))
        if chosen:
            state.apply(chosen)
        return bool(chosen)


class _State:
    """Finds the state of a function and shards it."""

    def __init__(self, function: FuncOp, module: Module, meshes: Mapping[str, MeshAttr]) -> None:
        self.function = function
        self.module = module
        self.meshes = meshes
        self.symbols: dict[str, str] = {}
        #: For each mesh how many arrays are sharded, and how many stay as they are.
        self.counts: dict[str, tuple[int, int]] = {}
        origins = [origin for op in function.body if isinstance(op, FragmentOp) for origin in op.origin]
        #: The names that have a backward; all, if none has one.
        self.trained = {one.name for one in origins if one.transpose_count} or {one.name for one in origins}

    def choose(self, replaced: Sequence[Replaced], axes: Sequence[str]) -> list[tuple[Replaced, TensorShardingAttr]]:
        """Return the arrays that are sharded, each with its new sharding."""
        args, attrs = self.function.args, self.function.arg_attrs
        reads = {one.argument: set(self._forward_reads(args[one.argument])) for one in replaced}
        result = []
        for one in replaced:
            value, sure = args[one.argument], True in reads[one.argument]
            is_like = one.like not in (None, one.argument) and bool(reads.get(one.like))
            if sure or (reads[one.argument] and not is_like) or not self._is_array(value):
                continue
            assert isinstance(value.type, MeshTensorType)
            mesh = value.type.mesh
            own = user_sharding(attrs[one.argument])
            wanted = None
            if self._may_change(value, one.result):
                wanted = self._extended(value.type.tensor, own, mesh, axes)
            done, left = self.counts.get(mesh, (0, 0))
            self.counts[mesh] = (done + (wanted is not None), left + (wanted is None))
            if wanted is not None:
                result.append((one, wanted))
        return result

    def _forward_reads(self, value: Value) -> Iterator[bool]:
        """For each forward fragment with a name that reads the value, or what code without names makes of it alone,
        whether it is nothing but that.  Names of what has no backward, such as an optimizer, do not count."""

        def made_of(value: Value) -> Iterator[Value]:
            for use in value.uses:
                op = use.owner
                if not isinstance(op, FragmentOp):
                    yield from () if op.is_terminator else op.results
                elif not op.origin:
                    for result in op.results:
                        if _shape(result) == _shape(value) and _depends_only_on(op.body, result.index, use.index):
                            yield result

        for one in postorder([value], made_of):
            for op in one.users:
                if isinstance(op, FragmentOp) and any(
                    origin.transpose_count == 0 and origin.name in self.trained for origin in op.origin
                ):
                    yield all(origin.transpose_count == 0 for origin in op.origin)

    def _is_array(self, value: Value) -> bool:
        type = value.type
        if not isinstance(type, MeshTensorType) or not type.tensor.shape:
            return False
        return "f" in type.tensor.element and "!" not in type.tensor.element

    def _may_change(self, value: Value, result: int) -> bool:
        """Return whether argument and result are on one mesh, in its memory, and between fragments."""
        new = self.function.returned[result]
        if new.type is not value.type or getattr(value.type, "memory_kind", None) is not None:
            return False
        maker = new.defining_op
        if maker is not None and not is_plain_fragment(maker):
            return False
        if maker is None and new is not value:
            return False
        returns = {use.index for one in (value, new) for use in one.uses if use.owner.is_terminator}
        readers = [use.owner for one in (value, new) for use in one.uses if not use.owner.is_terminator]
        return returns == {result} and all(map(is_plain_fragment, readers))

    def _extended(
        self, type: TensorType, own: TensorShardingAttr | None, mesh: str, axes: Sequence[str]
    ) -> TensorShardingAttr | None:
        """Return the sharding with the axes added; None where nothing can be added."""
        sizes = dict(self.meshes[mesh].axes)
        start = axes_of(own, type.rank)
        if start is None or type.shape is None:
            return None
        dims = list(start)
        for axis in axes:
            if sizes.get(axis, 1) == 1 or any(axis in names for names in dims):
                continue
            counts = [math.prod(sizes[name] for name in (*names, axis)) for names in dims]
            fits = [d for d, size in enumerate(type.shape) if size and size % counts[d] == 0]
            if fits:
                best = min(fits, key=lambda d: (bool(dims[d]), d))
                dims[best] = (*dims[best], axis)
        if tuple(dims) == start:
            return None
        return with_axes(own or fully_closed(mesh_ref(self._symbol(mesh)), type.rank), tuple(dims))

    def _symbol(self, mesh: str) -> str:
        """Return the `sdy.mesh` with the axes of a mesh; made if there is none."""
        if mesh not in self.symbols:
            present = mesh_symbols(self.module)
            wanted = self.meshes[mesh]
            alike = [name for name, known in present.items() if known.axes == wanted.axes]
            if mesh in alike or not alike:
                name = mesh if mesh in alike else _free("mesh", present)
            else:
                name = alike[0]
            if name not in present:
                props = {"sym_name": StringAttr.get(name), "mesh": wanted}
                self.module.body.insert_front(make_op("sdy.mesh", props=props))
            self.symbols[mesh] = name
        return self.symbols[mesh]

    def apply(self, chosen: Sequence[tuple[Replaced, TensorShardingAttr]]) -> None:
        """Shard the arguments, results, and what fragments make of them."""
        function = self.function
        arg_attrs, res_attrs = function.arg_attrs, function.res_attrs
        results: dict[FragmentOp, dict[int, TensorShardingAttr]] = {}
        for one, sharding in chosen:
            arg_attrs[one.argument] = arg_attrs[one.argument].with_(SHARDING, sharding).with_(SHARDED_STATE, UNIT)
            res_attrs[one.result] = res_attrs[one.result].with_(SHARDING, sharding)
            new = function.returned[one.result]
            for value in dict.fromkeys((function.args[one.argument], new)):
                for use in value.uses:
                    if isinstance(use.owner, FragmentOp):
                        set_fragment_shardings(use.owner, "in_shardings", {use.index: sharding}, others_open=False)
            if isinstance(new, OpResult) and isinstance(new.op, FragmentOp):
                _set_out_sharding(new.op, new.index, sharding)
                results.setdefault(new.op, {})[new.index] = sharding
        function.set_all_arg_attrs(arg_attrs)
        function.set_all_res_attrs(res_attrs)
        states = {function.args[one.argument] for one, _ in chosen}
        for fragment, made in results.items():
            if fragment.origin:
                continue  # it also has forwards and backwards, which are not to have parts of parameters
            own = frozenset(i for i, value in enumerate(fragment.operands) if value in states)
            fragment.body = _taking_parts(fragment.body, made, own)


def _shape(value: Value) -> tuple[int, ...] | None:
    return value.type.tensor.shape if isinstance(value.type, MeshTensorType) else None


def _free(name: str, taken: Mapping[str, MeshAttr]) -> str:
    names = itertools.chain([name], (f"{name}{count}" for count in itertools.count(1)))
    return next(one for one in names if one not in taken)


def _set_out_sharding(fragment: FragmentOp, index: int, sharding: TensorShardingAttr) -> None:
    """Set the sharding of a result; those of others that had none are whole, as without a list."""
    others = fragment.results if fragment.out_shardings is None else []
    whole = {result.index: fully_closed(sharding.mesh, rank_of(result)) for result in others}
    set_fragment_shardings(fragment, "out_shardings", {**whole, index: sharding})


def _depends_only_on(body: Region, result: int, argument: int) -> bool:
    """Return whether a result is made of this argument and of constants."""

    def make() -> frozenset[int]:
        return frozenset(_arguments(body.returned[result], effective_operands))

    return remembered(body, ("arguments of result", result), make) == {argument}


def _taking_parts(body: Region, results: Mapping[int, TensorShardingAttr], own: frozenset[int]) -> Region:
    """Return the body that computes results element by element of parts of its arguments.

    `own`: those that are parts.
    """
    sources: dict[int, TensorShardingAttr | None] = {}
    for index, sharding in results.items():
        for argument in _sources(body.returned[index]):
            if argument not in own:
                same = sources.setdefault(argument, sharding) is sharding
                sources[argument] = sharding if same else None
    wanted = tuple((i, sharding) for i, sharding in sorted(sources.items()) if sharding is not None)
    if not wanted:
        return body

    def make() -> Region:
        builder = BodyBuilder()
        args = [builder.arg(arg.type, arg.loc) for arg in body.block.args]
        taken = list(args)
        for i, sharding in wanted:
            taken[i] = constrained(builder, args[i], sharding, args[i].location)
        returned = builder.inline(body, taken)
        # An argument that is returned as it came is whole.
        whole = dict(zip(taken, args, strict=True))
        return builder.finish([whole.get(value, value) for value in returned])

    return remembered(body, ("taking parts", wanted), make)


def _sources(value: Value) -> list[int]:
    """Return the arguments of its shape that a value is made of element by element."""
    shape = shape_of(value)

    def parts(op: Op) -> list[Value]:
        return [v for v in op.operands if shape_of(v) == shape] if op.name in EXPRESSIONS else []

    return _arguments(value, parts)


def _arguments(value: Value, read: Callable[[Op], Iterable[Value]]) -> list[int]:
    """Return the arguments that a value is made of, by what `read` says that ops read."""
    producers = reachable([value], lambda one: () if one.defining_op is None else read(one.defining_op))
    return [one.index for one in producers if isinstance(one, BlockArg)]
