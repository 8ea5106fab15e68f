"""How far a predicted step is from the measured one.

    python benchmarks/planning.py [--rounds 3] [--batch 1024] [--json] [--check]

The MLP of `compute_bound.py`, with two stages on two CPU devices, under GPipe and 1F1B: its executables and links are
measured as `mpmd-trace plan --measure` does it, and the simulated step is compared with the step as it runs.
`--check`: exit 1 when one is more than twice the other; CPU devices share caches, memory and perhaps processors.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time

import jax
from mlp import Case

import mpmd_trace
from mpmd_trace.report.link_times import measure_links
from mpmd_trace.report.plan_costs import study
from mpmd_trace.report.plan_search import options_of
from mpmd_trace.report.timeline import FragmentActions

CASE = Case(width=512, layers=8, stages=2, microbatches=8, batch=1024, merge=False)
FACTOR = 2.0


def predicted_and_measured(case: Case, rounds: int) -> tuple[float, float]:
    """Milliseconds of a step: simulated with measured parts, and run as a whole."""
    actions = FragmentActions()
    args = (case.parameters(), *case.data())
    lowered = mpmd_trace.jit(case.step, case.config()).lower(*args, hooks=[actions])
    compiled = lowered.compile()
    placed, _ = compiled.place(*args)
    timelines, steps = [], []
    for _ in range(rounds + 1):
        timelines.append(compiled.measure(*placed)[1])
        start = time.perf_counter()
        jax.block_until_ready(compiled(*placed))
        steps.append(time.perf_counter() - start)
    pairs = [(t.source, t.target) for t in compiled.program.plan.transfers]
    links = measure_links(compiled.program.topology, pairs)
    found = study(compiled.lowered, compiled.program, actions, measured=timelines[1:], steps=steps[1:], links=links)
    now = next(
        o
        for o in options_of(found)
        if o.assignment == "as assigned" and o.choice.schedule.name == case.schedule.lower()
    )
    return now.step, 1e3 * statistics.median(steps[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=CASE.batch, help="rows per step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help=f"exit 1 beyond a factor of {FACTOR:g}")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", CASE.stages)
    rows = []
    for schedule in ("GPipe", "1F1B"):
        case = dataclasses.replace(CASE, schedule=schedule, batch=options.batch)
        step, measured = predicted_and_measured(case, options.rounds)
        rows.append({"schedule": schedule, "predicted ms": step, "measured ms": measured, "ratio": step / measured})
    if options.json:
        print(json.dumps({"benchmark": "planning", "factor": FACTOR, "rows": rows}))
    else:
        for row in rows:
            print(
                f"{row['schedule']}: {row['predicted ms']:.1f} ms predicted, {row['measured ms']:.1f} ms measured "
                f"({row['ratio']:.2f})"
            )
    reached = all(1 / FACTOR <= row["ratio"] <= FACTOR for row in rows)
    return 0 if reached or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
