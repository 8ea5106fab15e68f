"""The operands of an op: numbered uses, some of which become newer where MLIR would move them in memory.

Nothing here knows what an op is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from mpmd_trace.ir.frozen import refuse
from mpmd_trace.ir.op_lists import Linked
from mpmd_trace.ir.use_lists import Link

U = TypeVar("U", bound=Link[Any])
V = TypeVar("V")


class OperandList(Linked, Generic[U, V]):
    """An entry of a block that has operands, of type V; each is a use of type U."""

    __slots__ = ("_capacity", "operand_uses")
    #: The operands as uses, in order; not to be changed from outside.
    operand_uses: list[U]
    _capacity: int
    #: Whether this is part of a frozen body; then it refuses every change.
    frozen = False

    def _new_use(self, index: int, value: V) -> U:
        """Return a use of `value`, in the front of its list, as the operand of that number."""
        raise NotImplementedError

    @property
    def operands(self) -> list[V]:
        """The operand values (a fresh list)."""
        return [use.value for use in self.operand_uses]

    @property
    def num_operands(self) -> int:
        return len(self.operand_uses)

    @property
    def operand_capacity(self) -> int:
        """The number of operands for which there is room before all of them move and become newer uses."""
        return self._capacity

    def operand(self, index: int) -> V:
        return self.operand_uses[index].value  # type: ignore[no-any-return]  # `cast` would be a call

    def set_operand(self, index: int, value: V) -> None:
        self._check_mutable()
        self.operand_uses[index].set(value)

    def set_operands(self, values: Sequence[V]) -> None:
        """Replace the whole operand list; every operand becomes a new use, in order."""
        self._check_mutable()
        values = list(values)
        old = len(self.operand_uses)
        if len(values) < old:
            for use in self.operand_uses[len(values) :]:
                use._unlink()
            del self.operand_uses[len(values) :]
        elif len(values) > old:
            self.append_operands(values[old:])
        for use, value in zip(self.operand_uses, values, strict=True):
            use.set(value)

    def append_operands(self, values: Sequence[V]) -> None:
        """Add operands at the end."""
        self._check_mutable()
        size = len(self.operand_uses) + len(values)
        if size > self._capacity:  # MLIR moves the operands to new storage: they become newer uses
            self._capacity = max(1 << self._capacity.bit_length(), size)
            for use in self.operand_uses:
                use.set(use.value)
        for value in values:
            self.operand_uses.append(self._new_use(len(self.operand_uses), value))

    def erase_operands(self, indices: Iterable[int]) -> None:
        """Remove operands; those behind the first removed one become newer uses, as in MLIR."""
        self._check_mutable()
        gone = set(indices)
        if not gone:
            return
        first = min(gone)
        tail = self.operand_uses[first:]
        del self.operand_uses[first:]
        for i, use in enumerate(tail, first):
            if i in gone:
                use._unlink()
                continue
            use.index = len(self.operand_uses)
            use.set(use.value)
            self.operand_uses.append(use)

    def take_operand_uses(self, uses: list[U], capacity: int) -> None:
        """Make these uses, linked and numbered already, the operands; for passes that keep book of them."""
        self._check_mutable()
        self.operand_uses, self._capacity = uses, capacity

    def _check_mutable(self) -> None:
        if self.frozen:
            refuse(repr(self))
