"""What pipelining costs where computing dominates.

    python benchmarks/compute_bound.py [--steps 2] [--rounds 30] [--batch 2048] [--json] [--check]

An MLP of 8 layers 512x512, batch 2048, 2 stages on 2 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device: with default options, and with options that merge a
forward and a backward that follow each other.  `--check`: exit 1 above 1.02 times.  Rounds are
short and many: the speed of a machine that others use, too, changes within a second.

With half the batch XLA splits products of 128 rows between threads that two programs compete for, and the ratio is
about 0.1 higher.
"""

from __future__ import annotations

import dataclasses
import sys

from mlp import Case, main

MERGED = Case(width=512, layers=8, stages=2, microbatches=8, batch=2048)
DEFAULT = dataclasses.replace(MERGED, merge=None)

if __name__ == "__main__":
    cases = {"compute-bound with defaults": (DEFAULT, 1.02), "forwards merged with backwards": (MERGED, 1.02)}
    sys.exit(main(__doc__, cases, steps=2, rounds=30))
