"""Moves meshless ops into fragments, many at a time.

The body of a fragment is frozen and perhaps shared, so that taking in one op would cost a copy of the whole
body; and most of what an op reads is taken in next, so that an assign of it would be made to be erased.  Hence
everything is decided first.  Until `finish`, a fragment that took something in reads values without a mesh
directly, with uses that are in no operand list: the place of such a use in the list of its value is the place of
the assign that is to come, and its index is the number of a slot, not of an operand.  What is not needed in the
end costs no op; bodies are built once, and the same one for fragments that started with one body and took in
the same ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from mpmd_trace.ir.bodies import BodyBuilder, free_values, remembered
from mpmd_trace.ir.core import Op, Region, Use, Value
from mpmd_trace.ir.ops import AssignOp, FragmentOp, local_type, make_assign
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.import_.building_blocks import on_mesh, op_as_body


@dataclasses.dataclass(eq=False, slots=True)
class _Step:
    """A body plus the ops taken in up to here; the same object for the same ops in the same body.

    A slot is a value that the body needs; slots are numbered in the order in which they come up, first the
    arguments of the body, then what each op reads.
    """

    previous: _Step | None
    #: The op as a body, the slots that it fills with which result, and the first of those that it reads.
    part: Region
    fed: tuple[tuple[int, int], ...]
    first: int
    after: dict[Hashable, _Step] = dataclasses.field(default_factory=dict)
    body: Region | None = None


class _Plan:
    """What one fragment will be."""

    __slots__ = ("base", "capacity", "direct", "fragment", "made", "next", "slots", "step", "types")

    def __init__(self, fragment: FragmentOp, types: dict[Type, MeshTensorType | None]) -> None:
        self.fragment = fragment
        self.base = base = fragment.body
        #: The uses behind the slots that no op taken in has filled: by number, which is the order of the operands.
        self.slots: dict[int, Use] = {use.index: use for use in fragment.operand_uses}
        #: The number of the next slot.
        self.next = len(self.slots)
        #: The slots that are operands already: those that the fragment began with, and tokens.
        self.direct = list(self.slots)
        #: Assigns made before the end, by slot.
        self.made: dict[int, AssignOp] = {}
        #: As for an operand list (`Op.append_operands`): where it would grow, all operands become newer uses.
        self.capacity = fragment.operand_capacity
        self.types = types
        self.step: _Step = remembered(base, "absorb meshless", lambda: _Step(None, base, (), 0))

    def fill(self, fed: dict[int, int]) -> None:
        """Drop the slots that are now filled; as in MLIR, operands behind the first become newer uses."""
        first = min(fed)
        for number in fed:
            self.slots.pop(number)._unlink()
        self.direct = [number for number in self.direct if number not in fed]
        for number in self.direct:
            if number > first:
                use = self.slots[number]
                use.set(use.value)

    def grow(self, size: int) -> None:
        """Grow the storage to this many operands."""
        self.capacity = max(1 << self.capacity.bit_length(), size)
        for number in self.direct:
            use = self.slots[number]
            use.set(use.value)

    def type_on_mesh(self, type: Type) -> MeshTensorType | None:
        """Return the type on the fragment's mesh of values of that type; None for tokens."""
        if type not in self.types:
            target = on_mesh(type, self.fragment.mesh)
            self.types[type] = target if isinstance(target, MeshTensorType) else None
        return self.types[type]

    def make_assign(self, number: int) -> AssignOp:
        """Return the assign, in no block yet, for a slot that is not direct; it takes over the use."""
        use = self.slots[number]
        value = use.value
        target = self.type_on_mesh(value.type)
        assert target is not None
        return make_assign(value, target, use=use)

    def body(self) -> Region:
        """Return the new body; the same object for the same changes of the same body."""
        if self.step.body is None:
            self.step.body = self._build()
        return self.step.body

    def _build(self) -> Region:
        builder = BodyBuilder()
        args = self.base.block.args
        values: dict[int, Value] = {}
        for number, use in self.slots.items():
            if number < len(args):
                values[number] = builder.arg(args[number].type, args[number].loc)
            else:
                values[number] = builder.arg(local_type(use.value.type), use.value.location)
        step = self.step
        while step.previous is not None:  # the last op that was taken in comes first
            count = len(step.part.block.args)
            read = [values[number] for number in range(step.first, step.first + count)]
            results = builder.inline(step.part, read)
            for number, index in step.fed:
                values[number] = results[index]
            step = step.previous
        return builder.finish(builder.inline(self.base, [values[i] for i in range(len(args))]))

    def finish(self) -> None:
        """Give the fragment its body and its operands."""
        fragment, made = self.fragment, self.made
        assert fragment.block is not None
        fragment.body = self.body()
        direct = set(self.direct)
        assigns: list[Op] = []
        operands: list[Use] = []
        for number, use in self.slots.items():
            if number in direct:
                use.index = len(operands)
            elif number in made:
                assigns.append(made[number])
                use.index = len(operands)
            else:
                assign = self.make_assign(number)
                assigns.append(assign)
                use = Use(fragment, len(operands), assign.results[0])
            operands.append(use)
        fragment.block.insert_all_before(fragment, assigns)
        fragment.take_operand_uses(operands, self.capacity)


class Absorber:
    """Takes ops into fragments; `finish` makes the assigns and builds the bodies."""

    def __init__(self) -> None:
        self._plans: dict[Op, _Plan] = {}
        self._types: dict[str, dict[Type, MeshTensorType | None]] = {}

    def assigned_type(self, use: Use) -> MeshTensorType | None:
        """Return the mesh tensor type that an assign at this use, made or to come, gives its value; None without."""
        user = use.owner
        if isinstance(user, AssignOp):
            return user.mesh_type
        plan = self._plans.get(user)
        if plan is None or plan.slots.get(use.index) is not use:
            return None
        return plan.type_on_mesh(use.value.type)

    def settle(self, value: Value) -> None:
        """Make the assigns of the value that are to come; `finish` puts them where they belong."""
        for use in value.uses:
            user = use.owner
            if not isinstance(user, AssignOp) and self.assigned_type(use) is not None:
                plan, number = self._plans[user], use.index
                assign = plan.made[number] = plan.make_assign(number)
                plan.slots[number] = Use(user, number, assign.results[0])

    def absorb(self, op: Op, fragment: FragmentOp, fed: dict[int, int]) -> None:
        """Put a copy of `op` at the start of the fragment and feed it what it reads.

        `fed`: the operands that read `op`, itself or assigned, with the numbers of the results.
        The results of `op` that reach the fragment through assigns are then computed inside; its own operands
        become the last operands of the fragment.  `op` stays where it is.
        """
        plan = self._plans.get(fragment)
        if plan is None:
            types = self._types.setdefault(fragment.mesh, {})
            plan = self._plans[fragment] = _Plan(fragment, types)
        values = list(dict.fromkeys([*free_values(op), *op.operands]))
        self._advance(plan, op, values, fed)
        plan.fill(fed)
        size = len(plan.slots) + len(values)
        if size > plan.capacity:
            plan.grow(size)
        for value in values:
            if plan.type_on_mesh(value.type) is None:
                plan.direct.append(plan.next)
            plan.slots[plan.next] = Use(fragment, plan.next, value)
            plan.next += 1

    def _advance(self, plan: _Plan, op: Op, values: list[Value], fed: dict[int, int]) -> None:
        before, part = plan.step, op_as_body(op, values)
        key = (part, tuple(sorted(fed.items())))
        step = before.after.get(key)
        if step is None:
            step = before.after[key] = _Step(before, part, key[1], plan.next)
        plan.step = step

    def finish(self) -> None:
        """Give every fragment its body and its operands."""
        for plan in self._plans.values():
            plan.finish()
        self._plans.clear()
