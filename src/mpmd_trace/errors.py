"""Errors and warnings: mistakes in a program, avoidable costs, failed processes, and bugs of `mpmd_trace`."""

from mpmd_trace.backend.distribution.faults import PeerError
from mpmd_trace.diagnostics.internal import InternalError
from mpmd_trace.diagnostics.messages import MpmdError, MpmdWarning

__all__ = ["InternalError", "MpmdError", "MpmdWarning", "PeerError"]
