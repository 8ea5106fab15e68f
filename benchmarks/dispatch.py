"""The cost of issuing: a tiny model, so that nearly all time goes into starting programs and copies.

    python benchmarks/dispatch.py [--steps 50] [--rounds 9] [--batch 64] [--synchronous] [--json] [--check]

An MLP of 8 layers 16x16, batch 64, 4 stages on 4 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  `--check`: exit 1 above 8 times.

With `--synchronous` no thread waits for another one (`jax_cpu_enable_async_dispatch` is off): faster where, as
here, waking a thread takes longer than a program, and slower everywhere else.
"""

from __future__ import annotations

import sys

from mlp import Case, main

CASE = Case(width=16, layers=8, stages=4, microbatches=8, batch=64)

if __name__ == "__main__":
    sys.exit(main(__doc__, "dispatch", CASE, target=8, steps=50, rounds=9))
