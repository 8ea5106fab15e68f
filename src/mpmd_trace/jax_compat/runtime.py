"""Executables of MLIR functions, and the cheapest way to run them and to copy arrays.

Everything of the backend that depends on JAX's internals is here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax._src import array as jax_array
from jax._src import compilation_cache, compiler, config, core, effects, op_shardings, stages
from jax._src import mesh as jax_mesh
from jax._src.interpreters import mlir as jax_mlir
from jax._src.interpreters import pxla
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.layouts import place_of
from mpmd_trace.jax_compat.tracing import known_forms

ArrayImpl = jax_array.ArrayImpl


class _Source:
    """The text of a module, compared by identity so that it can be the parameter of a primitive.

    `callbacks`: the Python functions that it calls back, by their number in the text.
    """

    __slots__ = ("callbacks", "effects", "text")

    def __init__(self, text: str, callbacks: Sequence[Any] = ()) -> None:
        self.text = text
        self.callbacks = callbacks
        self.effects = {_EFFECT} if "has_side_effect = true" in text else core.no_effects


class _Effect(effects.Effect):  # type: ignore[misc]  # JAX has no types for it
    """Marks programs that `jax.effects_barrier` waits for: calls of `jax.ffi` with side effects may have no result."""


_EFFECT = _Effect()
effects.lowerable_effects.add_type(_Effect)

splice_p = core.Primitive("mpmd_program")
splice_p.multiple_results = True
splice_p.def_effectful_abstract_eval(lambda *_, source, out_avals: (list(out_avals), source.effects))


_ONE_DEVICE = "mpmd_one_device"


def _call_once(module: ir.Module) -> None:
    """Let callbacks that have effects be made on the first device of a mesh alone."""
    outputs = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        calls = op.name == "stablehlo.custom_call" and "python" in str(op.attributes["call_target_name"])
        if calls and "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value:
            each = ", ".join([f"<@{_ONE_DEVICE}, []>"] * max(1, len(op.results)))
            op.attributes["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{each}]>", module.context)
            outputs.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if outputs:
        text = f"module {{ sdy.mesh @{_ONE_DEVICE} = <[], device_ids=[0]> }}"
        mesh = ir.Module.parse(text, module.context).body.operations[0]
        mesh.operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))


def _lower_splice(ctx: Any, *operands: ir.Value, source: _Source, out_avals: tuple[Any, ...]) -> Sequence[ir.Value]:
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
    symbol = jax_mlir.merge_mlir_modules(module, "program", parsed, dst_symtab=ctx.module_context.symbol_table)
    results = [jax_mlir.aval_to_ir_type(ctx.module_context, a) for a in out_avals]
    with ir.Location.name(str(ctx.name_stack)):  # XLA puts it before the names of all ops of the program
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
    """Return `@main` of the module `text` as a `jax.stages.Lowered` on flat arguments.

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
    with jax.enable_x64(True), _no_mesh_around(), known_forms():
        lowered = jitted.lower(*arguments)
    if donate:
        _mark_donated(lowered.compiler_ir("stablehlo"), donate)
    return lowered


def _mark_donated(module: ir.Module, donate: Mapping[int, int | None]) -> None:
    """Donate as the compiler passes say; `donate_argnums` would pair arguments and results by itself."""
    with module.context, ir.Location.unknown():
        main = ir.SymbolTable(module.operation)["main"]
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


class Compiled(stages.Executable):  # type: ignore[misc]  # JAX has no types for it, but its text, costs and memory
    """A program that XLA has compiled, now or before.

    Args:
        executable: of XLA; loaded, unless its devices are only described.
        call: runs it on a sequence of arrays, which must be what it wants: nothing is checked.
        serialize: gives it as bytes, None for one that calls back Python functions; or raises where a platform cannot.
        calls_back: whether it calls back Python functions, or has other effects, for which JAX has tokens in each
            thread.
    """

    def __init__(
        self,
        executable: Any,
        call: Callable[[Sequence[jax.Array]], list[jax.Array]],
        serialize: Callable[[], bytes | None],
        *,
        calls_back: bool = False,
    ) -> None:
        self.executable = executable
        self.call = call
        self.calls_back = calls_back
        self._serialize = serialize

    def xla_extension_executable(self) -> Any:
        return self.executable

    def cost_analysis(self) -> Any:
        """Return XLA's estimates, none where it has none: of programs for GPUs that are not there."""
        try:
            return super().cost_analysis() or {}
        except NotImplementedError:
            return {}

    @functools.cached_property
    def serialized(self) -> bytes | None:
        """The executable as bytes, None where there are none."""
        try:
            return self._serialize()
        except jax.errors.JaxRuntimeError:
            return None


def is_for_described(executable: Any) -> bool:
    """Return whether the devices are described and not attached, so that it cannot be loaded, and then called."""
    return not hasattr(executable, "local_devices")


def _not_attached(_: Sequence[jax.Array]) -> list[jax.Array]:
    raise MpmdError("the devices of this program are described and not attached: it can be looked at, and not run")


class _Hits(threading.local):
    """The number of hits of this thread in the persistent compilation cache."""

    count = 0


_HITS = _Hits()


def _count_hits(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _HITS.count += 1


jax.monitoring.register_event_listener(_count_hits)


def compile_lowered(lowered: Any, options: dict[str, Any] | None = None) -> Compiled:
    """Return the compiled program; may run in any thread."""
    before = _HITS.count
    with jax.enable_x64(True), _no_mesh_around():
        compiled = lowered.compile(options)
    executable = compiled.runtime_executable()
    if is_for_described(executable):
        return Compiled(executable, _not_attached, lambda: None)
    run = compiled._executable.unsafe_call
    if run.ordered_effects or run.has_unordered_effects or run.has_host_callbacks:
        # `jax.effects_barrier` knows of this call.
        return Compiled(executable, lambda args: list(run(*args)), lambda: None, calls_back=True)
    serialize = executable.serialize
    if _HITS.count > before:  # cannot be serialized again: XLA's CPU client loses its functions
        serialize = functools.partial(_cached_bytes, lowered, options)
    return Compiled(executable, _call(executable, run.out_handler.handlers), serialize)


def _cached_bytes(lowered: Any, options: dict[str, Any] | None) -> bytes | None:
    """Return the executable of `lowered` as it lies in the persistent compilation cache, or None."""
    lowering = lowered._lowering
    arguments = lowering.compile_args
    backend, devices = arguments["backend"], list(lowering._device_list)
    ordered = np.array(devices, dtype=object)
    chosen = pxla.create_compile_options(
        lowering._hlo,
        arguments["tuple_args"],
        (False,) * len(arguments["in_shardings"]),
        (False,) * len(arguments["out_shardings"]),
        backend,
        ordered,
        dict(options or {}),
    )
    key = compiler._get_cache_key(chosen, backend, lowering._hlo, ordered)
    cache = compilation_cache._get_cache(backend)
    entry = None if cache is None or key is None else cache.get(key)
    if entry is None:
        return None
    result: bytes = compilation_cache.extract_executable_and_time(compilation_cache.decompress_executable(entry))[0]
    return result


def _no_mesh_around() -> contextlib.AbstractContextManager[Any]:
    """Hides the mesh of `jax.set_mesh`: a program runs on the devices of its own shardings."""
    if jax_mesh.get_concrete_mesh().empty:
        return contextlib.nullcontext()
    hidden: contextlib.AbstractContextManager[Any] = jax.set_mesh(jax_mesh.empty_concrete_mesh)
    return hidden


def keeps_barriers(platform: str) -> bool:
    """Return whether XLA orders computations by `optimization_barrier`; on CPUs JAX 0.10 removes them before."""
    return platform != "cpu" or jax.__version_info__ >= (0, 11)


def _call(executable: Any, handlers: Any) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    execute = executable.execute_sharded

    def call(args: Sequence[jax.Array]) -> list[jax.Array]:
        result: list[jax.Array] = execute(args).consume_with_handlers(handlers)
        return result

    return call


def rebound(
    compiled: Compiled, devices: Sequence[jax.Device], results: Sequence[jax.ShapeDtypeStruct]
) -> Compiled | None:
    """Return the compiled program on other `devices`, as many and of the same kind, or None where that cannot be done.

    For devices that are only described, which nothing is loaded on, that is the compiled program itself.

    The executable is serialized and read back with another device assignment: XLA does not compile again.
    `results`: shape, dtype and sharding, over the other devices, of each result.
    """
    if is_for_described(compiled.executable):
        return compiled
    return None if compiled.serialized is None else deserialized(compiled.serialized, devices, results)


def deserialized(
    executable: bytes, devices: Sequence[jax.Device], results: Sequence[jax.ShapeDtypeStruct]
) -> Compiled | None:
    """Return a serialized executable for these devices; None where a platform's executables belong to their devices."""
    loaded = _loaded(executable, devices)
    return None if loaded is None else Compiled(loaded, _call(loaded, result_handlers(results)), lambda: executable)


def result_handlers(results: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    """Return what makes arrays of the buffers of results: one object for those that are alike, as many are."""
    made: dict[int, Any] = {}
    for result in results:
        if id(result) not in made:
            aval = core.ShapedArray(result.shape, result.dtype)
            made[id(result)] = pxla.global_aval_to_result_handler(aval, result.sharding, True)
    return [made[id(result)] for result in results]


def _loaded(executable: bytes, devices: Sequence[jax.Device]) -> Any:
    client = devices[0].client
    try:
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=len(devices), device_assignment=np.array([[d.id for d in devices]])
        )
        loaded = client.deserialize_executable(
            executable, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=options
        )
    except jax.errors.JaxRuntimeError:
        return None
    return loaded if list(loaded.local_devices()) == list(devices) else None


def same_tiles(shape: tuple[int, ...], source: jax.sharding.Sharding, target: jax.sharding.Sharding) -> bool:
    """Return whether the two shardings put the same part of an array on the devices of the same number."""
    if source.num_devices != target.num_devices:
        return False
    left = source._to_xla_hlo_sharding(len(shape))
    right = target._to_xla_hlo_sharding(len(shape))
    return bool(op_shardings.are_hlo_shardings_equal(left, right))


def batched_copy(
    shardings: Sequence[jax.sharding.NamedSharding], fresh: Sequence[bool]
) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    """Return a function that copies arrays to these shardings, which must have the same tiles as theirs.

    The arrays and the targets may be on different devices.  `fresh`, for each: the copy never
    shares a buffer with its source, even on the same device.  Of devices of several processes this one copies its
    own, which must be those of the same number in source and target.
    """
    if not all(s.is_fully_addressable for s in shardings):
        return lambda arrays: [_copied(*one) for one in zip(arrays, shardings, fresh, strict=True)]
    devices = [s._internal_device_list.addressable_device_list for s in shardings]
    semantics = _jax.ArrayCopySemantics
    kinds = [semantics.ALWAYS_COPY if apart else semantics.REUSE_INPUT for apart in fresh]
    targets = list(shardings)
    copy = _jax.batched_copy_array_to_devices_with_sharding

    def call(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        result: list[jax.Array] = copy(arrays, devices, targets, kinds)
        return result

    return call


def _copied(x: jax.Array, target: jax.sharding.NamedSharding, fresh: bool) -> jax.Array:
    """Return a copy whose blocks are on the devices of the same number, of which some are other processes'."""
    place = dict(zip(x.sharding._device_assignment, target._device_assignment, strict=True))
    blocks = [
        jax.device_put(
            shard.data,
            jax.sharding.SingleDeviceSharding(place[shard.device], memory_kind=target.memory_kind),
            may_alias=False if fresh else None,
        )
        for shard in x.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(x.shape, target, blocks, dtype=x.dtype)


@contextlib.contextmanager
def issuing() -> Iterator[None]:
    """While a plan is issued: transfer guards take its copies for explicit ones, as the user's meshes ask for them.

    Every array remembers the Python frames that made it: those below are collected once, not for each call and array.
    """
    with _jax.TracebackScope(), config.explicit_device_put_scope():
        yield


def shards_of(x: jax.Array) -> list[jax.Array]:
    """Return the part of an array on each device of this process, in the order of its sharding."""
    array: Any = x
    shards: list[jax.Array] = array._arrays
    return shards


def assembled(aval: Any, sharding: Any, shards: Sequence[jax.Array]) -> jax.Array:
    """Return an array of the type `aval` that shares the buffers of `shards`, in the order of its sharding."""
    aval = core.update_aval_with_sharding(aval, sharding)
    result: jax.Array = ArrayImpl(aval, sharding, list(shards), committed=True, _skip_checks=True)
    return result


def from_shards(spec: jax.ShapeDtypeStruct) -> Callable[[list[jax.Array]], jax.Array]:
    """Return a function that makes an array of this type from its part on each device of this process, unchecked."""
    sharding = spec.sharding
    aval = core.update_aval_with_sharding(core.ShapedArray(spec.shape, spec.dtype), sharding)
    return lambda shards: ArrayImpl(aval, sharding, shards, committed=True, _skip_checks=True)


def with_weak_type(x: jax.Array) -> jax.Array:
    """Return `x`, sharing its buffers, with the weak type of a Python number."""
    array: Any = x
    return assembled(array.aval.update(weak_type=True), array.sharding, array._arrays)
