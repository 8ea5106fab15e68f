"""`-verify-diagnostics`, and how diagnostics are shown."""

from __future__ import annotations

import pathlib

import pytest
from commands import Command, Result, Writer

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.diagnostics.messages import Diagnostic, Note
from mpmd_trace_cli.expected import Expectations

NAME = "f.mlir"


def at(line: int, severity: str = "error", message: str = "some text", *notes: tuple[int, str]) -> Diagnostic:
    return Diagnostic(
        severity,  # type: ignore[arg-type]
        message,
        Location(f'"{NAME}":{line}:3'),
        tuple(Note(text, Location(f'"{NAME}":{number}:1')) for number, text in notes),
    )


def problems(text: str, *found: Diagnostic) -> list[str]:
    return Expectations.read(text, NAME).compare(found)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("op // expected-error {{some}}", 1),
        ("// expected-error@+1 {{some text}}\nop", 2),
        ("// expected-error @+2 {{text}}\n\nop", 3),
        ("op\n// expected-error@-1 {{text}}", 1),
        ("op\n// expected-error@above {{text}}", 1),
        ("// expected-error@below {{text}}\nop", 2),
        ("// expected-error@below {{text}}\n// expected-error@below {{some}}\nop", 3),
        ("op\n// expected-error@above {{some}}\n  // expected-error@above {{text}}", 1),
        ("op // expected-error 1 {{some}}", 1),
        ("op // expected-error-re {{s{{[a-z]+}} t{{.}}xt}}", 1),
        ("op // expected-error-re {{{{^some}}}}", 1),
        ("op // expected-error {{}}", 1),
        ("op // expected-error {{some}} expected-error {{text}}", 1),
    ],
)
def test_places(text: str, line: int) -> None:
    wanted = text.count("expected-error")
    assert problems(text, *[at(line)] * wanted) == []
    assert len(problems(text)) == wanted
    assert problems(text, *[at(line + 7)] * wanted)
    if "{{}}" not in text:
        more = problems(text, *[at(line)] * wanted, at(line, "error", "else"))
        assert len(more) == 1 and "unexpected error: else" in more[0]


def test_severities_and_notes() -> None:
    text = "op // expected-warning {{some}} expected-remark {{text}}\n// expected-note@above {{because}}"
    assert problems(text, at(1, "warning", "some text", (1, "because")), at(1, "remark")) == []
    [missing, other] = sorted(problems("op // expected-warning {{some}}", at(1)))
    assert "'error' diagnostic emitted when expecting a 'warning'" in missing + other
    assert 'expected warning "some" was not produced' in missing + other


def test_counts() -> None:
    assert problems("op // expected-error 2 {{some}}", at(1), at(1)) == []
    assert problems("op // expected-error 2 {{some}}", at(1))
    assert problems("op // expected-error 2 {{some}}", at(1), at(1), at(1))
    # Without a number one comment stands for any number of equal diagnostics, as in MLIR.
    assert problems("op // expected-error {{some}}", at(1), at(1)) == []


def test_unknown_places_and_other_files() -> None:
    nowhere = Diagnostic("error", "some text", UNKNOWN)
    assert problems("// expected-error@unknown {{some}}", nowhere) == []
    assert problems("// expected-error@below {{some}}", nowhere)
    elsewhere = Diagnostic("error", "some text", Location('"g.mlir":1:1'))
    assert problems("// expected-error@unknown {{some}}", elsewhere)
    fused = Diagnostic("error", "some text", Location(f'fused["n"("{NAME}":2:1), "g.mlir":1:1]'))
    assert problems("// expected-error@below {{some}}\nop", fused) == []


FILE = """// expected-error@+2 {{calls @gone}}
func.func @f() {
  mpmd.call @gone() : () -> ()
  return
}
// -----
func.func @f(%a: tensor<2xf32>) -> tensor<3xf32> {
  // expected-error@below {{doesn't match function result type}}
  return
      %a : tensor<2xf32>
}
// -----
// expected-note@below {{see existing symbol definition here}}
func.func @f() { return }
func.func @f() { return } // expected-error {{redefinition of symbol}}
// -----
func.func @fine() { return }
"""


def test_in_files(opt: Command, written: Writer, tmp_path: pathlib.Path) -> None:
    def verified(text: str, *more: str, flag: str = "-verify-diagnostics") -> Result:
        return opt(written(text), "-split-input-file", flag, *more)

    status, out, err = verified(FILE)
    assert (status, err) == (0, "") and "@fine" in out
    unlike = FILE.replace("expected-note", "a note")
    assert verified(unlike).status == 1 and "unexpected note" in verified(unlike).err
    assert verified(unlike, flag="-verify-diagnostics=only-expected").status == 0
    target = tmp_path / "out.mlir"
    status, _, err = verified(FILE + "// expected-remark@above {{never}}\n", "-o", str(target))
    assert status == 1 and 'expected remark "never" was not produced' in err and not target.exists()


def test_a_malformed_expectation(opt: Command, written: Writer) -> None:
    status, _, err = opt(written("module {} // expected-error-re {{{{(}}}}\n"), "-verify-diagnostics")
    assert status == 1 and "is not a regular expression" in err


def test_verbosity(capsys: pytest.CaptureFixture[str]) -> None:
    from mpmd_trace_cli.opt import report
    from mpmd_trace_cli.opt_flags import Options

    found = [at(1, "error", "e", (2, "n")), at(1, "warning", "w"), at(2, "remark", "r")]
    for level, shown in (("errors", "e"), ("warnings", "ew"), ("remarks", "ewr")):
        report(found, "one\ntwo", NAME, Options(flags={"mlir-diagnostic-verbosity-level": level}))
        err = capsys.readouterr().err
        assert [line[-1] for line in err.splitlines() if ":3: " in line] == list(shown)
        assert f"{NAME}:1:3: error: e\none\n  ^\n{NAME}:2:1: note: n\n" in err
    report(found, "one\ntwo", NAME, Options(flags={"mlir-disable-diagnostic-notes": ""}))
    assert "note" not in capsys.readouterr().err


def test_long_lines_are_cut(opt: Command, written: Writer) -> None:
    far = "x" * 50_000
    result = opt(written(f'func.func @f() attributes {{a.b = "{far}", c = }} {{ return }} // {far}'))
    place, line, caret = result.err.splitlines()
    assert place.endswith(": error: expected attribute value") and len(line) < 1000
    assert line[: len(caret)].rstrip().endswith("c =") and line.startswith("... ") and line.endswith(" ...")
    line = opt(written(f'func.func @f() attributes {{a.b = "{far}", c = }}')).err.splitlines()[1]
    assert line.startswith("... ") and line.endswith(", c = }")
    result = opt(written(f'module attributes {{a = "{far}"}} {{}}'))
    assert len(result.err) < 20_000 and 'note: see current operation: "builtin.module"()' in result.err


def test_a_mark_in_front_of_the_text(opt: Command, written: Writer) -> None:
    assert opt(written("\ufeffmodule {}")) == Result(0, "module {\n}\n", "")
