"""Flax NNX: naming the layers of a model, gradients over microbatches, and a jit that keeps what a step changes in
modules and optimizers."""

try:
    import flax.nnx as _  # noqa: F401 (only to say what is missing)
except ImportError as error:
    raise ImportError(
        "mpmd_trace.nnx needs Flax; install it with: pip install 'mpmd_trace[flax]'", name=error.name
    ) from None

from mpmd_trace.nnx._gradients import value_and_grad as value_and_grad
from mpmd_trace.nnx._jit import jit as jit
from mpmd_trace.nnx._layers import NamedLayer as NamedLayer
from mpmd_trace.nnx._layers import name_layers as name_layers
from mpmd_trace.nnx._layers import name_scans as name_scans
from mpmd_trace.nnx._layers import named_computation as named_computation
from mpmd_trace.nnx._placing import create as create
from mpmd_trace.nnx._placing import place as place
from mpmd_trace.nnx._program import program as program
