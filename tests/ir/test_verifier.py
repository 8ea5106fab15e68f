"""Our verifier says what MLIR's says of the printed module."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from mutations import mutate

from dialect_module import BASE
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace.jax_compat import mlir
from mpmd_trace.jax_compat.mlir import prettify_or_fail
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.manager import PassManager
from util import PRELUDE


@pytest.fixture(scope="module")
def base() -> Module:
    return parse(BASE)


def _mlir(module: Module) -> list[str] | None:
    """Where MLIR sees errors; None when the module cannot even be written down."""
    try:
        prettify_or_fail(module.to_generic(debug_info=True))
    except MpmdError as error:
        if any("undeclared SSA value" in d.message for d in error.diagnostics):
            return None
        return sorted(str(d.location) for d in error.diagnostics)
    return []


def test_valid(base: Module) -> None:
    assert verify(base) == []


@pytest.mark.parametrize("block", range(10))
def test_the_same_as_mlir(base: Module, block: int) -> None:
    invalid = 0
    for seed in range(40 * block, 40 * block + 40):
        module = base.clone()
        what = mutate(module, random.Random(seed))
        theirs = _mlir(module)
        ours = verify(module)
        assert all(d.severity == "error" and d.message for d in ours)
        if theirs is None:
            assert ours, f"seed {seed}: {what}"
            continue
        assert sorted(str(d.location) for d in ours) == theirs, f"seed {seed}: {what}: {ours}"
        invalid += bool(theirs)
    assert invalid > 10


def test_what_mlir_crashes_on_is_an_error() -> None:
    text = "func.func @f(%a: tensor<4xf32>) attributes {topology = #topo} {\n"
    for line in (
        "mpmd.call @gone(%a) : (tensor<4xf32>) -> ()",
        '"mpmd.call"(%a) <{callee = @gone}> : (tensor<4xf32>) -> ()',
    ):
        with pytest.raises(MpmdError, match="@gone, which is not a function") as error:
            parse(PRELUDE + text + line + "\nreturn\n}", filename="x.mlir")
        assert error.value.diagnostics[0].location.file == ("x.mlir", 8, 1)
    # In comments and strings the words mean nothing.
    parse(PRELUDE + 'func.func @f() attributes {a.b = "mpmd.call @gone("} { return } // mpmd.call @gone(')
    with pytest.raises(MpmdError, match=r"topology is a #mpmd\.topology") as error:
        parse("func.func @f() attributes {topology = 3 : i32} {\n  mpmd.transfer\n}", filename="x.mlir")
    assert error.value.diagnostics[0].location.file == ("x.mlir", 1, 28)
    module = parse(BASE)
    module.functions[0].attrs["topology"] = parse_attribute("3 : i32")
    assert any("#mpmd.topology" in d.message for d in verify(module))


def test_text_without_mistakes_is_searched_quickly() -> None:
    """Strings and comments are told apart from calls only where some name is not defined."""
    text = "func.func @f() attributes {topology = #topo} {\n  mpmd.call @g() : () -> ()\n  return\n}\n"
    callee = "func.func private @g() attributes {topology = #topo} {\n  return\n}\n"
    with mock.patch.object(mlir, "_RISKY", wraps=mlir._RISKY) as search:
        parse(PRELUDE + text + callee)
        assert not search.finditer.called
        with pytest.raises(MpmdError, match="@g, which is not a function"):
            parse(PRELUDE + text)
        assert search.finditer.called


def test_messages_name_what_is_wrong(base: Module) -> None:
    module = base.clone()
    fragment = next(op for op in module.walk() if isinstance(op, FragmentOp))
    fragment.mesh = "gone"
    [problem] = verify(module)
    assert 'no mesh "gone"; it has "a" and "b"' in problem.message
    assert problem.op is not None and "mpmd.fragment" in problem.op


def test_shared_bodies_are_looked_at_once(base: Module) -> None:
    module = base.clone()
    fragment = next(op for op in module.walk() if isinstance(op, FragmentOp))
    assert fragment.block is not None
    for _ in range(3):
        fragment.block.insert_after(fragment, fragment.clone())
    verify(module)
    assert remembered(fragment.body, "visible", lambda: "never asked") != "never asked"
    assert verify(module) == []


class _Breaks(Pass):
    """Leaves a fragment on a mesh that is not there."""

    name = "breaks"
    summary = "for this test"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        next(op for op in module.walk() if isinstance(op, FragmentOp)).mesh = "gone"
        return True


def test_the_pass_manager_can_check_every_pass(base: Module) -> None:
    PassManager([_Breaks()]).run(base.clone())
    with pytest.raises(MpmdError, match="after breaks") as error:
        PassManager([_Breaks()], verify=True).run(base.clone())
    assert error.value.pass_name == "breaks"


def test_order_means_nothing_in_graph_regions() -> None:
    text = """
    "foo.graph"() ({
      %0 = "foo.a"(%1) : (i32) -> i32
      "foo.user"() ({
        "foo.b"(%1) : (i32) -> ()
      }) : () -> ()
      %1 = "foo.c"(%0) : (i32) -> i32
    }) : () -> ()
    """
    module = parse(text, allow_unregistered=True)
    assert verify(module) == []
    assert module.clone().to_generic() == module.to_generic()


def test_blocks() -> None:
    text = """
    func.func @f(%c: i1, %x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.add %x, %x : tensor<2xf32>
      cf.cond_br %c, ^bb1, ^bb2
    ^bb1:
      %1 = stablehlo.add %0, %x : tensor<2xf32>
      cf.br ^bb3
    ^bb2:
      cf.br ^bb3
    ^bb3:
      return %0 : tensor<2xf32>
    ^dead:
      return %1 : tensor<2xf32>
    }
    """
    module = parse(text)
    assert verify(module) == []
    blocks = module.functions[0].regions[0].blocks
    first = blocks[1].first
    assert first is not None
    blocks[3].terminator.set_operand(0, first.results[0])  # ^bb1 is not on every way to ^bb3
    [problem] = verify(module)
    assert "cannot be seen here" in problem.message and str(problem.location) == "-:11:7"
    assert _mlir(module) == ["-:11:7"]
