"""The primitives that stand for `mpmd` ops, and the lowering of a jaxpr that uses them to MLIR.

The frontend binds these after differentiation and batching are over, so they need no rules but the
two that lowering asks for. Each primitive but `slice_p` gives exactly one op. Bodies of calls and of named computations
become private functions, one per distinct jaxpr and module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax._src import core
from jax._src.interpreters import mlir as jax_mlir
from jax.sharding import AbstractMesh
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import mpmd
from jaxlib.mlir.dialects import stablehlo as hlo

from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.calls import BODY


def _primitive(name: str, abstract_eval: Callable[..., Any]) -> Any:
    primitive = core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(abstract_eval)
    return primitive


def _types_of_body(*_: Any, body: Any, **__: Any) -> list[Any]:
    return list(tracing.out_avals(body))


named_computation_p = _primitive("mpmd_named_computation", _types_of_body)
call_p = _primitive("mpmd_call", _types_of_body)
named_tensor_p = _primitive("mpmd_named_tensor", lambda x, name: [x])
broadcast_p = _primitive("mpmd_broadcast", lambda x: [x])
reduce_p = _primitive("mpmd_reduce", lambda *xs, reduction: [xs[0]])
sharding_p = _primitive("mpmd_sharding_constraint", lambda x, sharding, mesh: [x])
#: JAX's own slices are each lowered to a function that is inlined again, as no two microbatches have the same.
slice_p = _primitive("mpmd_slice", lambda x, index: [x.update(shape=x.shape[1:])])


def slice_at(x: Any, index: int) -> Any:
    """Return `x[index]`, of an array or what is to be one; an index from 0."""
    aval = core.typeof(x)
    if not isinstance(aval.dtype, np.dtype):  # keys are arrays of arrays
        return lax.index_in_dim(x, index, keepdims=False)
    return slice_p.bind(x, index=index)[0]


def _flat(values: Sequence[Any]) -> list[ir.Value]:
    return [v for value in values for v in ((value,) if isinstance(value, ir.Value) else value)]


def _ui32(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_unsigned(32), value)


def _reduction(kind: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#mpmd.reduction<{kind}>")


def _lower_body(ctx: Any, body: Any, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """Emit `body` at the insertion point; the ops use nothing from outside but `arguments`."""
    parts = tracing.opened(body)
    consts = [jax_mlir.ir_constant(c, aval=v.aval) for c, v in zip(parts.consts, parts.constvars, strict=True)]
    results, _ = jax_mlir.jaxpr_subcomp(
        ctx.module_context,
        getattr(body, "jaxpr", body),
        ctx.name_stack,
        ctx.tokens_in,
        consts,
        *arguments,
        dim_var_values=(),
        const_lowering={},
        outer_traceback=None,
    )
    return _flat(results)


def _result_types(ctx: Any) -> list[ir.Type]:
    return [jax_mlir.aval_to_ir_type(ctx.module_context, a) for a in ctx.avals_out]


def _lower_named_computation(
    ctx: Any, *operands: ir.Value, body: Any, name: str, transpose_count: int
) -> Sequence[ir.Value]:
    mpmd.register_dialect(ctx.module_context.context)
    quoted = ir.StringAttr.get(name)
    count = f"({transpose_count})" if transpose_count else ""
    function, location = _function_for(ctx, body, None)
    op = ir.Operation.create(
        "mpmd.named_computation",
        results=_result_types(ctx),
        operands=list(operands),
        attributes={"origin": ir.Attribute.parse(f"#mpmd.user_origin<{quoted}{count}>")},
        regions=1,
        loc=location,
    )
    types = [o.type for o in operands]
    block = ir.Block.create_at_start(op.regions[0], types, [location] * len(types))
    with ir.InsertionPoint(block), location:  # equal layers are one body: the function that is called
        call = func_dialect.CallOp(function, list(block.arguments))
        ir.Operation.create("mpmd.return", operands=list(call.operation.results))
    return list(op.results)


def _function_for(ctx: Any, body: Any, name: str | None) -> tuple[func_dialect.FuncOp, ir.Location]:
    """Return the private function that holds `body`, made when this is its first use, and the place of that.

    Without a name, it is the body of named computations.
    """
    module = ctx.module_context
    made = module.cached_primitive_lowerings
    key = ("mpmd_trace.function", name is None, id(body))
    if key in made:
        _, function, location = made[key]
        return function, location
    location = ir.Location.current
    inputs = [jax_mlir.aval_to_ir_type(module, a) for a in tracing.in_avals(body)]
    outputs = [jax_mlir.aval_to_ir_type(module, a) for a in tracing.out_avals(body)]
    # Bodies get different names at once: a name that the module has would change the numbers in those of JAX.
    number = made.setdefault(BODY, itertools.count())
    symbol = f"{BODY}{next(number)}" if name is None else jax_mlir.sanitize_name(name)
    function = func_dialect.FuncOp(symbol, ir.FunctionType.get(inputs, outputs), ip=module.ip)
    function.attributes["sym_visibility"] = ir.StringAttr.get("private")
    if name is None:
        function.attributes[BODY] = ir.UnitAttr.get()
    module.symbol_table.insert(function)
    block = ir.Block.create_at_start(function.body, inputs, [location] * len(inputs))
    with ir.InsertionPoint(block):
        results = _lower_body(ctx, body, list(block.arguments))
        func_dialect.ReturnOp(results)
    made[key] = body, function, location
    return function, location


def _lower_call(
    ctx: Any, *operands: ir.Value, body: Any, name: str, call_counter: int | None, repeats: int
) -> Sequence[ir.Value]:
    mpmd.register_dialect(ctx.module_context.context)
    function, _ = _function_for(ctx, body, name)
    attributes: dict[str, ir.Attribute] = {"callee": ir.FlatSymbolRefAttr.get(function.name.value)}
    if call_counter is not None:
        attributes["call_counter"] = _ui32(call_counter)
    if repeats > 1:
        attributes["mpmd.repeats"] = _ui32(repeats)
    op = ir.Operation.create("mpmd.call", results=_result_types(ctx), operands=list(operands), attributes=attributes)
    return list(op.results)


def _lower_to(op_name: str, attributes: Callable[..., dict[str, ir.Attribute]]) -> Callable[..., Sequence[ir.Value]]:
    """Return the lowering of a primitive to one op, whose attributes come from the parameters."""

    def rule(ctx: Any, *operands: ir.Value, **params: Any) -> Sequence[ir.Value]:
        mpmd.register_dialect(ctx.module_context.context)
        op = ir.Operation.create(op_name, _result_types(ctx), list(operands), attributes(**params))
        return list(op.results)

    return rule


def _lower_slice(ctx: Any, x: ir.Value, *, index: int) -> Sequence[ir.Value]:
    shape = ctx.avals_in[0].shape
    start, limit, stride = [index] + [0] * (len(shape) - 1), [index + 1, *shape[1:]], [1] * len(shape)
    row = hlo.slice(x, *map(ir.DenseI64ArrayAttr.get, (start, limit, stride)))
    return [hlo.reshape(*_result_types(ctx), row)]


def _lower_sharding(ctx: Any, x: ir.Value, *, sharding: str, mesh: str) -> Sequence[ir.Value]:
    made = ctx.module_context.cached_primitive_lowerings
    if ("mpmd_trace.mesh", mesh) not in made:  # the verifier wants it beside its uses
        made["mpmd_trace.mesh", mesh] = _insert_mesh(ctx.module_context.module, mesh)
    op = ir.Operation.create(
        "sdy.sharding_constraint",
        results=[x.type],
        operands=[x],
        attributes={"sharding": ir.Attribute.parse(f"#sdy.sharding<{sharding}>")},
    )
    return list(op.results)


def _insert_mesh(module: ir.Module, text: str) -> bool:
    """Put the `sdy.mesh` op spelled by `text` at the start of `module`, unless it has it."""
    parsed = ir.Module.parse(text).body.operations[0]
    symbol = str(parsed.operation.attributes["sym_name"])
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh" and str(op.operation.attributes["sym_name"]) == symbol:
            return False
    parsed.operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))
    return True


for _p, _rule in (
    (named_computation_p, _lower_named_computation),
    (call_p, _lower_call),
    (named_tensor_p, _lower_to("mpmd.named_tensor", lambda name: {"name": ir.StringAttr.get(name)})),
    (broadcast_p, _lower_to("mpmd.broadcast", dict)),
    (reduce_p, _lower_to("mpmd.reduce", lambda reduction: {"reduction": _reduction(reduction)})),
    (sharding_p, _lower_sharding),
    (slice_p, _lower_slice),
):
    # Not cacheable: JAX would put the op into a function of its own, and the verifier wants mpmd
    # ops directly in the functions that their users wrote.
    jax_mlir.register_lowering(_p, _rule, cacheable=_p is sharding_p)


def platform_of(mesh: Any) -> str | None:
    """Return the platform to lower for, as the devices of a mesh say; None for an abstract mesh that does not."""
    device = mesh.abstract_device if isinstance(mesh, AbstractMesh) else mesh.devices.flat[0]
    if device is None:
        return None
    # GPUs are lowered for by the name of their maker's software, which the client knows.
    platform = getattr(getattr(device, "client", None), "_raw_platform", device.platform)
    return "cuda" if platform == "gpu" else str(platform)


def lower(program: Any, platform: str) -> tuple[ir.Module, tuple[Any, ...]]:
    """Return the MLIR module of a program of `tracing.make_program`; all arguments stay.

    And the Python functions that the module calls back (`jax.pure_callback`), by their number in it.
    """
    lowered: Any = program.lower(lowering_platforms=(platform,))
    callbacks = tuple(lowered._lowering.compile_args["host_callbacks"])
    return lowered.compiler_ir("stablehlo"), callbacks


def annotate_main(
    module: ir.Module,
    *,
    arguments: Sequence[dict[str, str]],
    argument_names: Sequence[str],
    results: Sequence[dict[str, str]],
    meshes: Sequence[str],
) -> None:
    """Make main public, and add attributes (name -> MLIR text) to its arguments and results.

    The locations of the arguments become their names.
    Each element of `meshes` is the text of an `sdy.mesh` op, put at the start of the module.
    """
    with module.context, ir.Location.unknown():
        main = ir.SymbolTable(module.operation)["main"]
        main.attributes["sym_visibility"] = ir.StringAttr.get("public")
        entry = main.regions[0].blocks[0]
        for argument, name in zip(entry.arguments, argument_names, strict=True):
            argument.set_location(ir.Location.name(name))
        for attribute, extra in (("arg_attrs", arguments), ("res_attrs", results)):
            has = attribute in main.attributes
            old = main.attributes[attribute] if has else None
            merged = []
            for i, new in enumerate(extra):
                entries: dict[str, ir.Attribute] = {}
                if old is not None:
                    entries = {e.name: e.attr for e in ir.DictAttr(ir.ArrayAttr(old)[i])}
                    entries.pop("mhlo.memory_kind", None)  # JAX's, from the type: `new` says it where it counts
                entries.update({k: ir.Attribute.parse(v) for k, v in new.items()})
                merged.append(ir.DictAttr.get(entries))
            main.attributes[attribute] = ir.ArrayAttr.get(merged)
        for text in reversed(meshes):
            _insert_mesh(module, text)


def module_text(module: ir.Module, debug_info: bool) -> str:
    """Return the text of `module`, with source locations when `debug_info` is set."""
    return str(module.operation.get_asm(enable_debug_info=debug_info))
