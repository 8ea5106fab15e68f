"""The named fragments of a program as the rules of a user see them: what they are and what they cost."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, overload

from mpmd_trace.diagnostics.messages import shortened
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.shardings import byte_size, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.fragment_rules import FragmentInfo
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.passes.optimize.reference_schedules import ScheduleError
from mpmd_trace.scheduling.transfers import fragment_action


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Fragment:
    """A named fragment of a program: some computations of one mesh, mostly for one microbatch.

    info: its identity, as rules write it down.
    kind: "F" forward, "B" backward, "I" and "W" the input- and weight-gradient parts of a split backward; "O" for
        what is not part of one microbatch or of one phase.
    flops: the operations of one run, counted from its ops (`ir.flops`).
    bytes: the size of its arguments and results, as whole arrays.
    index: its place in the program before scheduling.
    mesh_index: the number of its mesh among `num_meshes` that hold stages; None for a host mesh.
    """

    info: FragmentInfo
    kind: str
    flops: float
    bytes: float
    index: int
    mesh_index: int | None
    num_meshes: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its computations, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.info.origins))

    @property
    def transposes(self) -> tuple[int, ...]:
        """The numbers of times that its computations are transposed, each number once: 0 forward, 1 backward."""
        return tuple(sorted({count for _, count in self.info.origins}))

    @property
    def transpose(self) -> int:
        """The highest of `transposes`."""
        return self.transposes[-1]

    @property
    def mesh(self) -> str:
        """The name of its mesh."""
        return self.info.mesh_name

    @property
    def m(self) -> int:
        """The number of its mesh.  Raises `ScheduleError` on a mesh that holds no stage."""
        if self.mesh_index is None:
            raise ScheduleError(f"mesh '{self.mesh}' is a host mesh and no pipeline stage, so it has no number")
        return self.mesh_index

    @property
    def stage(self) -> int | None:
        """The stage that was assigned to its names."""
        return self.info.stage

    @property
    def microbatch(self) -> int | None:
        """The number of the microbatch: the call counter."""
        return self.info.call_counter

    @property
    def counter(self) -> int:
        """The number of the microbatch, for fragments that are known to have one."""
        return -1 if self.info.call_counter is None else self.info.call_counter

    @property
    def drops_transferred(self) -> bool:
        """True if it is the weight-gradient part of a split backward."""
        return self.info.split_type == "kDropTransferred"

    def __str__(self) -> str:
        origins = "+".join(f"{n}({c})" if c else n for n, c in self.info.origins)
        microbatch = "" if self.microbatch is None else f" #{self.microbatch}"
        stage = "" if self.stage is None else f"/{self.stage}"
        return f"{self.kind}{microbatch} {origins} @{self.mesh}{stage}"

    def __repr__(self) -> str:
        return f"<Fragment {self}>"


class Fragments(Sequence[Fragment]):
    """Named fragments in the order of the program, to choose from."""

    def __init__(self, fragments: Iterable[Fragment]) -> None:
        self._all = tuple(fragments)

    def where(
        self,
        *,
        name: str | Collection[str] | None = None,
        mesh: str | Collection[str] | None = None,
        stage: int | Collection[int] | None = None,
        microbatch: int | Collection[int] | None = None,
        kind: str | Collection[str] | None = None,
    ) -> Fragments:
        """Return those with one of the values in each field that is given; `kind="BIW"` takes all backwards.

        A fragment made of several computations has each of their names.
        """
        names = {name} if isinstance(name, str) else name
        fields = {"mesh": mesh, "stage": stage, "microbatch": microbatch, "kind": kind}
        wanted = {
            field: {value} if isinstance(value, int) or (isinstance(value, str) and field != "kind") else value
            for field, value in fields.items()
            if value is not None
        }
        return Fragments(
            f
            for f in self._all
            if (names is None or any(n in names for n in f.names))
            and all(getattr(f, field) in values for field, values in wanted.items())
        )

    @property
    def forward(self) -> Fragments:
        """The forwards of microbatches."""
        return self.where(kind="F")

    @property
    def backward(self) -> Fragments:
        """The backwards of microbatches, or both parts of them."""
        return self.where(kind="BIW")

    def by(self, *fields: str) -> dict[Any, Fragments]:
        """Return groups of those equal in a field (or in several: the keys are tuples), as `by("microbatch")`."""
        if not fields:
            raise mistake('by takes fields of fragments, such as by("microbatch") or by("mesh", "kind")')
        groups: dict[Any, list[Fragment]] = {}
        for one in self._all:
            values = tuple(getattr(one, field) for field in fields)
            groups.setdefault(values[0] if len(fields) == 1 else values, []).append(one)
        return {key: Fragments(group) for key, group in groups.items()}

    def one(self, **fields: Any) -> Fragment:
        """Return the only one `where(**fields)`.  Raises `MpmdError` when there is none, or several."""
        matching = self.where(**fields)
        if len(matching) != 1:
            asked = ", ".join(f"{k}={v!r}" for k, v in fields.items()) or "no field"
            of = matching if matching else self
            listed = "\n".join(shortened([f"  {f}" for f in of]))
            raise mistake(
                f"{'several fragments are' if matching else 'no fragment is'} where({asked}); there are\n{listed}"
            )
        return matching[0]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Fragment]:
        return iter(self._all)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> Fragments: ...
    def __getitem__(self, index: int | slice) -> Fragment | Fragments:
        return Fragments(self._all[index]) if isinstance(index, slice) else self._all[index]

    def __add__(self, other: Iterable[Fragment]) -> Fragments:
        return Fragments((*self._all, *other))

    def __repr__(self) -> str:
        lines = [f"{len(self)} fragments"]
        lines += [f"  {f!s:40} {f.flops:12.4g} flops {f.bytes:12.4g} bytes" for f in self]
        return "\n".join(lines)


def reader(module: Module) -> Callable[[FragmentOp, int], Fragment]:
    """Return what makes a `Fragment` of a fragment op of `@main` and its place."""
    topology = module.main.topology
    assert topology is not None
    number = {name: i for i, name in enumerate(topology.meshes)}
    staged = {name: i for i, name in enumerate(schedulable_meshes(topology))}
    symbols = mesh_symbols(module)

    @functools.cache
    def size(type: Any) -> float:
        return byte_size(type, symbols) if isinstance(type, MeshTensorType) else 0.0

    def read(op: FragmentOp, index: int) -> Fragment:
        return Fragment(
            FragmentInfo.of(op),
            fragment_action(op, number[op.mesh]).kind,
            flops(op.body, module),
            sum(size(v.type) for v in (*dict.fromkeys(op.operands), *op.results)),
            index,
            staged.get(op.mesh),
            len(staged),
        )

    return read


def fragments_of(module: Module) -> Fragments:
    """Return the named fragments of a module after the import phase."""
    read = reader(module)
    return Fragments(read(op, i) for i, op in enumerate(module.main.body) if isinstance(op, FragmentOp) and op.is_user)
