"""Passes of `mpmd_trace.jit` around Shardy's propagation."""
