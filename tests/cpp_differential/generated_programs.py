"""Random inputs of the partitioner: modules as MLIR text with named computations, calls and loops, and arguments.

Two families: programs without a plan, and training steps over microbatches with something changed here and there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from generated_ops import (
    COUNT,
    HELPER,
    INDEX,
    MATRIX,
    SCALAR,
    TYPES,
    VECTOR,
    Choices,
    Scope,
    random_ops,
    region_results,
)
from program_parts import Callee, Writer, listed, result_types

from mpmd_trace.passes.request import PartitionRequest

#: Their order in the reference's hash tables is this one, too.
MESHES = ("s0", "s1", "s2", "s3")
SCHEDULES = (
    "GPipe",
    "1F1B",
    "none",
    "Circular",
    "CircularWithReversedBackward",
    "GPipeBut1F1BForLastMesh",
    "ZeroBubbleH1",
    "ZeroBubbleH2ZeroTxLatency",
    "ZeroBubbleH2HalfTxLatency",
    "ZeroBubbleH2FullTxLatency",
    "ParallelPipelinesWithWrapAround",
)
#: The options that the reference's driver honours; it accepts others and ignores them.
HONOURED = (
    "mpmd_infer_cross_mesh_reductions",
    "mpmd_fragment_remat",
    "mpmd_split_bwd_fragments",
    "mpmd_assume_homogeneous_devices",
)
#: Those that it ignores, or does not have.
IGNORED = (
    "mpmd_merge_remat_fragments",
    "mpmd_absorb_inferred_fragments_on_entry_point_function",
    "mpmd_copy_constant_creation_from_producer_to_consumer",
    "mpmd_apply_merge_transfers_pass",
    "mpmd_merge_inferred_after_scheduling",
    "mpmd_fail_on_backward_deps",
    "mpmd_merge_forward_with_backward",
    "mpmd_merge_backward_with_forward",
    "mpmd_equal_microbatches",
)


@dataclasses.dataclass
class Program:
    """A module and the arguments of `partition` besides it."""

    text: str
    arguments: dict[str, Any]

    @property
    def request(self) -> PartitionRequest:
        """The arguments as the partitioners take them."""
        return PartitionRequest.of(**self.arguments)

    def __repr__(self) -> str:
        return f"Program(arguments={self.arguments},\n{self.text})"


class Programs(Writer):
    """Writes whole programs."""

    def free_program(self) -> tuple[list[str], list[str]]:
        """`@main` without a plan; gives the types of its arguments and results."""
        choices = self.choices
        inputs = [choices.pick(TYPES) if choices.chance(40) else MATRIX for _ in range(choices.int(1, 6))]
        block = [(self.names.fresh(), type) for type in inputs]
        scope = Scope(choices, self.names, block, "    ")
        for _ in range(choices.int(1, 9)):
            self.statement(scope)
        returned = [scope.any_value() for _ in range(choices.int(1, 5))] + scope.kept_value()
        self.main(block, scope, returned)
        return inputs, [type for _, type in returned]

    def training_program(self) -> tuple[list[str], list[str]]:
        """A training step: layers forward and backward per microbatch, gradients added up, parameters updated."""
        choices = self.choices
        layers, microbatches = choices.int(1, 4), choices.int(1, 4)
        tied = layers > 1 and choices.chance(20)
        parameters = 1 if tied else layers
        inputs = [MATRIX] * parameters + [MATRIX]
        block = [(self.names.fresh(), type) for type in inputs]
        weights = [name for name, _ in block[:parameters]]
        callee = self.microbatch(layers, parameters)
        scope = Scope(choices, self.names, block, "    ")
        zero = scope.op(SCALAR, f"stablehlo.constant dense<0.0> : {SCALAR}")
        grads = [
            scope.op(MATRIX, f"stablehlo.broadcast_in_dim {zero}, dims = [] : ({SCALAR}) -> {MATRIX}")
            for _ in range(parameters)
        ]
        batch = block[-1][0]
        if choices.chance(25):
            grads = self.looped(scope, callee, weights, grads, batch, microbatches)
        else:
            for m in range(microbatches):
                self.noise(scope)
                x = scope.op(VECTOR, f"stablehlo.reshape {self.cut(scope, batch, m)} : (tensor<1x4xf32>) -> {VECTOR}")
                found = self.call(scope, callee, [*weights, *grads, x])
                grads = found[:parameters]
                scope.kept.append(grads[0])
        self.noise(scope)
        norm = self.norm(scope, grads) if choices.chance(50) else None
        returned = []
        for weight, grad in zip(weights, grads, strict=True):
            step = grad if norm is None else scope.op(MATRIX, f"stablehlo.divide {grad}, {norm} : {MATRIX}")
            returned.append((scope.op(MATRIX, f"stablehlo.subtract {weight}, {step} : {MATRIX}"), MATRIX))
        returned += [*(scope.any_value() for _ in range(choices.int(0, 2))), *scope.kept_value()]
        self.main(block, scope, returned)
        return inputs, [type for _, type in returned]

    def cut(self, scope: Scope, batch: str, m: int) -> str:
        return scope.op(
            "tensor<1x4xf32>", f"stablehlo.slice {batch} [{m}:{m + 1}, 0:4] : ({MATRIX}) -> tensor<1x4xf32>"
        )

    def noise(self, scope: Scope) -> None:
        """Now and then a statement that does not belong here."""
        if self.choices.chance(15):
            self.statement(scope, calls=False)

    def norm(self, scope: Scope, grads: Sequence[str]) -> str:
        total = scope.constant(SCALAR)
        for grad in grads:
            zero = scope.op(SCALAR, f"stablehlo.constant dense<0.0> : {SCALAR}")
            part = scope.op(
                SCALAR,
                f"stablehlo.reduce({grad} init: {zero}) applies stablehlo.add across dimensions = [0, 1]"
                f" : ({MATRIX}, {SCALAR}) -> {SCALAR}",
            )
            total = scope.op(SCALAR, f"stablehlo.add {total}, {part} : {SCALAR}")
        return scope.op(MATRIX, f"stablehlo.broadcast_in_dim {total}, dims = [] : ({SCALAR}) -> {MATRIX}")

    def looped(
        self, scope: Scope, callee: Callee, weights: Sequence[str], grads: Sequence[str], batch: str, iterations: int
    ) -> list[str]:
        """The microbatches as an `mpmd.for` over (parameters, gradients, batch)."""
        names = [*weights, *grads, batch]
        operands = [(name, MATRIX) for name in names]
        inner = self.inner(scope, [*operands, ("", INDEX)])
        arguments = list(inner.values)
        blocks = [name for name, _ in arguments]
        where = inner.op(COUNT, f"stablehlo.convert {blocks[-1]} : ({INDEX}) -> {COUNT}")
        zero = inner.op(COUNT, f"stablehlo.constant dense<0> : {COUNT}")
        row = inner.op(
            "tensor<1x4xf32>",
            f"stablehlo.dynamic_slice {blocks[-2]}, {where}, {zero}, sizes = [1, 4]"
            f" : ({MATRIX}, {COUNT}, {COUNT}) -> tensor<1x4xf32>",
        )
        x = inner.op(VECTOR, f"stablehlo.reshape {row} : (tensor<1x4xf32>) -> {VECTOR}")
        text = (
            f"mpmd.call @{callee.name}({listed([*blocks[: len(names) - 1], x])})"
            f" : ({listed(callee.inputs)}) -> {result_types(callee.outputs)}"
        )
        new = [name for name, _ in region_results(inner, callee.outputs, text)][: len(grads)]
        self.noise(inner)
        results = [*blocks[: len(weights)], *new, blocks[len(names) - 1]]
        head = f"mpmd.for {{iterations = {iterations} : ui32, unroll_factor = {iterations} : ui32}}"
        found = self.region_op(scope, head, operands, inner, [(r, MATRIX) for r in results], arguments, is_loop=True)
        return [name for name, _ in found[len(weights) : len(weights) + len(grads)]]

    def microbatch(self, layers: int, parameters: int) -> Callee:
        """Forward and backward pass for one microbatch: (parameters, gradients, x) to (gradients, loss)."""
        choices = self.choices
        inputs = [MATRIX] * (2 * parameters) + [VECTOR]
        block = [(self.names.fresh(), type) for type in inputs]
        weights = [n for n, _ in block[:parameters]] * (layers if parameters == 1 else 1)
        grads = [n for n, _ in block[parameters : 2 * parameters]]
        scope = Scope(choices, self.names, block, "    ")
        x = scope.op(MATRIX, f"stablehlo.broadcast_in_dim {block[-1][0]}, dims = [1] : ({VECTOR}) -> {MATRIX}")
        kept = []
        for layer in range(layers):
            self.noise(scope)
            x, residuals = self.forward(scope, f"l{layer}", weights[layer], x)
            kept.append(residuals)
        self.noise(scope)
        cotangent = scope.op(MATRIX, f"stablehlo.add {x}, {x} : {MATRIX}")
        for layer in reversed(range(layers)):
            self.noise(scope)
            cotangent, grad = self.backward(scope, f"l{layer}", [*kept[layer], weights[layer], cotangent])
            which = min(layer, parameters - 1)
            grads[which] = scope.op(MATRIX, f"stablehlo.add {grads[which]}, {grad} : {MATRIX}")
        returned = [(g, MATRIX) for g in grads]
        if choices.chance(40):
            returned.append((x, MATRIX))
        found = Callee("microbatch", inputs, [t for _, t in returned])
        self.function("func.func private @microbatch", block, scope, returned)
        return found

    def forward(self, scope: Scope, name: str, weight: str, x: str) -> tuple[str, list[str]]:
        operands = [(weight, MATRIX), (x, MATRIX)]
        inner = self.inner(scope, operands)
        (w, _), (v, _) = inner.values
        out = inner.op(
            MATRIX, f"stablehlo.dot_general {v}, {w}, contracting_dims = [1] x [0] : ({MATRIX}, {MATRIX}) -> {MATRIX}"
        )
        y = inner.op(MATRIX, f"stablehlo.tanh {out} : {MATRIX}")
        if self.choices.chance(30):
            random_ops(inner, 1, 3)
        residuals = [inner.value(MATRIX) for _ in range(self.choices.int(0, 2))]
        results = [(y, MATRIX), *((r, MATRIX) for r in residuals)]
        self.computations[name] = None
        found = self.region_op(scope, f'mpmd.named_computation<"{name}">', operands, inner, results)
        return found[0][0], [n for n, _ in found[1:]]

    def backward(self, scope: Scope, name: str, given: Sequence[str]) -> tuple[str, str]:
        operands = [(value, MATRIX) for value in given]
        inner = self.inner(scope, operands)
        arguments = [n for n, _ in inner.values]
        cotangent = inner.op(
            MATRIX,
            f"stablehlo.dot_general {arguments[-1]}, {arguments[-2]}, contracting_dims = [1] x [1]"
            f" : ({MATRIX}, {MATRIX}) -> {MATRIX}",
        )
        grad = inner.op(MATRIX, f"stablehlo.multiply {arguments[0]}, {arguments[-1]} : {MATRIX}")
        if self.choices.chance(30):
            random_ops(inner, 1, 3)
            grad = inner.value(MATRIX)
        self.computations[name] = None
        head = f'mpmd.named_computation<"{name}"(1)>'
        found = self.region_op(scope, head, operands, inner, [(cotangent, MATRIX), (grad, MATRIX)])
        return found[0][0], found[1][0]

    def text(self) -> str:
        """The module."""
        return "\n".join(["module @jit_step {", '  sdy.mesh @mesh = <["x"=2]>', *self.functions, HELPER, "}"])


def random_program(integer: Callable[[int, int], int]) -> Program:
    """A program by decisions from `integer(least, most)`."""
    choices = Choices(integer)
    writer = Programs(choices)
    is_free = choices.chance(65)
    inputs, outputs = writer.free_program() if is_free else writer.training_program()
    return Program(writer.text(), _arguments(choices, writer, inputs, outputs))


def _arguments(choices: Choices, writer: Programs, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
    meshes = MESHES[: choices.int(1, 4)]
    with_host = choices.chance(15)

    def mesh(kinds: bool = False) -> str:
        name = choices.pick(meshes)
        if kinds and with_host and choices.chance(40):
            name += choices.pick(("#pinned_host", "#device"))
        return name

    staged = choices.chance(25)
    assignment: dict[str, Any] = {}
    layers = [n for n in writer.computations if n.startswith("l")]
    for name in writer.computations:
        if name in layers and choices.chance(90):
            number = int(name[1:]) * len(meshes) // len(layers)
            assignment[name] = meshes[min(number, len(meshes) - 1)]
        else:
            assignment[name] = mesh()
        if staged:
            assignment[name] = (assignment[name], int(name[1:]))
    for name in writer.tensors:
        if choices.chance(70):
            assignment[name] = mesh(kinds=True)
    options: dict[str, Any] = {"mpmd_infer_transfers": not choices.chance(15)}
    options |= dict.fromkeys(choices.some(HONOURED, 2), True)
    options["mpmd_pipeline_schedule"] = choices.pick(SCHEDULES)
    return {
        "func_name": "step",
        "named_meshes": [(m, [("x", 2)]) for m in meshes],
        "assignment": assignment,
        "input_meshes": _placed([mesh(True) if choices.chance(25) else None for _ in inputs]),
        "output_meshes": _placed([mesh(True) if choices.chance(25) else None for _ in outputs]),
        "donate_argnums": [i for i in range(len(inputs)) if choices.chance(30)],
        "partitioning_options": options,
    }


def _placed(meshes: Sequence[str | None]) -> list[str | None]:
    """Without the indices that come in another order in the reference's hash tables of integers."""
    found, last = [], -1
    for index, mesh in enumerate(meshes):
        bucket = 37 * index % 64
        if mesh is not None and bucket > last:
            last = bucket
            found.append(mesh)
        else:
            found.append(None)
    return found
