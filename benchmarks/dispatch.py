"""The cost of issuing: a tiny model, so that nearly all time goes into starting programs and copies.

    python benchmarks/dispatch.py [--steps 50] [--rounds 9] [--batch 64] [--synchronous] [--json] [--check]

An MLP of 8 layers 16x16, batch 64, 4 stages on 4 CPU devices, 8 microbatches, 1F1B; forward, backward and
update against plain `jax.jit` of the same step on one device.  With `enumerated_for` and everything as it is by
default, where a step so small runs as few programs; and twice with each program as the schedule has it, which is what
larger steps cost beside their work: with the same loop, and with a loop in Python over the microbatches and options
that merge forwards with backwards, where `jax.jit` has more to do, too.  `--check`: exit 1 above 5, 12 and 8 times.

With `--synchronous` no thread waits for another one (`jax_cpu_enable_async_dispatch` is off): faster where, as
here, waking a thread takes longer than a program, and slower everywhere else.
"""

from __future__ import annotations

import dataclasses
import sys

from mlp import Case, main

MERGED = Case(width=16, layers=8, stages=4, microbatches=8, batch=64, small=False)
APART = dataclasses.replace(MERGED, merge=None, enumerated=True)
DEFAULT = dataclasses.replace(APART, small=True)

if __name__ == "__main__":
    cases = {
        "dispatch with defaults": (DEFAULT, 5.0),
        "dispatch, programs apart": (APART, 12.0),
        "dispatch, forwards merged with backwards": (MERGED, 8.0),
    }
    sys.exit(main(__doc__, cases, steps=50, rounds=9))
