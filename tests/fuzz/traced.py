"""Generated steps as the partitioner takes them, in exact mode."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator

from fuzz import oracles
from fuzz.oracles import Traced
from fuzz.programs import SHAPES, Program, random_setup, random_step
from fuzz.source import setup_source, source, tolerance, topology_source

__all__ = ["Traced", "traced_programs"]

SETUPS = 3


def traced_programs(seeds: Iterable[int]) -> Iterator[Traced]:
    """Yield the programs of these seeds, each step with several setups of what the C++ partitioner knows."""
    for seed in seeds:
        rng = random.Random(seed)
        # Constants without elements come in another order in the C++ partitioner.
        step = random_step(rng, [shape for shape in SHAPES if shape[0]])
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
