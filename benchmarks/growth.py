"""CPU seconds of compiling, up to the execution plan, over those of `jax.jit`'s trace and lowering, as programs grow.

Each program grows in one way (`tests/growth/knobs.py`, where a test counts calls instead of seconds).  "power" is that
of the size with which the seconds grow over the last two sizes.  Of a knob no size is taken that is likely to take more
than `--most` seconds.

    python benchmarks/growth.py [--only TEXT] [--sizes 16,64,256] [--most 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax

import mpmd_trace
from mpmd_trace.backend.planner import make_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from growth.knobs import KNOBS, Setup


def seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def measured(setup: Setup) -> tuple[float, float]:
    """The seconds of `jax.jit` and ours."""
    step, config, arguments = setup.sized()
    platforms = (setup.platform,)

    def ours() -> None:
        lowered = mpmd_trace.jit(step, config).trace(*arguments).lower(lowering_platforms=platforms)
        make_plan(lowered.partitioned.module)

    plain = seconds(lambda: jax.jit(step).trace(*arguments).lower(lowering_platforms=platforms))
    return plain, seconds(ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="knobs that have this in their names")
    parser.add_argument("--sizes", default="16,64,256")
    parser.add_argument("--most", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    measured(Setup())  # imports
    if not options.json:
        print(f"{'knob':45} {'size':>5} {'jit [s]':>8} {'ours [s]':>9} {'ours / jit':>11} {'power':>6}")
    for name, knob in KNOBS.items():
        if options.only not in name:
            continue
        before: tuple[int, float, float] | None = None
        for size in sizes:
            if before is not None and max(before[1:]) * (size / before[0]) ** 2 > options.most:
                break
            plain, ours = measured(knob(size))
            power = math.nan if before is None else math.log(ours / before[2], size / before[0])
            before = size, plain, ours
            if options.json:
                row = {"knob": name, "size": size, "jit": plain, "ours": ours, "ratio": ours / plain}
                print(json.dumps(row), flush=True)
            else:
                print(f"{name:45} {size:5} {plain:8.2f} {ours:9.2f} {ours / plain:11.2f} {power:6.2f}", flush=True)


if __name__ == "__main__":
    main()
