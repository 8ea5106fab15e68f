"""The cost of issuing: a tiny model, so that nearly all time goes into starting programs and copies.

    python benchmarks/dispatch.py [--steps 50] [--rounds 9] [--json] [--check]

An MLP of 8 layers 16x16, batch 64, 4 stages on 4 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  `--check`: exit 1 above 8 times.
"""

from __future__ import annotations

import sys

from mlp import Case, main

CASE = Case(width=16, layers=8, stages=4, microbatches=8, batch=64)

if __name__ == "__main__":
    sys.exit(main(__doc__, "dispatch", CASE, target=8, steps=50, rounds=9))
