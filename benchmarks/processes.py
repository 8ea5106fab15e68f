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
import json
import os
import statistics
import sys
import time

from mlp import Case
from workers import WORKER, found_by_first

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
    from mpmd_trace.report.timeline import FragmentActions, planned_timeline

    mpmd_trace.initialize()
    job = current()
    if job is None:
        raise SystemExit(f"{WORKER} is for the processes that this benchmark starts")
    count, first = options.processes, job.process == 0
    case = Case(width=options.width, layers=8, stages=count, microbatches=8, batch=options.batch)
    x, y = case.data()
    actions = FragmentActions()
    jitted = mpmd_trace.jit(case.step, case.config([jax.local_devices(process_index=p)[0] for p in range(count)]))
    compiled = jitted.lower_lazily(case.parameters(), x, y, hooks=[actions]).compile()
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
        predicted = planned_timeline(compiled.program.plan, actions, timelines, processors=cores, transfers=True).end
        many, one, cpu, own_cpu = (statistics.median(r[i] for r in rounds) / options.steps for i in range(4))
        found = {
            "ratio": statistics.median(a / b for a, b, _, _ in rounds),
            "cpu ratio": statistics.median(a / b for _, _, a, b in rounds),
            "processes ms": 1e3 * many,
            "one process ms": 1e3 * one,
            "processes cpu ms": 1e3 * cpu,
            "one process cpu ms": 1e3 * own_cpu,
            "predicted ms": predicted,
            "of prediction": 1e3 * min(r[0] for r in rounds) / options.steps / predicted,
            "cores": cores,
        }
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
