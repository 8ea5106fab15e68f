"""What tests need not do again: XLA compiles equal programs once in a process, and there are few MLIR contexts.

The process of the C++ partitioner, which takes a second to start, serves all that ask; each question has its own fork.
Commands are made once.

Thousands of small programs are compiled here, every second of which was compiled before (the same weights, the same
sums, the same step under another schedule), and each text that is read or printed would have a context of its own, with
all dialects. Both together are a sixth to two fifths of the time. What is compiled is the same either way.
"""

from __future__ import annotations

import atexit
import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from mpmd_trace.jax_compat import mlir as ours

NEW_CONTEXT = ours.new_context
#: As many executables are kept.
KEPT = 1000
#: As many uses in a thread share a context (what a context interns lives as long as it does), as in JAX 0.12.
USES = 10


def compile_equal_programs_once() -> None:
    """Compiling a module, by any name, with options and devices again gives the executable of the first time."""
    from jax._src import compiler

    compiler.backend_compile_and_load = _remembering(compiler.backend_compile_and_load)


def _remembering(compile_and_load: Callable[..., Any]) -> Callable[..., Any]:
    kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
    lock = threading.Lock()

    def compiled(backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Sequence[Any]) -> Any:
        text = module.operation.get_asm(enable_debug_info=False)
        if host_callbacks or "callback" in text:  # addresses of Python functions, which may be others by now
            return compile_and_load(backend, module, devices, options, host_callbacks)
        text = re.sub(r"^module @\S+", "module", text, count=1, flags=re.MULTILINE)
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

    compiled.__wrapped__ = compile_and_load  # type: ignore[attr-defined]
    return compiled


@contextmanager
def own_executables() -> Iterator[None]:
    """Executables have the names of their modules meanwhile, and the places in code that those were traced from."""
    from jax._src import compiler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "backend_compile_and_load", compiler.backend_compile_and_load.__wrapped__)
        yield


def share_contexts() -> None:
    """In a thread, lowerings share MLIR contexts, and so do modules that come and go as text."""
    from jax._src.interpreters import mlir

    if not hasattr(mlir, "_thread_local_context"):
        mlir.make_ir_context = _sharing(mlir.make_ir_context)
    ours.new_context = _sharing(ours.new_context)


def make_commands_once() -> None:
    """Typer looks at the parameters of all commands once, not in each call of `mpmd-trace`."""
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)


def keep_the_cpp_partitioner() -> None:
    """There is one process of the C++ partitioner, until this one ends."""
    from mpmd_trace.passes import cpp_engine

    close = cpp_engine.CppPartitioner.close

    @functools.cache
    def kept() -> cpp_engine.CppPartitioner:
        started = cpp_engine.CppPartitioner.__new__(cpp_engine.CppPartitioner)
        start(started)
        atexit.register(close, started)
        return started

    def use(self: cpp_engine.CppPartitioner) -> None:
        self.__dict__ = kept().__dict__

    start = cpp_engine.CppPartitioner.__init__
    cpp_engine.CppPartitioner.__init__ = use  # type: ignore[method-assign]
    cpp_engine.CppPartitioner.close = lambda self: None  # type: ignore[method-assign]


@contextmanager
def own_contexts() -> Iterator[None]:
    """Text has contexts of its own meanwhile: in one that knows a resource, another of that name is named anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "new_context", NEW_CONTEXT)
        yield


def _sharing(make: Callable[..., Any]) -> Callable[..., Any]:
    thread = threading.local()

    def context(**options: bool) -> Any:
        kept: dict[Any, tuple[Any, int]] = thread.__dict__
        key = str(options)
        made, left = kept.get(key, (None, 0))
        if left == 0:
            made, left = make(**options), USES
        kept[key] = (made, left - 1)
        return made

    return context
