"""The interpreter of the IR: what a module at any stage of the compiler computes, op by op.

Every leaf op runs alone, compiled by XLA for one CPU device and remembered by its text.  So two modules that
consist of the same ops, wherever and in whatever order, give the same bits, and a difference is a fault of
the pass between them and never of an optimisation inside XLA.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.backend.dtypes import dtype_of, tensor_type
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.bodies import effective_operands, free_values
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import describe
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.printer import print_op
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.report.meaning import Meaning, clean, entry_function, is_constant, leaf_module, make_function

__all__ = ["Remembered", "interpret", "random_args", "random_array"]

Array = np.ndarray[Any, np.dtype[Any]]
Compiled = Callable[..., Sequence[Any]]
#: A `!stablehlo.token`: an order without a value, and the interpreter keeps the order of the ops anyway.
_TOKEN = np.zeros((0,), np.bool_)
_DIALECTS = ("stablehlo.", "chlo.", "sdy.", "func.", "arith.", "tensor.", "mhlo.")
_compiled: dict[str, Compiled | None] = {}


class _Step:
    """A leaf op, ready to run: its inputs in the order of the executable, and which results are values."""

    __slots__ = ("inputs", "run", "tokens")

    def __init__(self, inputs: list[Value], run: Compiled | None, tokens: list[bool]) -> None:
        self.inputs = inputs
        self.run = run
        self.tokens = tokens


class Remembered:
    """What shared bodies gave for which arrays: a pass leaves most bodies as they are.

    room: the bytes that are kept at most.
    """

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.results: dict[tuple[Region, bytes], list[Array]] = {}

    def __call__(self, body: Region, args: Sequence[Array], compute: Callable[[], list[Array]]) -> list[Array]:
        """The results of `compute`, which may have been computed before."""
        digest = hashlib.blake2b(digest_size=16)
        for arg in args:
            digest.update(np.ascontiguousarray(arg).tobytes())
        key = (body, digest.digest())
        found = self.results.get(key)
        if found is None:
            found = compute()
            self.room -= sum(array.nbytes for array in found)
            if self.room >= 0:
                self.results[key] = found
        return found


class Interpreter(Meaning[Array]):
    """Evaluates functions of a module on numpy arrays.

    remembered: of earlier modules of the same program.
    """

    def __init__(self, module: Module, remembered: Remembered | None = None) -> None:
        super().__init__(module)
        self.steps: dict[Op, _Step] = {}
        self.remembered = remembered

    def region(self, region: Region, args: Sequence[Array], outer: Mapping[Value, Array]) -> list[Array]:
        if self.remembered is None or outer or not region.frozen:
            return super().region(region, args, outer)
        whole = super().region
        return self.remembered(region, args, lambda: whole(region, args, outer))

    def leaf(self, op: Op, env: dict[Value, Array]) -> list[Array]:
        step = self.steps.get(op)
        if step is None:
            step = self.steps[op] = self._prepare(op)
        inputs = [env[v] for v in step.inputs]
        values = iter(_uninterpreted(op, inputs) if step.run is None else step.run(*inputs))
        return [_TOKEN if token else np.asarray(next(values)) for token in step.tokens]

    def index(self, number: int, type: TensorType) -> Array:
        return np.asarray(number, dtype_of(type))

    def combine(self, op_name: str, left: Array, right: Array, type: Type) -> Array:
        key = f"{op_name} {type.text}"
        if key not in _compiled:
            module = Module()
            block = Block([type, type])
            result = block.append(make_op(op_name, list(block.args), [type])).results[0]
            module.body.append(make_function("main", block, [result]))
            _compiled[key] = _compile(module, [type, type], [type])
        run = _compiled[key]
        assert run is not None
        return np.asarray(run(left, right)[0])

    def _prepare(self, op: Op) -> _Step:
        captured = [v for v in free_values(op) if not is_constant(v)]
        inputs = list(dict.fromkeys([*op.operands, *captured]))
        inputs = [v for v in inputs if not v.type.is_token]
        tokens = [r.type.is_token for r in op.results]
        if op.name in ("stablehlo.create_token", "stablehlo.after_all"):
            return _Step([], list, tokens)
        if not op.name.startswith(_DIALECTS):
            return _Step(inputs, None, tokens)
        module = leaf_module(self.module, op, inputs)
        text = module.to_generic()
        if text not in _compiled:
            results = [r.type for r in op.results if not r.type.is_token]
            try:
                _compiled[text] = _compile(module, [v.type for v in inputs], results)
            except jax.errors.JaxRuntimeError as error:
                if op.name == "stablehlo.custom_call" and "No registered implementation" in str(error):
                    _compiled[text] = None  # no implementation on this platform: some function
                else:
                    raise MpmdError(f"XLA cannot compile the op:\n  {describe(op)}\n{error}") from error
        return _Step(inputs, _compiled[text], tokens)


def _mesh_size(module: Module) -> int:
    """How many devices the manual computations of `module` need; 1 without any."""
    sizes = [1]
    for op in module.body:
        mesh = op.attr("mesh") if op.name == "sdy.mesh" else None
        if isinstance(mesh, MeshAttr):
            sizes.append(mesh.size)
    return max(sizes)


def _compile(module: Module, inputs: Sequence[Type], results: Sequence[Type]) -> Compiled:
    from mpmd_trace.jax_compat.runtime import lower_function

    devices = jax.devices("cpu")[: _mesh_size(module)]
    if len(devices) < _mesh_size(module):
        raise MpmdError(
            f"the program has a manual computation over {_mesh_size(module)} devices, and there are only "
            f"{len(devices)} CPU devices; set jax_num_cpu_devices to evaluate it"
        )
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def spec(type: Type) -> jax.ShapeDtypeStruct:
        found = tensor_type(type)
        return jax.ShapeDtypeStruct(found.shape or (), dtype_of(found), sharding=sharding)

    with jax.enable_x64(True):
        compiled = lower_function(
            module.to_generic(), [spec(t) for t in inputs], [spec(t) for t in results]
        ).compile({"xla_backend_optimization_level": 0} if len(devices) == 1 else None)

    def run(*args: Array) -> Sequence[Any]:
        with jax.enable_x64(True):
            found: Sequence[Any] = compiled(*args)
        return found

    return run


def _uninterpreted(op: Op, inputs: Sequence[Array]) -> list[Array]:
    """Results of an op of which nothing is known: some fixed function of its text and its inputs."""
    outside = effective_operands(op)
    copy = op.clone(dict(zip(outside, Block([v.type for v in outside]).args, strict=True)))  # it may be frozen
    clean(copy)  # what passes note on an op is no part of it
    digest = hashlib.blake2b(print_op(copy).encode(), digest_size=8)
    copy.drop_all_references()
    for value in inputs:
        digest.update(np.ascontiguousarray(value).tobytes())
    rng = np.random.default_rng(int.from_bytes(digest.digest(), "little"))
    return [random_array(tensor_type(r.type), rng) for r in op.results if not r.type.is_token]


def interpret(
    module: Module, args: Sequence[Any], function: str | None = None, remembered: Remembered | None = None
) -> list[Array]:
    """What a function of `module` returns for these arrays.

    Meshes, names, transfers, shardings and control operands mean nothing; loops run; ops of unknown dialects
    stand for some fixed function of their inputs.

    Args:
        module: a module at any stage of the compiler.
        args: one array per argument; their dtypes and (global) shapes must be those of the arguments.
        function: which function; by default `@main`, or the only public one.
        remembered: what bodies gave in other modules of the same program.

    Raises:
        MpmdError: when there is no such function or the arguments do not fit.
    """
    entry = entry_function(module, function)
    if len(args) != len(entry.args):
        raise MpmdError(f"@{entry.sym_name} takes {len(entry.args)} arguments, not {len(args)}")
    values = []
    for i, (arg, given) in enumerate(zip(entry.args, args, strict=True)):
        value = np.asarray(given)
        if not arg.type.is_token:
            expected = tensor_type(arg.type, f"argument {i}")
            if value.shape != expected.shape or value.dtype != dtype_of(expected):
                raise MpmdError(
                    f"argument {i} of @{entry.sym_name} must be {expected.text}, "
                    f"not {value.dtype}{list(value.shape)}"
                )
        values.append(value)
    return Interpreter(module, remembered).call(entry, values)


def random_args(module: Module, seed: int = 0, function: str | None = None) -> list[Array]:
    """Arrays for the arguments of a function, the same for the same seed.

    Floating-point values are multiples of 1/4 between -2 and 2: sums of them are exact in every order.
    """
    rng = np.random.default_rng(seed)
    return [
        _TOKEN if a.type.is_token else random_array(tensor_type(a.type), rng)
        for a in entry_function(module, function).args
    ]


def random_array(type: TensorType, rng: np.random.Generator) -> Array:
    """A random array of this type."""
    shape, dtype = type.shape or (), dtype_of(type)
    steps = rng.integers(-8, 9, size=shape)
    if type.element == "i1":
        return np.asarray(steps > 0)
    if type.element.startswith("complex"):
        return np.asarray(steps / 4 + 1j * rng.integers(-8, 9, size=shape) / 4).astype(dtype)
    if type.element[0] == "f" or type.element == "bf16":
        return np.asarray(steps / 4).astype(dtype)
    if type.element in ("i2", "ui2"):
        return np.asarray(steps % 2).astype(dtype)
    return np.asarray(abs(steps) if type.element.startswith("ui") else steps // 2).astype(dtype)
