"""What pipelining costs where computing dominates.

    python benchmarks/compute_bound.py [--steps 5] [--rounds 7] [--batch 2048] [--json] [--check]

An MLP of 8 layers 512x512, batch 2048, 2 stages on 2 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  `--check`: exit 1 above 1.02 times.

With half the batch XLA splits products of 128 rows between threads that two programs compete for, and the ratio is
about 0.1 higher.
"""

from __future__ import annotations

import sys

from mlp import Case, main

CASE = Case(width=512, layers=8, stages=2, microbatches=8, batch=2048)

if __name__ == "__main__":
    sys.exit(main(__doc__, {"compute-bound": (CASE, 1.02)}, steps=5, rounds=7))
