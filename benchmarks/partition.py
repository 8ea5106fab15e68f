"""CPU seconds of the partitioner against jaxlib's in C++, from text to text, in one run.

Reading and printing count; "passes" are the passes alone.  With `--sharded` the batch has a sharding, and Shardy
propagates it: over the sequences of each microbatch, or with `--sharded rows` over the rows of one.  "cut / ours" is
what passes cost with `placement="cut"`, microbatches cut by each fragment itself (what `mpmd_trace.jit` does), over
what they cost with the placement of the reference.

A training step of S stages x M microbatches, 1F1B, gradients accumulated, about 54 StableHLO ops a forward stage.
The C++ partitioner needs jaxlib 0.12; without it only our own times are printed.  Its scheduler grows as S^2 M^3,
so sizes above `--cpp-up-to` S*M are not given to it.

    python benchmarks/partition.py [--sizes 4x8,8x16,8x32,16x32] [--cpp-up-to 512] [--phases all] [--sharded [rows]]
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
import time
from typing import Any

from mpmd_trace.passes.cpp_engine import CppPartitioner, available
from mpmd_trace.passes.partition import partition, partition_as
from mpmd_trace.passes.request import PartitionRequest, Phases, StepFacts
from programs import arguments, training_step


def ours(text: str, given: dict[str, Any], phases: Phases) -> tuple[float, float, int]:
    """Seconds in all and in passes, and the number of distinct functions."""
    started = time.process_time()
    result = partition(text, **given, phases=phases)
    result.module.to_generic()
    whole = time.process_time() - started
    return whole, sum(r.seconds for r in result.runs), len(result.module.functions) - 1


def with_cut(text: str, given: dict[str, Any], phases: Phases) -> float:
    """Seconds in passes with the placement of `mpmd_trace.jit`."""
    request = dataclasses.replace(PartitionRequest.of(**given, placement="cut"), step=StepFacts())
    return sum(r.seconds for r in partition_as(text, request, phases=phases).runs)


def cpp(text: str, given: dict[str, Any], phases: Phases) -> tuple[float, float]:
    """Seconds in all and in passes."""
    with CppPartitioner() as process:
        answer = process.partition(text, PartitionRequest.of(**given), phases=(phases,))
    if answer.error is not None:
        raise SystemExit(answer.error)
    return answer.seconds + answer.talking, answer.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="4x8,8x16,8x32,16x32")
    parser.add_argument("--cpp-up-to", type=int, default=512)
    parser.add_argument("--phases", default="all")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sharded", nargs="?", const="batch", choices=("batch", "rows"))
    options = parser.parse_args()
    ours(training_step(2, 2, options.sharded), arguments(2, 2), options.phases)  # imports
    with_cut(training_step(2, 2, options.sharded), arguments(2, 2), options.phases)
    print("stages x mb   ours [s]   passes   cut / ours   us per S*M   C++ [s]   passes   ours / C++   functions")
    for size in options.sizes.split(","):
        stages, microbatches = map(int, size.split("x"))
        text, given = training_step(stages, microbatches, options.sharded), arguments(stages, microbatches)
        small = stages * microbatches <= options.cpp_up_to
        repeat = options.repeat if small else 1
        # Alternately, so that what else the machine does is in both.
        runs = [(ours(text, given, options.phases), with_cut(text, given, options.phases)) for _ in range(repeat)]
        whole, passes = (statistics.median(run[0][i] for run in runs) for i in (0, 1))
        cut = statistics.median(seconds for _, seconds in runs) / passes
        cells = ["-", "-", "-"]
        if available() and small:
            found = [cpp(text, given, options.phases) for _ in range(repeat)]
            both = [statistics.median(t[i] for t in found) for i in (0, 1)]
            cells = [f"{both[0]:.2f}", f"{both[1]:.2f}", f"{whole / both[0]:.2f}"]
        each = 1e6 * whole / (stages * microbatches)
        print(
            f"{stages:4} x {microbatches:<5}  {whole:8.2f}   {passes:6.2f}   {cut:10.2f}   {each:10.0f}   {cells[0]:>7}"
            f"   {cells[1]:>6}   {cells[2]:>10}   {runs[0][0][2]:9}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
