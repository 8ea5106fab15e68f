"""What tests need not do again: XLA compiles equal programs once in a process, and JAX makes few MLIR contexts.

Thousands of small programs are compiled here, every second of which is one that was compiled before (the same weights,
the same sums, the same step under another schedule), and JAX 0.10 makes a context with all dialects for each; both
together are a third of the time. What is compiled is the same either way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

#: As many executables are kept.
KEPT = 500
#: As many lowerings of a thread share a context (what a context interns lives as long as it does), as in JAX 0.12.
LOWERINGS = 10


def compile_equal_programs_once() -> None:
    """Compiling a module, options and devices again gives the executable of the first time."""
    from jax._src import compiler

    compiler.backend_compile_and_load = _remembering(compiler.backend_compile_and_load)


def _remembering(compile_and_load: Callable[..., Any]) -> Callable[..., Any]:
    kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
    lock = threading.Lock()

    def compiled(backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Sequence[Any]) -> Any:
        text = module.operation.get_asm(enable_debug_info=False)
        if host_callbacks or "callback" in text:  # addresses of Python functions, which may be others by now
            return compile_and_load(backend, module, devices, options, host_callbacks)
        key = (backend, text, tuple(device.id for device in devices), options.SerializeAsString())
        with lock:
            found = kept.get(key)
        if found is None:
            found = compile_and_load(backend, module, devices, options, host_callbacks)
        with lock:
            kept[key] = found
            kept.move_to_end(key)
            if len(kept) > KEPT:
                kept.popitem(last=False)
        return found

    return compiled


def share_contexts() -> None:
    """A thread's lowerings share MLIR contexts."""
    from jax._src.interpreters import mlir

    if not hasattr(mlir, "_thread_local_context"):
        mlir.make_ir_context = _sharing(mlir.make_ir_context)


def _sharing(make: Callable[[], Any]) -> Callable[[], Any]:
    thread = threading.local()

    def context() -> Any:
        left = getattr(thread, "left", 0)
        if left == 0:
            thread.context, left = make(), LOWERINGS
        thread.left = left - 1
        return thread.context

    return context
