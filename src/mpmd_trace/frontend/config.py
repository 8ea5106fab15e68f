"""Former place of `mpmd_trace.config`, for one release."""

from mpmd_trace.diagnostics.moved import moved

__getattr__ = moved(__name__, "mpmd_trace.config")
