"""The whole partitioner against the C++ one inside jaxlib >= 0.12: the same module, op for op, at each phase."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.trace import trace
from mpmd_trace.passes.cpp_engine import CppPartitioner, available, partition_with_cpp
from mpmd_trace.passes.optimize.reference_schedules import Schedule
from mpmd_trace.passes.partition import partition, partition_as
from mpmd_trace.passes.request import PartitionRequest, Phases

needs_cpp = pytest.mark.skipif(not available(), reason="this jaxlib has no C++ partitioner")

MICROBATCHES, WIDTH = 4, 8


def layer(p: dict[str, Any], x: jax.Array) -> jax.Array:
    y = (x - x.mean(-1, keepdims=True)) * p["scale"]
    return x + jnp.tanh(y @ p["up"]) @ p["down"]


@functools.cache
def step_text(layers: int, forward_only: bool = False, tied: bool = False) -> tuple[str, int, int]:
    """A training step over `layers` layers, and how many arguments and results it has."""
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    one = {"up": square, "down": square, "scale": jax.ShapeDtypeStruct((WIDTH,), jnp.float32)}

    def apply(ps: list[Any], x: jax.Array) -> jax.Array:
        for i in range(layers):
            x = mt.named_computation(layer, name=f"l{i}")(ps[0 if tied else i], x)
        return x

    def loss(ps: list[Any], x: jax.Array) -> jax.Array:
        return (apply(ps, x) ** 2).mean()

    def step(ps: list[Any], batch: jax.Array) -> Any:
        if forward_only:
            return [mt.call(apply, call_counter=m)(ps, batch[m]) for m in range(MICROBATCHES)]

        def microbatch(i: Any, grads: Any, x: jax.Array) -> Any:
            return jax.tree.map(jnp.add, grads, jax.grad(loss)(ps, x))

        grads = mt.enumerated_for(microbatch, jax.tree.map(jnp.zeros_like, ps), batch)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda p, g: p - 0.1 * g / (1 + norm), ps, grads)

    batch = jax.ShapeDtypeStruct((MICROBATCHES, 2, WIDTH), jnp.float32)
    traced = trace(step, [one] * (1 if tied else layers), batch)
    return traced.mlir_text(debug_info=False), len(traced.inputs), len(traced.outputs)


def step_arguments(inputs: int, outputs: int, layers: int, meshes: int) -> dict[str, Any]:
    """Arguments of `partition` for `step_text`: equal numbers of layers on each mesh, in order."""
    # These mesh names come in the same order in the reference's hash tables as in the topology.
    return {
        "func_name": "step",
        "named_meshes": [(f"s{m}", [("x", 2)]) for m in range(meshes)],
        "assignment": {f"l{i}": f"s{i * meshes // layers}" for i in range(layers)},
        "input_meshes": [None] * inputs,
        "output_meshes": [None] * outputs,
    }


def refused_by_cpp(request: PartitionRequest) -> PartitionRequest:
    """The same with a schedule that the C++ partitioner does not have, for which it aborts."""
    schedule = Schedule("nonsense", lambda unit: ())
    return dataclasses.replace(request, schedule=schedule)


def compare(
    cpp: CppPartitioner, text: str, inputs: int, outputs: int, layers: int, meshes: int, options: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {
        **step_arguments(inputs, outputs, layers, meshes),
        "donate_argnums": [0, 1],
        "partitioning_options": {"mpmd_infer_transfers": True, **options},
    }
    phases: tuple[Phases, ...] = ("import", "optimize", "all")
    theirs = cpp.partition(text, PartitionRequest.of(**arguments), phases=phases)
    assert theirs.error is None, theirs.error
    for phase in phases:
        result = partition(text, **arguments, phases=phase)
        a, b = theirs.texts[phase], result.as_text()
        if a != b:
            lines = difflib.unified_diff(a.splitlines(), b.splitlines(), "C++", "Python", lineterm="", n=1)
            pytest.fail(f"phase {phase}:\n" + "\n".join(list(lines)[:60]))
    assert (theirs.input_specs, theirs.output_specs) == (result.input_specs, result.output_specs)


@needs_cpp
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mpmd_pipeline_schedule": "1F1B"},
        {"mpmd_pipeline_schedule": "GPipeBut1F1BForLastMesh", "mpmd_fragment_remat": True},
        {"mpmd_pipeline_schedule": "ZeroBubbleH1", "mpmd_split_bwd_fragments": True},
        {"mpmd_pipeline_schedule": "ZeroBubbleH2ZeroTxLatency", "mpmd_split_bwd_fragments": True},
        {"mpmd_infer_cross_mesh_reductions": True},
    ],
    ids=lambda o: "-".join(str(v) for v in o.values()) or "defaults",
)
def test_training_step(cpp: CppPartitioner, options: dict[str, Any]) -> None:
    compare(cpp, *step_text(4), layers=4, meshes=2, options=options)


@needs_cpp
def test_tied_parameters(cpp: CppPartitioner) -> None:
    compare(cpp, *step_text(3, tied=True), layers=3, meshes=3, options={"mpmd_pipeline_schedule": "1F1B"})


@needs_cpp
def test_forward_only(cpp: CppPartitioner) -> None:
    options = {"mpmd_pipeline_schedule": "GPipe"}
    compare(cpp, *step_text(4, forward_only=True), layers=4, meshes=4, options=options)


@needs_cpp
@pytest.mark.parametrize("shape", [(4,), (0,)])
def test_constants_that_are_chosen_between(cpp: CppPartitioner, shape: tuple[int, ...]) -> None:
    """As the divisor of `x % 3` is; their order in the body."""

    def layer(t: jax.Array, u: jax.Array) -> jax.Array:
        return t.sum() % 3 + 2 * u.sum() + 5 * (t.min(initial=7) // 4)

    integers = jax.ShapeDtypeStruct(shape, jnp.int32)
    traced = trace(lambda t, u: mt.named_computation(layer, name="l0")(t, u), integers, integers)
    compare(cpp, traced.mlir_text(debug_info=False), 2, 1, layers=1, meshes=1, options={})


REPEATED_OPERANDS = {
    "operands": "%u = stablehlo.clamp %a, %b, %a : !t",
    "captured": """
    %u, %w = stablehlo.while(%i = %a, %j = %b) : !t, !t
      cond {
        %n = stablehlo.constant dense<false> : tensor<i1>
        stablehlo.return %n : tensor<i1>
      } do {
        %k = stablehlo.add %i, %a : !t
        stablehlo.return %k, %j : !t, !t
      }""",
}


@needs_cpp
@pytest.mark.parametrize("kind", REPEATED_OPERANDS)
def test_an_operand_that_is_read_twice_counts_once_where_backwards_are_split(cpp: CppPartitioner, kind: str) -> None:
    text = f"""
!t = tensor<4xf32>
func.func @main(%p: !t, %q: !t) -> (!t, !t) {{
  %0:2 = mpmd.named_computation<"l0"(1)> (%p, %q) (%x: !t, %y: !t) {{
    %a = stablehlo.negate %x : !t
    %b = stablehlo.sine %y : !t
    %c = stablehlo.multiply %a, %b : !t
    %d = stablehlo.tanh %c : !t
    %s = stablehlo.sine %d : !t
    {REPEATED_OPERANDS[kind]}
    mpmd.return %u, %s : !t, !t
  }} : (!t, !t) -> (!t, !t)
  %1 = mpmd.named_computation<"l1"(1)> (%0#1) (%x: !t) {{
    %a = stablehlo.cosine %x : !t
    mpmd.return %a : !t
  }} : (!t) -> !t
  return %0#0, %1 : !t, !t
}}"""
    compare(cpp, text, 2, 2, layers=2, meshes=2, options={"mpmd_split_bwd_fragments": True})


@needs_cpp
def test_the_second_engine_gives_a_module_or_raises() -> None:
    text, inputs, outputs = step_text(1, forward_only=True)
    arguments: dict[str, Any] = {
        "func_name": "step",
        "named_meshes": [("s0", [("x", 2)])],
        "assignment": {"l0": "s0"},
        "input_meshes": [None] * inputs,
        "output_meshes": [None] * outputs,
    }
    request = PartitionRequest.of(**arguments)
    assert partition_with_cpp(text, request).as_text() == partition_as(text, request).as_text()
    with pytest.raises(MpmdError, match=r"stopped with status -6.*nonsense"):
        partition_with_cpp(text, refused_by_cpp(request))


@pytest.mark.skipif(available(), reason="this jaxlib has the C++ partitioner")
def test_the_second_engine_says_what_it_needs() -> None:
    with pytest.raises(MpmdError, match=r"needs the partitioner inside jaxlib 0\.12"):
        partition_with_cpp("module {}", PartitionRequest.of("f", [("m", [("x", 1)])], {}, [], []))
