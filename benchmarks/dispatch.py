"""The cost of issuing: a tiny model, so that nearly all time goes into starting programs and copies.

    python benchmarks/dispatch.py [--steps 50] [--rounds 9] [--json] [--check]

An MLP of 8 layers 16x16, batch 64, 4 stages on 4 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  `--check`: exit 1 above 8 times.
"""

from __future__ import annotations

import argparse
import sys

import jax


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50, help="steps per round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    from mlp import Case, compare, report

    case = Case(width=16, layers=8, stages=4, microbatches=8, batch=64)
    found = compare(case, steps=options.steps, rounds=options.rounds)
    reached = report("dispatch", found, 8, as_json=options.json)
    return 0 if reached or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
