"""The backward computation of a pipeline stage made of Equinox transformer blocks, as an mpmd program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mpmd_trace.ir.bodies import BodyBuilder, dce
from mpmd_trace.ir.core import Region, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import Type
from mpmd_trace.passes.manager import run_passes
from util import filled

BATCH, SEQ, WIDTH, HEADS = 2, 4, 8, 2
#: Weight matrices of a block: query, key, value, output, two of the MLP.
MATRICES = 6


class Block(eqx.Module):
    """Attention and an MLP, each behind a layer norm."""

    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key: Array) -> None:
        k1, k2 = jax.random.split(key)
        self.norm1 = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, use_output_bias=True, key=k1)
        self.norm2 = eqx.nn.LayerNorm(WIDTH)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 16, 1, activation=jax.nn.gelu, key=k2)

    def __call__(self, x: Float[Array, "seq width"]) -> Float[Array, "seq width"]:  # noqa: F722
        h = jax.vmap(self.norm1)(x)
        x = x + self.attention(h, h, h)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norm2)(x))


@dataclasses.dataclass(frozen=True)
class Stage:
    """The program and the number of gradients of parameters among its results (the first ones)."""

    module: Module
    parameters: int


def _backward_body(blocks: int, first_stage: bool) -> tuple[Region, int]:
    params, static = eqx.partition([filled(Block, jax.random.key(0)) for _ in range(blocks)], eqx.is_array)
    x = jnp.ones((BATCH, SEQ, WIDTH))

    def forward(params: list[Block], x: Array) -> Array:
        for block in eqx.combine(params, static):
            x = jax.vmap(block)(x)
        return x

    if first_stage:
        _, pullback = jax.eval_shape(lambda p: jax.vjp(lambda p: forward(p, x), p), params)
    else:
        _, pullback = jax.eval_shape(lambda p: jax.vjp(forward, p, x), params)

    def backward(gradient: Array, pullback: object) -> list[Array]:
        return jax.tree.leaves(pullback(gradient))

    lowered = jax.jit(backward, keep_unused=True).lower(x, pullback)
    module = parse(lowered.as_text())
    run_passes(module, "canonicalize,cse")
    builder = BodyBuilder()
    args = [builder.arg(a.type) for a in module.main.args]
    body = builder.finish(_inline(builder, module, module.main, args))
    return dce(body), len(jax.tree.leaves(params))


def _inline(builder: BodyBuilder, module: Module, function: FuncOp, args: Sequence[Value]) -> list[Value]:
    """Append the ops of the function and of the functions that it calls."""
    mapping = dict(zip(function.body.args, args, strict=True))
    for op in function.body:
        if op.name == "func.call":
            callee = module.lookup(op.props["callee"].name)
            results = _inline(builder, module, callee, [mapping[v] for v in op.operands])
            mapping.update(zip(op.results, results, strict=True))
        elif op is not function.body.terminator:
            builder.add(op, mapping)
    return [mapping[v] for v in function.returned]


def _mesh(type: Type, mesh: str) -> str:
    return f'!mpmd.mesh_tensor<"{mesh}", {type}>'


def backward_stage(blocks: int = 1, *, first_stage: bool = False) -> Stage:
    """The backward fragment of a stage on mesh "here".

    Its first operand, the gradient of the stage's result, is transferred from mesh "next"; unless this is
    the first stage, its last result, the gradient of the stage's argument, is transferred to "previous".
    """
    body, parameters = _backward_body(blocks, first_stage)
    inputs = [a.type for a in body.block.args]
    outputs = [v.type for v in body.returned]
    here = [_mesh(t, "here") for t in inputs]
    results = [_mesh(t, "here") for t in outputs]
    meshes = ", ".join(f'<"{m}" : <["x"=1]>>' for m in ("previous", "here", "next"))
    n = len(outputs)
    returned = [f"%r#{i}" for i in range(n)]
    types = list(results)
    send = ""
    if not first_stage:
        types[-1] = _mesh(outputs[-1], "previous")
        send = f"%sent = mpmd.transfer %r#{n - 1} : ({results[-1]}) -> {types[-1]}"
        returned[-1] = "%sent"
    arguments = ", ".join(f"%p{i}: {_mesh(t, 'here' if i else 'next')}" for i, t in enumerate(inputs))
    text = f"""
func.func @main({arguments}) -> ({", ".join(types)})
    attributes {{topology = #mpmd.topology<{meshes}>}} {{
  %g = mpmd.transfer %p0 : ({_mesh(inputs[0], "next")}) -> {here[0]}
  %r:{n} = mpmd.fragment<mesh="here", origin=["stage"(1)], stage=1>
      (%g{"".join(f", %p{i}" for i in range(1, len(inputs)))}) {{call_counter = 0 : ui32}}
      ({", ".join(f"%x{i}: {t}" for i, t in enumerate(inputs))}) {{
    %y:{n} = stablehlo.custom_call @body({", ".join(f"%x{i}" for i in range(len(inputs)))})
        : ({", ".join(map(str, inputs))}) -> ({", ".join(map(str, outputs))})
    mpmd.return {", ".join(f"%y#{i}" for i in range(n))} : {", ".join(map(str, outputs))}
  }} : ({", ".join(here)}) -> ({", ".join(results)})
  {send}
  return {", ".join(returned)} : {", ".join(types)}
}}
"""
    module = parse(text)
    (fragment,) = (op for op in module.main.body if isinstance(op, FragmentOp))
    fragment.body = body
    return Stage(module, parameters)
