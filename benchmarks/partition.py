"""CPU seconds of the passes against jaxlib's C++ partitioner, in one run.

A training step of S stages x M microbatches, 1F1B, gradients accumulated, about 54 StableHLO ops a forward stage.
The C++ partitioner needs jaxlib 0.12; without it only our own times are printed.  Its scheduler grows as S^2 M^3,
so sizes above `--cpp-up-to` S*M are not given to it.

    python benchmarks/partition.py [--sizes 4x8,8x16,8x32,16x32] [--cpp-up-to 512] [--phases all]
"""

from __future__ import annotations

import argparse
import resource
import statistics

from mpmd_trace.passes.cpp_engine import available, partition_with_cpp
from mpmd_trace.passes.partition import partition
from mpmd_trace.passes.request import PartitionRequest
from programs import arguments, training_step


def ours(stages: int, microbatches: int, phases: str) -> tuple[float, int]:
    """Seconds in passes and the number of distinct functions."""
    text = training_step(stages, microbatches)
    result = partition(text, **arguments(stages, microbatches), phases=phases)
    return sum(r.seconds for r in result.runs), len(result.module.functions) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="4x8,8x16,8x32,16x32")
    parser.add_argument("--cpp-up-to", type=int, default=512)
    parser.add_argument("--phases", default="all")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    ours(2, 2, options.phases)  # imports
    print("stages x mb   ours [s]   us per S*M   C++ [s]   C++ / ours   functions")
    for size in options.sizes.split(","):
        stages, microbatches = map(int, size.split("x"))
        small = stages * microbatches <= options.cpp_up_to
        repeat = options.repeat if small else 1
        times = [ours(stages, microbatches, options.phases) for _ in range(repeat)]
        seconds = statistics.median(t for t, _ in times)
        cell = ratio = "-"
        if available() and small:
            text = training_step(stages, microbatches)
            found = [
                partition_with_cpp(text, PartitionRequest.of(**arguments(stages, microbatches)), phases=options.phases)
                .runs[0]
                .seconds
                for _ in range(repeat)
            ]
            cpp = statistics.median(found)
            cell, ratio = f"{cpp:.2f}", f"{cpp / seconds:.1f}"
        each = 1e6 * seconds / (stages * microbatches)
        print(
            f"{stages:4} x {microbatches:<5}  {seconds:8.2f}   {each:10.0f}   {cell:>7}   {ratio:>10}   {times[0][1]:9}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
