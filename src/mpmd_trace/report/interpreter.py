"""Former place of `mpmd_trace_devtools.interpreter`, for one release."""

from mpmd_trace.diagnostics.moved import moved

__getattr__ = moved(__name__, "mpmd_trace_devtools.interpreter")
