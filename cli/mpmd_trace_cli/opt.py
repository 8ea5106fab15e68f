"""`mpmd-trace opt`: an MLIR opt driver for our passes, flags and all.

mpmd-trace opt FILE -mpmd-call-inline -symbol-dce
mpmd-trace opt - --pass-pipeline='builtin.module(mpmd-import-pipeline{...})' < FILE
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from mpmd_trace.diagnostics.messages import WIDTH, Diagnostic, MpmdError, cut_lines
from mpmd_trace.ir.diagnostics import Diagnostics, PassFailed
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace.jax_compat.mlir import prettify_or_fail
from mpmd_trace.passes.base import Pass, said_by
from mpmd_trace.passes.manager import check_bodies, printed_bodies
from mpmd_trace.passes.parse_pipeline import parse_options
from mpmd_trace.passes.registry import build, get_pass
from mpmd_trace_cli import INTERRUPTED
from mpmd_trace_cli.expected import Expectations
from mpmd_trace_cli.files import check_output, explain_os_error, read_text, write_text
from mpmd_trace_cli.opt_flags import SEPARATOR, Options, help_text, parse_arguments, pass_names
from mpmd_trace_cli.status import FOUND, WRONG_CALL, CallError, status_of

#: Lines of ops in diagnostics are cut to this length: one constant may be megabytes of text.
_OP_WIDTH = 10_000
_LEVELS = ("errors", "warnings", "remarks")


@dataclasses.dataclass
class Outcome:
    """The outcome of one part of the input: its text (None after a failure) and what was reported."""

    output: str | None
    diagnostics: list[Diagnostic]


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status (`status.py`)."""
    try:
        return _main(arguments)
    except MpmdError as error:
        print(error, file=sys.stderr)
        return status_of(error)
    except BrokenPipeError:  # the reader has seen enough
        pass
    except (OSError, UnicodeError) as error:
        message = explain_os_error(error) if isinstance(error, OSError) else str(error)
        print(f"error: {message}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return WRONG_CALL


def _main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    if options.on("help") or options.on("list-passes"):
        print(help_text() if options.on("help") else "\n".join(pass_names()), flush=True)
        return 0
    try:
        built = (get_pass(name, parse_options(value)) if name else build(value) for name, value in options.passes)
        passes = list(itertools.chain.from_iterable(built))
    except MpmdError as error:
        raise CallError(error.diagnostics) from None
    if options.on("dump-pass-pipeline"):
        print(f"builtin.module({','.join(p.spec for p in passes)})", file=sys.stderr)
    target = options.flags.get("o", "-")
    check_output(target)
    text, name = read_text(options.file)
    outputs, failed = [], False
    separator = options.separator
    for chunk in [text] if separator is None else _split(text, separator):
        outcome = process(chunk, passes, options, name)
        outputs.append(outcome.output)
        if options.on("verify-diagnostics"):
            expectations = Expectations.read(chunk, name)
            expectations.only_expected = options.flags["verify-diagnostics"] == "only-expected"
            problems = expectations.compare(outcome.diagnostics)
            for problem in problems:
                print(problem, file=sys.stderr)
            failed = failed or bool(problems)
        else:
            report(outcome.diagnostics, chunk, name, options)
            failed = failed or outcome.output is None
    between = options.flags.get("output-split-marker", SEPARATOR) + "\n"
    whole = between.join(output or "" for output in outputs)
    if target == "-" or not failed:
        write_text(target, whole)
    return FOUND if failed else 0


def _split(text: str, separator: str) -> list[str]:
    """Return the parts between separator lines; empty lines in front of each keep places those in the whole text."""
    parts: list[str] = []
    current: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() == separator.strip():
            parts.append("\n".join([*current, ""]))
            current = [""] * number
        else:
            current.append(line)
    return [*parts, "\n".join(current)]


def process(text: str, passes: Sequence[Pass], options: Options, name: str = "-") -> Outcome:
    """Parse, run the passes, print."""
    diagnostics = Diagnostics()
    try:
        module = parse(
            text,
            filename=name,
            allow_unregistered=options.on("allow-unregistered-dialect"),
            diagnostics=diagnostics.found,
        )
        _run(module, passes, options, diagnostics)
        if not diagnostics.failed:
            return Outcome(_print(module, options), diagnostics.found)
    except MpmdError as error:
        diagnostics.found += error.diagnostics
    return Outcome(None, diagnostics.found)


def _print(module: Module, options: Options) -> str:
    """Return the module as text.  Raises `MpmdError` when it does not verify."""
    return prettify_or_fail(
        module.to_generic(debug_info=True),
        enable_debug_info=options.on("mlir-print-debuginfo"),
        pretty_debug_info=options.on("mlir-pretty-debuginfo"),
        print_generic_op_form=options.on("mlir-print-op-generic"),
        use_local_scope=options.on("mlir-print-local-scope"),
        skip_regions=options.on("mlir-print-skip-regions"),
        use_name_loc_as_prefix=options.on("mlir-use-nameloc-as-prefix"),
        large_elements_limit=options.number("mlir-elide-elementsattrs-if-larger"),
        large_resource_limit=options.number("mlir-elide-resource-strings-if-larger"),
    )


def _run(module: Module, passes: Sequence[Pass], options: Options, diagnostics: Diagnostics) -> None:
    """Run the passes until one fails."""
    timing: list[tuple[str, float]] = []
    folder = options.flags.get("mlir-print-ir-tree-dir")
    verifies = options.on("verify-each", default=True)
    for number, one in enumerate(passes):
        file = None
        if folder:
            name = f"builtin_module_{module.name or 'no-symbol-name'}"
            file = os.path.join(folder, name, f"{number}_{_name(one)}.mlir")
        # Those of plugins may change what others share; ours are known not to.
        is_foreign = not type(one).__module__.startswith("mpmd_trace.")
        bodies = printed_bodies(module) if verifies and is_foreign else {}
        if options.on("mlir-print-ir-before-all") or _name(one) in options.names("mlir-print-ir-before"):
            _dump("Before", one, str(module), file)
        started = time.process_time()
        changed = _run_pass(one, module, options, diagnostics)
        timing.append((one.spec, time.process_time() - started))
        if is_foreign and not diagnostics.failed:
            _check_printable(one, module, diagnostics)
        if not diagnostics.failed and verifies and (is_foreign or not one.always_verifies()):
            check_bodies(one, bodies, diagnostics)
            if problems := verify(module):
                diagnostics.found += problems
                diagnostics.fail()
        if diagnostics.failed:
            if not diagnostics.errors:
                diagnostics.error(None, f"{_name(one)} failed without saying why")
            if options.on("mlir-print-ir-after-failure") or options.on("mlir-print-ir-after-all"):
                with contextlib.suppress(AttributeError, TypeError):  # it cannot be printed, which the error says
                    _dump("After", one, module.to_generic(), file, " Failed")
            break
        if (
            options.on("mlir-print-ir-after-all")
            or (options.on("mlir-print-ir-after-change") and changed)
            or _name(one) in options.names("mlir-print-ir-after")
        ):
            _dump("After", one, str(module), file)
    if options.on("mlir-timing"):
        _print_timing(timing)


def _name(one: Pass) -> str:
    """Return what the pass is called on the command line."""
    return one.spec.partition("{")[0]


def _run_pass(one: Pass, module: Module, options: Options, diagnostics: Diagnostics) -> bool:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a plugin may print, and only the module goes to stdout
            return said_by(one, one.run(module, diagnostics))
    except PassFailed:
        pass
    except MpmdError as error:
        diagnostics.found += error.diagnostics
    except RecursionError:
        diagnostics.error(module.op.loc, f"{_name(one)}: ops are nested too deeply in each other, perhaps by inlining")
    except (Exception, SystemExit) as error:  # a mistake: still a message, and no traceback unless asked for
        if options.on("mlir-print-stacktrace-on-diagnostic"):
            traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        diagnostics.error(
            module.op.loc,
            f"{_name(one)} broke down: {type(error).__name__}: {error} "
            f"({os.path.basename(last.filename)}:{last.lineno}); this is a mistake in the pass",
        )
    diagnostics.fail()
    return True


def _check_printable(one: Pass, module: Module, diagnostics: Diagnostics) -> None:
    """Fail a pass that left something in the module that is no attribute or type."""
    try:
        module.to_generic()
    except (AttributeError, TypeError) as error:
        diagnostics.error(
            None,
            f"{_name(one)} left a module that cannot be printed: {error}. Attributes and types are not texts or ints: "
            "parse_attribute('3 : i32') of mpmd_trace.ir.attributes and parse_type of mpmd_trace.ir.types make them",
        )
        diagnostics.fail()


def _dump(when: str, one: Pass, text: str, file: str | None, suffix: str = "") -> None:
    """Print the module, or write it to a file.  Raises `OSError`."""
    dump = f"// -----// IR Dump {when} {type(one).__name__}{suffix} ({one.spec}) //----- //\n{text}"
    if file is None:
        print(dump, file=sys.stderr)
        return
    os.makedirs(os.path.dirname(file), exist_ok=True)
    Path(file).write_text(dump if dump.endswith("\n") else f"{dump}\n", encoding="utf-8")


def _print_timing(timing: Sequence[tuple[str, float]]) -> None:
    total = sum(seconds for _, seconds in timing) or 1e-9
    print("  seconds      %  pass", file=sys.stderr)
    for spec, seconds in timing:
        print(f"  {seconds:7.4f}  {seconds / total:5.1%}  {spec}", file=sys.stderr)
    print(f"  {total:7.4f}  100.0%  total", file=sys.stderr)


def report(diagnostics: Sequence[Diagnostic], text: str, name: str, options: Options) -> None:
    """Print diagnostics as MLIR does: place, message, source line with a caret, op, notes."""
    shown = _LEVELS.index(options.flags.get("mlir-diagnostic-verbosity-level", "remarks"))
    lines = text.split("\n")
    for diagnostic in diagnostics:
        if _LEVELS.index(f"{diagnostic.severity}s") > shown:
            continue
        place = diagnostic.location
        print(f"{place.prefix}{diagnostic.severity}: {diagnostic.message}", file=sys.stderr)
        position = place.file
        if position is not None and position[0] == name and 0 < position[1] <= len(lines):
            line, column = _excerpt(lines[position[1] - 1], position[2] - 1)
            print(f"{line}\n{' ' * column}^", file=sys.stderr)
        if options.on("mlir-disable-diagnostic-notes"):
            continue
        if diagnostic.op and options.on("mlir-print-op-on-diagnostic", default=True):
            print(f"{place.prefix}note: see current operation: {cut_lines(diagnostic.op, _OP_WIDTH)}", file=sys.stderr)
        for note in diagnostic.notes:
            print(f"{note.location.prefix}note: {cut_lines(note.message, _OP_WIDTH)}", file=sys.stderr)


def _excerpt(line: str, column: int) -> tuple[str, int]:
    """Return the part of a long line around a column, and where the column is in it."""
    if len(line) <= WIDTH:
        return line, column
    start = max(column - WIDTH // 2, 0)
    before, after = ("... " if start else ""), (" ..." if start + WIDTH < len(line) else "")
    return f"{before}{line[start : start + WIDTH]}{after}", column - start + len(before)
