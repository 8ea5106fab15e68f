"""The library: every schedule by name, with its other names and what it asks for."""

from __future__ import annotations

import difflib
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from mpmd_trace.schedules._check import validate
from mpmd_trace.schedules._costs import Costs
from mpmd_trace.schedules._errors import ScheduleError, ScheduleWarning
from mpmd_trace.schedules._gpipe_1f1b import one_f_one_b
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._memory import MemoryLimit
from mpmd_trace.schedules._schedule import Schedule, contiguous_stages
from mpmd_trace.schedules._simulate import simulate
from mpmd_trace.schedules._zero_bubble import h2_warm_up


@dataclass(frozen=True)
class Entry:
    """A schedule of the library.

    `options` are the keyword arguments beside meshes and microbatches: `chunks`, `group_size`,
    `costs`, `memory_limit`, `weight_fraction`.
    """

    name: str
    summary: str
    source: str
    function: str
    aliases: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    placement: str = "one stage per mesh"
    needs: str = ""
    forward_only: bool = False

    def generator(self) -> Callable[..., Schedule]:
        """Return the function that makes the schedule; its module is imported now, not before."""
        module, function = self.function.split(":")
        made = getattr(import_module(f"mpmd_trace.schedules.{module}"), function)
        return partial(made, **dict(self.fixed)) if self.fixed else made

    @property
    def flow(self) -> str:
        """The order of several stages on a mesh: "loop", "v" (back again), or "no" where there are none."""
        return "loop" if "chunks" in self.options else "v" if self.placement.endswith("in a V") else "no"


_INTERLEAVED = ("chunks", "group_size")
_LOOP = "V chunks per mesh, in a loop"
_V = "2 chunks per mesh, in a V"
_TWO_WAYS = "2 chains in opposite directions, parameters twice"
_ZB = "arXiv 2401.10241"
_AUTO = ("costs", "memory_limit", "weight_fraction")

# fmt: off
ENTRIES: tuple[Entry, ...] = (
    Entry("none", "program order: one microbatch after the other", "", "_gpipe_1f1b:program_order"),
    Entry("gpipe", "all forwards, then all backwards", "arXiv 1811.06965", "_gpipe_1f1b:gpipe"),
    Entry("1f1b", "one forward, one backward; memory bounded by the number of meshes",
          "arXiv 2104.04473", "_gpipe_1f1b:one_f_one_b", ("one-f-one-b", "dapple")),
    Entry("eager-1f1b", "1F1B with twice the warm-up: hides transfers", "JaxPP",
          "_gpipe_1f1b:eager_one_f_one_b"),
    Entry("gpipe-but-1f1b-for-last-mesh", "GPipe, but the last mesh starts each backward at once",
          "Shardy MPMD", "_gpipe_1f1b:gpipe_but_1f1b_for_last_mesh"),
    Entry("interleaved-1f1b", "1F1B over several chunks per mesh, depth first",
          "arXiv 2104.04473", "_interleaved:interleaved_1f1b", ("interleaved",),
          _INTERLEAVED, placement=_LOOP),
    Entry("kimi-k2", "interleaved 1F1B with one more warm-up forward", "JaxPP, Megatron-LM",
          "_interleaved:kimi_k2", ("kimi",), _INTERLEAVED, placement=_LOOP),
    Entry("looped-bfs", "breadth first: every microbatch through a chunk, then the next chunk",
          "arXiv 2211.05953", "_interleaved:looped_bfs", ("bfs", "interleaved-gpipe"),
          ("chunks",), placement=_LOOP),
    Entry("circular", "groups of P microbatches through all chunks; backwards in the same groups",
          "Shardy MPMD", "_interleaved:circular", (), ("chunks",), placement=_LOOP),
    Entry("circular-with-reversed-backward", "circular, backwards in reverse order",
          "Shardy MPMD", "_interleaved:circular_with_reversed_backward", (),
          ("chunks",), placement=_LOOP),
    Entry("zb-h1", "1F1B's memory, a third of its bubble", _ZB, "_zero_bubble:zb_h1",
          ("zero-bubble-h1", "zero-bubble", "zb1p")),
    Entry("zb-h2", "no bubble in the span, twice the memory of 1F1B", _ZB, "_zero_bubble:zb_h2",
          ("zero-bubble-h2-zero-tx-latency", "zero-bubble-h2"), needs="M >= 2P-1"),
    Entry("zb-h2-half-latency", "ZB-H2 for transfers that take half a stage time", "Shardy MPMD",
          "_zero_bubble:zb_h2", ("zero-bubble-h2-half-tx-latency",),
          fixed=(("transfer_ratio", 0.5),), needs="M >= 3P-2"),
    Entry("zb-h2-full-latency", "ZB-H2 for transfers that take a whole stage time", "Shardy MPMD",
          "_zero_bubble:zb_h2", ("zero-bubble-h2-full-tx-latency",),
          fixed=(("transfer_ratio", 1.0),), needs="M >= 4P-3"),
    Entry("interleaved-zero-bubble", "interleaved 1F1B with split backwards, half the warm-up",
          "torch", "_interleaved:interleaved_zero_bubble", ("interleaved-zb",),
          _INTERLEAVED, placement=_LOOP),
    Entry("zb-v", "no bubble in the span at F = I = W, memory of 1F1B", "arXiv 2405.15362",
          "_zero_bubble:zb_v", ("zbv", "zbv-zero-bubble", "zero-bubble-v"),
          placement=_V, needs="M >= 2P-1"),
    Entry("v-half", "half of 1F1B's memory; at F = I = W about half of its bubble, but it can exceed 1F1B's",
          "arXiv 2405.15362", "_vshape:v_half", (), ("memory_limit",), placement=_V),
    Entry("v-min", "a third of 1F1B's memory; at F = I = W two thirds of its bubble, but it can exceed 1F1B's",
          "arXiv 2405.15362", "_vshape:v_min", (), (), placement=_V),
    Entry("dualpipe", "two directions at once; forward and backward of a mesh overlap",
          "DeepSeek DualPipe", "_dualpipe:dualpipe", ("dual-pipe",),
          placement=_TWO_WAYS,
          needs="P and M even, M >= 2P"),
    Entry("dualpipe-v", "DualPipe with one chain folded into a V", "DeepSeek DualPipe",
          "_dualpipe:dualpipe_v", ("dual-pipe-v",), placement=_V, needs="M >= 2P"),
    Entry("parallel-pipelines-with-wrap-around",
          "inference on a ring: microbatch k starts on mesh k", "Shardy MPMD",
          "_gpipe_1f1b:parallel_pipelines_with_wrap_around", ("wrap-around",), forward_only=True),
    Entry("forward", "inference: no mesh waits while a stage is ready, the latest first",
          "list scheduling", "_list_scheduling:forward_only", ("inference", "forward-only"),
          ("chunks",), placement="stages anywhere; chunks in a loop", forward_only=True),
    Entry("zb-auto", "the best zero-bubble schedule for given costs under a memory limit",
          _ZB, "_dispatch:zb_auto", ("zero-bubble-auto", "zb-greedy"), _AUTO),
)
# fmt: on


MAX_PAIRS = 2_000_000
"""Forwards of the largest schedule that is made: what fits in memory and in a few minutes."""


def canonical(name: str) -> str:
    """Return a name without case, spaces, dashes and underscores."""
    return "".join(c for c in name.lower() if c.isalnum())


_BY_NAME: Mapping[str, Entry] = {canonical(n): entry for entry in ENTRIES for n in (entry.name, *entry.aliases)}


def find_entry(name: str) -> Entry:
    """Return the entry of a name, ours or the reference's, in any case; else the nearest names."""
    if not isinstance(name, str):
        raise ScheduleError.of("name", f"a schedule of the library has a name, such as '1f1b'; got {name!r}")
    entry = _BY_NAME.get(canonical(name))
    if entry is None:
        near = difflib.get_close_matches(canonical(name), _BY_NAME, n=4, cutoff=0.5)
        names = list(dict.fromkeys(_BY_NAME[n].name for n in near))[:3]
        hint = f"did you mean {' or '.join(names)}?" if names else ("known are " + ", ".join(e.name for e in ENTRIES))
        raise ScheduleError.of("name", f"unknown schedule '{name}'", hint=hint)
    return entry


def schedule_names() -> list[str]:
    """Return our names of all schedules, in the order of the library."""
    return [entry.name for entry in ENTRIES]


def get_schedule(
    name: str,
    meshes: int,
    microbatches: int,
    *,
    chunks: int | None = None,
    group_size: int | None = None,
    costs: Costs | None = None,
    memory_limit: MemoryLimit | None = None,
    weight_fraction: float | None = None,
    graph: StageGraph | None = None,
    stages_per_chunk: int = 1,
    guard: bool = True,
    check: bool = True,
) -> Schedule:
    """Return the schedule of that name, checked unless `check` is off.

    Options that a schedule does not use must be left out, except `costs`, `memory_limit` and
    `weight_fraction`, which only zb-auto reads. `graph` is another data flow between the stages;
    `stages_per_chunk` replaces each stage by that many consecutive stages. With `guard`, a schedule
    that degenerates (too few microbatches) gives a `ScheduleWarning` with simulated times.
    """
    entry = find_entry(name)
    meshes, microbatches = whole("number of meshes", meshes), whole("number of microbatches", microbatches)
    chunks = None if chunks is None else whole("number of chunks", chunks)
    group_size = None if group_size is None else whole("group size", group_size)
    if meshes * microbatches * (chunks or 1) > MAX_PAIRS:
        raise ScheduleError.of(
            "range",
            f"{meshes} meshes x {microbatches} microbatches x {chunks or 1} chunks is more than "
            f"this library handles ({MAX_PAIRS} forwards)",
        )
    given: dict[str, Any] = {
        "chunks": chunks,
        "group_size": group_size,
        "costs": costs,
        "memory_limit": memory_limit,
        "weight_fraction": weight_fraction,
    }
    own = {_V: (2,), _TWO_WAYS: (1, 2)}.get(entry.placement, (1,))
    if chunks is not None and "chunks" not in entry.options and chunks not in own:
        message = f"schedule '{entry.name}' has {entry.placement}; chunks={chunks} does not fit it"
        raise ScheduleError.of("range", message)
    if group_size is not None and "group_size" not in entry.options:
        users = ", ".join(e.name for e in ENTRIES if "group_size" in e.options)
        message = f"schedule '{entry.name}' has no group size; those that have are {users}"
        raise ScheduleError.of("range", message)
    options = {k: v for k, v in given.items() if v is not None and k in entry.options}
    schedule = entry.generator()(meshes, microbatches, **options)
    if stages_per_chunk != 1:
        schedule = contiguous_stages(schedule, stages_per_chunk)
    if graph is not None:
        schedule = schedule.with_graph(graph)
    if check:
        validate(schedule)
    if guard:
        _warn_of_degenerate(entry, schedule, costs)
    return schedule


def _warn_of_degenerate(entry: Entry, schedule: Schedule, costs: Costs | None) -> None:
    """Warn of a schedule that is no longer what its name promises, with its simulated time and that of 1F1B."""
    meshes, wanted = schedule.meshes, 0
    if entry.function == "_zero_bubble:zb_h2":
        wanted = h2_warm_up(meshes, 0, dict(entry.fixed).get("transfer_ratio", 0.0))
    elif entry.name == "zb-v":
        wanted = 2 * meshes - 1
    if schedule.microbatches >= wanted or meshes == 1:
        return
    # Per-stage costs need not fit 1F1B on the same meshes, so unit costs stand in for them.
    costs = None if costs is not None and _per_stage(costs) else costs
    here = simulate(schedule, costs)
    plain = simulate(one_f_one_b(meshes, schedule.microbatches), costs)
    unit = "at unit costs" if costs is None else "at the given costs"
    warnings.warn(
        f"{entry.name} on {meshes} meshes is made for {wanted} microbatches or more; with "
        f"{schedule.microbatches} it degenerates. Simulated {unit}: {entry.name} takes "
        f"{here.makespan:g} (span {here.span:g}, of which {here.bubble_span:g} bubble), 1f1b takes "
        f"{plain.makespan:g} (span {plain.span:g}, of which {plain.bubble_span:g} bubble)",
        ScheduleWarning,
        stacklevel=3,
    )


def _per_stage(costs: Costs) -> bool:
    values = (costs.forward, costs.input_grad, costs.weight_grad, costs.backward)
    return any(isinstance(v, tuple) for v in values) or not isinstance(costs.latency, (int, float))


def whole(what: str, value: Any) -> int:
    """Return a whole number from 1 on, of Python or of numpy."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        shown = value if isinstance(value, (int, float)) else repr(value)
        whole = "" if isinstance(value, int) else " whole number,"
        raise ScheduleError.of("range", f"the {what} is {shown}; it must be{' a' + whole if whole else ''} 1 or more")
    return number


def orders(name: str, meshes: int, microbatches: int, **options: Any) -> list[list[tuple[int, str, int]]]:
    """Return the total order of each mesh as plain `(stage, kind, microbatch)` tuples."""
    schedule = get_schedule(name, meshes, microbatches, **options)
    return [[*schedule.total_order(mesh)] for mesh in range(schedule.meshes)]
