"""The cost of issuing: a tiny model, so that nearly all time goes into starting programs and copies.

    python benchmarks/dispatch.py [--steps 50] [--rounds 9] [--batch 64] [--synchronous] [--json] [--check]

An MLP of 8 layers 16x16, batch 64, 4 stages on 4 CPU devices, 8 microbatches, 1F1B; forward, backward and update
against plain `jax.jit` of the same step on one device: once by default, and once with a loop in Python over the
microbatches and options that merge forwards with backwards.  What is measured is the time that the calling thread
spends on an instruction of the plan outside of JAX.  `--check`: exit 1 above 10 us.

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
    cases = {"dispatch with defaults": (DEFAULT, 10.0), "dispatch, forwards merged with backwards": (MERGED, 10.0)}
    sys.exit(main(__doc__, cases, steps=50, rounds=9, measure="us per instruction of ours"))
