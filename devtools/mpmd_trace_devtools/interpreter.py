"""The interpreter of the IR: what a module at any stage of the compiler computes, op by op.

Every leaf op runs alone, compiled by XLA for one CPU device and remembered by its text.  So two modules that
consist of the same ops, wherever and in whatever order, give the same bits, and a difference is a fault of
the pass between them and never of an optimization inside XLA.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mpmd_trace.backend.dtypes import dtype_of, tensor_type
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.bodies import effective_operands, free_values
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import describe
from mpmd_trace.ir.ops import FuncOp, Module, local_type
from mpmd_trace.ir.printer import print_op
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.jax_compat.runtime import lower_function
from mpmd_trace_devtools.bounded_loops import bound_loops
from mpmd_trace_devtools.single_device_program import (
    Meaning,
    clean,
    entry_function,
    is_constant,
    is_note,
    leaf_module,
    make_function,
)

Array = np.ndarray[Any, np.dtype[Any]]
Compiled = Callable[..., Sequence[Any]]
#: A `!stablehlo.token`: an order without a value, and the interpreter keeps the order of the ops anyway.
_TOKEN = np.zeros((0,), np.bool_)
_DIALECTS = ("stablehlo.", "chlo.", "sdy.", "func.", "arith.", "tensor.", "mhlo.")
_WITH_FUNCTIONS = ("stablehlo.custom_call", "stablehlo.composite")
_compiled: dict[str, Compiled | None] = {}


class _Step(NamedTuple):
    """A leaf op, ready to run on its inputs; `text` says what it computes, and which results are tokens."""

    run: Compiled | None
    tokens: list[bool]
    text: str


class Remembered:
    """What ops and shared bodies gave for which arrays: most passes leave most of them as they are, wherever they are.

    Arrays that are equal are one array, and an op on arrays that it was given before gives those that it gave then.

    room: the bytes that are kept at most.
    """

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        #: By what they hold, and the arrays by identity: as long as one is kept, no other has its identity.
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], Array] = {}
        self._kept: dict[int, Array] = {}
        self._results: dict[tuple[Hashable, tuple[int, ...]], list[Array]] = {}
        #: Ops that are ready to run: see `Interpreter`.
        self.steps: dict[Hashable, _Step] = {}

    def kept(self, array: Array) -> Array:
        """Return the kept array that is equal to this one; keep this one if there is none and memory allows."""
        if id(array) in self._kept:
            return array
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()
        key = (str(array.dtype), array.shape, digest)
        result = self._by_content.get(key)
        if result is None:
            if self.room < array.nbytes:
                return array
            self.room -= array.nbytes
            result = self._by_content[key] = self._kept[id(array)] = array
        return result

    def __call__(self, op: Hashable, args: Sequence[Array], compute: Callable[[], list[Array]]) -> list[Array]:
        """Return the results of `compute`, which may have been computed before; `op` says what it computes."""
        key = (op, tuple(map(id, args)))
        result = self._results.get(key)
        if result is None:
            result = [self.kept(array) for array in compute()]
            if all(id(array) in self._kept for array in (*args, *result)):
                self._results[key] = result
        return result


class Interpreter(Meaning[Array]):
    """Evaluates functions of a module on numpy arrays.

    remembered: of earlier modules of the same program.
    """

    def __init__(self, module: Module, remembered: Remembered | None = None) -> None:
        super().__init__(module)
        #: By what ops compute; the same for all modules of a program, whose frozen ops are the same, too.
        self.steps: dict[Hashable, _Step] = {} if remembered is None else remembered.steps
        self._known: dict[Op, tuple[_Step, Hashable, list[Value]]] = {}
        self.remembered = remembered

    def call(self, function: FuncOp, args: Sequence[Array]) -> list[Array]:
        return super().call(function, args if self.remembered is None else [self.remembered.kept(a) for a in args])

    def region(self, region: Region, args: Sequence[Array], outer: Mapping[Value, Array]) -> list[Array]:
        whole = super().region
        if self.remembered is None or outer or not region.frozen:
            return whole(region, args, outer)
        return self.remembered(region, args, lambda: whole(region, args, outer))

    def leaf(self, op: Op, env: dict[Value, Array]) -> list[Array]:
        known = self._known.get(op)
        if known is None:
            what = _what(op)
            step = self.steps.get(what)
            if step is None:
                step = self._prepare(op)
                if what is not op or _is_frozen(op):  # passes change others
                    self.steps[what] = step
            known = self._known[op] = step, (step.text if what is op else what), _inputs(op)
        step, key, values = known
        inputs = [env[v] for v in values]
        if self.remembered is None:
            return self._run(op, step, inputs)
        return self.remembered(key, inputs, lambda: self._run(op, step, inputs))

    def _run(self, op: Op, step: _Step, inputs: list[Array]) -> list[Array]:
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
        inputs = _inputs(op)
        tokens = [r.type.is_token for r in op.results]
        if op.name in ("stablehlo.create_token", "stablehlo.after_all"):
            return _Step(lambda *_: [], tokens, op.name)
        if not op.name.startswith(_DIALECTS):
            return _Step(None, tokens, print_op(op))
        module = leaf_module(self.module, op, inputs)
        bound_loops(module)
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
        return _Step(_compiled[text], tokens, text)


def _inputs(op: Op) -> list[Value]:
    """Return the operands and free values of an op, but for tokens and constants that its regions capture."""
    captured = [v for v in free_values(op) if not is_constant(v)] if op.regions else ()
    return [v for v in dict.fromkeys([*op.operands, *captured]) if not v.type.is_token]


def _is_frozen(op: Op) -> bool:
    return op.block is not None and op.block.parent is not None and op.block.parent.frozen


def _what(op: Op) -> Hashable:
    """Return what an op computes, but for its operands: equal for ops that compute the same.

    The op itself where that is more than a name, attributes and types: regions, and functions that it calls.
    """
    if op.regions or not op.name.startswith("stablehlo.") or op.name in _WITH_FUNCTIONS:
        return op
    if op.name == "stablehlo.constant" and "dense_resource" in op.props["value"].text:
        return op  # its numbers are in the module
    operands = op.operands
    order = tuple(map(operands.index, operands)) if len(set(operands)) < len(operands) else len(operands)
    attributes = [*op.props.items(), *((k, v) for k, v in op.attrs.items() if not is_note(k))]
    types = tuple(local_type(v.type) for v in (*operands, *op.results))
    return op.name, order, types, tuple(sorted(attributes, key=lambda item: item[0]))


def _mesh_size(module: Module) -> int:
    """Return how many devices the manual computations of `module` need; 1 without any."""
    meshes = [op.attr("mesh") for op in module.body if op.name == "sdy.mesh"]
    return max([1, *(mesh.size for mesh in meshes if isinstance(mesh, MeshAttr))])


def _compile(module: Module, inputs: Sequence[Type], results: Sequence[Type]) -> Compiled:
    count = _mesh_size(module)
    devices = jax.devices("cpu")[:count]
    if len(devices) < count:
        raise MpmdError(
            f"the program has a manual computation over {count} devices, and there are only "
            f"{len(devices)} CPU devices; set jax_num_cpu_devices to evaluate it"
        )
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def spec(type: Type) -> jax.ShapeDtypeStruct:
        tensor = tensor_type(type)
        return jax.ShapeDtypeStruct(tensor.shape or (), dtype_of(tensor), sharding=sharding)

    with jax.enable_x64(True):
        compiled = lower_function(module.to_generic(), [spec(t) for t in inputs], [spec(t) for t in results]).compile(
            {"xla_backend_optimization_level": 0} if len(devices) == 1 else None
        )

    def run(*args: Array) -> Sequence[Any]:
        with jax.enable_x64(True):
            result: Sequence[Any] = compiled(*args)
        return result

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
    """Return what a function of `module` returns for these arrays.

    Meshes, names, transfers, shardings and control operands mean nothing; loops run; ops of unknown dialects
    stand for some fixed function of their inputs.

    Args:
        module: a module at any stage of the compiler.
        args: one array per argument; their dtypes and (global) shapes must be those of the arguments.
        function: which function; by default `@main`, or the only public one.
        remembered: what ops gave in other modules of the same program.

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
                    f"argument {i} of @{entry.sym_name} must be {expected.text}, not {value.dtype}{list(value.shape)}"
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
    """Return a random array of this type."""
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
