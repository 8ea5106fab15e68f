"""What a device of a mesh holds at each op of a program, and what changes when forwards leave less."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from mpmd_trace.ir.attributes import MeshAttr, TensorShardingAttr, integer_in
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.ops import OMITTED, FragmentOp, FuncOp, TransferOp, before_transfers
from mpmd_trace.ir.shardings import byte_size
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.fragment_info import middle_microbatch
from mpmd_trace.passes.sharding.edges import ValueShardings


@dataclasses.dataclass(frozen=True)
class Change:
    """What an option changes about values.  Times are those of `Liveness.time`.

    unread: reads of values that are no more; read: those that come instead; made: bytes that are held from a time to
    another one.
    """

    unread: tuple[tuple[Value, int], ...] = ()
    read: tuple[tuple[Value, int], ...] = ()
    made: tuple[tuple[float, int, int], ...] = ()

    @classmethod
    def of(cls, changes: Iterable[Change]) -> Self:
        """Return all the changes together."""
        parts = [(one.unread, one.read, one.made) for one in changes]
        unread, read, made = (tuple(itertools.chain.from_iterable(each)) for each in zip(*parts, strict=True))
        return cls(unread, read, made)


class Places:
    """Where the ops of a function are, and what each mesh has, looked up once for all meshes."""

    def __init__(self, function: FuncOp) -> None:
        #: Twice the place of each op: something may come between two of them.
        self.time: dict[Op, int] = {op: 2 * i + 2 for i, op in enumerate(function.body)}
        self.end = 2 * len(self.time) + 2
        self.shardings = ValueShardings(function)
        #: Values of the microbatches that are still missing, as so many times one that is there.
        self.missing: list[tuple[Value, int]] = []
        if omitted := integer_in(function.attrs, OMITTED):
            self.missing = [(value, omitted) for value in _kept_for_one(function)]
        #: By mesh the arguments, with whether they stay, and the ops whose results are there.
        self.arguments: dict[str, list[tuple[Value, bool]]] = {}
        self.ops: dict[str, list[FragmentOp | TransferOp]] = {}
        #: The places of the fragments among those of their mesh.
        self.on_mesh: dict[FragmentOp, int] = {}
        for arg, attributes in zip(function.args, function.arg_attrs, strict=True):
            if isinstance(arg.type, MeshTensorType):
                donated = {"jax.buffer_donor", "tf.aliasing_output"} & attributes.entries.keys()
                self.arguments.setdefault(arg.type.mesh, []).append((arg, not donated))
        counts: Counter[str] = Counter()
        for op in function.body:
            if isinstance(op, FragmentOp):
                self.ops.setdefault(op.mesh, []).append(op)
                self.on_mesh[op] = counts[op.mesh]
                counts[op.mesh] += 1
            elif isinstance(op, TransferOp):
                self.ops.setdefault(op.target_type.mesh, []).append(op)

    def ops_of(self, meshes: Sequence[str]) -> list[FragmentOp | TransferOp]:
        """Return the ops whose results are on one of the meshes, in order."""
        if len(meshes) == 1:
            return self.ops.get(meshes[0], [])
        return sorted((op for mesh in meshes for op in self.ops.get(mesh, ())), key=self.time.__getitem__)


class Liveness:
    """The bytes on a device of `mesh`, by the order of the block: arguments stay, unless they are donated, and other
    values live until their last use.  A result takes the memory of a value of its type that ends where it is made.

    The devices may be those of other meshes, too; what one of these has from another takes no memory of its own.
    """

    def __init__(
        self, function: FuncOp, mesh: str, meshes: Mapping[str, MeshAttr], places: Places | None = None
    ) -> None:
        places = places or Places(function)
        self.mesh = mesh
        self.sharing = function.sharing(mesh)
        self.meshes = dict(meshes)
        self.shardings = places.shardings
        self.time, self.end = places.time, places.end
        self.missing = places.missing
        self.ops = places.ops_of(self.sharing)
        self._bytes: dict[tuple[Type, TensorShardingAttr | None], float] = {}
        self.sizes: dict[Value, float] = {}
        self.start: dict[Value, int] = {}
        self.reads: dict[Value, list[int]] = {}
        for own in self.sharing:
            for arg, stays in places.arguments.get(own, ()):
                self._note(arg, 0, stays=stays)
        #: What each value has the memory of, where that is not its own.
        self.root: dict[Value, Value] = {}
        for op in self.ops:
            if isinstance(op, TransferOp) and self._shares(op):
                self.root[op.results[0]] = self.root.get(op.operand(0), op.operand(0))
                continue
            start = self.time[op]
            for result in op.results:
                self._note(result, start)
        for value, root in self.root.items():
            self.reads[root] += [self.time[use.owner] for use in value.uses]
        last = {value: max(reads) for value, reads in self.reads.items()}
        #: The values whose memory a result takes where they are read last.
        self.reused = self._reused(last)
        #: When each value ends.
        self.ends = {value: time - (value in self.reused) for value, time in last.items()}

    def _shares(self, op: TransferOp) -> bool:
        """Return whether a transfer between meshes that share their devices moves nothing."""
        source, target = op.source_type.mesh, op.target_type.mesh
        if source == target or source not in self.sharing:
            return False
        return self._size_of(op.operand(0)) == self._size_of(op.results[0]) > 0

    def _note(self, value: Value, start: int, stays: bool = False) -> None:
        size = self._size_of(value)
        if size:
            self.sizes[value], self.start[value] = size, start
            reads = [self.end] if stays else []
            use = None if stays else value.first_use
            while use is not None:
                reads.append(self.time[use.owner])
                use = use.next
            self.reads[value] = reads or [start]

    def size(self, value: Value) -> float:
        """Return the bytes of a value of the mesh on a device; 0 for those elsewhere."""
        return self.sizes.get(value, 0.0)

    def _size_of(self, value: Value) -> float:
        key = value.type, self.shardings.of(value)
        size = self._bytes.get(key)
        if size is None:
            size = self._bytes[key] = self._bytes_of(*key)
        return size

    def _bytes_of(self, type: Type, sharding: TensorShardingAttr | None) -> float:
        if not isinstance(type, MeshTensorType) or type.mesh not in self.sharing or type.on_host:
            return 0.0
        try:
            return byte_size(type if sharding is None else type.with_sharding(sharding), self.meshes)
        except ValueError:
            return 0.0

    def _reused(self, last: Mapping[Value, int]) -> set[Value]:
        """Return the values that end before the fragments whose results take their memory."""
        sizes, root = self.sizes, self.root
        reused: set[Value] = set()
        for op in self.ops:
            if not isinstance(op, FragmentOp):
                continue
            now = self.time[op]
            read = dict.fromkeys([root.get(use.value, use.value) for use in op.operand_uses])
            free = [v for v in read if last.get(v) == now]
            for result in op.results if free else ():
                size = sizes.get(result)
                taken = next((v for v in free if _alike(v, result) and sizes[v] == size), None)
                if taken is not None:
                    free.remove(taken)
                    reused.add(taken)
        return reused

    def profile(self, changes: Sequence[Change] = ()) -> list[float]:
        """Return the bytes at each time."""
        steps = [0.0] * (self.end + 2)
        for at, step in (*self.steps.items(), *self.difference(changes).items()):
            steps[at] += step
        return list(itertools.accumulate(steps))

    def peak(self) -> float:
        """Return the most bytes at any time."""
        return max(itertools.accumulate(map(self.steps.__getitem__, sorted(self.steps))), default=0.0)

    @functools.cached_property
    def steps(self) -> dict[int, float]:
        """By how many bytes it becomes more at a time.  Sums of bytes are exact in any order."""
        steps: defaultdict[int, float] = defaultdict(float)
        for value, size in self.sizes.items():
            self._hold(steps, size, self.start[value], self.ends[value])
        for value, times in self.missing:
            if value in self.sizes:
                self._hold(steps, times * self.sizes[value], self.start[value], self.ends[value])
        return steps

    def difference(self, changes: Iterable[Change]) -> dict[int, float]:
        """Return by how many bytes more it becomes more at a time with all the changes than without any."""
        steps: defaultdict[int, float] = defaultdict(float)
        unread: set[tuple[Value, int]] = set()
        more: defaultdict[Value, list[int]] = defaultdict(list)
        for change in changes:
            unread.update(change.unread)
            for value, at in change.read:
                more[value].append(at)
            for size, start, end in change.made:
                self._hold(steps, size, start, end)
        for value in more.keys() | {value for value, _ in unread}:
            size = self.sizes.get(value, 0.0)
            if not size:
                continue
            reads = [at for at in self.reads[value] if (value, at) not in unread] + more.get(value, [])
            steps[self.ends[value] + 1] += size
            steps[max(reads) + 1 if reads else self.start[value]] -= size
        return steps

    @staticmethod
    def _hold(steps: defaultdict[int, float], size: float, start: int, end: int) -> None:
        steps[start] += size
        steps[max(start, end) + 1] -= size


def _kept_for_one(function: FuncOp) -> Iterator[Value]:
    """Yield values that exist before the microbatch in the middle, for it alone, or that it leaves for the end.

    There are as many of them as microbatches: indices, and parts of stacks.
    """
    middle = middle_microbatch(function)
    for op in function.body:
        for value in op.results:
            maker = before_transfers(value).defining_op
            made = None if maker is None else integer_in(maker.attrs, "call_counter")
            if made is None or made == middle:
                read = {integer_in(user.attrs, "call_counter") for user in _readers(value)}
                if read == ({middle} if made is None else {None}):
                    yield value


def _readers(value: Value) -> Iterator[Op]:
    """Yield the ops that read a value or what it is sent as."""
    users = list(value.users)
    for user in users:  # grows
        if isinstance(user, TransferOp):
            users += user.results[0].users
        else:
            yield user


def _alike(value: Value, other: Value) -> bool:
    """Return whether they are of one type, but perhaps on different meshes."""
    a, b = value.type, other.type
    assert isinstance(a, MeshTensorType) and isinstance(b, MeshTensorType)
    return a.tensor is b.tensor
