"""What is in `mpmd_trace.scheduling.utilization` now, for one release."""

from mpmd_trace.diagnostics.moved import moved

__getattr__ = moved(__name__, "mpmd_trace.scheduling.utilization")
