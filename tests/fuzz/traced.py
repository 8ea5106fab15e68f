"""Generated steps as the partitioner takes them, in exact mode."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator

from fuzz import oracles
from fuzz.oracles import Traced
from fuzz.programs import Program, random_setup, random_step
from fuzz.source import setup_source, source, tolerance, topology_source
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.partition import partition_as

__all__ = ["Traced", "imported_modules", "traced_programs"]

SETUPS = 3


def traced_programs(seeds: Iterable[int]) -> Iterator[Traced]:
    """Yield the programs of these seeds, each step with several setups of what the C++ partitioner knows."""
    for seed in seeds:
        rng = random.Random(seed)
        step = random_step(rng)
        subject = None
        for _ in range(SETUPS):
            setup = random_setup(rng, step, "cpp")
            # The step is traced for these meshes, once.
            setup = dataclasses.replace(setup, engine="python", meshes=(2,) * len(setup.meshes))
            text = source(Program(step, setup), f"The step of seed {seed}.")
            if subject is None:
                subject = oracles.load(text, tolerance(step))
            else:
                subject = subject.with_setup(topology_source(setup) + setup_source(setup, step))
            try:
                yield oracles.traced(subject, text)
            except oracles.Refused:
                continue


def imported_modules(seeds: Iterable[int]) -> list[Module]:
    """Return what the import makes of the first program of each seed: a module of fragments and transfers."""
    programs = [next(traced_programs([seed])) for seed in seeds]
    return [parse(partition_as(one.text, one.request, phases="import").as_text()) for one in programs]
