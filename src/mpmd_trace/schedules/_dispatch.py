"""Zero-bubble schedules by dispatching: whatever is ready runs, weight gradients fill gaps.

How many forwards come before the first backward of each mesh, which decides most of the bubble, follows from a time to
reach (`Chain.forwards_first`). After that a few settings decide what goes first. Some are tried, and those of single
meshes are changed as long as it helps; what counts is the time after justification. Local search improves the best.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, heapreplace

from mpmd_trace.schedules._actions import Action, Fused, Kind, Step
from mpmd_trace.schedules._costs import Costs
from mpmd_trace.schedules._justify import Project
from mpmd_trace.schedules._local_search import PARTS, LocalSearch
from mpmd_trace.schedules._lower_bounds import Chain
from mpmd_trace.schedules._memory import MemoryLimit, limits_of
from mpmd_trace.schedules._result import Measure
from mpmd_trace.schedules._schedule import Placement, Schedule, make
from mpmd_trace.schedules._simulate import simulate
from mpmd_trace.schedules._zero_bubble import zb_h1_within

_TINY = 1e-9
_NEVER = math.inf

KINDS_IN_ROWS: tuple[Kind, ...] = ("F", "I", "W")
"""What the numbers in a row stand for; the microbatches of each count up."""

TARGETS = ((1.0, 0.8), (1.01, 0.7), (1.003, 1.0), (1.0, 1.0), (1.02, 0.9))
"""The times to reach, as multiples of the bound, and how many forwards there are before the first backward, as parts
of those that do not delay it."""

NEEDS = ((1.0, 0.75), (1.02, 0.7), (1.02, 0.8), (1.0, 0.65))
"""The same for settings that use no more memory than a multiple of what keeps all meshes busy."""

MULTIPLES = (1.75, 2.2)
"""How many times the microbatches between forward and backward that would do if nothing ever waited."""

ACTIONS_TO_PLACE = 12_000_000
"""How many actions all attempts together place at most: a quarter of a minute."""

PATIENCE = 100
"""How many attempts that do not help end the search, as a multiple of the number of actions."""

AUTO_WEIGHT_FRACTION = 0.5
"""What zb-auto assumes a weight-gradient keeps of the activations.

32/(34 + 5as/h) is 0.37 and 0.43 for the two smaller models of the paper; any value between 0.2
and 0.5 gives the same costs for them.
"""

AUTO_EFFORT = 200_000
"""How many actions `zb_auto` places: less than a second."""

SLOWEST_FIRST = 0.5
"""How often it is the slowest mesh whose settings are changed."""

BLOCKS = ((1.0, 1.0), (1.0, 0.0), (0.5, 1.0), (0.0, 1.0), (0.0, 0.0))
"""The parts of input gradients and of forwards that run in blocks, to begin with, where blocks hide collectives."""

BLOCK_TARGETS = ((1.0, 1.0), (1.0, 0.8), (1.01, 0.7), (1.02, 0.9))
"""`TARGETS` where blocks hide collectives: what runs before the first backward is in no block."""

BLOCK_MULTIPLES = (0.0, 2.0, 2.5, 1.5, 3.0)
"""`MULTIPLES` where blocks, which take longer, delay each microbatch; 0 stands for no more than the first forwards."""

THRESHOLDS = 8
"""At most how many orders with lagging weight gradients there are; they differ in which meshes have blocks."""

LAGGING = 2
"""About how many runs take as long as playing one of them."""

DISPATCHED = ((1_000_000, 0.5), (math.inf, 0.3))
"""The part of the time that goes to runs, for up to so many actions; the rest goes to local search."""

FEWEST = 5
"""How many runs come before any local search, if there is time: of large problems, the first ones differ most."""

SWEEP = 6
"""About how many runs take as long as one sweep of local search."""

SWEEPS = 2
"""How many sweeps come before orders are justified again."""

PASSES = 3
"""About how many runs take as long as one that is justified."""

UNCHANGED = 0.5
"""How much of the time goes to settings to begin with; the rest, to changes of the best of them."""

RISE = 0.25
"""By how many microbatches the number between forward and backward rises with each of the last forwards."""


@dataclass(frozen=True)
class Settings:
    """What each mesh prefers.

    - `first`: forwards before the first backward;
    - `most`: microbatches between their forward and their backward, later on;
    - `last`: what `most` falls to by the end, so that backwards do not wait then;
    - `rise`: as many there are to be at the last forward, for their input gradients to fill the time until its own is
      there; so the last forwards go before backwards that are ready, and weight gradients make room for them;
    - `eager`: with fewer of them, a forward goes before a backward that is ready, too;
    - `gap`: the shortest gap, as a part of a weight gradient, that one fills although it is longer;
    - `spare`: how long a mesh may be idle in all before it fills gaps that are too short;
    - `joined`: the part of the input gradients that run in a block with a forward, if both are ready;
    - `covered`: the part of the other forwards that run in a block with a weight gradient, if one waits.
    """

    first: tuple[int, ...]
    most: tuple[int, ...]
    last: tuple[int, ...]
    rise: tuple[int, ...]
    eager: tuple[int, ...]
    gap: tuple[float, ...]
    spare: tuple[float, ...]
    joined: tuple[float, ...]
    covered: tuple[float, ...]


@dataclass(frozen=True)
class Dispatched:
    """The orders that some settings give, by mesh and all in one; the time that they take; and the slowest mesh."""

    settings: Settings
    rows: list[bytearray]
    order: list[int]
    time: float
    slowest: int


def actions_of(rows: Sequence[bytearray]) -> list[list[Step]]:
    """Return the actions of each mesh."""
    orders: list[list[Step]] = []
    for mesh, row in enumerate(rows):
        microbatches = [itertools.count() for _ in KINDS_IN_ROWS]
        steps = [[Action(mesh, KINDS_IN_ROWS[kind], next(microbatches[kind])) for kind in PARTS[code]] for code in row]
        orders.append([Fused(tuple(parts)) if len(parts) > 1 else parts[0] for parts in steps])
    return orders


def dispatch(
    chain: Chain, bound: float, actions: int = ACTIONS_TO_PLACE, others: Sequence[Sequence[bytearray]] = ()
) -> list[bytearray] | None:
    """Return the best orders of the meshes, as codes of `KINDS_IN_ROWS`; None if no settings come to an end.

    `others` are orders that keep to the limits, which may be the best when they are justified.
    """
    runs = actions // max(1, 3 * chain.meshes * chain.count)
    passes = 1 if chain.has_blocks else PASSES
    share = next(share for most, share in DISPATCHED if actions <= most)
    attempts = max(2, min(FEWEST, runs // passes), int(runs * share) // passes)
    enough = bound * (1 + 1e-9)
    project = Project(chain)
    known: dict[bytes, tuple[list[bytearray], float]] = {}
    best: Dispatched | None = None
    draw = random.Random(0)
    initial = itertools.islice(_settings(chain, bound), max(1, int(attempts * UNCHANGED)))
    last_help = attempt = 0
    for attempt in range(attempts):
        if attempt - last_help > PATIENCE * project.size:
            break
        settings = next(initial, None)
        if settings is None:
            if best is None:
                break
            settings = _changed(best.settings, chain, draw, best.slowest)
        made = _dispatched(chain, settings)
        if made.time <= enough:
            return made.rows
        if made.time == _NEVER:
            continue
        key = b"".join(made.rows)
        if key not in known:
            has_blocks = _has_blocks(made.rows)
            known[key] = (made.rows, made.time) if has_blocks else project.justified(made.rows, made.order, rounds=1)
        _, time = known[key]
        better = _NEVER if best is None else round(best.time, 9) - round(time, 9)
        if better > 0.0:
            last_help = attempt
        if better >= 0.0:
            best = replace(made, time=time)
            if time <= enough:
                break
    starts = [*(project.justified(rows) for rows in others), *known.values()]
    search = LocalSearch(chain)
    lagging = [search.shortened(rows, bound, 0)[:2] for rows in _lagging(chain)]
    # If attempts end early, local search gets no more than its part of the time.
    used = (attempt + 1) * passes + len(lagging) * LAGGING
    sweeps = int(min(used * (1 / share - 1), runs - used)) // SWEEP
    starts += lagging
    return _searched(project, search, starts, bound, sweeps) if starts else None


def _searched(
    project: Project, search: LocalSearch, starts: Sequence[tuple[list[bytearray], float]], bound: float, sweeps: int
) -> list[bytearray]:
    """Return the best orders that local search finds from the fastest of `starts`, with so many sweeps in all.

    Orders without blocks are justified in turns, by what now waits for memory.
    """
    has_blocks = project.chain.has_blocks
    different = {b"".join(rows): (rows, time) for rows, time in starts}
    best, shortest = min(starts, key=lambda one: round(one[1], 9))
    for rows, time in sorted(different.values(), key=lambda one: round(one[1], 9)):
        while sweeps > 0 and shortest > bound * (1 + 1e-9):
            before = time
            rows, time, taken = search.shortened(rows, bound, sweeps if has_blocks else min(sweeps, SWEEPS))
            sweeps -= taken
            if not has_blocks:
                rows, time = project.justified(rows, rounds=1)
            if time < shortest - _TINY:
                best, shortest = rows, time
            if has_blocks or time >= before - _TINY:
                break
    return best


def _has_blocks(rows: Sequence[bytearray]) -> bool:
    return any(row and max(row) >= len(KINDS_IN_ROWS) for row in rows)


def _settings(chain: Chain, bound: float) -> Iterator[Settings]:
    """Yield the settings to begin with, those that succeed most often first."""
    kinds = [_joining(chain, bound)] if chain.has_blocks else [_sparing(chain, bound), _filling(chain, bound)]
    seen = set()
    for settings in itertools.chain.from_iterable(itertools.zip_longest(*kinds)):
        if settings is not None and settings not in seen:
            seen.add(settings)
            yield settings


def _sparing(chain: Chain, bound: float) -> Iterator[Settings]:
    """Yield settings for unequal stages and little memory, where what waits on one mesh is missing on another."""
    cycle = max(chain.work) / chain.count or 1.0
    zero, none = (0.0,) * chain.meshes, (0,) * chain.meshes

    def needed(multiple: float, more: int) -> tuple[int, ...]:
        paths = zip(chain.paths, chain.most, strict=True)
        return tuple(min(most, math.ceil(multiple * path / cycle) + more) for path, most in paths)

    starts = [
        (_first_forwards(chain, bound * slack, share), multiple) for slack, share in NEEDS for multiple in MULTIPLES
    ]
    short = tuple(0.1 * max(0.0, bound - work) for work in chain.work)
    ends = ((_rising(chain, 0.5), none), (none, needed(1.5, 1)), (_rising(chain, 1.0), none))
    gaps = ((0.2, short), (0.0, zero))
    for (first, multiple), (rise, eager), (gap, spare) in itertools.product(starts, ends, gaps):
        most = needed(multiple, 2)
        yield Settings(first, most, most, rise, eager, (gap,) * chain.meshes, spare, zero, zero)


def _first_forwards(chain: Chain, time: float, share: float) -> tuple[int, ...]:
    numbers = chain.forwards_first(time + _TINY, share=share)
    assert numbers is not None
    return _reachable(numbers)


def _rising(chain: Chain, part: float) -> tuple[int, ...]:
    """Return how many input gradients fill that part of the time between the last forward and its own, and one more."""
    paths = zip(chain.paths, chain.forward, chain.input_grad, chain.most, strict=True)
    return tuple(min(most, math.ceil(part * (path - f) / i) + 1) if i else most for path, f, i, most in paths)


def _filling(chain: Chain, bound: float) -> Iterator[Settings]:
    """Yield settings that fill the memory, or start as many forwards as there were before the first backward."""
    meshes = range(chain.meshes)
    cycle = max(chain.work) / chain.count or 1.0
    full = tuple(chain.most)
    back = [i + w for i, w in zip(chain.input_grad, chain.weight_grad, strict=True)]
    rise = _rising(chain, 1.0)
    zero = (0.0,) * chain.meshes
    for gap, (slack, share) in itertools.product((0.0, 0.3), TARGETS):
        first, none = _first_forwards(chain, bound * slack, share), (0,) * chain.meshes
        needed = tuple(min(full[s], math.ceil(chain.paths[s] / cycle) + 1) for s in meshes)
        heads = [0.0] * chain.meshes if chain.span else chain.heads
        spare = [max(0.0, bound * slack - work - head) for work, head in zip(chain.work, heads, strict=True)]
        kinds = ((first, none), (full, needed), (first, first), (full, none))
        for part, (most, eager), ends in itertools.product((0.0, 1.0), kinds, (False, True)):
            last = most
            if ends:
                last = tuple(min(m, math.ceil(chain.paths[s] / (back[s] or 1.0))) for s, m in enumerate(most))
            gaps, spares = (gap,) * chain.meshes, tuple(part * one for one in spare)
            yield Settings(first, most, last, rise if ends else none, eager, gaps, spares, zero, zero)


def _joining(chain: Chain, bound: float) -> Iterator[Settings]:
    """Yield settings for blocks of a forward and gradients."""
    cycle = max(chain.work) / chain.count or 1.0
    zero, none = (0.0,) * chain.meshes, (0,) * chain.meshes
    for gap, ends, (joined, covered) in itertools.product((0.0, 0.3), (False, True), BLOCKS):
        for multiple, (slack, share) in itertools.product(BLOCK_MULTIPLES, BLOCK_TARGETS):
            first = _first_forwards(chain, bound * slack, share)
            paths = zip(chain.paths, chain.most, strict=True)
            most = tuple(min(n, math.ceil(multiple * path / cycle) + 1) for path, n in paths) if multiple else first
            rise = _rising(chain, 1.0) if ends else none
            blocks = (joined,) * chain.meshes, (covered,) * chain.meshes
            yield Settings(first, most, most, rise, none, (gap,) * chain.meshes, zero, *blocks)


def _lagging(chain: Chain) -> Iterator[list[bytearray]]:
    """Yield orders like 1F1B whose weight gradients lag as far as memory allows, if blocks pay and it is limited.

    On the slowest meshes other than the first one, few or many, weight gradients run in blocks with forwards.
    """
    if not chain.has_blocks or not 1.0 <= min(chain.limits) < chain.count:
        return
    meshes = range(chain.meshes)
    work = [sum(times) for times in zip(chain.forward, chain.input_grad, chain.weight_grad, strict=True)]
    for least in sorted(set(work))[:: math.ceil(chain.meshes / THRESHOLDS)]:
        yield [_lagging_row(chain, s, s > 0 and work[s] >= least and chain.hides[s][1] > 0.0) for s in meshes]


def _lagging_row(chain: Chain, s: int, has_blocks: bool) -> bytearray:
    """Return the order of a mesh that has as many forwards before its first backward as there are meshes from it on."""
    count = chain.count
    first = min(chain.meshes - s, chain.most[s], count)
    lag = math.floor((chain.limits[s] - first) / chain.fraction + _TINY) if chain.fraction else count
    # In a block, the weight gradient keeps its memory until the forward ends.
    has_blocks, lag = has_blocks and lag > 0, max(0, lag - has_blocks)
    row = bytearray(first)
    for done in range(1, count + 1):
        row.append(1)
        forward, weight = first + done <= count, done > lag
        if forward and weight and has_blocks:
            row.append(4)
        else:
            row += bytes([2] * weight + [0] * forward)
    return row + bytes([2] * min(lag, count))


def _changed(settings: Settings, chain: Chain, draw: random.Random, slowest: int) -> Settings:
    """Return the settings with one of them changed on one mesh, often the slowest, or on it and all after it."""
    mesh = slowest if draw.random() < SLOWEST_FIRST else draw.randrange(chain.meshes)
    end = mesh + 1 if draw.random() < 0.6 else chain.meshes
    names = ("most", "last", "rise", "eager", "gap", "spare", "first")
    name = draw.choice((*names, "joined", "covered") if chain.has_blocks else names)
    values = list(getattr(settings, name))
    step = draw.choice((-1, 1))
    gap, factor = draw.choice((0.0, 0.15, 0.3, 0.5, 0.8, 1.0)), draw.choice((0.0, 0.5, 1.0))
    share = draw.choice((-0.5, -0.1, 0.1, 0.5)) if chain.has_blocks else 0.0
    for s in range(mesh, end):
        if name == "gap":
            values[s] = gap
        elif name in ("joined", "covered"):
            values[s] = min(1.0, max(0.0, values[s] + share))
        elif name == "spare":
            values[s] = factor * max(chain.paths) * 0.1
        else:
            values[s] = min(chain.most[s], max(0 if name in ("rise", "eager") else 1, values[s] + step))
    return replace(settings, **{name: _reachable(values) if name == "first" else tuple(values)})


def _reachable(numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of first forwards, none larger than that of the mesh before, which would wait for ever."""
    return tuple(itertools.accumulate(numbers, min))


def _dispatched(chain: Chain, settings: Settings) -> Dispatched:
    """Return the orders if each mesh, whenever it is free, starts one of the actions that are ready.

    Meshes decide in order of time. This runs most of the time of a search, so it is one loop over local variables.
    """
    meshes, count, fraction, hides = chain.meshes, chain.count, chain.fraction, chain.hides
    # When the inputs of forwards and backwards are there, as far as that is known.
    forwards, backwards = ([[_NEVER] * (count + 1) for _ in range(meshes)] for _ in range(2))
    forwards[0][:count] = [0.0] * count
    done, rows, blocks = [[0, 0, 0] for _ in forwards], [bytearray() for _ in forwards], [[0, 0] for _ in forwards]
    order: list[int] = []
    kinds = zip(chain.forward, chain.input_grad, chain.weight_grad, hides, strict=True)
    # By code, as in `PARTS`.
    durations = [(f, i, w, f + i - fi, f + w - fw, f + i + w - fiw) for f, i, w, (fi, fw, fiw) in kinds]
    limits = [limit + _TINY for limit in chain.limits]
    numbers = zip(settings.first, settings.most, settings.last, settings.rise, settings.eager, strict=True)
    of_mesh = list(zip(numbers, settings.gap, settings.spare, limits, chain.weight_grad, durations, strict=True))
    begin, end, idle, asleep = [0.0] * meshes, [0.0] * meshes, [0.0] * meshes, [True] * meshes
    # When meshes may decide; there may be several times for one, of which the first at which it is free counts.
    heap: list[tuple[float, int]] = [(0.0, 0)]
    while heap:
        now, s = heap[0]
        f, b, w = own = done[s]  # forwards, input gradients and weight gradients
        soon = now + _TINY
        if end[s] > soon or w == count:
            heappop(heap)
            continue
        (first, most, last, rise, eager), most_gap, spare, limit, weight, lasting = of_mesh[s]
        flying, forward, backward = f - b, forwards[s][f], backwards[s][b]
        rising = rise - RISE * (count - f)
        # Whether a forward may run at all, as far as the settings go; then, whether it fits into memory.
        if not b:
            wanted = f < first and f < count
            if wanted:
                backward = _NEVER  # not before all of those forwards
        elif flying < rising or last >= most:
            wanted = flying < rising or flying < most
        else:
            wanted = flying < most - (most - last) * min(1.0, b / max(1, count - last))
        fits = flying + (b - w) * fraction + 1.0 <= limit
        joins = covers = False
        if chain.has_blocks:
            joined, covered = blocks[s]
            joins = hides[s][0] > 0.0 and joined < settings.joined[s] * (b + 1)
            covers = b > w and hides[s][1] > 0.0 and covered < settings.covered[s] * (f + 1 - joined)
        # A backward goes first if one is ready and enough microbatches wait for theirs; then a forward. Until one of
        # them is ready, a weight gradient fills the gap.
        if backward <= soon:
            code = 1
            if joins and forward <= soon:
                code = 3 if fits else 2 if b > w else 1  # a weight gradient makes room
            elif wanted and forward <= soon and (flying < rising or flying < eager):
                if fits:
                    code = 4 if covers else 0
                elif b > w and flying < rising:
                    code = 2  # makes room for the forward
        elif wanted and forward <= soon and (fits or b > w):
            code = 2 if not fits else 4 if covers else 0  # 2 makes room, too
        else:
            later = forward if wanted and soon < forward < backward else backward
            gap = later - now
            short = gap < most_gap * weight or idle[s] + gap <= spare + _TINY
            if b == w or (gap + _TINY < weight and short):
                # Sleeps until something can arrive.
                asleep[s] = True
                heappop(heap)
                if later < _NEVER:
                    heappush(heap, (later, s))
                continue
            code = 2
        if f:
            idle[s] += now - end[s]
        else:
            begin[s] = now
        asleep[s] = False
        rows[s].append(code)
        if code >= len(KINDS_IN_ROWS):
            blocks[s][code - len(KINDS_IN_ROWS)] += 1
        end[s] = now = now + lasting[code]
        heapreplace(heap, (now, s))
        for kind in PARTS[code]:
            m = own[kind]
            own[kind] = m + 1
            order.append((3 * s + kind) * count + m)
            if kind == 0 and s == meshes - 1:
                backwards[s][m] = now
            elif kind == 0:
                forwards[s + 1][m] = arrival = now + chain.down[s]
                if asleep[s + 1]:
                    heappush(heap, (arrival, s + 1))
            elif kind == 1 and s:
                backwards[s - 1][m] = arrival = now + chain.up[s - 1]
                if asleep[s - 1]:
                    heappush(heap, (arrival, s - 1))
    taken = [last - start for last, start in zip(end, begin, strict=True)] if chain.span else end
    time = max(taken) if len(order) == 3 * meshes * count else _NEVER
    return Dispatched(settings, rows, order, time, max(range(meshes), key=taken.__getitem__))


def dispatched_schedule(
    meshes: int,
    microbatches: int,
    costs: Costs,
    limits: Sequence[float],
    weight_fraction: float,
    measure: Measure,
    effort: int,
    others: Sequence[Schedule] = (),
) -> Iterator[Schedule]:
    """Yield the best schedule that dispatching gives; about `effort` actions are placed to find it.

    `others` are schedules of one chunk per mesh, with split backwards, that keep to the limits.
    """
    placement = Placement.loop(meshes)
    frame = make("zb-auto", [()] * meshes, placement, microbatches)
    chain = Chain(frame, costs, limits, weight_fraction, measure)
    known = [
        [bytearray(KINDS_IN_ROWS.index(part.kind) for step in row for part in step.parts) for row in other.orders]
        for other in others
    ]
    rows = dispatch(chain, chain.floor(), effort, known)
    if rows is not None:
        yield make("zb-auto", actions_of(rows), placement, microbatches)


def zb_auto(
    meshes: int,
    microbatches: int,
    costs: Costs | None = None,
    memory_limit: MemoryLimit | None = None,
    weight_fraction: float = AUTO_WEIGHT_FRACTION,
    effort: int = AUTO_EFFORT,
) -> Schedule:
    """Return the best zero-bubble schedule found for these costs and this limit, or ZB-H1 if that is better.

    It has one stage per mesh. `memory_limit` is in microbatches of activations, one number or one per mesh; 2P by
    default, enough for no bubble. `weight_fraction` is w of `simulate`, `effort` about how many actions are placed.
    """
    costs = Costs() if costs is None else costs
    limits = limits_of(meshes, memory_limit, 2.0 * meshes)

    def score(schedule: Schedule) -> tuple[float, float]:
        result = simulate(schedule, costs, weight_fraction=weight_fraction)
        # Rounding keeps noise in the last digits from choosing between equals.
        return round(result.span, 9), round(result.makespan, 9)

    plain = replace(zb_h1_within(limits, microbatches, weight_fraction), name="zb-auto")
    dispatched = dispatched_schedule(meshes, microbatches, costs, limits, weight_fraction, "span", effort, [plain])
    return min([*dispatched, plain], key=score)
