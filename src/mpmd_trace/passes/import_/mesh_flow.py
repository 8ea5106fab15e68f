"""Where values get their meshes from and where they are needed, in words for people.

A value without a mesh is traced backwards to what produces it on a mesh (its *sources*), and forwards to what
needs it on one (its *destinations*): through ops without a mesh, calls and loops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.core import Op, OpResult, Value
from mpmd_trace.ir.ops import AssignOp, CallOp, ForOp, FragmentOp, FuncOp, UnassignOp
from mpmd_trace.passes.import_.mesh_sets import MeshSet, MeshSets, is_meshless, src_of_op, use_of_op

#: The way out that there is for everything.
LET_MOVE = "let values move wherever needed: set mpmd_infer_transfers in the partitioning options"

_LABELS = {
    "user_in": "the assignment of an input",
    "user_out": "the assignment of an output",
    "io_constraint_in": "an input/output constraint",
    "io_constraint_out": "an input/output constraint",
    "inferred_in": "the uses of an input",
    "inferred_out": "the place chosen for an output",
    "inferred_unused": "the place chosen for an unused value",
    "inferred_unused_callee_in": "the place chosen for an unused input",
    "inferred_unused_callee_out": "the place chosen for an unused output",
    "broadcast": "the source of a broadcast",
    "reduce": "a part of a reduction",
    "transfer": "a transfer",
}


def because(labels: Iterable[str]) -> str:
    """Return what put a mesh into a set, from the labels of the mesh."""
    return ", ".join(_LABELS.get(label, f"named computation or tensor {quote(label)}") for label in labels)


def is_user_label(label: str) -> bool:
    """Return whether the label is a name or an assignment of the user's, not something that was inferred."""
    return label not in _LABELS or label.startswith(("user_", "io_constraint_"))


def mesh_list(meshes: Sequence[str]) -> str:
    """`no mesh`, `mesh "a"` or `meshes "a" and "b"`."""
    shown = [quote(m) for m in meshes]
    if not shown:
        return "no mesh"
    if len(shown) == 1:
        return f"mesh {shown[0]}"
    return f"meshes {', '.join(shown[:-1])} and {shown[-1]}"


def function_name(function: FuncOp) -> str:
    """Return the name that the user gave to the function."""
    return function.sym_name.removeprefix("shardy_mpmd")


def place(loc: Location) -> str:
    """` (file:line:col)`, or nothing when the location is unknown."""
    text = str(loc)
    return "" if text == "unknown" else f" ({text})"


@dataclasses.dataclass(frozen=True)
class End:
    """One end of a trace: an op or a value on a mesh, with the meshes that it offers or asks for."""

    text: str
    meshes: MeshSet | None
    location: Location
    value: Value | None = None

    def __str__(self) -> str:
        if self.meshes is None:
            return f"{self.text}{place(self.location)}"
        parts = [
            quote(mesh) + (f" because of {because(labels)}" if labels else "")
            for mesh, labels in self.meshes.meshes.items()
        ]
        return f"{self.text} on {'; '.join(parts) or 'no mesh'}{place(self.location)}"


class Flow:
    """Traces values through a module."""

    def __init__(self, sets: MeshSets) -> None:
        self.sets = sets

    def step_back(self, value: Value) -> list[Value]:
        """Return the values that `value` comes from directly: operands, arguments of calls, results of callees."""
        if isinstance(value, OpResult):
            inside = self.sets.origin_of(value)
            if inside is not value:
                return [inside]
            return value.op.operands if is_meshless(value.op) else []
        owner = None if value.block is None else value.block.parent_op
        if isinstance(owner, FuncOp) and not owner.is_entry_point:
            return [call.operand(value.index) for call in self.sets.used_calls(owner)]
        if isinstance(owner, ForOp) and value.index < owner.num_operands:
            return [owner.operand(value.index)]
        return []

    def step_forward(self, value: Value) -> list[Value]:
        """Return the values that are made of `value` directly."""
        result: list[Value] = []
        for use in value.uses:
            user = use.owner
            if value.block is not None and user.block is not value.block:
                user = user.ancestor_in(value.block) or user
            if isinstance(user, CallOp):
                callee = self.sets.callee(user)
                if callee is not None:
                    result.append(callee.body.args[use.index])
            elif isinstance(user, ForOp):
                result.append(user.body.block.args[use.index])
            elif user.name == "func.return":
                function = user.parent_op
                if isinstance(function, FuncOp) and not function.is_entry_point:
                    result += [call.results[use.index] for call in self.sets.used_calls(function)]
            elif user.name == "mpmd.return":
                loop = user.parent_op
                if isinstance(loop, ForOp):
                    result.append(loop.results[use.index])
            elif is_meshless(user):
                result += user.results
        return result

    def sources(self, values: Iterable[Value]) -> list[End]:
        """Return the values on meshes, and the inputs, from which `values` are computed."""
        ends: list[End] = []
        for value in self._reach(values, self.step_back):
            if isinstance(value, OpResult):
                op = value.op
                if isinstance(op, UnassignOp):
                    ends.append(End(self._producer(op), src_of_op(op), op.loc, value))
                continue
            function = None if value.block is None else value.block.parent_op
            if isinstance(function, FuncOp) and function.is_entry_point:
                text = f"input {value.index} of @{function_name(function)}"
                ends.append(End(text, self.sets.src_of(value), value.location, value))
        return ends

    def destinations(self, values: Iterable[Value]) -> list[End]:
        """Return what needs `values`, or what is computed from them, on a mesh; and the outputs they become."""
        ends: list[End] = []
        for value in self._reach(values, self.step_forward):
            for use in value.uses:
                user = use.owner
                if isinstance(user, AssignOp):
                    meshes = use_of_op(user)
                    if not meshes.meshes:
                        meshes = MeshSet.get({user.mesh_type.mesh: (user.label,) if user.label else ()})
                    ends.append(End("needed", meshes, user.loc, value))
                elif user.name == "func.return":
                    function = user.parent_op
                    if isinstance(function, FuncOp) and function.is_entry_point:
                        text = f"output {use.index} of @{function_name(function)}"
                        ends.append(End(text, None, value.location, value))
        return ends

    def _reach(self, values: Iterable[Value], step: Callable[[Value], list[Value]]) -> list[Value]:
        """`values` and what `step` reaches from them, last pushed first."""
        waiting = list(dict.fromkeys(values))
        seen = set(waiting)
        result = []
        while waiting:
            value = waiting.pop()
            result.append(value)
            for following in step(value):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return result

    @staticmethod
    def _producer(op: UnassignOp) -> str:
        value = op.operand(0)
        if isinstance(value, OpResult):
            if isinstance(value.op, FragmentOp) and value.op.origin:
                return f"the result of named computation {value.op.origin[0].short}"
            return f"the result of '{value.op.name}'"
        return f"argument {value.index}"


def lines(title: str, ends: Sequence[End], most: int = 8) -> list[str]:
    """Return a heading and one line per end, or nothing when there is no end."""
    if not ends:
        return []
    texts = list(dict.fromkeys(str(end) for end in ends))
    shown = [f"    - {text}" for text in texts[:most]]
    if len(texts) > most:
        shown.append(f"    - ... and {len(texts) - most} more")
    return [f"  {title}", *shown]


def ways_out(*ways: str) -> list[str]:
    """Return what people can do, one line each."""
    return ["  ways out:", *(f"    - {way}" for way in ways)]


def op_line(op: Op) -> str:
    """`'stablehlo.add' (file:line)`."""
    return f"'{op.name}'{place(op.loc)}"
