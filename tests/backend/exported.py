"""Exported modules for the tests of the backend: by hand, and at random."""

# ruff: noqa: E501  (MLIR text)

from __future__ import annotations

import random

import jax
import numpy as np
from jax.sharding import Mesh


def mesh(first: int, *axes: tuple[str, int]) -> Mesh:
    """A mesh with these axes over the CPU devices from number `first` on."""
    sizes = [n for _, n in axes]
    count = int(np.prod(sizes))
    devices = np.array(jax.devices("cpu")[first : first + count]).reshape(sizes)
    return Mesh(devices, tuple(a for a, _ in axes))


def topology(**meshes: Mesh) -> dict[str, Mesh]:
    return meshes


PIPELINE = """
!a = !mpmd.mesh_tensor<"a", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
!wa = !mpmd.mesh_tensor<"a", tensor<8x8xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
!wb = !mpmd.mesh_tensor<"b", tensor<8x8xf32>>
#x = #sdy.sharding<@mesh, [{"x"}, {}]>
#topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>
module @jit_step {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: !a loc("x"), %w: !wa {jax.buffer_donor = true} loc("params['w']"), %v: !wb loc("params['v']"))
      -> (!b {jax.result_info = "y"}, !wa {jax.result_info = "w"}) attributes {topology = #topology} {
    %0 = mpmd.fragment_call<mesh="a", origin=["f"]> @p0_f.step(%x, %w) : (!a, !wa) -> !a
    %1 = mpmd.transfer %0 : (!a) -> !b
    %2 = mpmd.fragment_call<mesh="b", origin=["g"]> @p1_g.step(%1, %v) : (!b, !wb) -> !b
    %3 = mpmd.fragment_call<mesh="a", origin=[]> @p2_inferred.step(%w) : (!wa) -> !wa
    return %2, %3 : !b, !wa
  }
  func.func @p0_f.step(%x: tensor<4x8xf32> {sdy.sharding = #x}, %w: tensor<8x8xf32>) -> (tensor<4x8xf32> {sdy.sharding = #x})
      attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<4x8xf32>
    %2 = stablehlo.tanh %1 : tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
  func.func @p1_g.step(%x: tensor<4x8xf32> {sdy.sharding = #x, jax.buffer_donor = true}, %w: tensor<8x8xf32>)
      -> (tensor<4x8xf32> {sdy.sharding = #x}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = func.call @helper(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func private @helper(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @p2_inferred.step(%w: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x8xf32>
      attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %c = stablehlo.constant dense<0.5> : tensor<8x8xf32>
    %0 = stablehlo.multiply %w, %c : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""


def random_module(seed: int, *, size: int = 12) -> str:
    """A random exported module over meshes a and b (x=2) and c (y=2, z=2), with random donation marks."""
    rng = random.Random(seed)
    axes = {"a": ["x"], "b": ["x"], "c": ["y", "z"]}
    symbol = {"a": "ab", "b": "ab", "c": "c"}

    def some_type(name: str) -> str:
        dims: list[list[str]] = [[], []]
        for axis in rng.sample(axes[name], len(axes[name])):
            where = rng.randrange(4)
            if where < 2:
                dims[where].append(f'"{axis}"')
        memory = ', memory_kind="pinned_host"' if rng.random() < 0.1 else ""
        if not dims[0] and not dims[1] and rng.random() < 0.5:
            return f'!mpmd.mesh_tensor<"{name}", tensor<4x4xf32>{memory}>'
        body = ", ".join("{" + ", ".join(d) + "}" for d in dims)
        return f'!mpmd.mesh_tensor<"{name}", tensor<4x4xf32>, sharding=<@{symbol[name]}, [{body}]>{memory}>'

    values: list[tuple[str, str, str]] = []  # name, type, mesh
    args, body, functions = [], [], []
    for i in range(rng.randint(1, 4)):
        name = rng.choice("abc")
        type = some_type(name)
        donor = " {jax.buffer_donor = true}" if rng.random() < 0.5 else ""
        args.append(f"%p{i}: {type}{donor}")
        values.append((f"%p{i}", type, name))
    t = "tensor<4x4xf32>"
    for i in range(size):
        value, type, name = rng.choice(values[-6:])
        if rng.random() < 0.4:
            target = rng.choice("abc")
            wanted = some_type(target)
            body.append(f"%v{i} = mpmd.transfer {value} : ({type}) -> {wanted}")
            values.append((f"%v{i}", wanted, target))
            continue
        operands = [v for v in values if v[2] == name]
        operands = [rng.choice(operands) for _ in range(rng.randint(1, 3))]
        count = rng.randint(1, 2)
        results = [some_type(name) for _ in range(count)]
        choices = ["", "{jax.buffer_donor = true}"]
        choices += [f"{{tf.aliasing_output = {k} : i32}}" for k in range(count)]
        marks = [rng.choice(choices) for _ in operands]
        params = ", ".join(f"%q{k}: {t} {m}" for k, m in enumerate(marks))
        mesh_text = '["x"=2]' if name in "ab" else '["y"=2, "z"=2]'
        lines = [f"%s0 = stablehlo.negate %q0 : {t}"]
        for k in range(1, len(operands)):
            op = rng.choice(["add", "maximum", "subtract"])
            lines.append(f"%s{k} = stablehlo.{op} %s{k - 1}, %q{k} : {t}")
        last = f"%s{len(operands) - 1}"
        returned = [last, "%q0" if rng.random() < 0.3 else last][:count]
        functions.append(
            f"func.func @f{i}({params}) -> ({', '.join([t] * count)}) "
            f"attributes {{mesh_shape = #sdy.mesh<{mesh_text}>}} {{\n"
            + "\n".join(lines)
            + f"\nreturn {', '.join(returned)} : {', '.join([t] * count)} }}"
        )
        left = f"%v{i}" if count == 1 else f"%v{i}:{count}"
        body.append(
            f'{left} = mpmd.fragment_call<mesh="{name}", origin=["f{i}"]> @f{i}'
            f"({', '.join(o[0] for o in operands)}) : ({', '.join(o[1] for o in operands)}) "
            f"-> {'(' + ', '.join(results) + ')' if count > 1 else results[0]}"
        )
        for k, r in enumerate(results):
            values.append((f"%v{i}" if count == 1 else f"%v{i}#{k}", r, name))
    returned_values = [rng.choice(values) for _ in range(rng.randint(1, 4))]
    types = ", ".join(v[1] for v in returned_values)
    topology_text = '<"a" : <["x"=2]>>, <"b" : <["x"=2]>>, <"c" : <["y"=2, "z"=2]>>'
    return (
        'module {\nsdy.mesh @ab = <["x"=2]>\nsdy.mesh @c = <["y"=2, "z"=2]>\n'
        f"func.func @main({', '.join(args)}) -> ({types}) "
        f"attributes {{topology = #mpmd.topology<{topology_text}>}} {{\n"
        + "\n".join(body)
        + f"\nreturn {', '.join(v[0] for v in returned_values)} : {types} }}\n"
        + "\n".join(functions)
        + "\n}"
    )
