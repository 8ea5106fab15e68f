"""Checks generated plans over several processes for deadlocks: `make deadlocks PLANS=100000 SEED=0`.

Plan number n is the one of seed n.  Each is ordered and checked without buffers between processes; of some, and of some
in which two actions of a process were swapped, threads with bounded buffers carry out what was checked, and both must
agree.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time

from fuzz.plans import Example, random_example, swapped
from fuzz.threads import play
from mpmd_trace.backend.distribution.deadlock import Parts, find_deadlock, find_faults, find_faults_of_runtime
from mpmd_trace.backend.distribution.order import Order, RunProgram, distribute

__all__ = ["check", "check_swapped", "main"]

#: How many messages may lie between two processes, in what is carried out.
BUFFERS = (0, 0, 1, 2, 5, None)


def check(seed: int, *, execute: bool = False) -> tuple[Example, Order, Parts]:
    """Make the plan of a seed and check it; also carry it out where it is told to."""
    rng = random.Random(seed)
    example = random_example(rng)
    order = distribute(example.plan, example.owners)
    parts = order.parts()
    faults = [*find_faults(example.plan, order, parts), *find_faults_of_runtime(example.plan, order)]
    assert not faults, f"seed {seed}: {faults[0]}"
    deadlock = find_deadlock(parts)
    assert deadlock is None, f"seed {seed}: {deadlock.text(example.plan, parts)}"
    if execute:
        became = play(example.plan, order, parts, rng.choice(BUFFERS), seed)
        assert became == "ends", f"seed {seed}: the checker says that it ends; it {became}"
    return example, order, parts


def check_swapped(seed: int, example: Example, order: Order, parts: Parts) -> str:
    """Swap two actions of one process, and see that the checker says what becomes of it; gives that."""
    rng = random.Random(seed)
    changed = swapped(rng, parts)
    if changed is None:
        return "nothing to swap"
    buffers = rng.choice(BUFFERS)
    faults = find_faults(example.plan, order, changed)
    deadlock = find_deadlock(changed, buffers)
    became = play(example.plan, order, changed, buffers, seed)
    said = "hangs" if deadlock else "ends"
    where = f"seed {seed}, {buffers} buffers: the checker says that it {said} ({faults or 'no faults'}); it {became}"
    if faults:  # who has not what it needs fails, unless it waits before
        assert became != "ends" and (deadlock or became == "fails"), where
        return f"{became}, values not there"
    assert became == said, where
    return became


def main() -> None:
    """Checks as many plans as are asked for; stops at the first that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plans", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="carry out one of so many, and one swapped")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    schedules: collections.Counter[str] = collections.Counter()
    swaps: collections.Counter[str] = collections.Counter()
    started = time.process_time()
    last = started
    for seed in range(options.seed, options.seed + options.plans):
        execute = seed % options.every == 0
        example, order, parts = check(seed, execute=execute)
        schedules[example.schedule] += 1
        counts.update(_facts(example, order, parts))
        if execute:
            swaps[check_swapped(seed, example, order, parts)] += 1
        if time.process_time() - last > 30:
            last = time.process_time()
            print(f"{counts['plans']} plans, {last - started:.0f} s of CPU", file=sys.stderr, flush=True)
    seconds = time.process_time() - started
    for name, count in counts.items():
        print(f"{count:>12,}  {name}")
    print(f"{0:>12}  deadlocks")
    print(f"{sum(swaps.values()):>12,}  carried out by threads; all end")
    for name, count in sorted(swaps.items()):
        print(f"{count:>12,}  of these with two actions swapped: {name}; the checker says so")
    print(f"{len(schedules)} kinds of schedules: " + ", ".join(f"{n} {c:,}" for n, c in sorted(schedules.items())))
    print(f"{seconds:.0f} s of CPU, {1e3 * seconds / max(1, options.plans):.1f} ms a plan")


def _facts(example: Example, order: Order, parts: Parts) -> dict[str, int]:
    meshes = [set(found) for found in example.owners.values()]
    return {
        "plans": 1,
        "with a mesh over several processes": any(len(found) > 1 for found in meshes),
        "with several meshes in a process": sum(map(len, meshes)) > len(set().union(*meshes)),
        "with a process without a mesh": len(set().union(*meshes)) < example.processes,
        "actions of processes": sum(map(len, parts.values())),
        "messages": len(order.messages),
        "collectives": sum(isinstance(a, RunProgram) and len(a.members) > 1 for a in order.actions),
    }


if __name__ == "__main__":
    main()
