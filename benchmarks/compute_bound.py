"""What pipelining costs where computing dominates.

    python benchmarks/compute_bound.py [--steps 5] [--rounds 7] [--json] [--check]

An MLP of 8 layers 512x512, batch 1024, 2 stages on 2 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  `--check`: exit 1 above 1.10 times.
"""

from __future__ import annotations

import sys

from mlp import Case, main

CASE = Case(width=512, layers=8, stages=2, microbatches=8, batch=1024, carried=False)

if __name__ == "__main__":
    sys.exit(main(__doc__, "compute-bound", CASE, target=1.10, steps=5, rounds=7))
