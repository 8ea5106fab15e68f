"""`mpmd-trace opt`: an MLIR opt driver for our passes, flags and all.

    mpmd-trace opt FILE -mpmd-call-inline -symbol-dce
    mpmd-trace opt - --pass-pipeline='builtin.module(mpmd-import-pipeline{...})' < FILE
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence

from ..ir.diagnostics import Diagnostic, Diagnostics, MpmdError, PassFailed
from .expected import Expectations

__all__ = ["main"]

_FLAGS = {
    "split-input-file": "process the parts between lines '// -----' one by one",
    "verify-diagnostics": "check diagnostics against expected-error, -warning, -remark and -note comments",
    "allow-unregistered-dialect": "accept ops of dialects that are not known",
    "mlir-print-debuginfo": "print locations",
    "mlir-print-op-generic": "print the generic form",
    "mlir-diagnostic-verbosity-level": "errors, warnings or remarks (default): the least severe ones shown",
    "mlir-print-ir-after-all": "print the module to stderr after each pass",
    "mlir-print-ir-after-change": "the same, only after passes that changed it",
    "mlir-print-ir-after-failure": "print the module to stderr when a pass fails",
    "mlir-timing": "print CPU seconds per pass to stderr",
    "verify-each": "accepted for MLIR's sake; modules are verified when they are read and printed",
    "mlir-disable-threading": "accepted for MLIR's sake; passes run in one thread",
    "no-implicit-module": "accepted for MLIR's sake",
    "pass-pipeline": "the pipeline as text: builtin.module(...)",
    "o": "the file to write; '-' (default) is stdout",
    "help": "this text",
}
_WITH_VALUE = ("o", "pass-pipeline", "mlir-diagnostic-verbosity-level")
_SEPARATOR = "// -----"


@dataclasses.dataclass
class Options:
    """What the command line asks for."""

    file: str = "-"
    flags: dict[str, str] = dataclasses.field(default_factory=dict)
    #: (pass or pipeline name, its options as text), in order; ("", pipeline text) for --pass-pipeline.
    passes: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def on(self, flag: str) -> bool:
        return self.flags.get(flag, "false") not in ("false", "0")


def parse_arguments(arguments: Sequence[str]) -> Options:
    """The options of a command line.  Raises `MpmdError` for unknown flags and passes."""
    from ..passes.options import nearest

    options, files, rest = Options(), [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "-" or not argument.startswith("-"):
            files.append(argument)
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        if name in _WITH_VALUE and not equals:
            if not rest:
                raise MpmdError(f"-{name} needs a value")
            value = rest.pop(0)
        if name == "pass-pipeline":
            options.passes.append(("", value))
        elif name in _FLAGS:
            options.flags[name] = value if equals or name in _WITH_VALUE else "true"
        elif _is_pass(name):
            options.passes.append((name, value))
        else:
            known = [*_FLAGS, *_pass_names()]
            raise MpmdError(
                f"unknown flag, pass or pipeline '{argument}'{nearest(name, known)}; see mpmd-trace opt --help"
            )
    if len(files) > 1:
        raise MpmdError(f"one input file at a time, not {' and '.join(files)}")
    level = options.flags.get("mlir-diagnostic-verbosity-level", "remarks")
    if level not in ("errors", "warnings", "remarks"):
        raise MpmdError(f"-mlir-diagnostic-verbosity-level is errors, warnings or remarks, not '{level}'")
    options.file = files[0] if files else "-"
    return options


def _pass_names() -> list[str]:
    from ..passes import registry

    registry.pass_class("")
    return [*registry.PASSES, *registry.PIPELINES, "canonicalize", "cse", "symbol-dce", "inline"]


def _is_pass(name: str) -> bool:
    from ..passes.mlir_pass import is_upstream

    return name in _pass_names() or is_upstream(name)


def _help() -> str:
    lines = [
        "usage: mpmd-trace opt FILE|- [flags] [-PASS[='option=value ...']]... [--pass-pipeline='...']",
        "",
        "Runs passes on MLIR text, in the order of the flags; one or two dashes.",
        "",
        "flags:",
    ]
    lines += [f"  -{name:34} {text}" for name, text in _FLAGS.items()]
    lines += ["", "passes and pipelines (mpmd-trace passes shows their options):"]
    lines += [f"  -{name}" for name in _pass_names()]
    lines += ["", "Passes that jaxlib registers (sdy-*, ...) can be mixed in anywhere."]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit status: 0, or 1 when something is wrong."""
    if any(a.lstrip("-") == "help" for a in arguments if a.startswith("-")) or "-h" in arguments:
        print(_help())
        return 0
    try:
        options = parse_arguments(arguments)
        text, name = _read(options.file)
    except (MpmdError, OSError) as error:
        print(error if isinstance(error, MpmdError) else f"error: {error}", file=sys.stderr)
        return 1
    outputs, failed = [], False
    chunks = _split(text) if options.on("split-input-file") else [(0, text)]
    for first_line, chunk in chunks:
        output, good = _process(chunk, first_line, name, options)
        failed = failed or not good
        outputs.append(output)
    target = options.flags.get("o", "-")
    if failed and not options.on("verify-diagnostics"):
        if target == "-":
            _write_stdout(outputs)
        return 1
    if target == "-":
        _write_stdout(outputs)
    elif not failed:
        try:
            _write_file(target, _join(outputs))
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 1 if failed else 0


def _join(outputs: Sequence[str | None]) -> str:
    return f"{_SEPARATOR}\n".join(o or "" for o in outputs)


def _write_stdout(outputs: Sequence[str | None]) -> None:
    sys.stdout.write(_join(outputs) if len(outputs) > 1 else outputs[0] or "")


def _write_file(path: str, text: str) -> None:
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(part, path)


def _read(file: str) -> tuple[str, str]:
    if file == "-":
        return sys.stdin.read(), "<stdin>"
    with open(file, encoding="utf-8") as opened:
        return opened.read(), file


def _split(text: str) -> list[tuple[int, str]]:
    """The parts between separator lines, each with the number of lines in front of it."""
    parts: list[tuple[int, str]] = []
    start, lines, current = 0, text.splitlines(keepends=True), []
    for number, line in enumerate(lines):
        if line.strip() == _SEPARATOR:
            parts.append((start, "".join(current)))
            start, current = number + 1, []
        else:
            current.append(line)
    parts.append((start, "".join(current)))
    return parts


def _process(chunk: str, first_line: int, name: str, options: Options) -> tuple[str | None, bool]:
    """One part of the input: the printed result (None when there is none) and whether all is well."""
    found = Diagnostics()
    text = "\n" * first_line + chunk  # so that places are those in the whole file
    output = _run(text, name, options, found)
    if options.on("verify-diagnostics"):
        problems = Expectations.read(text, name).compare(found.found)
        for problem in problems:
            print(problem, file=sys.stderr)
        return output, not problems
    _report(found.found, text, name, options)
    return output, output is not None


def _run(text: str, name: str, options: Options, found: Diagnostics) -> str | None:
    from ..jax_compat.mlir import prettify_or_fail
    from ..passes.options import parse_options
    from ..passes.registry import build, get_pass
    from ..text import parse

    timing: list[tuple[str, float]] = []
    try:
        module = parse(text, filename=name, allow_unregistered=options.on("allow-unregistered-dialect"))
        passes = []
        for pass_name, value in options.passes:
            passes += build(value) if not pass_name else get_pass(pass_name, parse_options(value))
    except MpmdError as error:
        found.found += error.diagnostics
        return None
    for one in passes:
        started = time.process_time()
        try:
            changed = one.run(module, found)
        except PassFailed:
            found.fail()
            changed = True
        except MpmdError as error:
            found.found += error.diagnostics
            found.fail()
            changed = True
        timing.append((one.spec, time.process_time() - started))
        if found.failed:
            if not found.errors:
                found.error(None, f"{one.name} failed without saying why")
            if options.on("mlir-print-ir-after-failure") or options.on("mlir-print-ir-after-all"):
                _dump(f"{one.spec} Failed", module.to_generic())
            return None
        if options.on("mlir-print-ir-after-all") or (options.on("mlir-print-ir-after-change") and changed):
            _dump(one.spec, str(module))
    if options.on("mlir-timing"):
        _print_timing(timing)
    debug = options.on("mlir-print-debuginfo")
    generic = module.to_generic(debug_info=True)
    try:
        return prettify_or_fail(generic, debug_info=debug, generic_form=options.on("mlir-print-op-generic"))
    except MpmdError as error:
        found.found += error.diagnostics
        return None


def _dump(what: str, text: str) -> None:
    print(f"// -----// IR Dump After {what} //----- //\n{text}", file=sys.stderr)


def _print_timing(timing: Sequence[tuple[str, float]]) -> None:
    total = sum(seconds for _, seconds in timing) or 1e-9
    print("  seconds      %  pass", file=sys.stderr)
    for spec, seconds in timing:
        print(f"  {seconds:7.4f}  {seconds / total:5.1%}  {spec}", file=sys.stderr)
    print(f"  {total:7.4f}  100.0%  total", file=sys.stderr)


def _report(found: Sequence[Diagnostic], text: str, name: str, options: Options) -> None:
    """Print diagnostics as MLIR does: place, message, source line with a caret, op, notes."""
    levels = {"errors": 0, "warnings": 1, "remarks": 2}
    shown = levels[options.flags.get("mlir-diagnostic-verbosity-level", "remarks")]
    lines = text.splitlines()
    for diagnostic in found:
        if {"error": 0, "warning": 1, "remark": 2}[diagnostic.severity] > shown:
            continue
        place = diagnostic.location
        known = place.resolved != "unknown"
        print(f"{f'{place}: ' if known else ''}{diagnostic.severity}: {diagnostic.message}", file=sys.stderr)
        position = place.file
        if position is not None and position[0] == name and 0 < position[1] <= len(lines):
            print(f"{lines[position[1] - 1]}\n{' ' * (position[2] - 1)}^", file=sys.stderr)
        if diagnostic.op:
            print(f"{f'{place}: ' if known else ''}note: see current operation: {diagnostic.op}", file=sys.stderr)
        for note in diagnostic.notes:
            at = "" if note.location.resolved == "unknown" else f"{note.location}: "
            print(f"{at}note: {note.message}", file=sys.stderr)
