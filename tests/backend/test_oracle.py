"""The oracle itself: what modules at each stage mean."""

# ruff: noqa: E501  (MLIR text)

from __future__ import annotations

import numpy as np
import pytest
from exported import MANUAL_SUM

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import IntegerAttr
from mpmd_trace.ir.core import Block
from mpmd_trace.ir.ops import FragmentOp, Module, local_type
from mpmd_trace.ir.text import parse
from mpmd_trace_devtools.bounded_loops import MOST_ITERATIONS
from mpmd_trace_devtools.comparison import assert_same_meaning
from mpmd_trace_devtools.interpreter import interpret, random_args
from mpmd_trace_devtools.single_device_program import Eraser

STAGES = """
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: !a, %y: !a) -> (!b, !a) attributes {topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="a", origin=["f"]> (%x, %y) (%p: tensor<4xf32>, %q: tensor<4xf32>) {
      %s = stablehlo.add %p, %q : tensor<4xf32>
      %c = sdy.sharding_constraint %s <@mesh, [{"x"}]> : tensor<4xf32>
      mpmd.return %c : tensor<4xf32>
    } : (!a, !a) -> !a
    %1 = mpmd.transfer %0 : (!a) -> !b
    %2:2 = mpmd.for (%0, %y) {iterations = 3 : ui32} (%u: !a, %v: !a, %i: tensor<ui32>) {
      %f = mpmd.fragment<mesh="a", origin=["g"]> (%u, %v) (%p: tensor<4xf32>, %q: tensor<4xf32>) {
        %s = stablehlo.subtract %p, %q : tensor<4xf32>
        mpmd.return %s : tensor<4xf32>
      } : (!a, !a) -> !a
      mpmd.return %v, %f : !a, !a
    } : !a, !a
    return %1, %2#1 : !b, !a
  }
}
"""


def test_fragments_transfers_and_loops() -> None:
    module = parse(STAGES)
    x, y = (np.array(v, np.float32) for v in ([1, 2, 3, 4], [0, 1, 0, 1]))
    first, second = interpret(module, [x, y])
    np.testing.assert_array_equal(first, x + y)
    u, v = x + y, y
    for _ in range(3):
        u, v = v, u - v
    np.testing.assert_array_equal(second, v)


def erased(module: Module) -> Module:
    """The plain program that `@main` means."""
    block = Block([local_type(a.type) for a in module.main.args])
    eraser = Eraser(module, block)
    return eraser.program(eraser.call(module.main, list(block.args)))


def test_erased_program_is_plain_and_means_the_same() -> None:
    module = parse(STAGES)
    text = str(erased(module))
    assert "mpmd" not in text and "sdy" not in text
    assert text.count("stablehlo.subtract") == 3
    assert_same_meaning(module, parse(text))


def test_import_stage_ops() -> None:
    module = parse(
        """
        !m = !mpmd.mesh_tensor<"a", tensor<2xf32>>
        #t = #mpmd.topology<<"a" : <["x"=1]>>>
        module {
          func.func public @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> attributes {topology = #t} {
            %0 = mpmd.named_computation<"f"> (%x) (%p: tensor<2xf32>) {
              %s = stablehlo.negate %p : tensor<2xf32>
              mpmd.return %s : tensor<2xf32>
            } : (tensor<2xf32>) -> tensor<2xf32>
            %1 = mpmd.named_tensor %0 name="n" : tensor<2xf32>
            %2 = mpmd.broadcast %1 : tensor<2xf32>
            %3 = mpmd.assign %2 : (tensor<2xf32>) -> !m
            %4 = mpmd.unassign %3 : (!m) -> tensor<2xf32>
            %5 = mpmd.call @callee(%4, %y) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
            %6 = mpmd.reduce<max> %5, %x, %y : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
            return %6 : tensor<2xf32>
          }
          func.func private @callee(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> attributes {topology = #t} {
            %0 = stablehlo.multiply %x, %y : tensor<2xf32>
            return %0 : tensor<2xf32>
          }
        }
        """
    )
    x, y = random_args(module, 3)
    np.testing.assert_array_equal(interpret(module, [x, y])[0], np.maximum(np.maximum(-x * y, x), y))
    assert_same_meaning(module, parse(str(erased(module))))


def test_control_operands_are_ignored() -> None:
    module = parse(STAGES)
    changed = module.clone()
    fragment = next(op for op in changed.main.body if isinstance(op, FragmentOp))
    fragment.append_operands([changed.main.args[1]])
    fragment.attrs["mpmd.control_operand_start_idx"] = IntegerAttr.get(2)
    assert_same_meaning(module, changed)


def test_regions_capture_values_and_call_functions() -> None:
    module = parse(
        """
        func.func public @main(%x: tensor<3xf32>, %n: tensor<i32>) -> tensor<3xf32> {
          %zero = stablehlo.constant dense<0> : tensor<i32>
          %one = stablehlo.constant dense<1> : tensor<i32>
          %r:2 = stablehlo.while(%v = %x, %i = %zero) : tensor<3xf32>, tensor<i32>
            cond {
              %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
              stablehlo.return %c : tensor<i1>
            } do {
              %s = func.call @step(%v, %x) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
              %j = stablehlo.add %i, %one : tensor<i32>
              stablehlo.return %s, %j : tensor<3xf32>, tensor<i32>
            }
          return %r#0 : tensor<3xf32>
        }
        func.func private @step(%v: tensor<3xf32>, %x: tensor<3xf32>) -> tensor<3xf32> {
          %0 = stablehlo.add %v, %x : tensor<3xf32>
          return %0 : tensor<3xf32>
        }
        """
    )
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(interpret(module, [x, np.int32(4)])[0], 5 * x)


def test_loops_end() -> None:
    module = parse(
        """
        func.func @main(%x: tensor<i32>, %last: tensor<i32>) -> tensor<i32> {
          %one = stablehlo.constant dense<1> : tensor<i32>
          %r = stablehlo.while(%i = %x) : tensor<i32>
            cond {
              %c = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
              stablehlo.return %c : tensor<i1>
            } do {
              %j = stablehlo.add %i, %one : tensor<i32>
              stablehlo.return %j : tensor<i32>
            }
          return %r : tensor<i32>
        }
        """
    )
    for last, end in ((7, 7), (MOST_ITERATIONS, MOST_ITERATIONS), (100 * MOST_ITERATIONS, MOST_ITERATIONS)):
        assert interpret(module, [np.int32(0), np.int32(last)]) == [end]


def test_manual_computations_run_on_devices() -> None:
    module = parse(
        """
        module {
          sdy.mesh @mesh = <["x"=2]>
          func.func public @main(%x: tensor<4xf32>) -> tensor<2xf32> {
        """
        + MANUAL_SUM
        + "return %r : tensor<2xf32> } }"
    )
    np.testing.assert_array_equal(interpret(module, [np.arange(4, dtype=np.float32)])[0], [2, 4])


def test_element_types_tokens_and_chlo() -> None:
    module = parse(
        """
        func.func public @main(%a: tensor<4xbf16>, %i: tensor<3xi64>, %d: tensor<2xf64>, %u: tensor<0x2xui8>,
            %k: tensor<2xui4>, %c: tensor<2xcomplex<f32>>)
            -> (tensor<4xbf16>, tensor<3xi64>, tensor<2xf64>, tensor<0x2xui8>, tensor<2xui4>, tensor<2xcomplex<f32>>) {
          %t = stablehlo.create_token : !stablehlo.token
          %o:2 = stablehlo.optimization_barrier %t, %a : !stablehlo.token, tensor<4xbf16>
          %0 = chlo.square %o#1 : tensor<4xbf16> -> tensor<4xbf16>
          %1 = stablehlo.add %i, %i : tensor<3xi64>
          %2 = stablehlo.add %d, %d : tensor<2xf64>
          %3 = stablehlo.add %u, %u : tensor<0x2xui8>
          %4 = stablehlo.add %k, %k : tensor<2xui4>
          %5 = stablehlo.add %c, %c : tensor<2xcomplex<f32>>
          return %0, %1, %2, %3, %4, %5 : tensor<4xbf16>, tensor<3xi64>, tensor<2xf64>, tensor<0x2xui8>, tensor<2xui4>, tensor<2xcomplex<f32>>
        }
        """
    )
    args = random_args(module)
    found = interpret(module, args)
    for value, arg in zip(found[1:], args[1:], strict=True):
        assert value.dtype == arg.dtype
        np.testing.assert_array_equal(value, arg + arg)
    np.testing.assert_array_equal(found[0], args[0] * args[0])


def test_unknown_ops_are_fixed_functions_of_their_inputs() -> None:
    text = """
        func.func public @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
          %0 = "test.foo"(%x) {unroll_counter = 0 : ui32} : (tensor<2xf32>) -> tensor<2xf32>
          %1 = "test.foo"(%x) {unroll_counter = 1 : ui32} : (tensor<2xf32>) -> tensor<2xf32>
          %2 = stablehlo.custom_call @nobody_knows(%x) : (tensor<2xf32>) -> tensor<2xf32>
          return %0, %1, %2 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
        }
        """
    module = parse(text, allow_unregistered=True)
    args = random_args(module, 0)
    first, second, third = interpret(module, args)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(third, interpret(module, args)[2])
    assert_same_meaning(module, parse(text, allow_unregistered=True))


def test_differences_are_found() -> None:
    module = parse(STAGES)
    for old, new in [
        ("stablehlo.subtract %p, %q", "stablehlo.subtract %q, %p"),
        ("iterations = 3", "iterations = 2"),
        ("return %1, %2#1 : !b, !a", "return %1, %2#0 : !b, !a"),
    ]:
        with pytest.raises(AssertionError, match="@main: result 1 differs"):
            assert_same_meaning(module, parse(STAGES.replace(old, new)))


def test_tolerance_and_permutation() -> None:
    before = parse(
        "func.func public @main(%x: tensor<2xf32>, %y: tensor<3xf32>) -> (tensor<2xf32>, tensor<3xf32>) {"
        "%0 = stablehlo.exponential %x : tensor<2xf32> return %0, %y : tensor<2xf32>, tensor<3xf32> }"
    )
    after = parse(
        "func.func public @main(%y: tensor<3xf32>, %x: tensor<2xf32>) -> (tensor<3xf32>, tensor<2xf32>) {"
        "%c = stablehlo.constant dense<1.000001> : tensor<2xf32> %0 = stablehlo.exponential %x : tensor<2xf32>"
        "%1 = stablehlo.multiply %0, %c : tensor<2xf32> return %y, %1 : tensor<3xf32>, tensor<2xf32> }"
    )
    assert_same_meaning(before, after, rtol=1e-4, args=[1, 0], results=[1, 0])
    with pytest.raises(AssertionError):
        assert_same_meaning(before, after, args=[1, 0], results=[1, 0])


def test_errors() -> None:
    module = parse(STAGES)
    with pytest.raises(MpmdError, match="takes 2 arguments, not 1"):
        interpret(module, [np.zeros(4, np.float32)])
    with pytest.raises(MpmdError, match=r"argument 1 of @main must be tensor<4xf32>, not float32\[3\]"):
        interpret(module, [np.zeros(4, np.float32), np.zeros(3, np.float32)])
    with pytest.raises(MpmdError, match="no function @nobody"):
        interpret(module, [], "nobody")
    dynamic = parse("func.func public @main(%x: tensor<?xf32>) { return }")
    with pytest.raises(MpmdError, match="static shape"):
        random_args(dynamic)
