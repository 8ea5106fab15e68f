"""Flax Linen: naming the submodules of a model."""

try:
    import flax.linen as _  # noqa: F401 (only to say what is missing)
except ImportError as error:
    raise ImportError(
        "mpmd_trace.linen needs Flax; install it with: pip install 'mpmd_trace[flax]'", name=error.name
    ) from None

from mpmd_trace.linen._layers import name_layers as name_layers
