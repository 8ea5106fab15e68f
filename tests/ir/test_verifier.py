"""Modules that do not verify."""

from __future__ import annotations

from unittest import mock

import pytest

from dialect_module import BASE
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace.jax_compat import mlir
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.manager import PassManager
from util import PRELUDE


@pytest.fixture(scope="module")
def base() -> Module:
    return parse(BASE)


def test_valid(base: Module) -> None:
    assert verify(base) == []


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


def test_problems_say_where_they_are(base: Module) -> None:
    module = base.clone()
    fragment = next(op for op in module.walk() if isinstance(op, FragmentOp))
    fragment.mesh = "gone"
    problem, *_ = verify(module)
    assert problem.severity == "error" and "gone" in problem.message and str(problem.location) == str(fragment.loc)


def test_a_value_that_is_not_there(base: Module) -> None:
    module = base.clone()
    fragment = next(op for op in module.walk() if isinstance(op, FragmentOp))
    other = next(op for op in base.walk() if isinstance(op, FragmentOp))
    fragment.set_operand(0, other.operand(0))
    assert verify(module)


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
