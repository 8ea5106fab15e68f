"""What is in `mpmd_trace.config` now, for one release."""

from mpmd_trace.diagnostics.moved import moved

__getattr__ = moved(__name__, "mpmd_trace.config")
