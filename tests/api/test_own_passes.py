"""Passes of users: what they warn of, and how they get into `mpmd_trace.jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mpmd_trace as mt
from mpmd_trace import compiler
from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from pipelines import topology


def tanh_for_sine(body: Region) -> bool:
    changed = False
    for op in body.block:
        if op.name == "stablehlo.sine":
            op.name = "stablehlo.tanh"
            changed = True
    return changed


class TanhForSine(FunctionPass):
    """No body has a sine."""

    name = "tanh-for-sine"
    summary = "Replaces sine by tanh."
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for op in function.body:
            if isinstance(op, FragmentOp):
                body = map_ops(op.body, self.name, tanh_for_sine)
                if body is not op.body:
                    diagnostics.warning(op, f"mesh {op.mesh} had a sine")
                    changed, op.body = True, body
        return changed


def test_a_pass_of_the_user_runs_in_jit_and_its_warnings_are_seen() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        h = mt.named_computation(lambda x: jnp.sin(w * x), name="first")(x)
        return mt.named_computation(lambda h: h + 1, name="second")(h)

    config = mt.make_config(topology(), {"first": "m0", "second": "m1"})
    x = jnp.arange(4.0)
    hook = compiler.after("mpmd-delay-inferred-fragments", TanhForSine())
    with pytest.warns(mt.MpmdWarning, match="mesh m0 had a sine"):
        compiled = mt.jit(step, config).lower(x, x, hooks=[hook]).compile()
    np.testing.assert_allclose(compiled(x, x), jnp.tanh(x * x) + 1, rtol=1e-6)
    np.testing.assert_allclose(mt.jit(step, config)(x, x), jnp.sin(x * x) + 1, rtol=1e-6)
    with pytest.warns(mt.MpmdWarning, match="without mpmd-fit-memory: the passes after it did not run"):
        mt.jit(step, config).lower(x, x, hooks=[compiler.after("mpmd-fit-memory", TanhForSine())])


def test_what_a_pass_warns_of_in_run_passes() -> None:
    text = """
      func.func @main(%a: !mpmd.mesh_tensor<"m0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<4xf32>>
        attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
        %0 = mpmd.fragment<mesh="m0", origin=["f"]> (%a) (%b: tensor<4xf32>) {
          %1 = stablehlo.sine %b : tensor<4xf32>
          mpmd.return %1 : tensor<4xf32>
        } : (!mpmd.mesh_tensor<"m0", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<4xf32>>
        return %0 : !mpmd.mesh_tensor<"m0", tensor<4xf32>>
      }"""
    with pytest.warns(mt.MpmdWarning, match="mesh m0 had a sine") as seen:
        module = compiler.run_passes(compiler.parse(text), [TanhForSine()])
    assert "stablehlo.tanh" in str(module)
    assert seen[0].filename == __file__


def test_a_hook_after_a_misspelled_pass() -> None:
    with pytest.raises(mt.MpmdError, match="mpmd-delay-inferred-fragments"):
        compiler.after("mpmd-delay-inferred-fragment", TanhForSine())
