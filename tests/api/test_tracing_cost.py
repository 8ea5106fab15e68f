"""What compiling a step traces, lowers and prints: each thing once."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jaxlib.mlir import ir

import mpmd_trace as mt
from frontend.traced_programs import evaluate
from mpmd_trace.frontend.folding import _NUMPY, Known, fold
from mpmd_trace.frontend.trace import trace
from pipelines import loss_of, summed_gradients
from util import names_of_events

NAMES = {f"layer{i}": ("first" if i < 2 else "second") for i in range(4)}


def _step(weights: list[jax.Array], batch: jax.Array) -> Any:
    return summed_gradients(loss_of(lambda w, x: jnp.tanh(x @ w), "layer"), weights, batch)


def _jitted() -> tuple[Any, tuple[Any, ...]]:
    config = mt.make_config(dict.fromkeys(("first", "second"), AbstractMesh((1,), ("data",))), NAMES)
    weights = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 4
    return mt.jit(_step, config), (weights, jax.ShapeDtypeStruct((3, 4, 8), jnp.float32))


def test_a_step_is_traced_and_rewritten_but_not_traced_again_for_lowering() -> None:
    jitted, args = _jitted()
    with names_of_events("jaxpr_trace_duration") as found:
        jitted.lower(*args)
    assert [name for name in found if "_step" in name or name == "run"] == ["_step"] * 2


def test_a_module_of_jaxlib_is_partitioned_as_its_text_is() -> None:
    jitted, args = _jitted()
    traced = jitted.trace(*args).traced
    before = traced.mlir_text()
    request = ("step", [("first", [("data", 1)]), ("second", [("data", 1)])])
    places = ([None] * 5, [None] * 4)
    options = {"mpmd_infer_transfers": True}
    of_text = mt.compiler.partition(before, *request, NAMES, *places, partitioning_options=options)
    of_module = mt.compiler.partition(traced.module, *request, NAMES, *places, partitioning_options=options)
    assert of_module.as_text() == of_text.as_text()
    assert traced.mlir_text() == before


def test_a_module_of_jaxlib_with_a_call_of_nothing_is_an_error() -> None:
    jitted, args = _jitted()
    module = jitted.trace(*args).traced.module
    with module.context:
        copy = ir.Module.parse(str(module))
        for op in copy.body.operations:
            if op.operation.name == "func.func" and "main" not in str(op.attributes["sym_name"]):
                op.operation.erase()
                break
    with pytest.raises(mt.MpmdError, match=r"calls @.*, which is not a function of the module"):
        mt.compiler.partition(copy, "step", [("first", [("data", 1)])], {}, [None] * 5, [None] * 4)


def test_other_things_are_no_modules() -> None:
    with pytest.raises(TypeError, match="a module is MLIR text"):
        mt.compiler.partition(3, "step", [("first", [("data", 1)])], {}, [], [])


def test_a_function_with_many_names_is_traced_once() -> None:
    calls = []

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        calls.append(x)
        return jnp.tanh(x @ w)

    def model(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for i, w in enumerate(weights):
            x = mt.named_computation(layer, name=f"layer{i}")(w, x)
        return jnp.sum(x)

    weights = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 6
    traced = trace(jax.grad(model), weights, jax.ShapeDtypeStruct((4, 8), jnp.float32))
    assert len(calls) == 1
    assert sorted(traced.names) == [f"layer{i}" for i in range(6)]


def test_a_function_that_closes_over_what_a_loop_changes_is_traced_for_each_name() -> None:
    def model(x: jax.Array) -> jax.Array:
        def scaled(x: jax.Array) -> jax.Array:
            return x * i

        for i in range(1, 4):
            x = mt.named_computation(scaled, name=f"by{i}")(x)
        return x

    traced = trace(model, jnp.ones(2))
    assert evaluate(traced, jnp.ones(2)).tolist() == [6.0, 6.0]


def test_layers_of_one_body_are_lowered_once_and_keep_their_names() -> None:
    jitted, args = _jitted()
    text = jitted.trace(*args).traced.mlir_text(debug_info=False)
    for i in range(4):
        assert text.count(f'<"layer{i}">') == 1
        assert text.count(f'<"layer{i}"(1)>') == 1


def test_known_indices_are_computed_without_compiling_anything() -> None:
    def model(x: jax.Array) -> jax.Array:
        def body(i: Any, carry: jax.Array) -> jax.Array:
            index = jnp.minimum(i * 3 - 2, 3)
            return carry + jax.lax.dynamic_index_in_dim(x, index, keepdims=False)

        return mt.fori_loop(3, body, jnp.zeros(2))

    x = jnp.arange(8.0).reshape(4, 2)
    with names_of_events("backend_compile_duration") as compiled:
        traced = trace(model, x)
    assert compiled == []
    assert evaluate(traced, x).tolist() == jax.jit(model)(x).tolist()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("name", sorted(_NUMPY))
def test_numpy_folds_as_jax_computes(name: str, dtype: str) -> None:
    if dtype == "bool" and name in ("add", "add_any", "sub", "mul", "neg"):
        return  # no such operation
    primitive = {"add_any": "add", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}
    function = getattr(jax.lax, primitive.get(name, name))
    info = [0, 1] if dtype == "bool" else [0, 1, 3, np.iinfo(dtype).max, np.iinfo(dtype).min]
    values = [np.asarray(v, dtype) for v in info]
    flags = [np.asarray(v) for v in (False, True)]
    sides = {"neg": [values], "not": [values], "select_n": [flags, values, values], "clamp": [values] * 3}
    operands = list(itertools.product(*sides.get(name, [values, values])))
    for given in operands:
        (eqn,) = jax.make_jaxpr(function)(*given).jaxpr.eqns
        (found,) = fold(eqn, [Known(v) for v in given]) or [None]
        assert isinstance(found, Known)
        if dtype == "bool" and name == "clamp":  # XLA has code for it in fusions alone; numbers have the same order
            wanted = np.asarray(function(*(flag.astype(np.int8) for flag in given))).astype(bool)
        else:
            wanted = np.asarray(function(*given))
        assert found.value.dtype == wanted.dtype and found.value.shape == wanted.shape
        assert found.value.tolist() == wanted.tolist()
