"""MLIR through jaxlib's bindings: the real parser, verifier, printer and upstream passes.

jax itself is not imported here, so that tools that only read MLIR start fast.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..ir.diagnostics import Diagnostic, MpmdError, Note
from ..ir.location import Location

__all__ = ["normalize_attribute", "prettify", "run_pipeline", "to_generic"]


@functools.cache
def _registry() -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    stablehlo.register_stablehlo_passes()
    return registry


def new_context(*, allow_unregistered: bool = False) -> Any:
    """A fresh MLIR context with every dialect that programs may use."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo, mpmd, sdy, stablehlo

    context = ir.Context()
    context.append_dialect_registry(_registry())
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy, mpmd):
        dialect.register_dialect(context)
    context.allow_unregistered_dialects = allow_unregistered
    context.enable_multithreading(False)
    return context


@contextmanager
def _collecting(context: Any) -> Iterator[list[Diagnostic]]:
    found: list[Diagnostic] = []

    def handle(diagnostic: Any) -> bool:
        severity = str(diagnostic.severity).rsplit(".", 1)[-1].lower()
        notes = tuple(Note(n.message, _location(n.location)) for n in diagnostic.notes)
        found.append(
            Diagnostic(
                severity if severity in ("error", "warning") else "remark",  # type: ignore[arg-type]
                diagnostic.message,
                _location(diagnostic.location),
                notes,
            )
        )
        return True

    handler = context.attach_diagnostic_handler(handle)
    try:
        yield found
    finally:
        handler.detach()


def _location(loc: Any) -> Location:
    text = str(loc)
    return Location(text[4:-1] if text.startswith("loc(") else text)


def _parse(text: str, context: Any, filename: str) -> Any:
    from jaxlib.mlir import ir

    with _collecting(context) as found:
        try:
            module = ir.Module.parse(text, context)
        except ir.MLIRError as error:
            if not found:
                raise MpmdError(str(error)) from None
            raise MpmdError([_renamed(d, filename) for d in found]) from None
    return module


def _renamed(diagnostic: Diagnostic, filename: str) -> Diagnostic:
    """The parser calls its input "-"; users want the name of their file."""
    import dataclasses

    def fix(loc: Location) -> Location:
        return Location(loc.resolved.replace('"-":', f'"{filename}":'))

    return dataclasses.replace(
        diagnostic,
        location=fix(diagnostic.location),
        notes=tuple(Note(n.message, fix(n.location)) for n in diagnostic.notes),
    )


def _generic(module: Any) -> str:
    text: str = module.operation.get_asm(
        print_generic_op_form=True, enable_debug_info=True, assume_verified=True
    )
    return text


def to_generic(text: str, *, filename: str = "-", allow_unregistered: bool = False) -> str:
    """Any MLIR text (or a jaxlib module) in generic form, with locations, parsed and verified.

    Raises `MpmdError` with the parser's and the verifier's diagnostics.
    """
    context = new_context(allow_unregistered=allow_unregistered)
    with context:
        generic = _generic(_parse(text, context, filename))
    return generic.replace('loc("-":', f'loc("{filename}":') if filename != "-" else generic


def module_to_generic(module: Any) -> str:
    """A jaxlib module in generic form with locations; the module is not changed."""
    return _generic(module)


def prettify(generic: str, *, debug_info: bool = False, allow_unregistered: bool = True) -> str:
    """Generic text in the dialects' own syntax.  Text that does not verify stays generic."""
    from jaxlib.mlir import ir

    context = new_context(allow_unregistered=allow_unregistered)
    with context, _collecting(context):
        try:
            module = ir.Module.parse(generic, context)
        except ir.MLIRError:
            return generic
        text: str = module.operation.get_asm(enable_debug_info=debug_info, assume_verified=True)
    return text


def prettify_or_fail(generic: str, *, debug_info: bool = False, generic_form: bool = False) -> str:
    """Generic text in the dialects' own syntax.  Raises `MpmdError` when it does not verify."""
    context = new_context(allow_unregistered=True)
    with context:
        module = _parse(generic, context, "-")
        text: str = module.operation.get_asm(
            enable_debug_info=debug_info, print_generic_op_form=generic_form, assume_verified=True
        )
    return text if text.endswith("\n") else text + "\n"


def run_pipeline(
    generic: str, pipeline: str, *, filename: str = "-", allow_unregistered: bool = False
) -> tuple[str, list[Diagnostic]]:
    """Run passes that jaxlib registers, e.g. `builtin.module(canonicalize)`; returns text and diagnostics.

    Raises `MpmdError` when a pass fails or the pipeline does not parse.
    """
    from jaxlib.mlir import ir, passmanager

    context = new_context(allow_unregistered=allow_unregistered)
    with context:
        module = _parse(generic, context, filename)
        try:
            manager = passmanager.PassManager.parse(pipeline, context)
        except ValueError as error:
            raise MpmdError(f"cannot read the pipeline '{pipeline}': {error}") from None
        manager.enable_verifier(True)
        with _collecting(context) as found:
            try:
                manager.run(module.operation)
            except ir.MLIRError as error:
                raise MpmdError(found or str(error)) from None
        return _generic(module), found


@functools.cache
def pipeline_parses(pipeline: str) -> bool:
    """Whether MLIR's pass registry in jaxlib knows every pass of this textual pipeline."""
    from jaxlib.mlir import passmanager

    context = new_context()
    with context, _collecting(context):
        try:
            passmanager.PassManager.parse(pipeline, context)
        except ValueError:
            return False
    return True


@functools.lru_cache(maxsize=None)
def expand_pipeline(pipeline: str) -> str:
    """The passes that a named pipeline stands for, as text.  Raises `MpmdError` when jaxlib does not know it."""
    from jaxlib.mlir import passmanager

    context = new_context()
    with context, _collecting(context):
        try:
            return str(passmanager.PassManager.parse(pipeline, context))
        except ValueError as error:
            raise MpmdError(f"cannot read the pipeline '{pipeline}': {error}") from None


@functools.cache
def _attribute_context() -> Any:
    return new_context()


def normalize_attribute(text: str) -> str:
    """The attribute as MLIR prints it: `dense<"0x0000803F"> : tensor<f32>` is `dense<1.000000e+00> : ...`."""
    from jaxlib.mlir import ir

    return str(ir.Attribute.parse(text, _attribute_context()))
