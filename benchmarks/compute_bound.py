"""What pipelining costs where computing dominates.

    python benchmarks/compute_bound.py [--steps 5] [--rounds 7] [--json] [--check]

An MLP of 8 layers 512x512, batch 1024, 2 stages on 2 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  `--check`: exit 1 above 1.10 times.
"""

from __future__ import annotations

import argparse
import sys

import jax


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5, help="steps per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    from mlp import Case, compare, report

    case = Case(width=512, layers=8, stages=2, microbatches=8, batch=1024)
    found = compare(case, steps=options.steps, rounds=options.rounds)
    reached = report("compute-bound", found, 1.10, as_json=options.json)
    return 0 if reached or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
