"""Small changes to a valid module that may make it invalid."""

from __future__ import annotations

import random
from collections.abc import Callable

from mpmd_trace.ir.attributes import ArrayAttr, DictAttr, IntegerAttr, StringAttr, TypeAttr, parse_attribute
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.types import parse_type

TYPES = [
    "tensor<8x4xf32>",
    "tensor<8xf32>",
    "tensor<f32>",
    "tensor<ui32>",
    "tensor<i64>",
    "!stablehlo.token",
    *(
        f'!mpmd.mesh_tensor<"{mesh}", tensor<8x4xf32>{rest}>'
        for mesh, rest in [
            ("a", ""),
            ("b", ""),
            ("c", ""),
            ("a", ', memory_kind="pinned_host"'),
            ("a", ', memory_kind="cloud"'),
            ("a", ', sharding=<@mesh, [{"x"}, {}]>'),
            ("a", ', sharding=<@mesh, [{"x"}]>'),
            ("a", ', sharding=<@mesh, [{"z"}, {}]>'),
            ("a", ', sharding=<@mesh, [{"x"}, {"x"}]>'),
            ("a", ', sharding=<@mesh, [{"y":(1)2}, {"y":(2)2}]>'),
            ("a", ', sharding=<@mesh, [{"y":(1)2, "y":(2)2}, {}]>'),
            ("a", ', sharding=<@mesh, [{"y":(1)2}, {"y"}]>'),
            ("a", ', sharding=<@mesh, [{"y":(1)4}, {}]>'),
            ("a", ', sharding=<@mesh, [{"y":(3)2}, {}]>'),
            ("a", ', sharding=<@mesh, [{"y":(1)1}, {}]>'),
            ("a", ', sharding=<@mesh, [{"y":(0)2}, {}]>'),
            ("a", ', sharding=<@mesh, [{}, {"x", "y"}]>'),
            ("a", ', sharding=<@mesh, [{}, {}], replicated={"y", "x"}>'),
            ("a", ', sharding=<@mesh, [{}, {}], unreduced={"y", "x"}>'),
            ("a", ', sharding=<@mesh, [{"x"}, {}], replicated={"x"}>'),
            ("a", ", sharding=<@mesh, [{}p1, {}]>"),
            ("a", ', sharding=<@mesh, [{?}p1, {"x"}p0], replicated={"y":(2)2}, unreduced={"y":(1)2}>'),
            ("a", ', sharding=<mesh<["x"=3]>, [{"x"}, {}]>'),
            ("b", ', sharding=<@mesh, [{"y"}, {}]>'),
        ]
    ),
    '!mpmd.mesh_tensor<"a", tensor<8xf32>>',
    '!mpmd.mesh_tensor<"b", tensor<8xf32>>',
]
#: Op -> inherent attributes and what to put there; None removes it.
_PROPS: dict[str, list[tuple[str, str | None]]] = {
    "mpmd.fragment": [("mesh_name", '"b"'), ("mesh_name", '"zz"'), ("origin", '["f"]'), ("origin", "[]")],
    "mpmd.fragment_call": [("mesh_name", '"b"'), ("callee", "@plain"), ("callee", "@gone"), ("callee", "@main")],
    "mpmd.call": [("callee", "@plain"), ("callee", "@body"), ("callee", "@main")],
    "mpmd.for": [
        ("iterations", "0 : ui32"),
        ("iterations", "3 : ui32"),
        ("iterations", "4 : i32"),
        ("unroll_factor", "0 : ui32"),
        ("unroll_factor", "3 : ui32"),
        ("unroll_factor", None),
        ("iterations", None),
    ],
    "mpmd.reduce": [("reduction", "#mpmd.reduction<none>"), ("reduction", "#mpmd.reduction<max>")],
    "mpmd.named_tensor": [("name", None)],
    "mpmd.named_computation": [("origin", None)],
    "func.call": [("callee", "@gone"), ("callee", "@callee")],
}


def _pick(rng: random.Random, ops: list[Op], accept: Callable[[Op], bool]) -> Op | None:
    fits = [op for op in ops if accept(op)]
    return rng.choice(fits) if fits else None


def mutate(module: Module, rng: random.Random) -> str:
    """Change one thing in the module (frozen bodies are copied first); says what."""
    ops = [op for op in module.walk(post_order=False) if op.name != "builtin.module"]
    if rng.random() < 0.3:
        opened = rng.choice([op for op in ops if any(r.frozen for r in op.regions)])
        return "in a body: " + _in_body(opened, rng)
    ops = [op for op in ops if op.block is not None and not op.block.frozen]
    kind = rng.randrange(9)
    if kind == 0:  # a type
        values: list[Value] = [r for op in ops for r in op.results]
        values += [a for op in ops if op.name != "func.func" for r in op.regions if not r.frozen for a in r.block.args]
        value = rng.choice(values)
        value.type = parse_type(rng.choice(TYPES))
        return f"type of {value!r}"
    if kind == 1:
        op = _pick(rng, ops, lambda op: op.name in _PROPS)
        assert op is not None
        name, text = rng.choice(_PROPS[op.name])
        if text is None:
            op.props.pop(name, None)
        else:
            op.props[name] = parse_attribute(text)
        return f"{op.name} {name} = {text}"
    if kind == 2:  # another operand
        op = _pick(rng, ops, lambda op: op.num_operands > 0)
        assert op is not None
        others = [r for o in ops for r in o.results]
        op.set_operand(rng.randrange(op.num_operands), rng.choice(others))
        return f"operand of {op.name}"
    if kind == 3:
        op = _pick(rng, ops, lambda op: op.name in ("mpmd.transfer", "mpmd.call", "mpmd.fragment"))
        assert op is not None
        if op.name == "mpmd.call":
            op.attrs["call_counter"] = IntegerAttr.get(1, rng.choice(["i32", "ui32", "i64"]))
        elif op.name == "mpmd.transfer":
            op.attrs["mhlo.memory_kind"] = StringAttr.get(rng.choice(["device", "pinned_host"]))
        else:
            entry = DictAttr.get({"mhlo.memory_kind": StringAttr.get("pinned_host")})
            op.attrs["res_attrs"] = ArrayAttr.get([entry] * len(op.results))
        return f"attribute of {op.name}"
    functions = [op for op in ops if isinstance(op, FuncOp)]
    function = rng.choice(functions)
    if kind == 4:
        function.visibility = rng.choice(["public", "private"])
        return f"visibility of {function.sym_name}"
    if kind == 5:
        name = rng.choice(["topology", "mesh_shape"])
        text = rng.choice(
            [None, '#mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=4]>>>']
            if name == "topology"
            else [None, '#sdy.mesh<["x"=2]>', '#sdy.mesh<["x"=2, "y"=4]>']
        )
        if text is None:
            function.attrs.pop(name, None)
        else:
            function.attrs[name] = parse_attribute(text)
        return f"{name} of {function.sym_name}: {text}"
    if kind == 6:
        op = _pick(rng, ops, lambda op: op.name != "func.func" and op.num_operands > 0)
        assert op is not None
        op.erase_operands([rng.randrange(op.num_operands)])
        return f"one operand less of {op.name}"
    if kind == 7:  # order
        one = _pick(rng, ops, lambda op: not op.is_terminator and op.name != "func.func")
        assert one is not None and one.block is not None
        others_here = [op for op in one.block if op is not one and not op.is_terminator]
        if others_here:
            one.move_before(rng.choice(others_here))
        return f"moved {one.name}"
    if rng.random() < 0.5:
        function.props["function_type"] = TypeAttr.get(parse_type(str(rng.choice(functions).type)))
        return f"type of {function.sym_name}"
    function.set_arg_attr(0, "mhlo.memory_kind", StringAttr.get("pinned_host"))
    return f"argument of {function.sym_name}"


def _in_body(op: Op, rng: random.Random) -> str:
    body = op.regions[0].clone()
    kind = rng.randrange(5)
    block = body.block
    inner = list(block)
    if kind == 0 and block.args:
        block.args[0].type = parse_type(rng.choice(TYPES))
    elif kind == 1:
        block.terminator.set_operands([*block.terminator.operands, *block.terminator.operands[:1]])
    elif kind == 2 and len(inner) > 2:
        inner[-2].move_before(inner[0])
    elif kind == 3 and op.num_operands:
        block.terminator.set_operand(0, op.operand(0))
    else:
        block.add_arg(parse_type(rng.choice(TYPES)))
    op.regions[0] = freeze(body)
    return f"{kind} in {op.name}{' ' + op.mesh if isinstance(op, FragmentOp) else ''}"
