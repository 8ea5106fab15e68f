"""The cost of issuing: a tiny model, so that nearly all time goes into starting programs and copies.

    python benchmarks/dispatch.py [--steps 50] [--rounds 9] [--batch 64] [--synchronous] [--json] [--check]

An MLP of 8 layers 16x16, batch 64, 4 stages on 4 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  Twice: with a loop in Python over the microbatches and
options that merge forwards with backwards, and with `enumerated_for` and everything as it is by default, where the step
of `jax.jit` is lighter, too.  `--check`: exit 1 above 8 and 12 times.

With `--synchronous` no thread waits for another one (`jax_cpu_enable_async_dispatch` is off): faster where, as
here, waking a thread takes longer than a program, and slower everywhere else.
"""

from __future__ import annotations

import dataclasses
import sys

from mlp import Case, main

MERGED = Case(width=16, layers=8, stages=4, microbatches=8, batch=64)
DEFAULT = dataclasses.replace(MERGED, merge=None, enumerated=True)

if __name__ == "__main__":
    cases = {"dispatch": (MERGED, 8.0), "dispatch with defaults": (DEFAULT, 12.0)}
    sys.exit(main(__doc__, cases, steps=50, rounds=9))
