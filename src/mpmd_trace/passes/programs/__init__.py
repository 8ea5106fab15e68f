"""Passes of `mpmd_trace.jit` that make programs equal, fewer or larger."""
