"""How MLIR functions become executables, and the cheapest way to run them and to copy arrays.

Everything of the backend that depends on JAX's internals is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax._src import array as jax_array
from jax._src import compilation_cache, compiler, core, op_shardings
from jax._src import mesh as jax_mesh
from jax._src.interpreters import mlir as jax_mlir
from jax._src.interpreters import pxla
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

from mpmd_trace.jax_compat.layouts import place_of

__all__ = [
    "batched_copy",
    "compile_lowered",
    "direct_call",
    "lower_function",
    "rebound",
    "same_tiles",
    "traceback_scope",
]

ArrayImpl = jax_array.ArrayImpl


class _Source:
    """The text of a module, compared by identity so that it can be the parameter of a primitive.

    `callbacks`: the Python functions that it calls back, by their number in the text.
    """

    __slots__ = ("callbacks", "text")

    def __init__(self, text: str, callbacks: Sequence[Any] = ()) -> None:
        self.text = text
        self.callbacks = callbacks


splice_p = core.Primitive("mpmd_program")
splice_p.multiple_results = True
splice_p.def_abstract_eval(lambda *_, source, out_avals: list(out_avals))


_ONE_DEVICE = "mpmd_one_device"


def _call_once(module: ir.Module) -> None:
    """Let callbacks that have effects be made on the first device of a mesh alone."""
    found = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        calls = op.name == "stablehlo.custom_call" and "python" in str(op.attributes["call_target_name"])
        if calls and "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value:
            each = ", ".join([f"<@{_ONE_DEVICE}, []>"] * max(1, len(op.results)))
            op.attributes["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{each}]>", module.context)
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if found:
        text = f"module {{ sdy.mesh @{_ONE_DEVICE} = <[], device_ids=[0]> }}"
        mesh = ir.Module.parse(text, module.context).body.operations[0]
        mesh.operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))


def _lower_splice(
    ctx: Any, *operands: ir.Value, source: _Source, out_avals: tuple[Any, ...]
) -> Sequence[ir.Value]:
    module = ctx.module_context.module
    for callback in source.callbacks:
        ctx.module_context.add_host_callback(callback)
    parsed = ir.Module.parse(source.text)
    if source.callbacks:
        _call_once(parsed)
    for op in list(parsed.body.operations):
        if op.operation.name != "func.func":  # sdy.mesh; the functions are merged below
            op.operation.detach_from_parent()
            module.body.append(op)
    symbol = jax_mlir.merge_mlir_modules(
        module, "program", parsed, dst_symtab=ctx.module_context.symbol_table
    )
    results = [jax_mlir.aval_to_ir_type(ctx.module_context, a) for a in out_avals]
    call = func_dialect.CallOp(results, ir.FlatSymbolRefAttr.get(symbol), list(operands))
    return list(call.results)


jax_mlir.register_lowering(splice_p, _lower_splice, cacheable=False)


def lower_function(
    text: str,
    arguments: Sequence[jax.ShapeDtypeStruct],
    results: Sequence[jax.ShapeDtypeStruct],
    *,
    name: str = "program",
    donate: Mapping[int, int | None] = MappingProxyType({}),
    host_callbacks: Sequence[Any] = (),
) -> Any:
    """`@main` of the module `text` as a `jax.stages.Lowered` on flat arguments.

    Shardings and layouts are those of `arguments` and `results`; unused arguments stay.  `donate`: the arguments whose
    buffers may be reused, each with the result that must reuse it, or None.  `host_callbacks`: the Python
    functions that the text calls back, by number.
    """
    source = _Source(text, host_callbacks)
    avals = tuple(core.ShapedArray(r.shape, r.dtype) for r in results)

    def program(*args: Any) -> list[Any]:
        out: list[Any] = splice_p.bind(*args, source=source, out_avals=avals)
        return out

    program.__name__ = program.__qualname__ = name
    jitted = jax.jit(
        program,
        in_shardings=tuple(place_of(a) for a in arguments),
        out_shardings=[place_of(r) for r in results],
        keep_unused=True,
    )
    # 64-bit types stay what they are, whatever `jax_enable_x64` says.
    with jax.enable_x64(True), _no_mesh_around():
        lowered = jitted.lower(*arguments)
    if donate:
        _mark_donated(lowered.compiler_ir("stablehlo"), donate)
    return lowered


def _mark_donated(module: ir.Module, donate: Mapping[int, int | None]) -> None:
    """Donate as the compiler passes say; `donate_argnums` would pair arguments and results by itself."""
    with module.context, ir.Location.unknown():
        main = next(
            op
            for op in module.body.operations
            if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main"
        )
        dicts = []
        for i, old in enumerate(ir.ArrayAttr(main.attributes["arg_attrs"])):
            entries = {entry.name: entry.attr for entry in ir.DictAttr(old)}
            if i in donate:
                result = donate[i]
                if result is None:
                    entries["jax.buffer_donor"] = ir.BoolAttr.get(True)
                else:
                    i32 = ir.IntegerType.get_signless(32)
                    entries["tf.aliasing_output"] = ir.IntegerAttr.get(i32, result)
            dicts.append(ir.DictAttr.get(entries))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(dicts)


def compile_lowered(lowered: Any, options: dict[str, Any] | None = None) -> Any:
    """The compiled program (`jax.stages.Compiled`); may run in any thread."""
    with jax.enable_x64(True), _no_mesh_around():
        return lowered.compile(options)


def _no_mesh_around() -> contextlib.AbstractContextManager[Any]:
    """Hides the mesh of `jax.set_mesh`: a program runs on the devices of its own shardings."""
    if jax_mesh.get_concrete_mesh().empty:
        return contextlib.nullcontext()
    hidden: contextlib.AbstractContextManager[Any] = jax.set_mesh(jax_mesh.empty_concrete_mesh)
    return hidden


def direct_call(compiled: Any) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    """The program as a function of a sequence of arrays, without any check of them.

    The arrays must have the shapes, dtypes and shardings of the program.
    """
    if isinstance(compiled, Rebound):
        return compiled.direct_call()
    executable = compiled._executable
    unsafe = executable.unsafe_call
    if unsafe.ordered_effects or unsafe.has_unordered_effects or unsafe.has_host_callbacks:
        return lambda args: list(unsafe(*args))  # `jax.effects_barrier` knows of it
    execute = executable.xla_executable.execute_sharded
    handlers = unsafe.out_handler.handlers

    def call(args: Sequence[jax.Array]) -> list[jax.Array]:
        found: list[jax.Array] = execute(args).consume_with_handlers(handlers)
        return found

    return call


class Rebound:
    """A compiled program on other devices than those it was compiled for; see `rebound`."""

    def __init__(self, compiled: Any, executable: Any, results: Sequence[jax.ShapeDtypeStruct]) -> None:
        self._compiled = compiled  # its estimates and text are those of this one
        self._executable = executable
        avals = [core.ShapedArray(r.shape, r.dtype) for r in results]
        handler: Any = pxla.global_avals_to_results_handler(avals, [r.sharding for r in results], True)
        self._handlers = handler.handlers

    def cost_analysis(self) -> Any:
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        return self._compiled.memory_analysis()

    def as_text(self) -> Any:
        return self._compiled.as_text()

    def direct_call(self) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
        """As `direct_call` of the compiled program."""
        execute, handlers = self._executable.execute_sharded, self._handlers

        def call(args: Sequence[jax.Array]) -> list[jax.Array]:
            found: list[jax.Array] = execute(args).consume_with_handlers(handlers)
            return found

        return call


def rebound(
    compiled: Any, devices: Sequence[jax.Device], results: Sequence[jax.ShapeDtypeStruct]
) -> Rebound | None:
    """The compiled program on other `devices`, as many and of the same kind, or None where that cannot be done.

    The executable is serialised and read back with another device assignment: XLA does not compile again.
    `results`: shape, dtype and sharding, over the other devices, of each result.
    """
    inner = compiled._executable
    unsafe = inner.unsafe_call
    if compilation_cache.is_persistent_cache_enabled():
        return None  # what comes from the cache cannot be serialised again: XLA's CPU client loses its functions
    if unsafe.ordered_effects or unsafe.has_unordered_effects or unsafe.has_host_callbacks:
        return None
    client = devices[0].client
    try:
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=len(devices), device_assignment=np.array([[d.id for d in devices]])
        )
        executable = client.deserialize_executable(
            inner.xla_executable.serialize(),
            executable_devices=_jax.DeviceList(tuple(devices)),
            compile_options=options,
        )
    except jax.errors.JaxRuntimeError:  # a platform whose executables belong to their devices
        return None
    if list(executable.local_devices()) != list(devices):
        return None
    return Rebound(compiled, executable, results)


def same_tiles(shape: tuple[int, ...], source: jax.sharding.Sharding, target: jax.sharding.Sharding) -> bool:
    """Whether the two shardings put the same part of an array on the devices of the same number."""
    if source.num_devices != target.num_devices:
        return False
    left = source._to_xla_hlo_sharding(len(shape))
    right = target._to_xla_hlo_sharding(len(shape))
    return bool(op_shardings.are_hlo_shardings_equal(left, right))


def batched_copy(
    shardings: Sequence[jax.sharding.NamedSharding], *, fresh: bool | Sequence[bool]
) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    """A function that copies arrays to these shardings, which must have the same tiles as theirs.

    The arrays and the targets may be on different devices.  `fresh`, for all or for each: the copies never
    share a buffer with their source, even on the same device.
    """
    devices = [s._internal_device_list.addressable_device_list for s in shardings]
    each = [fresh] * len(shardings) if isinstance(fresh, bool) else fresh
    semantics = _jax.ArrayCopySemantics
    kinds = [semantics.ALWAYS_COPY if apart else semantics.REUSE_INPUT for apart in each]
    targets = list(shardings)
    copy = _jax.batched_copy_array_to_devices_with_sharding

    def call(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        found: list[jax.Array] = copy(arrays, devices, targets, kinds)
        return found

    return call


#: Every array remembers the Python frames that made it.  Inside of `with traceback_scope():` those below are
#: collected once, not for each call and array.
traceback_scope = _jax.TracebackScope


def with_weak_type(x: jax.Array) -> jax.Array:
    """`x`, sharing its buffers, with the weak type of a Python number."""
    array: Any = x
    aval = array.aval.update(weak_type=True)
    found: jax.Array = ArrayImpl(aval, array.sharding, array._arrays, committed=True, _skip_checks=True)
    return found
