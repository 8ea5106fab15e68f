"""Any module at any stage of the compiler as the plain single-device program that it means, in text."""

from __future__ import annotations

from mpmd_trace.ir.core import Block
from mpmd_trace.ir.ops import FuncOp, Module, local_type
from mpmd_trace_devtools.single_device_program import Eraser, entry_function

__all__ = ["erase_to_plain", "plain_module"]


def plain_module(module: Module, function: FuncOp) -> Module:
    """The program that `function` means, as `@main` of a new module of StableHLO ops."""
    block = Block([local_type(a.type) for a in function.args])
    eraser = Eraser(module, block)
    return eraser.program(eraser.call(function, list(block.args)))


def erase_to_plain(module: Module, function: str | None = None) -> str:
    """The plain single-device StableHLO program (text, `@main`) that a function of `module` means.

    Loops are unrolled, calls inlined, names, meshes, transfers and shardings gone.  Only manual computations
    (`sdy.manual_computation`) keep their meshes, because they compute on parts of values.

    Args:
        module: a module at any stage; it is not changed.
        function: which function; by default `@main`, or the only public one.
    """
    return str(plain_module(module, entry_function(module, function)))
