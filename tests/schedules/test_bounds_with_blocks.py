"""Bounds of schedules with blocks: any orders are slower, and keep to each row of the linear program."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from mpmd_trace.schedules import Costs, Placement, check, get_schedule, simulate
from mpmd_trace.schedules._actions import Action, Fused, Step
from mpmd_trace.schedules._lower_bounds import _TIMES, _VARIABLES, Chain, _BlockProgram
from mpmd_trace.schedules._result import Measure, Simulation
from mpmd_trace.schedules._schedule import Schedule, make
from mpmd_trace.schedules._search import Candidate, _bound


def _with_random_blocks(draw: random.Random, frame: Schedule, room: float = math.inf) -> Schedule:
    """Return stages with any orders with any blocks, of which each holds no more than `room` microbatches."""
    done = [dict.fromkeys("FIW", 0) for _ in range(frame.stages)]
    orders: list[list[Step]] = [[] for _ in range(frame.meshes)]
    for turn in itertools.count():
        mesh = turn % frame.meshes
        ready: dict[str, list[int]] = {"F": [], "I": [], "W": []}
        for stage in frame.placement.stages_on[mesh]:
            own, graph = done[stage], frame.graph
            fed = min((done[s]["F"] for s in graph.feeds[stage]), default=len(frame.microbatches_of(stage)))
            back = min([own["F"], *(done[s]["I"] for s in graph.readers[stage])])
            for letter, most in zip("FIW", (min(fed, own["W"] + room), back, own["I"]), strict=True):
                if own[letter] < most:
                    ready[letter].append(stage)
        letters = [letter for letter, stages in ready.items() if stages]
        if letters:
            parts = []
            for letter in draw.sample(letters, draw.choice((1, len(letters)))):
                stage = draw.choice(ready[letter])
                number = frame.microbatches_of(stage)[done[stage][letter]]
                done[stage][letter] += 1
                parts.append(Action(stage, letter, number))  # type: ignore[arg-type]
            orders[mesh].append(Fused(tuple(parts)) if len(parts) > 1 else parts[0])
        elif all(own["W"] == len(frame.microbatches_of(stage)) for stage, own in enumerate(done)):
            return dataclasses.replace(frame, orders=tuple(map(tuple, orders)))
    raise AssertionError


@pytest.mark.parametrize("seed", range(150))
def test_no_orders_with_blocks_are_faster_than_the_bound(seed: int) -> None:
    """Any orders with any blocks, with just as much memory as they take; one stage per mesh, two chains, or a V."""
    draw = random.Random(seed)
    fraction, kind = draw.choice((0.0, 0.5, 1.0)), draw.choice(("chain", "dualpipe", "zb-v", "interleaved-1f1b"))
    count = draw.randint(2, 8) if kind == "chain" else draw.choice((4, 6, 8))
    frame = make("blocks", [()] * 3, Placement.loop(3), count) if kind == "chain" else get_schedule(kind, 2, count)
    times = [tuple(draw.choice((1, 1, 2, 3)) for _ in range(frame.stages)) for _ in range(3)]
    collectives = {kind: draw.choice((0.5, 1.0, 3.0)) for kind in draw.sample("FIW", draw.randint(1, 3))}
    costs = Costs(*times, collectives=collectives, latency=draw.choice((0.0, 0.25)))
    schedule = _with_random_blocks(draw, frame)
    assert not check(schedule)
    result = simulate(schedule, costs, weight_fraction=fraction)
    for measure in ("span", "makespan"):
        bound = _bound(Candidate(schedule, result, True), costs, measure, result.peak_activations, fraction)
        assert bound <= result.time(measure) + 1e-9


def _variables(program: _BlockProgram, result: Simulation, measure: Measure) -> list[float]:
    """Return what a schedule has for the variables of the linear program."""
    chain, found = program.chain, [result.time(measure) / program.unit]
    longer = early = 0.0
    rows = []
    for s in reversed(range(chain.meshes)):
        row = dict.fromkeys(_VARIABLES, 0.0)
        rows.append(row)
        events = result.timeline.rows[s]
        kinds = ["".join(sorted(part.kind for part in event.step.parts)) for event in events]
        n = {letter: [k for k, kind in enumerate(kinds) if letter in kind] for letter in "FI"}
        turn, last, end = n["I"][0], max(n["F"][-1] + 1, n["I"][0]), n["I"][-1] + 1
        row |= {"begin": events[0].start, "turn": events[turn].start, "fed": events[n["F"][-1]].end}
        row |= {"last": max(row["fed"], row["turn"]), "end": events[end - 1].end}
        counted = {"first": ("F", 0, turn), "inputs": ("I", last, end), "weights": ("W", last, end)}
        for name, (letter, low, high) in (counted | {"rest": ("W", end, len(kinds))}).items():
            row[name] = sum(letter in kind for kind in kinds[low:high])
        for event, kind in zip(events, kinds, strict=True):
            if len(kind) == 1 or "F" not in kind:
                continue
            row[kind.lower()] += 1
            for part in event.step.parts:
                if part.kind != "W":
                    delay = event.end - event.start - (chain.forward if part.kind == "F" else chain.input_grad)[s]
                    longer += delay
                    if part.microbatch < program.early:
                        row[f"{part.kind}_{kind}".lower()] += 1
                        early += delay
        row |= {"longer": longer, "early": early}
    for row in reversed(rows):
        found += [value / (program.unit if name in _TIMES else 1.0) for name, value in row.items()]
    return found


@pytest.mark.parametrize("seed", range(100))
def test_orders_with_blocks_keep_to_each_row_of_the_linear_program(seed: int) -> None:
    """A bound that no schedule beats could still have wrong rows, which others make up for."""
    draw = random.Random(seed)
    meshes, room, fraction = draw.randint(1, 4), draw.randint(1, 3), draw.choice((0.0, 0.5, 1.0))
    frame = make("blocks", [()] * meshes, Placement.loop(meshes), room * 2 + draw.randint(0, 2))
    times = [tuple(draw.choice((0, 1, 2, 3)) for _ in range(meshes)) for _ in range(3)]
    collectives = {kind: draw.choice((0.5, 1.0, 3.0)) for kind in draw.sample("FIW", draw.randint(1, 3))}
    costs = Costs(*times, collectives=collectives, latency=draw.choice((0.0, 0.25, 2.0)))
    result = simulate(_with_random_blocks(draw, frame, room), costs, weight_fraction=fraction)
    for measure in ("span", "makespan"):
        program = _BlockProgram(Chain(frame, costs, result.peak_activations, fraction, measure))
        values = _variables(program, result, measure)
        for value, (low, high) in zip(values, program.bounds, strict=True):
            assert low <= value <= (math.inf if high is None else high)
        for terms, low in program.rows:
            assert sum(value * values[at] for at, value in terms.items()) >= low - 1e-9
