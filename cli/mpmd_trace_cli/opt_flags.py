"""The command line of `mpmd-trace opt`: flags with one or two dashes, as MLIR's opt drivers read them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from mpmd_trace.diagnostics.messages import did_you_mean
from mpmd_trace.passes import registry
from mpmd_trace.passes.mlir_pass import is_upstream
from mpmd_trace.passes.registry import PIPELINES
from mpmd_trace_cli.plugins import load_passes
from mpmd_trace_cli.status import CallError

SEPARATOR = "// -----"

#: Flag -> (what its value is, "" for a switch; help).  A `?` behind the value makes it optional.
FLAGS: dict[str, tuple[str, str]] = {
    "o": ("FILE", "the file to write; - (default) is stdout; untouched when something fails"),
    "pass-pipeline": ("TEXT", "the pipeline as text: builtin.module(...); also -p"),
    "load-pass-plugin": ("FILE.py", "a Python file whose passes can be used like the others; may be repeated"),
    "split-input-file": ("MARKER?", f"process the parts between lines '{SEPARATOR}' one by one"),
    "output-split-marker": ("MARKER", f"the line between the parts of the output (default '{SEPARATOR}')"),
    "verify-diagnostics": (
        "all|only-expected?",
        "check diagnostics against expected-error, -warning, -remark and -note comments",
    ),
    "allow-unregistered-dialect": ("", "accept ops of dialects that are not known"),
    "verify-each": ("", "check the module after each pass that may leave an invalid one (default: true)"),
    "dump-pass-pipeline": ("", "print the pipeline to stderr"),
    "list-passes": ("", "print the names of passes and pipelines"),
    "mlir-print-debuginfo": ("", "print locations"),
    "mlir-pretty-debuginfo": ("", "print locations in short form"),
    "mlir-print-op-generic": ("", "print the generic form"),
    "mlir-print-local-scope": ("", "print without aliases"),
    "mlir-print-skip-regions": ("", "print ops without what is in them"),
    "mlir-use-nameloc-as-prefix": ("", "name values by their locations"),
    "mlir-elide-elementsattrs-if-larger": ("N", "leave constants with more elements out"),
    "mlir-elide-resource-strings-if-larger": ("N", "leave resources with longer texts out"),
    "mlir-print-ir-before-all": ("", "print the module to stderr before each pass"),
    "mlir-print-ir-before": ("PASSES", "the same, before passes of these names only"),
    "mlir-print-ir-after-all": ("", "print the module to stderr after each pass"),
    "mlir-print-ir-after": ("PASSES", "the same, after passes of these names only"),
    "mlir-print-ir-after-change": ("", "the same, only after passes that changed something"),
    "mlir-print-ir-after-failure": ("", "print the module to stderr when a pass fails"),
    "mlir-print-ir-tree-dir": ("DIR", "what is printed between passes goes into DIR/MODULE/N_PASS.mlir"),
    "mlir-timing": ("", "print CPU seconds per pass to stderr"),
    "mlir-diagnostic-verbosity-level": (
        "errors|warnings|remarks",
        "the least severe diagnostics shown (default: remarks)",
    ),
    "mlir-disable-diagnostic-notes": ("", "show diagnostics without their notes"),
    "mlir-print-op-on-diagnostic": ("", "show the op that a diagnostic is about (default: true)"),
    "mlir-print-stacktrace-on-diagnostic": ("", "show where in the code of a pass it broke"),
    "help": ("", "this text"),
}
#: Flags of MLIR's drivers that make no difference here.
_IGNORED = {
    "mlir-print-ir-module-scope": "",
    "mlir-print-assume-verified": "",
    "mlir-print-unique-ssa-ids": "",
    "mlir-disable-threading": "",
    "mlir-pass-pipeline-crash-reproducer": "FILE",
    "mlir-timing-display": "list|tree",
    "no-implicit-module": "",
}
_TRUE, _FALSE = ("true", "TRUE", "True", "1", ""), ("false", "FALSE", "False", "0")
_UPSTREAM = ("canonicalize", "cse", "symbol-dce", "inline")


@dataclasses.dataclass
class Options:
    """The flags, passes and file of a command line."""

    file: str = "-"
    flags: dict[str, str] = dataclasses.field(default_factory=dict)
    #: (pass or pipeline name, its options as text), in order; ("", pipeline text) for --pass-pipeline.
    passes: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def on(self, flag: str, default: bool = False) -> bool:
        """Return whether a switch is on."""
        value = self.flags.get(flag)
        return default if value is None else value not in _FALSE

    def names(self, flag: str) -> list[str]:
        """Return the comma separated names that a flag lists."""
        return [n.strip() for n in self.flags.get(flag, "").split(",") if n.strip()]

    def number(self, flag: str) -> int | None:
        return int(self.flags[flag]) if flag in self.flags else None

    @property
    def separator(self) -> str | None:
        """The separator of the parts of the input; None if it is one module."""
        if not self.on("split-input-file"):
            return None
        value = self.flags["split-input-file"]
        return SEPARATOR if value in _TRUE else value


def parse_arguments(arguments: Sequence[str]) -> Options:
    """Return the options of a command line.  Raises `MpmdError` for unknown flags and passes."""
    options, files, rest = Options(), [], list(arguments)
    _load_plugins(rest)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            files += rest
            break
        if argument == "-" or not argument.startswith("-"):
            files.append(argument)
            continue
        name, equals, value = argument.removeprefix("-").removeprefix("-").partition("=")
        name = {"p": "pass-pipeline", "h": "help"}.get(name, name)
        if name not in FLAGS and name not in _IGNORED:
            if not is_pass(name):
                near = _nearest(name, FLAGS)
                raise CallError(f"unknown flag, pass or pipeline '{argument}'{near}; see mpmd-trace opt --help")
            options.passes.append((name, value))
            continue
        wanted = FLAGS[name][0] if name in FLAGS else _IGNORED[name]
        if wanted and not wanted.endswith("?") and not equals:
            if not rest:
                raise CallError(f"-{name} needs a value: -{name}={wanted}")
            value = rest.pop(0)
        _check(name, wanted.rstrip("?"), value, optional=wanted.endswith("?"))
        if name == "pass-pipeline":
            options.passes.append(("", value))
        elif name in FLAGS:
            before = options.flags.get(name)
            if before is not None and wanted == "PASSES":
                value = f"{before},{value}"
            elif before not in (None, value) and name != "load-pass-plugin":
                raise CallError(f"-{name} is given twice: -{name}={before} and -{name}={value}")
            options.flags[name] = value
    if len(options.passes) > 1 and any(not name for name, _ in options.passes):
        raise CallError("-pass-pipeline stands for all passes: write them all in it, or all of them as flags")
    if len(files) > 1:
        raise CallError(f"one input file at a time, not {' and '.join(files)}")
    options.file = files[0] if files else "-"
    _check_printed(options)
    return options


def _check_printed(options: Options) -> None:
    for flag in ("mlir-print-ir-before", "mlir-print-ir-after"):
        for name in options.names(flag):
            if not is_pass(name):
                raise CallError(f"-{flag} names passes, and there is none called '{name}'{_nearest(name)}")
            if name in PIPELINES:
                raise CallError(
                    f"-{flag} names passes, and '{name}' is a pipeline; -dump-pass-pipeline lists its passes"
                )


def _load_plugins(arguments: Sequence[str]) -> None:
    """Register the passes of all plugins, since flags behind and before them may name these."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    for i, word in enumerate(words):
        flag, equals, file = word.removeprefix("-").removeprefix("-").partition("=")
        if word.startswith("-") and flag == "load-pass-plugin" and (equals or i + 1 < len(words)):
            load_passes(file if equals else words[i + 1])


def _check(name: str, wanted: str, value: str, *, optional: bool) -> None:
    if wanted == "" and value not in _TRUE + _FALSE:
        raise CallError(f"-{name} is a switch: write -{name}, -{name}=true or -{name}=false, not '{value}'")
    if wanted == "N" and not re.fullmatch(r"\d+", value):
        raise CallError(f"-{name} is a whole number, not '{value}'")
    if "|" in wanted and value not in wanted.split("|"):
        if optional and value in _TRUE + _FALSE:
            return
        raise CallError(f"-{name} is {wanted.replace('|', ' or ')}, not '{value}'")


def _nearest(name: str, others: Iterable[str] = ()) -> str:
    """Return the names of passes (and others) that are close."""
    return did_you_mean(name, [*others, *pass_names()])


def pass_names() -> list[str]:
    """Our passes and pipelines, and MLIR's most common ones."""
    return list(dict.fromkeys([*registry.PASSES, *registry.PIPELINES, *_UPSTREAM]))


def is_pass(name: str) -> bool:
    """Return whether we or jaxlib have a pass or pipeline of this name."""
    if name in pass_names():
        return True

    return re.fullmatch(r"[A-Za-z][\w.-]*", name) is not None and is_upstream(name)


def help_text() -> str:
    """Return what `--help` prints."""
    lines = [
        "usage: mpmd-trace opt FILE|- [flags] [-PASS[='option=value ...']]... [--pass-pipeline='...']",
        "",
        "Runs passes on MLIR text, in the order of the flags, and prints the module; one or two dashes.",
        "",
        "flags:",
    ]
    for name, (value, text) in FLAGS.items():
        shown = name + (f"[={value[:-1]}]" if value.endswith("?") else f"={value}" if value else "")
        lines.append(f"  -{shown:48} {text}")
    lines += ["", "passes and pipelines (mpmd-trace passes shows their options):"]
    lines += [f"  -{name}" for name in pass_names()]
    lines += ["", "Passes that jaxlib registers (sdy-*, stablehlo-*, ...) can be mixed in anywhere."]
    return "\n".join(lines)
