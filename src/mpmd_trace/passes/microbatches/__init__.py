"""Passes of `mpmd_trace.jit` that are about microbatches: schedules, and what callees do once for all of them."""
