"""What a device of a mesh holds at each op of a program, and what changes when forwards leave less."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.core import BlockArg, Op, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp
from mpmd_trace.ir.shardings import byte_size
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.sharding.edges import ValueShardings

__all__ = ["Change", "Liveness"]


@dataclasses.dataclass(frozen=True)
class Change:
    """What an option changes about values.  Times are those of `Liveness.time`.

    unread: reads of values that are no more; read: those that come instead; made: bytes that are held from a time to
    another one.
    """

    unread: tuple[tuple[Value, int], ...] = ()
    read: tuple[tuple[Value, int], ...] = ()
    made: tuple[tuple[float, int, int], ...] = ()

    def __add__(self, other: Change) -> Change:
        return Change(self.unread + other.unread, self.read + other.read, self.made + other.made)


class Liveness:
    """The bytes on a device of `mesh`, by the order of the block: arguments stay, unless they are donated, and other
    values live until their last use.  A result takes the memory of a value of its type that ends where it is made.

    The devices may be those of other meshes, too; what one of these has from another takes no memory of its own.
    """

    def __init__(self, function: FuncOp, mesh: str, meshes: Mapping[str, MeshAttr]) -> None:
        self.mesh = mesh
        self.sharing = function.sharing(mesh)
        self.meshes = dict(meshes)
        self.shardings = ValueShardings(function)
        #: Twice the place of each op: something may come between two of them.
        self.time: dict[Op, int] = {op: 2 * i + 2 for i, op in enumerate(function.body)}
        self.end = 2 * len(self.time) + 2
        self.sizes: dict[Value, float] = {}
        self.start: dict[Value, int] = {}
        self.reads: dict[Value, list[int]] = {}
        donated = [bool({"jax.buffer_donor", "tf.aliasing_output"} & d.entries.keys()) for d in function.arg_attrs]
        for arg, is_donated in zip(function.args, donated, strict=True):
            self._note(arg, 0, stays=not is_donated)
        #: What each value has the memory of, where that is not its own.
        self.root: dict[Value, Value] = {}
        for op in function.body:
            if isinstance(op, TransferOp) and self._shares(op):
                self.root[op.results[0]] = self.root.get(op.operand(0), op.operand(0))
                continue
            for result in op.results:
                self._note(result, self.time[op])
        for value, root in self.root.items():
            self.reads[root] += [self.time[use.owner] for use in value.uses]
        self._reuse(function)

    def _shares(self, op: TransferOp) -> bool:
        """Return whether a transfer between meshes that share their devices moves nothing."""
        source, target = op.operand(0), op.results[0]
        return op.source_type.mesh != op.target_type.mesh and self.size(source) == self.size(target) > 0

    def _note(self, value: Value, start: int, stays: bool = False) -> None:
        size = self.size(value)
        if size:
            self.sizes[value], self.start[value] = size, start
            self.reads[value] = [self.end] if stays else [self.time[use.owner] for use in value.uses] or [start]

    def size(self, value: Value) -> float:
        """Return the bytes of a value on a device of the mesh; 0 for those elsewhere."""
        type = value.type
        if not isinstance(type, MeshTensorType) or type.mesh not in self.sharing or type.on_host:
            return 0.0
        sharding = self.shardings.of(value)
        try:
            return byte_size(type if sharding is None else type.with_sharding(sharding), self.meshes)
        except ValueError:
            return 0.0

    def _reuse(self, function: FuncOp) -> None:
        """Let values end before the fragments whose results take their memory."""
        self.reused: set[Value] = set()
        for op in function.body:
            if not isinstance(op, FragmentOp) or op.mesh not in self.sharing:
                continue
            now = self.time[op]
            read = dict.fromkeys(self.root.get(v, v) for v in op.operands)
            free = [v for v in read if v in self.sizes and max(self.reads[v]) == now]
            for result in op.results:
                fits = (v for v in free if _alike(v, result) and self.sizes[v] == self.sizes.get(result))
                taken = next(fits, None)
                if taken is not None:
                    free.remove(taken)
                    self.reused.add(taken)

    def profile(self, changes: Sequence[Change] = ()) -> list[float]:
        """Return the bytes at each time."""
        touched = {value for change in changes for value, _ in (*change.unread, *change.read) if value in self.sizes}
        steps = [0.0] * (self.end + 2)
        for value, size in self.sizes.items():
            if value not in touched:
                self._hold(steps, size, self.start[value], max(self.reads[value]) - (value in self.reused))
        unread = {pair for change in changes for pair in change.unread}
        more: dict[Value, list[int]] = {}
        for change in changes:
            for value, at in change.read:
                more.setdefault(value, []).append(at)
            for size, start, end in change.made:
                self._hold(steps, size, start, end)
        for value in sorted(touched, key=self.start.__getitem__):
            left = [at for at in self.reads[value] if (value, at) not in unread]
            last = max([*left, *more.get(value, ())], default=None)
            if last is not None or isinstance(value, BlockArg):
                self._hold(steps, self.sizes[value], self.start[value], self.start[value] if last is None else last)
        return list(itertools.accumulate(steps))

    @staticmethod
    def _hold(steps: list[float], size: float, start: int, end: int) -> None:
        steps[start] += size
        steps[max(start, end) + 1] -= size


def _alike(value: Value, other: Value) -> bool:
    """Return whether they are of one type, but perhaps on different meshes."""
    a, b = value.type, other.type
    assert isinstance(a, MeshTensorType) and isinstance(b, MeshTensorType)
    return a.tensor is b.tensor
