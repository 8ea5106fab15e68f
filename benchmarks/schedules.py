"""Time to make, check and simulate every schedule, and how it grows.

    python benchmarks/schedules.py [--meshes 64] [--microbatches 512] [--json]

Prints seconds (CPU time of this process, one run) per schedule and the growth from a quarter of
the microbatches: 4 is linear.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings

from mpmd_trace.schedules import Schedule, check, find_entry, schedule_names, simulate


def measure(name: str, meshes: int, microbatches: int) -> dict[str, float]:
    """CPU seconds to make, check and simulate a schedule, and its number of actions."""
    generator = find_entry(name).generator()
    times = [time.process_time()]
    schedule: Schedule = generator(meshes, microbatches)
    times.append(time.process_time())
    problems = check(schedule)
    times.append(time.process_time())
    result = simulate(schedule)
    peak = max(result.peak_activations)
    times.append(time.process_time())
    if problems:
        raise SystemExit(f"{name}: {problems[0]}")
    make, checked, simulated = (b - a for a, b in itertools.pairwise(times))
    return {
        "actions": len(schedule),
        "make": make,
        "check": checked,
        "simulate": simulated,
        "total": times[-1] - times[0],
        "makespan": result.makespan,
        "peak": peak,
    }


def main() -> None:
    """Measures the library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--meshes", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in schedule_names():
        quarter = measure(name, options.meshes, max(options.microbatches // 4, 2 * options.meshes))
        whole = measure(name, options.meshes, options.microbatches)
        growth = whole["total"] / quarter["total"] if quarter["total"] else float("nan")
        actions = whole["actions"] / quarter["actions"]
        rows.append({"name": name, **whole, "growth": growth, "growth_of_actions": actions})
        if not options.json:
            if len(rows) == 1:
                print(
                    f"{'schedule':<38}{'actions':>9}{'make':>8}{'check':>8}{'simulate':>9}"
                    f"{'total':>8}  growth (of actions)"
                )
            print(
                f"{name:<38}{whole['actions']:>9}{whole['make']:>8.2f}{whole['check']:>8.2f}"
                f"{whole['simulate']:>9.2f}{whole['total']:>8.2f}  "
                f"x{growth:.1f} (x{actions:.1f})",
                flush=True,
            )
    if options.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        print(f"{'all':<38}{'':>9}{'':>8}{'':>8}{'':>9}{sum(r['total'] for r in rows):>8.2f}")


if __name__ == "__main__":
    main()
