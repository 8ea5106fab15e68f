"""The XLA executables of a plan: one for each distinct program, compiled in parallel."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from mpmd_trace.backend.placement import Placement
from mpmd_trace.backend.plan import Place, Plan, ProgramSpec
from mpmd_trace.diagnostics.messages import MpmdError, raise_errors
from mpmd_trace.diagnostics.mlir_text import unquote
from mpmd_trace.ir.attributes import SYMBOL, IntegerAttr
from mpmd_trace.ir.bodies import fingerprint
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.printer import print_op
from mpmd_trace.jax_compat import runtime as compat
from mpmd_trace.jax_compat.targets import positions

#: Called with (programs done, programs in all, name of the program just done).
Progress = Callable[[int, int, str], None]
#: XLA's options for the programs of each mesh.
CompilerOptions = Mapping[str, Mapping[str, bool | int | float | str]]


#: Executables of other plans, which programs that are equal to theirs are bound to.
Known = MutableMapping[Hashable, "Executable"]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Executable:
    """A compiled program.

    `compiled_as`: the program, equal but for names, for which XLA compiled it.
    """

    spec: ProgramSpec
    compiled: compat.Compiled
    compiled_as: str

    @property
    def cost(self) -> dict[str, float]:
        """XLA's estimate for one device: `flops`, `bytes accessed` and others; empty where it has none."""
        return {k: float(v) for k, v in self.compiled.cost_analysis().items() if isinstance(v, (int, float))}

    @property
    def temporary_bytes(self) -> int:
        """Scratch memory per device while it runs; 0 where XLA does not say."""
        return self._bytes("temp")

    @property
    def reused_bytes(self) -> int:
        """Memory per device of donated arguments that becomes that of results; 0 where XLA does not say."""
        return self._bytes("alias")

    @property
    def code_bytes(self) -> int:
        return self._bytes("generated_code")

    def _bytes(self, what: str) -> int:
        return int(getattr(self.compiled.memory_analysis(), f"{what}_size_in_bytes", 0) or 0)


def _what_is_computed(module: Module) -> Callable[[str], str]:
    """Return a function that gives for one of the module what it computes, as text that is equal for equal ones."""
    functions = {f.sym_name: f for f in module.functions}
    meshes = "".join(print_op(op) for op in module.body if op.name == "sdy.mesh")
    bodies: dict[Region, tuple[str, set[str]]] = {}

    def body(name: str) -> tuple[str, set[str]]:
        region = functions[name].regions[0]
        if region not in bodies:
            text = fingerprint(region)
            bodies[region] = text, set(_names_in(text)).intersection(functions)
        return bodies[region]

    @cache
    def text(name: str) -> str:
        if module.resources:  # which the text has by their names
            return program_text(module, name)
        called = postorder([name], lambda one: sorted(body(one)[1]))
        return "\n".join([meshes, *(f"@{'main' if one == name else one} {body(one)[0]}" for one in called)])

    return text


def program_text(module: Module, callee: str) -> str:
    """Return `program_module` as text, with locations, which name what `jax.jit` would.

    Attributes of arguments and results go: the caller says how they are sharded and what is donated.
    """
    program = program_module(module, callee)
    for function in program.functions:
        for key in ("arg_attrs", "res_attrs"):
            function.props.pop(key, None)
    return program.to_generic(debug_info=True)


def program_module(module: Module, callee: str) -> Module:
    """Return a module whose `@main` is the function `callee`, with the functions and sdy meshes it refers to."""
    functions = {f.sym_name: f for f in module.functions}
    program = Module(resources=module.resources)
    for op in module.body:
        if op.name == "sdy.mesh":
            program.body.append(op.clone())
    wanted, done = [callee], {callee}
    while wanted:
        name = wanted.pop()
        copy = functions[name].clone()
        copy.attrs.clear()
        if name == callee:
            copy.sym_name = "main"
            copy.visibility = "public"
        program.body.append(copy)
        for used in _symbols(copy):
            if used in functions and used not in done:
                done.add(used)
                wanted.append(used)
    return program


def _symbols(function: Op) -> Iterable[str]:
    for op in function.walk():
        for attribute in (*op.props.values(), *op.attrs.values()):
            if "@" in attribute.text:
                yield from _names_in(attribute.text)


def _names_in(text: str) -> Iterable[str]:
    for match in SYMBOL.finditer(text):
        name = match.group(1)
        yield unquote(name) if name.startswith('"') else name


def compile_programs(
    module: Module,
    plan: Plan,
    placement: Placement,
    *,
    progress: Progress | None,
    compiler_options: CompilerOptions,
    host_callbacks: Sequence[Any],
    known: Known | None,
) -> list[Executable]:
    """Return the executables of `plan.programs`, in that order.

    Programs that are equal but for their names, on meshes of the same shape and kind of device and with the same
    options, are compiled once, for the first of these meshes, and bound to the devices of the others, or are one
    executable where meshes share devices; and not at all if they are `known` from another plan.  What is compiled
    becomes known, unless it calls back Python functions, which each plan numbers for itself.  Lowering is Python and
    done here one after the other; threads compile and bind meanwhile.

    Raises:
        MpmdError: when XLA refuses an option or a program (every refusal is in the message), or when a program
            calls back a Python function that is not among `host_callbacks`.
    """
    _check_callbacks(module, len(host_callbacks))
    placement = placement.for_compiler() if placement.described is not None else placement
    _check_options(placement, compiler_options)

    options_of = _effort(module, plan, placement)
    computed = _what_is_computed(module)
    donated: dict[int, dict[int, int | None]] = {}
    equal: dict[Hashable, list[ProgramSpec]] = {}
    twins: dict[Hashable, list[ProgramSpec]] = {}  # on the same devices
    for spec in plan.programs:
        donated[spec.number] = _donations(module, spec)
        kind = _kind(computed(spec.callee), spec, placement.meshes[spec.mesh], donated[spec.number])
        options = tuple(compiler_options.get(spec.mesh, {}).items())
        same = twins.setdefault((kind, options, placement.device_ids(spec.mesh)), [])
        same.append(spec)
        if len(same) == 1:
            equal.setdefault((kind, options), []).append(spec)

    def compiling(spec: ProgramSpec, repeated: bool) -> Any:
        lowered = compat.lower_function(
            program_text(module, spec.callee),
            _structs(placement, spec.inputs),
            _structs(placement, spec.outputs),
            name=re.sub(r"[^\w.-]", "_", spec.callee),
            donate=donated[spec.number],
            host_callbacks=host_callbacks if _CALLBACK.search(computed(spec.callee)) else (),
        )
        chosen = compiler_options.get(spec.mesh) or options_of(spec)

        def run() -> Any:
            compiled = compat.compile_lowered(lowered, dict(chosen))
            if repeated:
                _ = compiled.serialized  # made here once, before several threads ask for it
            return compiled

        return pool.submit(run)

    def bind(specs: Sequence[ProgramSpec], like: Executable, key: Hashable) -> None:
        for spec in specs:
            devices = list(placement.meshes[spec.mesh].devices.flat)
            future = pool.submit(compat.rebound, like.compiled, devices, _structs(placement, spec.outputs))
            waiting[future] = _Job(spec, key, like)

    total = len(twins)
    workers = max(1, min(total, os.cpu_count() or 1))
    done: dict[int, Executable] = {}
    problems: list[str] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="mpmd-compile") as pool:
        waiting: dict[Any, _Job] = {}
        for key, specs in equal.items():
            before = None if known is None else known.get(key)
            if before is None:
                waiting[compiling(specs[0], len(specs) > 1)] = _Job(specs[0], key, equal=specs[1:])
            else:
                bind(specs, before, key)
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                spec, key, like, others = waiting.pop(future)
                try:
                    compiled = future.result()
                except jax.errors.JaxRuntimeError as error:
                    problems.append(_refusal(spec, computed(spec.callee), error))
                    continue
                if compiled is None:  # on this platform executables belong to their devices
                    waiting[compiling(spec, False)] = _Job(spec, key)
                    continue
                executable = done[spec.number] = Executable(spec, compiled, like.compiled_as if like else spec.callee)
                if like is None and known is not None and not _CALLBACK.search(computed(spec.callee)):
                    known.setdefault(key, executable)
                bind(others, executable, key)
                if progress is not None:
                    progress(len(done), total, spec.callee)
    if problems:
        raise MpmdError("\n".join(sorted(problems)))
    for first, *others in twins.values():
        made = done[first.number]
        done.update({one.number: Executable(one, made.compiled, made.compiled_as) for one in others})
    return [done[spec.number] for spec in plan.programs]


class _Job(NamedTuple):
    """A program that is being compiled or bound to its devices.

    Attributes:
        spec: the program.
        key: what is the same for all programs that can be one executable.
        like: the executable that is bound to its devices; None if it is compiled.
        equal: programs to which its executable is to be bound.
    """

    spec: ProgramSpec
    key: Hashable
    like: Executable | None = None
    equal: Sequence[ProgramSpec] = ()


def _refusal(spec: ProgramSpec, text: str, error: Exception) -> str:
    """Return the message for a program that XLA does not compile."""
    hint = _FFT_HINT if "stablehlo.fft" in text else ""
    hint = _EFFECT_HINT if "Side-effect HLO" in str(error) else hint
    return f"XLA cannot compile @{spec.callee} for mesh '{spec.mesh}': {error}{hint}"


#: To fill so many bytes takes as long as a launch; XLA's optimizations are half of what compiling that takes.
_FEW_BYTES = 1 << 20
#: How much more often others must run than a program that runs rarely.
_RARELY = 4
_EFFORT = "xla_backend_optimization_level"


def _effort(module: Module, plan: Plan, placement: Placement) -> Callable[[ProgramSpec], dict[str, int]]:
    """Return how much XLA is to optimize a program for a CPU, as its options.

    Zeros of a few sums: not.  What runs rarely, such as norms and updates: one level less than all others, which takes
    a fifth of the time, and changes neither numbers nor, as measured, how long they run.
    """
    runs = Counter(run.program for run in plan.runs)
    often = max(runs.values(), default=0)

    def options(spec: ProgramSpec) -> dict[str, int]:
        function = module.lookup(spec.callee)
        assert function is not None
        if placement.meshes[spec.mesh].devices.flat[0].platform != "cpu" or _EFFORT in os.environ.get("XLA_FLAGS", ""):
            return {}
        if all(op.name == "stablehlo.constant" or op.is_terminator for op in function.body):
            results = _structs(placement, spec.outputs)
            if not spec.inputs and sum(result.size * result.dtype.itemsize for result in results) <= _FEW_BYTES:
                return {_EFFORT: 0}
        return {_EFFORT: 2} if _RARELY * runs[spec.number] <= often else {}

    return options


_Kind = tuple[Hashable, ...]


def _kind(text: str, spec: ProgramSpec, mesh: Mesh, donations: Mapping[int, int | None]) -> _Kind:
    """Return what programs agree in that can be one executable."""
    places = (*spec.inputs, *spec.outputs)
    signature = tuple((type.tensor, type.sharding, kind, layout) for type, kind, layout in places)
    devices = list(mesh.devices.flat)
    kind_of_devices = (devices[0].device_kind, devices[0].client, positions(devices))
    return text, signature, tuple(donations.items()), tuple(mesh.shape.items()), *kind_of_devices


def _check_options(placement: Placement, options: CompilerOptions) -> None:
    """Raise `MpmdError` with every option that XLA does not take."""
    refused: dict[str, list[str]] = {}
    for name, chosen in options.items():
        mesh = placement.meshes.get(name)
        if mesh is None:
            continue
        for option, reason in _refusals(NamedSharding(mesh, PartitionSpec()), chosen).items():
            text = f"XLA refuses the compiler option {option}={chosen[option]!r}: {reason}"
            refused.setdefault(text, []).append(name)
    raise_errors(f"{text} (for mesh {', '.join(on)})" for text, on in refused.items())


def accepted(device: jax.Device, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that the version of XLA for a device takes."""
    refused = _refusals(SingleDeviceSharding(device), options)
    return {name: value for name, value in options.items() if name not in refused}


def _refusals(where: Sharding, options: Mapping[str, Any]) -> dict[str, str]:
    """Return why XLA does not take options, by their names: compiling something small with them tells."""
    type = "tensor<f32>"
    text = f"module {{ func.func @main(%x: {type}) -> {type} {{ return %x : {type} }} }}"

    def why_not(tried: dict[str, Any]) -> str | None:
        scalar = jax.ShapeDtypeStruct((), "float32", sharding=where)
        try:
            compat.compile_lowered(compat.lower_function(text, [scalar], [scalar], name="options"), tried)
        except jax.errors.JaxRuntimeError as error:
            return str(error).removeprefix("INVALID_ARGUMENT: ")
        return None

    if not options or why_not(dict(options)) is None:
        return {}
    reasons = {name: why_not({name: value}) for name, value in options.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


_EFFECT_HINT = (
    "\nXLA divides no call of jax.ffi with side effects among the devices of a mesh: put it into jax.shard_map, which "
    "says what each device does, or on a mesh of one device."
)
_FFT_HINT = (
    "\nThe program has an FFT, around which XLA's partitioner cannot change every sharding to every other one (nor for "
    "jax.jit): give its operand and its result one sharding with jax.lax.with_sharding_constraint, which leaves the "
    "transformed dimensions whole."
)
#: The targets of `stablehlo.custom_call`s that call back the Python function of a number.
_CALLBACK = re.compile(r"xla_ffi_(?:partitioned_)?python_\w+_callback")
_NUMBER = re.compile(r"index = (\d+)")


def _check_callbacks(module: Module, count: int) -> None:
    """Raise `MpmdError` for ops that call back a function that we do not have; XLA would crash."""
    problems = Diagnostics()
    # Functions of equal stages share their body.
    for body in dict.fromkeys(region for function in module.functions for region in function.regions):
        for op in body.walk():
            if op.name != "stablehlo.custom_call":
                continue
            target, config = op.attr("call_target_name"), op.attr("mhlo.backend_config")
            if target is None or not _CALLBACK.search(target.text):
                continue
            number = _NUMBER.search(config.text) if config is not None else None
            if number is None or int(number[1]) >= count:
                problems.error(
                    op,
                    "this op calls back a Python function (jax.pure_callback), which is not part of the text of "
                    "a module. Run the program with mpmd_trace.jit, or take the callback out of it",
                )
    raise_errors(problems.found)


def _donations(module: Module, spec: ProgramSpec) -> dict[int, int | None]:
    """Return the donated arguments, each with the result that the callee says it aliases, if the two are alike."""
    if not spec.donated:
        return {}
    function = module.lookup(spec.callee)
    assert function is not None
    dicts = function.arg_attrs
    results: dict[int, int | None] = {}
    for position in spec.donated:
        alias = dicts[position].entries.get("tf.aliasing_output")
        result = alias.value if isinstance(alias, IntegerAttr) else None
        if result is not None and (
            result >= len(spec.outputs) or spec.outputs[result] != spec.inputs[position] or result in results.values()
        ):
            result = None
        if result is None and spec.inputs[position][1] == "pinned_host":
            continue  # no result is there that could have its buffer
        results[position] = result
    return results


def _structs(placement: Placement, signature: Sequence[Place]) -> list[jax.ShapeDtypeStruct]:
    return [placement.spec(*place) for place in signature]
