"""Moves meshless ops into fragments, many at a time.

The body of a fragment is frozen and perhaps shared, so that taking in one op would cost a copy of the whole
body.  Here the operands of the fragment change at once (what is decided next depends on them), while the
bodies are built when everything is decided: each once, and the same one for fragments that started with one
body and took in the same ops.

Source: section 17.2 of the import specification.
"""

from __future__ import annotations

from ...ir.bodies import BodyBuilder, free_values, remembered
from ...ir.core import Op, Region, Value
from ...ir.location import Location
from ...ir.ops import AssignOp, FragmentOp, local_type, make_assign
from ...ir.types import MeshTensorType, Type
from .building_blocks import on_mesh, op_as_body

__all__ = ["Absorber"]


class _Slot:
    """A value that the new body needs: a block argument, until an op that produces it is taken in."""

    __slots__ = ("loc", "producer", "type")

    def __init__(self, type: Type, loc: Location) -> None:
        self.type = type
        self.loc = loc
        #: (number of the absorbed op, number of its result).
        self.producer: tuple[int, int] | None = None


class _Plan:
    """What the body of one fragment will be."""

    def __init__(self, fragment: FragmentOp) -> None:
        self.base = fragment.body
        self.base_slots = [_Slot(a.type, a.loc) for a in self.base.block.args]
        #: The slots of the operands that the fragment has now.
        self.slots = list(self.base_slots)
        #: The ops taken in, the last one comes first in the body; each as a body with the slots it reads.
        self.absorbed: list[tuple[Region, list[_Slot]]] = []

    def body(self) -> Region:
        """The new body; the same object for the same changes of the same body."""
        number = {slot: i for i, slot in enumerate(self.slots)}

        def state(slot: _Slot) -> int | tuple[int, int]:
            return number[slot] if slot.producer is None else slot.producer

        absorbed = tuple((part, tuple(map(state, read))) for part, read in self.absorbed)
        key = ("absorb meshless", absorbed, tuple(map(state, self.base_slots)))
        return remembered(self.base, key, self._build)

    def _build(self) -> Region:
        builder = BodyBuilder()
        args = {slot: builder.arg(slot.type, slot.loc) for slot in self.slots}
        results: dict[int, list[Value]] = {}

        def value(slot: _Slot) -> Value:
            if slot.producer is None:
                return args[slot]
            op, index = slot.producer
            return results[op][index]

        for i in range(len(self.absorbed) - 1, -1, -1):
            part, read = self.absorbed[i]
            results[i] = builder.inline(part, [value(slot) for slot in read])
        return builder.finish(builder.inline(self.base, [value(slot) for slot in self.base_slots]))


class Absorber:
    """Takes ops into fragments; `finish` builds the bodies.

    Until then the body of a fragment that took something in does not fit its operands.
    """

    def __init__(self) -> None:
        self._plans: dict[FragmentOp, _Plan] = {}
        self._types: dict[tuple[Type, str], MeshTensorType | None] = {}

    def absorb(self, op: Op, fragment: FragmentOp) -> None:
        """Put a copy of `op` at the start of the fragment and feed it what it reads.

        The results of `op` that reach the fragment through assigns are then computed inside; its own operands
        become the last operands of the fragment.  `op` stays where it is.
        """
        plan = self._plans.get(fragment)
        if plan is None:
            plan = self._plans[fragment] = _Plan(fragment)
        number = len(plan.absorbed)
        slots = plan.slots
        fed: list[int] = []
        for result in op.results:
            for index in _read_at(result, fragment):
                slots[index].producer = (number, result.index)
                fed.append(index)
        fed.sort()
        for index in reversed(fed):
            del slots[index]
        fragment.erase_operands(fed)
        read: list[_Slot] = []
        operands: list[Value] = []
        values = list(dict.fromkeys([*free_values(op), *op.operands]))
        block = fragment.block
        assert block is not None
        for value in values:
            type = value.type
            read.append(_Slot(local_type(type), value.location))
            target = self._type_on(type, fragment.mesh)
            if target is not None:
                assign = make_assign(value, target)
                block.insert_before(fragment, assign)
                operands.append(assign.results[0])
            else:
                operands.append(value)
        plan.absorbed.append((op_as_body(op, values), read))
        slots += read
        fragment.append_operands(operands)

    def _type_on(self, type: Type, mesh: str) -> MeshTensorType | None:
        """The mesh tensor type of values of that type; None for tokens."""
        key = (type, mesh)
        if key not in self._types:
            target = on_mesh(type, mesh)
            self._types[key] = target if isinstance(target, MeshTensorType) else None
        return self._types[key]

    def finish(self) -> None:
        """Give every fragment its body."""
        for fragment, plan in self._plans.items():
            fragment.body = plan.body()
        self._plans.clear()


def _read_at(result: Value, fragment: FragmentOp) -> list[int]:
    """The numbers of the operands through which `fragment` reads `result`, itself or assigned, newest use first."""
    found = []
    use = result._first
    while use is not None:
        user = use.owner
        if user is fragment:
            found.append(use.index)
        elif isinstance(user, AssignOp):
            inner = user.results[0]._first
            while inner is not None:
                if inner.owner is fragment:
                    found.append(inner.index)
                inner = inner.next
        use = use.next
    return found
