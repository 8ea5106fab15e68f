"""Equinox: naming the layers of a model, gradients over microbatches, jit of functions of modules, placing, creating
and saving them."""

try:
    import equinox as _  # noqa: F401 (only to say what is missing)
except ImportError as error:
    raise ImportError(
        "mpmd_trace.equinox needs Equinox; install it with: pip install 'mpmd_trace[equinox]'", name=error.name
    ) from None

from mpmd_trace.api.checkpoints.restoring import restore as restore
from mpmd_trace.api.checkpoints.saving import save as save
from mpmd_trace.api.filter_jit import filter_jit as filter_jit
from mpmd_trace.api.placing import abstract as abstract
from mpmd_trace.api.placing import create as create
from mpmd_trace.api.placing import place as place
from mpmd_trace.equinox._gradients import filter_value_and_grad as filter_value_and_grad
from mpmd_trace.equinox._layers import NamedFunction as NamedFunction
from mpmd_trace.equinox._layers import NamedLayer as NamedLayer
from mpmd_trace.equinox._layers import name_layers as name_layers
from mpmd_trace.equinox._layers import split as split
from mpmd_trace.frontend.statics import Statics as Statics
from mpmd_trace.frontend.statics import join as join
