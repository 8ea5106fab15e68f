"""Passes of the user's own: registered, and loaded by `mpmd-trace opt` and `passes` from a file."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import ClassVar

import pytest
from commands import Command, Writer

from mpmd_trace import MpmdError
from mpmd_trace.compiler import parse, run_passes
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes import registry
from mpmd_trace.passes.base import FunctionPass, Pass, Pipeline, option
from mpmd_trace.passes.manager import PassManager
from mpmd_trace.passes.parse_pipeline import make_pass
from mpmd_trace.passes.registry import build, register
from mpmd_trace_cli.inspect import list_passes

PLUGIN = """
import dataclasses
from typing import ClassVar
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.greedy import apply_greedily

class DoubleNegate:
    op_name = "stablehlo.negate"

    def match_and_rewrite(self, op, rewriter):
        inner = op.operands[0].defining_op
        if inner is None or inner.name != "stablehlo.negate":
            return False
        rewriter.replace_op(op, [inner.operands[0]])
        return True

@dataclasses.dataclass(frozen=True)
class FoldNegate(FunctionPass):
    name: ClassVar[str] = "fold-negate"
    summary: ClassVar[str] = "No negation is negated."
    distributed_only: ClassVar[bool] = False
    rounds: int = option(10, "How often.")

    def run_on_function(self, function, module, diagnostics):
        return apply_greedily(function, [DoubleNegate()], max_rounds=self.rounds).changed

class Forgets(FunctionPass):
    name: ClassVar[str] = "forgets"
    summary: ClassVar[str] = "Returns nothing."
    distributed_only: ClassVar[bool] = False

    def run_on_function(self, function, module, diagnostics):
        pass

@dataclasses.dataclass(frozen=True)
class Cheats(FunctionPass):
    name: ClassVar[str] = "cheats"
    summary: ClassVar[str] = "Negates where a shared body takes the sine."

    def run_on_function(self, function, module, diagnostics):
        body = next(op for op in function.body if op.name == "mpmd.fragment").body
        object.__setattr__(next(iter(body.block)), "name", "stablehlo.negate")
        return True
"""
NEGATES = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %a : tensor<4xf32>
  %1 = stablehlo.negate %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""


FRAGMENT = """module { func.func @main(%a: !mpmd.mesh_tensor<"m1", tensor<4xf32>>)
    -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="m1", origin=[]> (%a) (%b: tensor<4xf32>) {
    %1 = stablehlo.sine %b : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
  return %0 : !mpmd.mesh_tensor<"m1", tensor<4xf32>>
} }
"""


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of names are as before when a test is over."""
    monkeypatch.setattr(registry, "PASSES", dict(registry.PASSES))
    monkeypatch.setattr(registry, "PIPELINES", dict(registry.PIPELINES))


@pytest.fixture
def files(written: Writer) -> tuple[str, str]:
    return written(NEGATES), f"-load-pass-plugin={written(PLUGIN, 'plugin.py')}"


@dataclasses.dataclass(frozen=True)
class Named(FunctionPass):
    """A pass with options of all types."""

    name: ClassVar[str] = "named"
    summary: ClassVar[str] = "Has options."
    text: str = option("", "A text.")
    names: tuple[str, ...] = option((), "Names.")
    scale: float = option(1.0, "A factor.")
    flag: bool = option(False, "A switch.")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return False


def test_a_plugin_is_run_by_name(files: tuple[str, str], opt: Command) -> None:
    status, out, err = opt(*files, "-fold-negate=rounds=2", "-dump-pass-pipeline")
    assert status == 0 and "negate" not in out and err == "builtin.module(fold-negate{rounds=2})\n"
    # The order of flags does not matter, and the file may be the next word.
    plugin = files[1].partition("=")[2]
    status, out, _ = opt("-fold-negate", files[0], "--load-pass-plugin", plugin)
    assert status == 0 and "negate" not in out
    another = pathlib.Path(plugin).with_name("another.py")
    another.write_text(
        "from mpmd_trace.passes.base import Pass\n\nclass Nothing(Pass):\n    name = summary = 'nothing'\n"
    )
    status, out, err = opt(*files, f"-load-pass-plugin={another}", "-fold-negate", "-dump-pass-pipeline")
    assert (status, err) == (0, "builtin.module(fold-negate)\n")
    status, _, err = opt(*files, "-fold-negat")
    assert status == 2 and "did you mean fold-negate?" in err


def test_a_pass_that_changes_what_others_share(files: tuple[str, str], opt: Command) -> None:
    pathlib.Path(files[0]).write_text(FRAGMENT)
    status, out, err = opt(*files, "-cheats")
    told = "error: cheats changed 1 of the 1 bodies that fragments and named computations share"
    assert (status, out) == (1, "") and told in err
    assert opt(*files, "-cheats", "-verify-each=false").status == 0


def test_a_pass_that_says_nothing(files: tuple[str, str], opt: Command) -> None:
    status, out, err = opt(*files, "-forgets")
    told = "Forgets.run_on_function returned None; it says whether it changed anything"
    assert (status, out) == (1, "") and told in err


MISTAKES = """
from mpmd_trace.passes.base import FunctionPass

print("loading")

class Mistakes(FunctionPass):
    name = "mistakes"
    summary = "does what a pass must not do"
    distributed_only = False

    def run_on_function(self, function, module, diagnostics):
        print("running")
        BODY
        return True
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("pass", ""),
        ("raise SystemExit(0)", "error: mistakes broke down: SystemExit: 0 (plugin.py:13)"),
        ("function.attrs['a.b'] = 3", "error: mistakes left a module that cannot be printed: 'int' object has no"),
        ("function.body.args[0].type = 'i32'", "error: mistakes left a module that cannot be printed: 'str' object"),
    ],
)
def test_what_a_plugin_must_not_do(body: str, told: str, files: tuple[str, str], opt: Command) -> None:
    pathlib.Path(files[1].partition("=")[2]).write_text(MISTAKES.replace("BODY", body))
    status, out, err = opt(*files, "-mistakes", "-mlir-print-ir-after-failure")
    assert (status, out[:8]) == ((1, "") if told else (0, "module {"))
    assert err.startswith("loading\nrunning\n") and told in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "plugin.py defines no pass"),
        ("x = (", "plugin.py:1:5: error: cannot read the program: '(' was never closed"),
        (
            PLUGIN.replace("@dataclasses.dataclass(frozen=True)\n", "", 1),
            "plugin.py:17:1: error: FoldNegate has options (rounds) and is not a dataclass itself",
        ),
        (PLUGIN.replace('"fold-negate"', '"cse"'), "FoldNegate cannot be called 'cse': there is a pass"),
        (PLUGIN.replace('"fold-negate"', '"mpmd-call-inline"'), "cannot be called 'mpmd-call-inline'"),
        (PLUGIN.replace('"fold-negate"', '"fold negate"'), "FoldNegate needs a name of letters, digits"),
        (PLUGIN.replace('    name: ClassVar[str] = "fold-negate"\n', ""), "FoldNegate needs a name"),
    ],
)
def test_plugins_that_are_wrong(code: str, message: str, files: tuple[str, str], opt: Command) -> None:
    pathlib.Path(files[1].partition("=")[2]).write_text(code)
    status, out, err = opt(*files, "-fold-negate")
    assert status == (3 if "cannot read the program" in message else 1)
    assert out == "" and message in err and "Traceback" not in err


def test_registered_passes_and_pipelines() -> None:
    @register
    @dataclasses.dataclass(frozen=True)
    class Twice(Pipeline):
        name: ClassVar[str] = "named-twice"
        summary: ClassVar[str] = "Two of them."

        def passes(self) -> list[Pass]:
            return [Named(), Named(flag=True)]

    assert register(register(Named)) is Named
    assert [p.spec for p in build("named{scale=2.5},named-twice")] == ["named{scale=2.5}", "named", "named{flag=true}"]
    run_passes(parse(NEGATES), "builtin.module(func.func(named{text=x}))")
    listed = list_passes("named")[0]["options"]
    assert [o["type"] for o in listed] == ["str", "tuple[str, ...]", "float", "bool"]
    with pytest.raises(MpmdError, match="option named scale is a number, not 'x'"):
        build("named{scale=x}")


@pytest.mark.parametrize("text", ["a b", "a,b", "{x}", "a=b", 'q"x', "it's", "a}b", "'x'", "[", " ", "a\tb", "(a, b)"])
def test_specs_read_back(text: str) -> None:
    register(Named)
    for one in (Named(text=text, flag=True), Named(names=(text,), text="x"), Named(names=("a", text, ""), scale=1e-9)):
        assert build(f"named,{one.spec},named") == [Named(), one, Named()]
    assert make_pass(Named, {"names": f'{{"{text}"}}' if '"' not in text else f"{{'{text}'}}"}) == Named(names=(text,))


def test_a_manager_wants_to_know_of_changes() -> None:
    @dataclasses.dataclass(frozen=True)
    class Silent(Pass):
        name: ClassVar[str] = "silent"
        summary: ClassVar[str] = "Returns nothing."

        def run(self, module: Module, diagnostics: Diagnostics) -> bool:
            return None  # type: ignore[return-value]

    with pytest.raises(TypeError, match=r"Silent\.run returned None"):
        PassManager([Silent()]).run(parse(NEGATES))


def test_dumped_pipelines_read_back() -> None:
    for name in registry.PIPELINES:
        passes = build(name)
        assert build(f"builtin.module({','.join(p.spec for p in passes)})") == passes, name
