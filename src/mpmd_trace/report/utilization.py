"""Former place of `mpmd_trace.scheduling.utilization`, for one release."""

from mpmd_trace.diagnostics.moved import moved

__getattr__ = moved(__name__, "mpmd_trace.scheduling.utilization")
