"""How far the best schedule that a search finds is from its lower bound, and how long the search takes.

    python benchmarks/schedule_search.py [--sizes 64x256,8x32] [--kinds limit,limits,collectives] [--seeds 1,2,3]
                                         [--effort 12000000] [--json] [--check]

Stages are unequal: forwards and input gradients within 20 % of one, weight gradients 0.5 to 1. With P meshes, `limit`
is memory for P microbatches on each, `limits` is memory for P to 2P of them, drawn for each mesh, and `collectives` has
no limit, but collectives that blocks may hide. `--fractions`: the part of its memory that a microbatch keeps for its
weight gradient. The span counts, as where steps overlap. `--check`: exit 1 if one is more than 1 % above its bound
without collectives, or if a search takes a minute of CPU time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from mpmd_trace.schedules import Costs, search
from mpmd_trace.schedules._dispatch import ACTIONS_TO_PLACE

COLLECTIVES = {"F": 0.3, "I": 0.3, "W": 0.1}


def case(kind: str, meshes: int, seed: int) -> tuple[Costs, list[float] | None]:
    """Return the costs of a pipeline, and the memory of its meshes, in microbatches."""
    draw = random.Random(seed)
    costs = Costs(
        forward=[draw.uniform(0.8, 1.2) for _ in range(meshes)],
        input_grad=[draw.uniform(0.8, 1.2) for _ in range(meshes)],
        weight_grad=[draw.uniform(0.5, 1.0) for _ in range(meshes)],
        latency=0.05,
    )
    if kind == "collectives":
        return dataclasses.replace(costs, collectives=COLLECTIVES), None
    several = [meshes, meshes * 5 // 4, meshes * 3 // 2, 2 * meshes] if kind == "limits" else [meshes]
    return costs, [float(draw.choice(several)) for _ in range(meshes)]


def measure(kind: str, size: tuple[int, int], seed: int, fraction: float, effort: int) -> dict[str, Any]:
    """Return the distance of the best schedule from the bound, and the CPU time of the search."""
    meshes, microbatches = size
    costs, limits = case(kind, meshes, seed)
    begun = time.process_time()
    result = search(
        costs,
        limits,
        meshes=meshes,
        microbatches=microbatches,
        measure="span",
        weight_fraction=fraction,
        exact=False,
        effort=effort,
    )
    return {
        "kind": kind,
        "size": f"{meshes}x{microbatches}",
        "seed": seed,
        "fraction": fraction,
        "schedule": result.best.name,
        "span": result.value(result.best),
        "bound": result.lower_bound,
        "gap": result.gap,
        "seconds": time.process_time() - begun,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Search for each case; 1 with `--check` if one is too far from its bound, or took too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="64x256")
    parser.add_argument("--kinds", default="limit,limits,collectives")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--fractions", default="0.5,1")
    parser.add_argument("--effort", type=int, default=ACTIONS_TO_PLACE)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
    good, rows = True, []
    for meshes, microbatches in sizes:
        for fraction in map(float, options.fractions.split(",")):
            for kind in options.kinds.split(","):
                for seed in map(int, options.seeds.split(",")):
                    row = measure(kind, (meshes, microbatches), seed, fraction, options.effort)
                    rows.append(row)
                    good &= row["seconds"] < 60 and (kind == "collectives" or row["gap"] <= 0.01)
                    if not options.json:
                        print(
                            f"{row['size']:>8} {kind:<12}seed {seed}, fraction {fraction:g}: span {row['span']:9.2f}, "
                            f"bound {row['bound']:9.2f}, {100 * row['gap']:5.2f} % apart, {row['seconds']:5.1f} s",
                            flush=True,
                        )
    if options.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    return int(options.check and not good)


if __name__ == "__main__":
    sys.exit(main())
