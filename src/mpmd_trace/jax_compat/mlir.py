"""MLIR through jaxlib's bindings: the real parser, verifier, printer and upstream passes.

jax itself is not imported here, so that tools that only read MLIR start fast.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, Note, raise_errors
from mpmd_trace.diagnostics.mlir_text import quote


@functools.cache
def _registry() -> Any:
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    stablehlo.register_stablehlo_passes()
    return registry


def new_context(*, allow_unregistered: bool = False) -> Any:
    """Return a fresh MLIR context with every dialect that programs may use."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib
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
def _collecting(context: Any, filename: str = "-") -> Iterator[list[Diagnostic]]:
    """Collect what MLIR reports meanwhile: errors, too, in the order in which they come.

    The parser calls its input "-"; locations get the name of the user's file.
    """
    diagnostics: list[Diagnostic] = []

    def handle(reported: Any) -> bool:
        diagnostics.append(_diagnostic(reported, filename))
        return True

    # Otherwise the bindings put errors aside for their exception, and lose those of passes that succeed.
    context.emit_error_diagnostics = True
    handler = context.attach_diagnostic_handler(handle)
    try:
        yield diagnostics
    finally:
        handler.detach()
        context.emit_error_diagnostics = False


_CURRENT_OP = "see current operation: "


def _diagnostic(reported: Any, filename: str) -> Diagnostic:
    severity = str(reported.severity).rsplit(".", 1)[-1].lower()
    notes, op = [], None
    for note in reported.notes:
        if op is None and note.message.startswith(_CURRENT_OP):
            op = note.message[len(_CURRENT_OP) :].strip("\n")
        else:
            notes.append(Note(note.message, _location(note.location, filename)))
    return Diagnostic(
        "error" if severity == "error" else "warning" if severity == "warning" else "remark",
        reported.message,
        _location(reported.location, filename),
        tuple(notes),
        op,
    )


def _location(loc: Any, filename: str) -> Location:
    text = str(loc)
    text = text[4:-1] if text.startswith("loc(") else text
    return Location(_named(text, filename))


def _named(text: str, filename: str) -> str:
    if filename == "-":
        return text
    return re.sub(r'(?<![\w\\])"-":(?=\d)', lambda _: f"{quote(filename)}:", text)


def _parse(text: str, context: Any, filename: str, diagnostics: list[Diagnostic] | None = None) -> Any:
    """Return the jaxlib module; warnings and remarks go to `diagnostics`.  Raises `MpmdError`."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    _check_risks(text, filename)
    with _collecting(context, filename) as collected:
        try:
            module = ir.Module.parse(text, context)
        except ir.MLIRError as error:
            raise MpmdError(collected or str(error)) from None
        except ValueError as error:  # not text at all
            raise MpmdError(f"cannot read {filename}: {error}") from None
    if diagnostics is not None:
        diagnostics += collected
    return module


#: Comments and strings, which mean nothing; calls; topologies that are something else.
_RISKY = re.compile(
    r'//[^\n]*|"(?!mpmd\.call")(?:[^"\\\n]|\\.)*"'
    r'|(?:"mpmd\.call"\s*\([^()]*\)\s*<?\{[^{}@]*callee\s*=|(?<![\w.])mpmd\.call(?![\w.]))'
    r'\s*@(?P<callee>[A-Za-z_][\w$.]*|"(?:[^"\\]|\\.)*")'
    r"|(?<![\w.#@%!])(?P<topology>topology)\s*(?:=\s*(?![#\s])|(?=[,}]))"
)
#: All calls that `_RISKY` finds, and perhaps some in comments and strings; it is fast.
_CALLEE = re.compile(
    r'mpmd\.call(?:"\s*\([^()]*\)\s*<?\{[^{}@]*callee\s*=|(?![\w.]))\s*@([A-Za-z_][\w$.]*|"(?:[^"\\]|\\.)*")'
)
_MISSING = "'mpmd.call' op calls @{callee}, which is not a function of the module; define it, or call one that is there"
_TOPOLOGY = re.compile(r"topology\s*(?:=\s*[^#\s]|[,}])")


def _check_risks(text: str, filename: str) -> None:
    """Raise `MpmdError` for what the dialect's verifier takes for granted, and crashes on when it is not so:
    the functions that are called exist, topologies are topologies.
    """
    if "mpmd." not in text:
        return
    known = {callee: _defines(text, callee) for callee in set(_CALLEE.findall(text))}
    if all(known.values()) and _TOPOLOGY.search(text) is None:
        return
    risks = []
    for match in _RISKY.finditer(text):
        callee = match["callee"]
        if callee is not None:
            if known.get(callee) or _defines(text, callee):
                continue
            message = _MISSING.format(callee=callee)
        elif match["topology"]:
            message = 'a topology is a #mpmd.topology<<"name" : <["axis"=2]>>, ...>'
        else:
            continue
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        place = Location(f"{quote(filename)}:{line}:{column}")
        risks.append(Diagnostic("error", message, place))
    raise_errors(risks)


def _defines(text: str, callee: str) -> bool:
    plain = re.escape(callee.strip('"'))
    return re.search(rf'func\.func\s[^@(]*@"?{plain}"?\s*\(|sym_name\s*=\s*"{plain}"', text) is not None


def module_to_generic(module: Any, **printing: Any) -> str:
    """Return a jaxlib module in generic form with locations; the module is not changed.

    `printing` are more options of the bindings' `get_asm`.
    """
    text: str = module.operation.get_asm(
        print_generic_op_form=True, enable_debug_info=True, assume_verified=True, **printing
    )
    return text


def to_generic(
    text: str, *, filename: str = "-", allow_unregistered: bool = False, diagnostics: list[Diagnostic] | None = None
) -> str:
    """Any MLIR text in generic form, with locations, parsed and verified.

    Warnings and remarks go to `diagnostics`.  Raises `MpmdError` with what parser and verifier report.
    """
    check_nesting(text, filename)
    with new_context(allow_unregistered=allow_unregistered) as context:
        generic = module_to_generic(_parse(text, context, filename, diagnostics))
    if filename == "-":
        return generic
    return generic.replace('loc("-":', f"loc({quote(filename)}:")


def to_generic_through(
    given: Any, pipeline: str, prepare: Callable[[Any], None] | None = None
) -> tuple[str, list[Diagnostic], float]:
    """Any MLIR text, or a jaxlib module, in generic form after a pipeline: parsed or copied once, printed once.

    `prepare` may change the module before the pipeline.  The passes run in the context of a jaxlib module.

    Returns the text, what the parser and the pipeline reported, and the CPU seconds of the pipeline alone.
    Raises `MpmdError` when something fails.
    """
    diagnostics: list[Diagnostic] = []
    is_text = isinstance(given, str)
    if is_text:
        check_nesting(given, "-")
    _registry()  # knows the passes
    with new_context() if is_text else given.context as context:
        module = _parse(given, context, "-", diagnostics) if is_text else _verified_copy(given, diagnostics)
        started = time.process_time()
        if prepare is not None:
            prepare(module.operation)
        diagnostics += _run(module, pipeline, context)
        seconds = time.process_time() - started
        # Places in the text are short enough to be spelled out. Resources are printed behind aliases of locations only.
        short = is_text and "loc(" not in given and "{-#" not in given
        return module_to_generic(module, use_local_scope=short), diagnostics, seconds


def _verified_copy(module: Any, diagnostics: list[Diagnostic]) -> Any:
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    _check_calls(module)
    with _collecting(module.context) as collected:
        try:
            module.operation.verify()  # passes take it for granted
        except ir.MLIRError as error:
            raise MpmdError(collected or str(error)) from None
    diagnostics += collected
    return module.operation.clone()


def _check_calls(module: Any) -> None:
    """Do for a jaxlib module what `_check_risks` does for text."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    known = {op.attributes["sym_name"].value for op in module.body.operations if "sym_name" in op.attributes}
    problems = []

    def visit(op: Any) -> Any:
        if op.name == "mpmd.call" and "callee" in op.attributes:
            callee = op.attributes["callee"].value
            if callee not in known:
                problems.append(Diagnostic("error", _MISSING.format(callee=callee), _location(op.location, "-")))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    raise_errors(problems)


def prettify(generic: str, *, debug_info: bool = False) -> str:
    """Rewrite generic text in the dialects' own syntax.  Text that does not verify stays generic."""
    try:
        return prettify_or_fail(generic, enable_debug_info=debug_info)
    except MpmdError:
        return generic


def prettify_or_fail(generic: str, **printing: Any) -> str:
    """Rewrite generic text in the dialects' own syntax.  Raises `MpmdError` when it does not verify.

    `printing` are options of the bindings' `get_asm`: enable_debug_info, print_generic_op_form ...
    """
    with new_context(allow_unregistered=True) as context:
        module = _parse(generic, context, "-")
        text: str = module.operation.get_asm(**{"assume_verified": True, **printing})
    return text


def run_pipeline(generic: str, pipeline: str, *, allow_unregistered: bool = False) -> tuple[str, list[Diagnostic]]:
    """Run passes that jaxlib registers, e.g. `builtin.module(canonicalize)`; returns text and diagnostics.

    Raises `MpmdError` when a pass fails or the pipeline does not parse.
    """
    with new_context(allow_unregistered=allow_unregistered) as context:
        module = _parse(generic, context, "-")
        diagnostics = _run(module, pipeline, context)
        return module_to_generic(module), diagnostics


def _run(module: Any, pipeline: str, context: Any) -> list[Diagnostic]:
    """Run a pipeline on a jaxlib module in place; returns what it reports.  Raises `MpmdError`."""
    from jaxlib.mlir import ir, passmanager  # late: the command line starts without jaxlib

    _check_entry_point(module, pipeline)
    try:
        manager = passmanager.PassManager.parse(pipeline, context)
    except ValueError as error:
        raise MpmdError(f"cannot read the pipeline '{pipeline}': {_plain(error)}") from None
    manager.enable_verifier(False)  # once at the end is enough
    with _collecting(context) as result:
        try:
            manager.run(module.operation)
            module.operation.verify()
        except ir.MLIRError as error:
            raise MpmdError(result or str(error)) from None
    return result


#: Passes of Shardy that end the process when they find several functions, but none called `main`.
_NEEDS_MAIN = re.compile(r"sdy-[a-z-]*(?:propagat|export|constraints|func-data-flow|sub-axes)[a-z-]*")


def _check_entry_point(module: Any, pipeline: str) -> None:
    """Raise `MpmdError` for a module on which a pass of the pipeline would end the process."""
    if _NEEDS_MAIN.search(pipeline) is None:
        return
    names = [
        op.attributes["sym_name"].value
        for op in module.operation.regions[0].blocks[0].operations
        if op.operation.name == "func.func"
    ]
    if len(names) > 1 and "main" not in names:
        raise MpmdError(
            "Shardy starts from the function @main, which this module does not have; it has "
            f"{', '.join('@' + name for name in names)}: call the entry point main"
        )


@functools.cache
def pipeline_parses(pipeline: str) -> bool:
    """Return whether MLIR's pass registry in jaxlib knows every pass of this textual pipeline."""
    from jaxlib.mlir import passmanager  # late: the command line starts without jaxlib

    with new_context() as context, _collecting(context):
        try:
            passmanager.PassManager.parse(pipeline, context)
        except ValueError:
            return False
    return True


@functools.cache
def expand_pipeline(pipeline: str) -> str:
    """Return the passes that a pipeline stands for, as text.  Raises `MpmdError` when jaxlib does not know it."""
    from jaxlib.mlir import passmanager  # late: the command line starts without jaxlib

    said: list[str] = []
    with new_context() as context, _collecting(context):
        try:
            with taking_stderr(said):
                return str(passmanager.PassManager.parse(pipeline, context))
        except ValueError as error:
            more = "".join(f"; {line.lstrip(': ')}" for line in said)
            raise MpmdError(f"cannot read the pipeline '{pipeline}': {_plain(error)}{more}") from None


@contextmanager
def taking_stderr(said: list[str]) -> Iterator[None]:
    """Add what is written to stderr meanwhile to `said`: LLVM says there which value of an option is wrong."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(saved, 2)
                file.seek(0)
                said += [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    finally:
        os.close(saved)


def _plain(error: Exception) -> str:
    """Return the text of an exception in one line."""
    return " ".join(str(error).split())


@functools.cache
def _attribute_context() -> Any:
    return new_context()


def normalize_attribute(text: str) -> str:
    """Return the attribute as MLIR prints it: `dense<"0x0000803F"> : tensor<f32>` is `dense<1.000000e+00> : ...`."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    return str(ir.Attribute.parse(text, _attribute_context()))


#: As many brackets may be open at a place (an op in a region is in two or three), and in a location.
MOST_BRACKETS = 200
_MOST_IN_LOCATION = 5000
_OPEN, _CLOSE = "<([{", ">)]}"
#: Strings, comments and arrows, in which brackets mean nothing.
_WITHOUT_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>]=')
_TOKENS = re.compile(rf"{_WITHOUT_BRACKETS.pattern}|(?<![\w$.-])loc\(|[<(\[{{>)\]}}]")
_DELETED = bytes(sorted(set(range(256)) - set((_OPEN + _CLOSE).encode())))
_ROUND = bytes.maketrans((_OPEN + _CLOSE).encode(), b"(" * len(_OPEN) + b")" * len(_CLOSE))


def _outside_of_strings(text: str) -> str:
    """Return the text without strings, comments and arrows."""
    parts = text.split('"')
    if len(parts) % 2 == 0 or "\\" in text or "//" in text or any("\n" in string for string in parts[1::2]):
        return _WITHOUT_BRACKETS.sub("", text)
    return " ".join(parts[::2]).replace("->", " ").replace("<=", " ").replace(">=", " ")  # several times as fast


def check_nesting(text: str, filename: str) -> None:
    """Raise `MpmdError` for text in which more brackets are open at a place than we, or MLIR, could follow."""
    if sum(map(text.count, _OPEN)) <= MOST_BRACKETS:
        return
    brackets = _outside_of_strings(text).encode(errors="replace").translate(_ROUND, _DELETED)
    for removed in range(MOST_BRACKETS):  # each time the innermost pairs, which takes one level away
        if removed + brackets.count(b"(") <= MOST_BRACKETS:
            return
        brackets = brackets.replace(b"()", b"")
    depth = in_location = 0
    for match in _TOKENS.finditer(text):
        token = match.group()
        if in_location or token == "loc(":
            in_location += (token == "loc(" or token in _OPEN) - (token in _CLOSE)
        else:
            depth += (token in _OPEN) - (token in _CLOSE)
        if depth > MOST_BRACKETS or in_location > _MOST_IN_LOCATION:
            line = text.count("\n", 0, match.start()) + 1
            place = Location(f"{quote(filename)}:{line}:{match.start() - text.rfind(chr(10), 0, match.start())}")
            limit = _MOST_IN_LOCATION if in_location else MOST_BRACKETS
            where = "locations" if in_location else "ops, attributes and types"
            message = f"nested too deeply: more than {limit} brackets of {where} are open here"
            raise MpmdError([Diagnostic("error", message, place)])
