"""What it costs to run the stages of a pipeline in processes of their own, and how well a step is predicted.

    python benchmarks/processes.py [--processes 4] [--steps 3] [--rounds 5] [--batch 2048] [--width 1024]
                                   [--json] [--check]

An MLP of 8 layers, one stage for each process, 8 microbatches, 1F1B; wide enough that computing is what takes the time
(at `--width 512` on two cores, what processes cost is a third of a step).  In one job, taking turns: a step over all
processes, and the same step in process 0 alone over as many meshes; programs use one thread each, so that both have the
same work for the same cores.  Ratios are medians over the rounds, of seconds and of the seconds of CPU of all processes
(which other work on the machine changes less).  The prediction is the plan played with the times of the
programs and transfers, as `measure` finds them; where there are fewer cores than processes, all that runs at a time
shares them, when it is measured and when it is played (a transfer copies, and so takes a core, too).  `--check`: exit 1
where the step takes more than 1.10 times that of one process, or is predicted worse than within 15 %.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mlp import Case
from workers import WORKER, found_by_first

if TYPE_CHECKING:
    from mpmd_trace.backend.plan import Plan
    from mpmd_trace.backend.timeline import Timeline, TimelineEntry

TARGET, WITHIN = 1.10, 0.15


def main() -> int:
    """Starts the job, and prints what process 0 found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2048, help="rows per step")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    flags = "--xla_cpu_multi_thread_eigen=false"
    found = found_by_first(__file__, options.processes, options.processes + 1, flags)
    reached = found["ratio"] <= TARGET and abs(found["of prediction"] - 1) <= WITHIN
    if options.json:
        print(json.dumps({"benchmark": "processes", "target": TARGET, "reached": reached, **found}))
    else:
        print(
            f"{options.processes} processes: {found['ratio']:.2f} times one process (target {TARGET:g}), "
            f"{found['cpu ratio']:.2f} times its seconds of CPU; {found['cores']} cores"
        )
        print(
            f"  {found['processes ms']:.1f} ms against {found['one process ms']:.1f} ms; predicted "
            f"{found['predicted ms']:.1f} ms, of which it is {found['of prediction']:.2f} times (within {WITHIN:g})"
        )
    return 0 if reached or not options.check else 1


def work(options: argparse.Namespace) -> int:
    """One process of the job."""
    import jax  # after mpmd_trace.initialize has been called nothing changes

    import mpmd_trace
    from mpmd_trace.backend.distribution.job import current

    mpmd_trace.initialize()
    job = current()
    if job is None:
        raise SystemExit(f"{WORKER} is for the processes that this benchmark starts")
    count, first = options.processes, job.process == 0
    case = Case(width=options.width, layers=8, stages=count, microbatches=8, batch=options.batch)
    x, y = case.data()
    jitted = mpmd_trace.jit(case.step, case.config([jax.local_devices(process_index=p)[0] for p in range(count)]))
    compiled = jitted.lower_lazily(case.parameters(), x, y).compile()
    given, _ = compiled.place(case.parameters(), x, y)
    jax.block_until_ready(compiled(*given))
    single, own = None, ()
    if first:
        meshes = case.config(jax.local_devices()[1 : count + 1])
        single = mpmd_trace.jit(case.step, meshes).lower(case.parameters(), x, y).compile()
        own, _ = single.place(case.parameters(), x, y)
        jax.block_until_ready(single(*own))

    def together() -> list[float]:
        """The seconds of CPU of each process so far; returns when all have come here."""
        mine = json.dumps(time.process_time()).encode()
        return [json.loads(one) for one in job.peers.allgather_bytes("benchmark", mine)]

    rounds = []
    for _ in range(options.rounds):
        before, start = together(), time.perf_counter()
        for _ in range(options.steps):
            jax.block_until_ready(compiled(*given))
        after, middle = together(), time.perf_counter()
        for _ in range(options.steps if single is not None else 0):
            jax.block_until_ready(single(*own))
        own_cpu, end = time.process_time() - after[0], time.perf_counter()
        together()
        cpu = sum(after) - sum(before)
        rounds.append((middle - start, end - middle, cpu, own_cpu))
    timelines = [compiled.measure(*given)[1] for _ in range(3)]
    if first:
        cores = len(os.sched_getaffinity(0))
        expected = 1e3 * predicted(compiled.program.plan, timelines, cores)
        many, one, cpu, own_cpu = (statistics.median(r[i] for r in rounds) / options.steps for i in range(4))
        found = {
            "ratio": statistics.median(a / b for a, b, _, _ in rounds),
            "cpu ratio": statistics.median(a / b for _, _, a, b in rounds),
            "processes ms": 1e3 * many,
            "one process ms": 1e3 * one,
            "processes cpu ms": 1e3 * cpu,
            "one process cpu ms": 1e3 * own_cpu,
            "predicted ms": expected,
            "of prediction": 1e3 * min(r[0] for r in rounds) / options.steps / expected,
            "cores": cores,
        }
        print(json.dumps(found), flush=True)
    return 0


def predicted(plan: Plan, measured: Sequence[Timeline], processors: int) -> float:
    """Return the seconds of a step whose programs and transfers share that many processors.

    Each takes the usual time that it had of a processor, and begins as soon as its inputs are there; the programs of
    a mesh run in their order.  Where more run than there are processors, each gets an equal part of them.
    """
    from mpmd_trace.backend.plan import Run, Transfer

    moving = [one for one in plan.instructions if isinstance(one, Run | Transfer)]

    def kind(one: Run | Transfer) -> object:
        if isinstance(one, Run):
            return one.program
        return one.source, one.target, *(str(plan.slots[slot].type) for slot in one.outputs)

    costs: dict[object, list[float]] = {}
    for timeline in measured:
        for entry, seconds in zip(timeline.entries, _alone(timeline.entries, processors), strict=True):
            costs.setdefault(kind(moving[entry.instruction]), []).append(seconds)
    made_by: dict[int, int] = {}
    last: dict[str, int] = {}
    after: list[set[int]] = []
    for task, one in enumerate(moving):
        before = {made_by[slot] for slot in one.inputs if slot in made_by}
        if isinstance(one, Run):
            if one.mesh in last:
                before.add(last[one.mesh])
            last[one.mesh] = task
        after.append(before)
        made_by.update(dict.fromkeys(one.outputs, task))
    return _played([statistics.median(costs[kind(one)]) for one in moving], after, processors)


def _alone(entries: Sequence[TimelineEntry], processors: int) -> list[float]:
    """How long each would have taken on a processor of its own: `_played` with these times takes as long again."""
    changes = sorted([(e.start, 1) for e in entries] + [(e.end, -1) for e in entries])
    work = {changes[0][0]: 0.0} if changes else {}
    running = 0
    for (before, change), (at, _) in itertools.pairwise(changes):
        running += change
        work[at] = work[before] + (at - before) * (min(1.0, processors / running) if running else 0.0)
    return [work[entry.end] - work[entry.start] for entry in entries]


def _played(times: Sequence[float], after: Sequence[Collection[int]], processors: int) -> float:
    """When the last task ends, of tasks that take `times` on a processor of their own and wait for those `after`."""
    left = [len(before) for before in after]
    then: list[list[int]] = [[] for _ in times]
    for task, before in enumerate(after):
        for one in before:
            then[one].append(task)
    now = work = 0.0  # `work`: what each processor would have done by now for a task that was there all the time
    running = [(times[task], task) for task, n in enumerate(left) if n == 0]
    heapq.heapify(running)
    while running:
        share = min(1, processors / len(running))
        done, task = heapq.heappop(running)
        now, work = now + (done - work) / share, done
        for one in then[task]:
            left[one] -= 1
            if left[one] == 0:
                heapq.heappush(running, (work + times[one], one))
    return now


if __name__ == "__main__":
    sys.exit(main())
