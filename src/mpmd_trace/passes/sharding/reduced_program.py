"""A small program that stands for a big one in sharding propagation.

A pipeline runs the same fragments for every microbatch, and propagation treats equal surroundings alike.  So
it is enough to propagate in a program that has one fragment of each kind (`equivalence_classes.py`):

    f(p, x1) .. f(p, x256)                                  becomes  f(p, x1)
    a1 = b0(p, y1); a2 = b(p, y2, a1); .. a256 = b(p, y256, a255)
        becomes  a1 = b0(p, y1); a2 = b(p, y2, a1); a3 = b(p, y3, a2); a256 = b(p, y256, a3)

The first op of each kind is kept.  Its operands are taken from the first ops of their kinds, which come
earlier, so the small program is in order.  Ops that differ from the first of their kind in constants are
kept, too, for their bodies.  Afterwards `Reduction.spread` copies shardings and bodies to the big program,
provided that both ends of each of its edges get a pair of shardings that an edge of the small program has.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeGuard, cast

from mpmd_trace.ir.attributes import Attribute, DictAttr, IntegerAttr, TensorShardingAttr, TensorShardingPerValueAttr
from mpmd_trace.ir.core import Block, BlockArg, Op, Region, Value, op_like
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp, make_return
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.sharding.agreement import agrees
from mpmd_trace.passes.sharding.axes import same_axes
from mpmd_trace.passes.sharding.edges import SHARDING, user_sharding
from mpmd_trace.passes.sharding.equivalence_classes import Kinds, is_scalar, shardings_of

#: Temporary attribute that tells which op an op of the small program is.
NUMBER = "mpmd_trace.number"
#: Attributes that propagation does not look at.  Halfway through the compiler they may be at places where the
#: dialect's verifier does not want them, but MLIR verifies what it reads.
_HIDDEN_ATTRIBUTES = ("arg_attrs", "res_attrs", "mhlo.memory_kind")
_HIDDEN = frozenset(_HIDDEN_ATTRIBUTES)


def is_plain_fragment(op: Op) -> TypeGuard[FragmentOp]:
    """Return whether the op is a fragment without attributes that propagation does not look at."""
    return isinstance(op, FragmentOp) and _HIDDEN.isdisjoint(op.attrs)


def reducible(function: FuncOp) -> bool:
    """Return whether the function consists of fragments, transfers and a return only."""
    block = function.body
    terminator = block.terminator
    return all(isinstance(op, FragmentOp | TransferOp) or op is terminator for op in block)


def numbered(op: Op, operands: Sequence[Value], number: int) -> Op:
    """Return a copy of the op for other operands that says which one it is."""
    copy = op.clone(operands=operands)
    for name in _HIDDEN_ATTRIBUTES:
        copy.attrs.pop(name, None)
    copy.attrs[NUMBER] = IntegerAttr.get(number, "i64")
    return copy


def with_body(module: Module, function: FuncOp, block: Block) -> tuple[Module, FuncOp]:
    """Return a copy of the module, and of the function, with this body and nothing said of arguments and results."""
    small = Module(resources=module.resources)
    small.op.props, small.op.attrs = dict(module.op.props), dict(module.op.attrs)
    alone = cast(FuncOp, op_like(function, (), regions=[Region([block])]))
    alone.set_all_arg_attrs(())
    alone.set_all_res_attrs(())
    alone.refresh_type()
    small.body.append_all(alone if op is function else op.clone() for op in module.body)
    return small, alone


class Reduction:
    """The small program for `function` of `module`, in `self.module`."""

    def __init__(self, module: Module, function: FuncOp, kinds: Kinds) -> None:
        self.function = function
        self._across = bool(kinds.alike)
        #: The op that stands for each op; the one that stands for its body, which may differ in constants.
        self.op_of: dict[Op, Op] = {}
        self.body_of: dict[Op, Op] = {}
        #: The value of `function` that stands for each value.
        self.value_of: dict[Value, Value] = {}
        first_op: dict[int, Op] = {}
        first_body: dict[tuple[int, Region | None], Op] = {}
        first_value: dict[Hashable, Value] = {}
        for arg in function.args:
            self.value_of[arg] = first_value.setdefault(("argument", kinds.value[arg]), arg)
        for op in kinds.ops:
            kind = kinds.op[op]
            target = self.op_of[op] = first_op.setdefault(kind, op)
            self.body_of[op] = first_body.setdefault((kind, kinds.body.get(op)), op)
            for result in op.results:
                stand_in: Value = target.results[result.index]
                if not is_scalar(stand_in):
                    stand_in = first_value.setdefault((target, kinds.value[stand_in]), stand_in)
                self.value_of[result] = stand_in
        self.representatives = list(first_op.values())
        self.kept = list(first_body.values())
        self.copies: dict[Op, Op] = {}
        self.module = self._build(module, kinds)

    def _build(self, module: Module, kinds: Kinds) -> Module:
        function = self.function
        kept_args = [a for a in function.args if self.value_of[a] is a]
        mapping: dict[Value, Value] = {}
        block = Block()
        for arg in kept_args:
            mapping[arg] = block.add_arg(kinds.type(arg), loc=cast(BlockArg, arg).loc)
        for number, op in enumerate(self.kept):
            copy = numbered(op, [mapping[self.value_of[v]] for v in op.operands], number)
            for result in copy.results if kinds.alike else ():
                result.type = kinds.type(result)
            if isinstance(copy, FragmentOp) and kinds.alike:
                copy.mesh = kinds.alike[copy.mesh]
            mapping.update(zip(op.results, copy.results, strict=True))
            self.copies[op] = copy
            block.append(copy)
        #: For each result of the function, which result of the small one stands for it.
        self.result_of: list[int] = []
        kept: dict[tuple[Value, DictAttr], int] = {}
        returned: list[Value] = []
        dicts: list[DictAttr] = []
        for value, attributes in zip(function.returned, map(shardings_of, function.res_attrs), strict=True):
            key = (self.value_of[value], attributes)
            if key not in kept:
                kept[key] = len(returned)
                returned.append(mapping[key[0]])
                dicts.append(attributes)
            self.result_of.append(kept[key])
        block.append(make_return(returned, "func.return"))
        self.body = block
        self.arg_of = {a: i for i, a in enumerate(kept_args)}
        small, alone = with_body(module, function, block)
        arg_attrs = function.arg_attrs
        of_args = [shardings_of(arg_attrs[a.index]) for a in kept_args]
        alone.set_all_arg_attrs(of_args)
        #: The shardings of the arguments of the small function, before propagation.
        self.given = [user_sharding(attributes) for attributes in of_args]
        alone.set_all_res_attrs(dicts)
        return small

    # Back.

    def _propagated(self, after: Module) -> tuple[FuncOp, dict[Op, Op]] | None:
        """Return the function after propagation, and the op in it for each op that was kept and is not gone.

        None when propagation added ops to the function.
        """
        done = after.lookup(self.function.sym_name)
        if done is None:
            return None
        new_ops: dict[Op, Op] = {}
        for new in done.body:
            number = new.attrs.pop(NUMBER, None)
            if isinstance(number, IntegerAttr):
                new_ops[self.kept[number.value]] = new
            elif new is not done.body.terminator:
                return None
        return done, new_ops

    def spread(self, module: Module, after: Module, rules: Mapping[Op, Attribute]) -> bool:
        """Copy what propagation did to the small program, which is `after` now, to the big one.

        Changes nothing and returns False if that is not possible.  `rules` are those of the ops, which matter where
        stages stand for others.
        """
        propagated = self._propagated(after)
        if propagated is None:
            return False
        done, new_ops = propagated
        if not self._unused_can_go(new_ops) or not self._consistent(done, new_ops):
            return False
        if self._across:
            fragments = [new for new in new_ops.values() if isinstance(new, FragmentOp)]
            topology = self.function.topology
            if topology is None or not agrees(fragments, rules, topology, self.given):
                return False
        self._spread(done, new_ops)
        self._replace_rest(module, after, done)
        return True

    def _unused_can_go(self, new_ops: dict[Op, Op]) -> bool:
        """Return whether what propagation removed as unused is unused in the big program."""
        for op, target in self.op_of.items():
            gone = target not in new_ops
            if gone and any(self.op_of.get(user) in new_ops for user in op.users):
                return False
            if gone and any(user is self.function.body.terminator for user in op.users):
                return False
            if not gone and self.body_of[op] not in new_ops:
                return False
        return True

    def _consistent(self, done: FuncOp, new_ops: dict[Op, Op]) -> bool:
        """Return whether the shardings at both ends of every edge are a pair that a small program's edge has."""
        made: dict[Value, TensorShardingAttr | None] = {}
        wanted: dict[Op, tuple[TensorShardingAttr | None, ...]] = {}
        given = done.arg_attrs
        for arg, i in self.arg_of.items():
            made[arg] = user_sharding(given[i])
        for op in self.representatives:
            if op not in new_ops:
                continue
            new = new_ops[op]
            is_fragment = isinstance(new, FragmentOp)
            at_results = new.props.get("out_shardings") if is_fragment else new.attrs.get(SHARDING)
            at_operands = new.props.get("in_shardings") if is_fragment else at_results
            made.update(zip(op.results, _entries(at_results, len(op.results)), strict=True))
            wanted[op] = _entries(at_operands, op.num_operands)
        known = {
            (made[self.value_of[v]], end)
            for op, ends in wanted.items()
            for v, end in zip(op.operands, ends, strict=True)
        }
        if self._across:  # where two shardings meet depends on how far they have come
            ends = [user_sharding(attributes) for attributes in done.res_attrs]
            returned = zip(self.function.returned, self.result_of, strict=True)
            pairs = [*known, *((made[self.value_of[v]], ends[i]) for v, i in returned)]
            if not all(_same(start, end) for start, end in pairs):
                return False
        for op, target in self.op_of.items():
            if op is target or target not in wanted:
                continue
            for v, end in zip(op.operands, wanted[target], strict=True):
                if (made.get(self.value_of[v]), end) not in known and not is_scalar(v):
                    return False
        return True

    def _spread(self, done: FuncOp, new_ops: dict[Op, Op]) -> None:
        fragments = [new for new in new_ops.values() if isinstance(new, FragmentOp)]
        same = first_equal(new.body for new in fragments)
        for new in fragments:
            new.body = same[new.body]
        for op, target in reversed(self.op_of.items()):
            if target not in new_ops:
                op.erase()
                continue
            self._copy_attributes(op, target, new_ops[target])
            if isinstance(op, FragmentOp):
                op.body = new_ops[self.body_of[op]].regions[0]
        function = self.function
        new_args, new_results = done.arg_attrs, done.res_attrs
        function.set_all_arg_attrs(
            [
                _with_shardings(old, new_args[self.arg_of[self.value_of[a]]])
                for a, old in zip(function.args, function.arg_attrs, strict=True)
            ]
        )
        function.set_all_res_attrs(
            [_with_shardings(old, new_results[i]) for i, old in zip(self.result_of, function.res_attrs, strict=True)]
        )
        function.attrs.update(done.attrs)

    def _copy_attributes(self, op: Op, target: Op, new: Op) -> None:
        """Give `op` what propagation changed on `new`, which stood for it as the copy of `target`."""
        before = self.copies[target]
        for held, old, now in ((op.props, before.props, new.props), (op.attrs, before.attrs, new.attrs)):
            for name, value in now.items():
                if old.get(name) is not value:
                    held[name] = self._own_shardings(op, name, value)
            for name in old:
                if name not in now and name != NUMBER:
                    held.pop(name, None)

    def _own_shardings(self, op: Op, name: str, value: Attribute) -> Attribute:
        """Return the attribute for `op`; in `out_shardings`, results that are alike have the sharding of the first."""
        if name != "out_shardings" or not isinstance(value, TensorShardingPerValueAttr):
            return value
        chosen = [self.value_of[r].index for r in op.results]
        if chosen == list(range(len(chosen))):
            return value
        return TensorShardingPerValueAttr.get(value.shardings[i] for i in chosen)

    def _replace_rest(self, module: Module, after: Module, done: FuncOp) -> None:
        """Take over the meshes and everything else at the top level of the module."""
        function = self.function
        for op in module.body.ops:
            if op is not function:
                op.erase()
        seen = False
        for op in after.body.ops:
            if op is done:
                seen = True
            elif seen:
                module.body.append(op)
            else:
                module.body.insert_before(function, op)
        module.op.attrs, module.op.props = after.op.attrs, after.op.props
        module.resources = after.resources


def _same(a: TensorShardingAttr | None, b: TensorShardingAttr | None) -> bool:
    given = b if a is None else a
    return given is None or same_axes(a, b, len(given.dims))


def _entries(attribute: Attribute | None, count: int) -> tuple[TensorShardingAttr | None, ...]:
    return attribute.shardings if isinstance(attribute, TensorShardingPerValueAttr) else (None,) * count


def _with_shardings(old: DictAttr, new: DictAttr) -> DictAttr:
    """Return `old` with the shardings of `new` in place of its own."""
    others = {k: v for k, v in old.entries.items() if not k.startswith("sdy.")}
    return DictAttr.get({**others, **new.entries})
