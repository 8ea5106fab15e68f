"""The results of `mpmd_trace.jit`: the stages of compiling, as in `jax.stages`, and stacked layers in pieces."""

from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.jit import Jitted, Traced
from mpmd_trace.api.lowered import Lowered
from mpmd_trace.backend.stacked import Pieces

__all__ = ["Compiled", "Jitted", "Lowered", "Pieces", "Traced"]
