"""Children that were forked from a process with devices: XLA's threads are not there, and who waits for them hangs."""

from __future__ import annotations

import ctypes
import os

from jax._src import distributed, xla_bridge

from mpmd_trace.diagnostics.messages import MpmdError

_is_child = False


def _remember() -> None:
    global _is_child
    _is_child = _is_child or xla_bridge.backends_are_initialized()
    state = distributed.global_state
    for one in (state.client, state.service):
        if one is not None:  # its end would be reported to the coordination service, as that of the parent
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
    state.client = state.service = None


os.register_at_fork(after_in_child=_remember)


def check_not_forked() -> None:
    """Raise `MpmdError` in a child that was forked when JAX had its devices."""
    if _is_child:
        raise MpmdError(
            "this process was forked from one that had used its devices, and cannot use them: JAX would wait for ever "
            "for threads that a fork does not copy. Start it otherwise, as with "
            'multiprocessing.get_context("spawn") or "forkserver", or fork before JAX is used'
        )
