"""A schedule: an ordered list of actions per mesh, and where each stage lives."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from mpmd_trace.schedules._actions import Action, Fused, Kind, Step, parse_action
from mpmd_trace.schedules._errors import Problem, ScheduleError, counted
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._html import orders_html

_COMMENT = re.compile(r"#\s*(ring|edges|only):\s*([\d\s-]+)")

PlacementKind: TypeAlias = Literal["loop", "v", "custom"]


@dataclass(frozen=True)
class Placement:
    """The mesh of each stage: `mesh_of[stage]`."""

    meshes: int
    mesh_of: tuple[int, ...]

    @classmethod
    def loop(cls, meshes: int, chunks: int = 1) -> Placement:
        """Stage `s` on mesh `s mod meshes`: 0 1 2 3 0 1 2 3."""
        return cls(meshes, tuple(s % meshes for s in range(meshes * chunks)))

    @classmethod
    def v(cls, meshes: int, chunks: int = 2) -> Placement:
        """Down and up again: 0 1 2 3 3 2 1 0. The first and the last stage share a mesh."""
        down = tuple(range(meshes))
        rows = [down if c % 2 == 0 else down[::-1] for c in range(chunks)]
        return cls(meshes, tuple(m for row in rows for m in row))

    @classmethod
    def of(cls, mesh_of: Iterable[int], meshes: int | None = None) -> Placement:
        """Any table of meshes, one per stage."""
        table = tuple(mesh_of)
        return cls(max(table, default=-1) + 1 if meshes is None else meshes, table)

    @property
    def kind(self) -> PlacementKind:
        """The kind of placement: `loop`, `v`, or `custom` for anything else."""
        chunks, rest = divmod(len(self.mesh_of), max(self.meshes, 1))
        if rest == 0 and chunks:
            if self.mesh_of == Placement.loop(self.meshes, chunks).mesh_of:
                return "loop"
            if self.mesh_of == Placement.v(self.meshes, chunks).mesh_of:
                return "v"
        return "custom"

    @cached_property
    def stages_on(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each mesh, ascending."""
        rows: list[list[int]] = [[] for _ in range(self.meshes)]
        for stage, mesh in enumerate(self.mesh_of):
            if 0 <= mesh < self.meshes:
                rows[mesh].append(stage)
        return tuple(tuple(row) for row in rows)


@dataclass(frozen=True)
class Schedule:
    """The actions of each mesh, in order; nothing about time.

    `only` restricts a stage to some microbatches (a schedule with two directions runs half of
    them through each chain). `model_stage` names the part of the model a stage computes, for
    schedules that hold a part twice. `forward_only` schedules have no backward passes.
    """

    name: str
    orders: tuple[tuple[Step, ...], ...]
    placement: Placement
    microbatches: int
    graph: StageGraph
    forward_only: bool = False
    only: tuple[range, ...] | None = None
    model_stage: tuple[int, ...] | None = None

    def _repr_html_(self) -> str:
        return orders_html(self.title, self.orders)

    @property
    def title(self) -> str:
        """The name and the size: `1f1b: 4 meshes, 4 stages, 8 microbatches`."""
        sizes = ((self.meshes, "mesh"), (self.stages, "stage"), (self.microbatches, "microbatch"))
        return f"{self.name}: {', '.join(counted(*size) for size in sizes)}"

    @property
    def meshes(self) -> int:
        """The number of meshes."""
        return self.placement.meshes

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.placement.mesh_of)

    def microbatches_of(self, stage: int) -> range:
        """Return the microbatches that run through a stage."""
        return range(self.microbatches) if self.only is None else self.only[stage]

    @cached_property
    def chunks_of(self) -> tuple[float, ...]:
        """For each mesh, the number of its stages that one microbatch visits (V in the papers)."""
        return tuple(
            sum(len(self.microbatches_of(s)) for s in stages) / max(self.microbatches, 1)
            for stages in self.placement.stages_on
        )

    @cached_property
    def splits_backward(self) -> bool:
        """True if some backward pass is split in input- and weight-gradient."""
        return any(a.kind == "W" for _, _, a in self.actions())

    @cached_property
    def has_blocks(self) -> bool:
        """True if some actions run as one block."""
        return any(len(step.parts) > 1 for order in self.orders for step in order)

    @cached_property
    def reverse_backward(self) -> bool:
        """True if some stage runs the backward pass of its last microbatch before that of its first."""
        seen: set[tuple[int, int]] = set()
        for _, _, action in self.actions():
            if action.kind in "BW":
                own = self.microbatches_of(action.stage)
                if action.microbatch == own[-1] and len(own) > 1 and (action.stage, own[0]) not in seen:
                    return True
                seen.add((action.stage, action.microbatch))
        return False

    def actions(self) -> Iterator[tuple[int, int, Action]]:
        """Yield every plain action with its (row, column); the parts of a fused one share a column."""
        for row, order in enumerate(self.orders):
            for column, step in enumerate(order):
                for part in step.parts:
                    yield row, column, part

    def total_order(self, mesh: int) -> list[tuple[int, Kind, int]]:
        """Return the order of one mesh as plain `(stage, kind, microbatch)`; fused parts in sequence."""
        return [(a.stage, a.kind, a.microbatch) for step in self.orders[mesh] for a in step.parts]

    def texts(self) -> list[list[str]]:
        """Return the orders as text, one list per mesh."""
        return [[str(step) for step in order] for order in self.orders]

    def __len__(self) -> int:
        return sum(len(order) for order in self.orders)

    def with_graph(self, graph: StageGraph) -> Schedule:
        """Return the same orders, with another data flow between the stages."""
        if len(graph) != self.stages:
            raise ScheduleError.of("graph", f"the graph has {len(graph)} stages, the schedule {self.stages}")
        return replace(self, graph=graph)

    def with_optimizer(self) -> Schedule:
        """Return the same schedule with an optimizer step of each stage after its last backward."""
        orders: list[tuple[Step, ...]] = []
        for order in self.orders:
            last = {part.stage: column for column, step in enumerate(order) for part in step.parts}
            row: list[Step] = []
            for column, step in enumerate(order):
                row.append(step)
                row += [Action(stage, "O") for stage in sorted(last) if last[stage] == column]
            orders.append(tuple(row))
        return replace(self, orders=tuple(orders))

    def without(self, microbatches: int) -> Schedule | None:
        """Return the schedule with so many microbatches less of those that it treats alike; None if these are fewer.

        It treats them alike where each mesh does the same again and again, for some microbatches more each time.
        """
        orders = [_without(row, microbatches) for row in self.orders]
        if self.only is not None or None in orders:
            return None
        return replace(self, orders=tuple(filter(None, orders)), microbatches=self.microbatches - microbatches)

    def unfused(self) -> Schedule:
        """Return the same schedule with each fused block as its parts, one after the other."""
        orders = tuple(tuple(p for step in order for p in step.parts) for order in self.orders)
        return replace(self, orders=orders)

    def to_csv(self) -> str:
        """One line per mesh, actions separated by commas.

        What the lists do not tell is written as comments in front: a data flow that is not a
        chain, and stages that do not run all microbatches.
        """
        head = ""
        if self.graph.entry is not None:
            head += f"# ring: {' '.join(map(str, self.graph.entry))}\n"
        elif not self.graph.is_chain:
            edges = [f"{p}-{s}" for s, feeds in enumerate(self.graph.feeds) for p in feeds]
            head += f"# edges: {' '.join(edges)}\n"
        if self.only is not None:
            head += f"# only: {' '.join(f'{r.start}-{r.stop - 1}' for r in self.only)}\n"
        return head + "".join(",".join(row) + "\n" for row in self.texts())


def _without(row: Sequence[Step], fewer: int) -> tuple[Step, ...] | None:
    """Return what a mesh does with so many microbatches less, leaving out what it does again and again.

    None if something else may be taken for what is left out, as where a mesh does the same again and again twice.
    """
    for step, length, start, end in _repeated(row, fewer):
        cut = length * (fewer // step)
        if end - start < cut + 2 * length:
            continue
        few = (*row[:start], *(_later(one, -fewer) for one in row[start + cut :]))
        for step, length, start, end in _repeated(few, fewer):
            if end - start >= 3 * length:
                copies = [_later(one, i) for i in range(step, fewer + 1, step) for one in few[end - length : end]]
                if (*few[:end], *copies, *(_later(one, fewer) for one in few[end:])) != tuple(row):
                    return None
        return few
    return None


def _repeated(row: Sequence[Step], fewer: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield what a mesh does again and again, all that it does, for each of the steps by which `fewer` can be left out.

    Each is how many microbatches more it is for each time, how long it takes once, where it begins, and where it ends.
    """
    place = {action: i for i, action in enumerate(row)}
    passes = [sum(part.kind in "FBW" for part in action.parts) for action in row]  # an "I" has a "W"
    microbatches, total = 1 + max((part.microbatch for action in row for part in action.parts), default=0), sum(passes)
    for step in [step for step in range(1, fewer + 1) if fewer % step == 0]:
        lengths = [place.get(_later(action, step), i) - i for i, action in enumerate(row)]
        for length, run in itertools.groupby(range(len(row)), lengths.__getitem__):
            start, *_ = places = list(run)
            if total * step == sum(passes[start : start + length]) * microbatches:
                yield step, length, start, places[-1] + 1 + length


def _later(step: Step, microbatches: int) -> Step:
    """Return the same for a later microbatch, or for an earlier one."""
    if isinstance(step, Fused):
        return Fused(tuple(replace(part, microbatch=part.microbatch + microbatches) for part in step.parts))
    return Action(step.stage, step.kind, step.microbatch + microbatches)


def contiguous_stages(schedule: Schedule, per_stage: int) -> Schedule:
    """Replace each stage by `per_stage` consecutive stages on the same mesh, run one after the other.

    Stage s turns into stages s*n to s*n+n-1, in that order forwards and in reverse backwards.
    """
    if per_stage < 1:
        raise ScheduleError("a stage is made of at least one stage")
    if schedule.graph.entry is not None:
        raise ScheduleError("a pipeline that wraps around has one stage per mesh")

    def spread(step: Step) -> Iterator[Step]:
        for part in step.parts:
            inner = range(part.stage * per_stage, (part.stage + 1) * per_stage)
            for stage in inner if part.kind in ("F", "O") else reversed(inner):
                yield Action(stage, part.kind, part.microbatch)

    feeds: list[tuple[int, ...]] = []
    for stage in range(schedule.stages):
        first = tuple(p * per_stage + per_stage - 1 for p in schedule.graph.feeds[stage])
        feeds.append(first)
        feeds += [(stage * per_stage + k,) for k in range(per_stage - 1)]
    return replace(
        schedule,
        orders=tuple(tuple(a for step in order for a in spread(step)) for order in schedule.orders),
        placement=Placement.of((m for m in schedule.placement.mesh_of for _ in range(per_stage)), schedule.meshes),
        graph=StageGraph(tuple(feeds)),
        only=None if schedule.only is None else tuple(r for r in schedule.only for _ in range(per_stage)),
        model_stage=None
        if schedule.model_stage is None
        else tuple(s * per_stage + k for s in schedule.model_stage for k in range(per_stage)),
    )


def from_orders(
    orders: Iterable[Iterable[Step | str]],
    *,
    name: str = "custom",
    placement: Placement | None = None,
    microbatches: int | None = None,
    graph: StageGraph | None = None,
    forward_only: bool | None = None,
) -> Schedule:
    """Build a schedule from lists of actions (or their text), one per mesh.

    What is not given is inferred from the lists: a stage is on the first mesh that mentions it,
    stages form a chain, and a schedule without any backward action is an inference schedule.
    Nothing is checked here; `check` does that.
    """
    rows = [[_step(step, r, c) for c, step in enumerate(order)] for r, order in enumerate(orders)]
    plain = [(r, a) for r, row in enumerate(rows) for step in row for a in step.parts]
    if not plain:
        raise ScheduleError("the table holds no actions")
    if placement is None:
        home: dict[int, int] = {}
        for r, action in plain:
            home.setdefault(action.stage, r)
        _without_gaps("stage", home)
        placement = Placement.of((home[s] for s in range(len(home))), len(rows))
    if microbatches is None:
        microbatches = max(a.microbatch for _, a in plain) + 1
        if microbatches > len(plain):  # some have no action at all; `check` reports what others lack
            _without_gaps("microbatch", {a.microbatch for _, a in plain})
    if forward_only is None:
        forward_only = all(a.kind == "F" for _, a in plain)
    return make(name, rows, placement, microbatches, graph=graph, forward_only=forward_only)


def _step(step: Step | str, row: int, column: int) -> Step:
    """Return the action in a cell, which may be text."""
    if isinstance(step, (Action, Fused)):
        return step
    if isinstance(step, str):
        try:
            return parse_action(step)
        except ScheduleError as error:
            problem = replace(error.problems[0], row=row, column=column)
    else:
        problem = Problem("text", f"{step!r} is not an action; write forward(2, 0) or '2F0'", row, column)
    raise ScheduleError(str(problem), [problem])


def _without_gaps(what: str, used: Collection[int]) -> None:
    """Refuses numbers that leave out others; a mistyped number would leave out millions."""
    last = max(used)
    absent = list(itertools.islice((n for n in range(last) if n not in used), 11))
    if absent:
        more = ", ..." if len(absent) > 10 else ""
        plural = f"{what}{'es' if what.endswith('h') else 's'}" if len(absent) > 1 else what
        raise ScheduleError.of(
            "missing",
            f"{plural} {', '.join(map(str, absent[:10]))}{more} {'have' if len(absent) > 1 else 'has'} "
            f"no action, but {what} {last} does",
        )


def load_csv(
    source: str | Path,
    *,
    placement: Placement | None = None,
    microbatches: int | None = None,
    graph: StageGraph | None = None,
    name: str | None = None,
) -> Schedule:
    """Load a schedule from a table: one line per mesh, actions such as `2F0` separated by commas.

    `source` is a path, or the text itself when it contains a line break. Empty cells are idle
    slots and are skipped; lines that start with # are comments.
    """
    if isinstance(source, Path) or "\n" not in source:
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a mark in front
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise ScheduleError(f"cannot read schedule table {path}: {reason}") from None
        name = name or path.stem
    else:
        text = source
    rows = [
        [_cell(cell.strip(), line, n) for n, cell in enumerate(next(csv.reader([row]), ()), 1) if cell.strip()]
        for line, row in enumerate(text.splitlines(), 1)
        if not row.lstrip().startswith("#")
    ]
    while rows and not rows[-1]:
        rows.pop()
    schedule = from_orders(rows, name=name or "csv", placement=placement, microbatches=microbatches, graph=graph)
    return _with_comments(schedule, text, graph is None)


def _cell(text: str, line: int, column: int) -> Step:
    """Return the action in a cell of a table, whose lines and columns count from 1, as in editors."""
    try:
        return parse_action(text)
    except ScheduleError as error:
        (problem,) = error.problems
        raise ScheduleError.of("text", f"line {line}, column {column}: {problem}") from None


def _with_comments(schedule: Schedule, text: str, graph_too: bool) -> Schedule:
    """Apply what `to_csv` wrote as comments; other comments mean nothing."""
    for line in text.splitlines():
        match = _COMMENT.fullmatch(line.strip())
        if match is None:
            continue
        what, rest = match.group(1), match.group(2).split()
        try:
            if what == "ring" and graph_too:
                graph = StageGraph.ring(schedule.stages, [int(v) for v in rest])
                schedule = schedule.with_graph(graph)
            elif what == "edges" and graph_too:
                pairs = [tuple(map(int, v.split("-"))) for v in rest]
                graph = StageGraph.from_edges(schedule.stages, [(a, b) for a, b in pairs])
                schedule = schedule.with_graph(graph)
            elif what == "only":
                ends = [tuple(map(int, v.split("-"))) for v in rest]
                if len(ends) != schedule.stages:
                    raise ValueError("one range per stage")
                schedule = replace(schedule, only=tuple(range(a, b + 1) for a, b in ends))
        except ValueError as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError.of("text", f"cannot read the comment '{line.strip()}'") from None
    return schedule


def save_csv(schedule: Schedule, path: str | Path) -> None:
    """Write the table that `load_csv` reads."""
    Path(path).write_text(schedule.to_csv(), encoding="utf-8")


def make(
    name: str,
    orders: Sequence[Sequence[Step]],
    placement: Placement,
    microbatches: int,
    *,
    graph: StageGraph | None = None,
    forward_only: bool = False,
    only: tuple[range, ...] | None = None,
    model_stage: tuple[int, ...] | None = None,
) -> Schedule:
    """Return a schedule from a generator's lists; stages form a chain unless `graph` is given."""
    return Schedule(
        name,
        tuple(tuple(order) for order in orders),
        placement,
        microbatches,
        StageGraph.chain(len(placement.mesh_of)) if graph is None else graph,
        forward_only,
        only,
        model_stage,
    )
