"""`mpmd-trace opt`: flags, passes, outputs, exit status."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from commands import Command, Writer

from mpmd_trace_cli.opt import main

ADDS = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  %1 = stablehlo.add %a, %a : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
func.func private @unused() { return }
"""
INVALID = """func.func @g(%a: tensor<2xf32>)
    -> tensor<3xf32> {
  return
    %a : tensor<2xf32>
}
"""


@pytest.fixture
def adds(written: Writer) -> str:
    return written(ADDS, "adds.mlir")


def test_passes_in_order(adds: str, opt: Command) -> None:
    status, out, err = opt(adds, "-cse", "--symbol-dce")
    assert (status, err) == (0, "")
    assert out.count("stablehlo.add") == 1 and "@unused" not in out
    assert out.startswith("module {") and out.endswith("}\n")
    assert opt(adds, "--pass-pipeline=builtin.module(cse,symbol-dce)")[1] == out
    assert opt("-p", "builtin.module(func.func(cse),symbol-dce)", "--", adds)[1] == out
    assert opt(adds, "-cse={}", "-symbol-dce=''")[1] == out


def test_nothing_to_do_prints_the_module(adds: str, opt: Command) -> None:
    status, out, err = opt(adds)
    assert (status, err) == (0, "") and out.count("stablehlo.add") == 2


def test_stdin_and_o(adds: str, tmp_path: Path, opt: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = opt(adds, "-cse")[1]
    for arguments in (["-cse"], ["-", "-cse"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ADDS.encode())))
        assert opt(*arguments) == (0, expected, "")
    target = tmp_path / "out.mlir"
    for flag in (["-o", str(target)], [f"--o={target}"]):
        assert opt(adds, "-cse", *flag) == (0, "", "")
        assert target.read_text() == expected
        target.unlink()
    assert opt(adds, "-o", "/dev/null") == (0, "", "")
    assert opt(adds, "-cse", "-o", "-")[1] == expected
    status, out, err = opt(adds, "-o", str(tmp_path / "no" / "where"))
    assert (status, out) == (2, "") and "error: " in err


def test_o_is_left_alone_when_something_fails(opt: Command, written: Writer, tmp_path: Path) -> None:
    source, target = written(ADDS + "// -----\n" + INVALID), tmp_path / "out.mlir"
    target.write_text("before")
    status, out, err = opt(source, "-split-input-file", "-cse", "-o", str(target))
    assert (status, out, target.read_text()) == (1, "", "before")
    # The place is that in the whole file, and the line of the op's first word.
    assert f"{source}:11:3: error: " in err
    assert "\n  return\n  ^\n" in err and f"{source}:11:3: note: see current operation" in err
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


def test_split_input_file(opt: Command, written: Writer) -> None:
    source = written("module @a {}\n // -----  \nmodule @b {}\n// -----\n", "two.mlir")
    status, out, _ = opt(source, "-split-input-file")
    assert status == 0
    assert [p.split("{")[0].split() for p in out.split("// -----\n")] == [
        ["module", "@a"],
        ["module", "@b"],
        ["module"],
    ]
    assert "// -----" not in opt(source)[1]
    source = written("module @a {}\n// ===\nmodule @b {}\n")
    status, out, _ = opt(source, "--split-input-file=// ===", "-output-split-marker=// +++")
    assert status == 0 and out.count("// +++\n") == 1
    source = written(INVALID + "// -----\nmodule @b {}\n")
    status, out, err = opt(source, "-split-input-file")
    assert status == 1 and "module @b" in out and err.count("error:") == 1


def test_printing(adds: str, opt: Command) -> None:
    assert f'loc("{adds}":1:17)' in opt(adds, "-mlir-print-debuginfo", "-mlir-print-local-scope")[1]
    assert "#loc" in opt(adds, "-mlir-print-debuginfo")[1]
    assert '"stablehlo.add"(' in opt(adds, "--mlir-print-op-generic")[1]
    assert "loc(" not in opt(adds, "-cse", "-mlir-print-debuginfo=false")[1]
    assert "add" not in opt(adds, "-mlir-print-skip-regions")[1]


def test_dumps_between_passes(adds: str, opt: Command) -> None:
    status, out, err = opt(adds, "-cse", "-canonicalize", "-mlir-print-ir-after-all")
    assert status == 0 and "IR Dump" not in out
    heads = re.findall(r"// -----// IR Dump (.*) //----- //", err)
    assert [re.search(r"\((.*)\)", h).group(1) for h in heads] == ["cse", "canonicalize"]  # type: ignore[union-attr]
    _, _, err = opt(adds, "-cse", "-canonicalize", "-mlir-print-ir-after-change")
    assert err.count("IR Dump After") == 1
    _, _, err = opt(adds, "-cse", "-symbol-dce", "-mlir-print-ir-before=symbol-dce")
    assert err.count("IR Dump Before") == 1 and "(symbol-dce)" in err
    _, _, err = opt(adds, "-cse", "-symbol-dce", "-mlir-print-ir-after=cse", "-mlir-timing")
    assert err.count("IR Dump After") == 1 and re.search(r"100\.0%\s+total", err)
    _, _, err = opt(adds, "-cse", "-symbol-dce", "-mlir-print-ir-after=cse", "-mlir-print-ir-after=symbol-dce")
    assert err.count("IR Dump After") == 2
    _, _, err = opt(adds, "-cse", "-mpmd-unroll-for-loops", "-dump-pass-pipeline")
    assert "builtin.module(cse,mpmd-unroll-for-loops)" in err


def test_dumps_between_passes_as_files(adds: str, tmp_path: Path, opt: Command) -> None:
    tree = f"-mlir-print-ir-tree-dir={tmp_path / 'tree'}"
    status, _, err = opt(adds, "-cse", "-canonicalize", "-mlir-print-ir-after-change", tree)
    assert status == 0 and "IR Dump" not in err
    [file] = [p for p in (tmp_path / "tree").rglob("*") if p.is_file()]
    assert file.relative_to(tmp_path).as_posix() == "tree/builtin_module_no-symbol-name/0_cse.mlir"
    head, _, text = file.read_text().partition("\n")
    assert head.startswith("// -----// IR Dump After") and "(cse)" in head and text.startswith("module")
    opt(adds, "-cse", "-canonicalize", "-mlir-print-ir-after-all", tree)
    assert sorted(p.name for p in file.parent.iterdir()) == ["0_cse.mlir", "1_canonicalize.mlir"]


def test_unregistered_dialects(opt: Command, written: Writer) -> None:
    source = written('"foo.op"() : () -> ()\n', "foo.mlir")
    status, out, err = opt(source)
    assert (status, out) == (1, "") and f"{source}:1:9: error:" in err
    for flags in ([], ["-canonicalize"], ["-mpmd-call-inline", "-cse"]):
        status, out, _ = opt(source, "-allow-unregistered-dialect", *flags)
        assert status == 0 and '"foo.op"()' in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-mpmd-cal-inline"], "did you mean mpmd-call-inline"),
        (["-verify-diagnostic"], "did you mean verify-diagnostics"),
        (["--foo"], "unknown flag, pass or pipeline '--foo'; see mpmd-trace opt --help"),
        (["-canonicalize=foo=1"], "no such option foo"),
        (["-mpmd-call-inline=nothing=1"], "nothing"),
        (["-mpmd-infer-mesh-pipeline=infer-transfer=true"], "did you mean infer-transfers"),
        (["-mpmd-infer-mesh-pipeline=infer-transfers=maybe"], "write true or false, not 'maybe'"),
        (["-mpmd-infer-mesh-rewrite-using-analysis=max-clones=x"], "is a whole number, not 'x'"),
        (["--pass-pipeline=builtin.module(cse"], "unbalanced parenthesis behind 'builtin.module'"),
        (["--pass-pipeline=builtin.module(cse}"], "unbalanced parenthesis behind 'builtin.module'"),
        (["--pass-pipeline=mpmd-call-inline{a=(b}"], "unbalanced brace behind 'mpmd-call-inline'"),
        (["--pass-pipeline=builtin.module(cse){}"], "unexpected '{}' behind 'builtin.module(cse)' in the pipeline"),
        (["--pass-pipeline=builtin.module(csee)"], "there is no pass or pipeline 'csee'"),
        (["-cse", "-p", "builtin.module(cse)"], "all of them as flags"),
        (["-mlir-diagnostic-verbosity-level=loud"], "errors or warnings or remarks"),
        (["-mlir-timing=7"], "is a switch"),
        (["-cse", "-mlir-print-ir-after=csee"], "there is none called 'csee'; did you mean cse"),
        (["-cse", "-mlir-print-ir-before=mpmd-import-pipeline"], "'mpmd-import-pipeline' is a pipeline"),
        (["another.mlir"], "one input file at a time"),
        (["-o"], "needs a value"),
        (["-o", "a", "-o", "b"], "-o is given twice: -o=a and -o=b"),
        (["-verify-each=false", "-verify-each=true"], "-verify-each is given twice"),
    ],
)
def test_calls_that_are_wrong(arguments: list[str], message: str, adds: str, opt: Command) -> None:
    status, out, err = opt(adds, *arguments)
    assert (status, out) == (2, "") and message in err and err.startswith("error: ")


def test_llvm_does_not_talk_by_itself(adds: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([adds, "-canonicalize=top-down=perhaps"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("error: cannot read the pipeline") and err.count("\n") == 1
    assert "'perhaps' is invalid value for boolean argument" in err


def test_missing_input(opt: Command) -> None:
    status, out, err = opt("/no/such/file.mlir")
    assert (status, out) == (2, "") and "cannot read /no/such/file.mlir: no such file" in err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("func.func @f( {", ":1:14: error:"),
        ("func.func @f() {\n  %0 = stablehlo.add %1, %1 : tensor<2xf32>\n  return\n}", ":2:22: error:"),
        ("func.func @f() { return }\nfunc.func @f() { return }", ":2:1: error:"),
        ("func.func @f() {\n  mpmd.call @gone() : () -> ()\n  return }", ":2:3: error:"),
        (INVALID, ":3:3: error:"),
    ],
)
def test_bad_text(text: str, place: str, opt: Command, written: Writer) -> None:
    source = written(text)
    status, out, err = opt(source, "-cse")
    assert (status, out) == (1, "") and err.startswith(f"{source}{place}")


def test_a_pass_that_fails(opt: Command, written: Writer, tmp_path: Path) -> None:
    target = tmp_path / "out.mlir"
    source = written(
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32>"
        ' attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {\n'
        '  %0 = mpmd.named_computation<"f"> (%a)\n      (%x: tensor<4xf32>) {\n'
        "    mpmd.return %x : tensor<4xf32>\n"
        "  } : (tensor<4xf32>) -> tensor<4xf32>\n  return %0 : tensor<4xf32>\n}\n"
    )
    arguments = [source, "-cse", "-mpmd-map-named-ops-to-mpmd-ops=assignment=g@m", "-symbol-dce"]
    status, out, err = opt(*arguments, "-o", str(target), "-mlir-print-ir-after-failure")
    assert (status, out, target.exists()) == (1, "", False)
    assert f"{source}:2:8: error: " in err and "IR Dump After" in err and "Failed" in err
    short = opt(*arguments, "-mlir-print-op-on-diagnostic=false")[2]
    assert "see current operation" not in short and "error: " in short


FRAGMENTS = """!m = !mpmd.mesh_tensor<"m", tensor<3xf32>>
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%a: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="m", origin=["f"], out_shardings=[<@mesh, [{SHARDED}]>]> (%a) (%x: tensor<3xf32>) {
    mpmd.return %x : tensor<3xf32>
  } : (!m) -> !m
  %1 = mpmd.fragment<mesh="m", origin=["g"]> (%a) (%x: tensor<3xf32>) {
    %2 = stablehlo.negate %x : tensor<3xf32>
    mpmd.return %2 : tensor<3xf32>
  } : (!m) -> !m
  return %1 : !m
}
"""
ORDER = (
    "mpmd-rule-based-schedule{remove-control-dependencies=false rules=FragmentScheduleRule(ordered_fragments=["
    'FragmentInfo(origins=["g"],mesh_name="m")->FragmentInfo(origins=["f"],mesh_name="m")])}'
)


@pytest.mark.parametrize(
    ("axis", "first", "then", "message"),
    [
        ('"x"', "mpmd-convert-sdy-shardings-to-mpmd-types", "mpmd-fragment-dce", "dim 0 with size 3 is not divisible"),
        ("", ORDER, "mpmd-rule-based-merge", "number of block arguments must match the number of operands"),
    ],
)
def test_a_pass_that_leaves_an_invalid_module(
    axis: str, first: str, then: str, message: str, opt: Command, written: Writer
) -> None:
    """It fails there, although the next pass removes what is invalid."""
    source = written(FRAGMENTS.replace("SHARDED", axis))
    pipeline = f"--pass-pipeline=builtin.module({first},{then})"
    status, out, err = opt(source, pipeline)
    assert (status, out) == (1, "") and f"{source}:4:8: error: " in err and message in err
    assert opt(source, pipeline, "-verify-each=false")[0] == 0


def test_a_pass_that_breaks_down(adds: str, opt: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpmd_trace.passes.mlir_pass import MlirPass

    def broken(*_: object) -> bool:
        raise KeyError("oops")

    monkeypatch.setattr(MlirPass, "run", broken)
    status, out, err = opt(adds, "-cse")
    assert (status, out) == (1, "")
    assert "error: cse broke down: KeyError: 'oops'" in err and "Traceback" not in err
    assert "Traceback" in opt(adds, "-cse", "-mlir-print-stacktrace-on-diagnostic")[2]


def test_help_and_list(opt: Command) -> None:
    for flag in ("--help", "-help", "-h"):
        status, out, _ = opt(flag)
        assert status == 0 and "-mpmd-call-inline" in out and "-split-input-file" in out
    assert "mpmd-import-pipeline" in opt("-list-passes")[1].split()


@pytest.mark.parametrize("flag", ["-sdy-propagation-pipeline", "-sdy-export-pipeline", "-mpmd-shardy-propagation"])
def test_shardy_wants_to_know_where_to_start(flag: str, opt: Command, written: Writer) -> None:
    alone = ADDS.partition("func.func private")[0].replace("@main", "@f")
    source = written(alone + alone.replace("@f", "@g"))
    status, out, err = opt(source, flag)
    assert (status, out) == (1, "")
    assert "starts from the function @main" in err and "it has @f, @g" in err
    assert opt(source, "-sdy-lift-inlined-meshes")[0] == 0, "it needs no start"
    assert opt(written(alone), flag)[0] == 0, "there is only one"
