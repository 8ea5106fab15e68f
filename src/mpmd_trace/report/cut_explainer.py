"""Explanations of why the cut of a program puts a value where it is, with its cost elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.frontend.errors import users_place
from mpmd_trace.ir.core import BlockArg, Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, ForOp, FragmentOp, FuncOp, Module
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.mesh_flow import function_name, mesh_list, place
from mpmd_trace.passes.import_.mesh_sets import is_meshless
from mpmd_trace.passes.placement.cut import cost, cut
from mpmd_trace.passes.placement.hypergraph import TRANSFER_BYTES, DataflowHypergraph
from mpmd_trace.passes.placement.place import Placed, drop_markers

#: Fixes a node on a mesh: more than all that a step can move.
_FIXED = 1 << 56
#: What moves so many bytes is no scalar.
_LITTLE = 256


class CutExplainer:
    """The placement of a module of its own, and what it costs to put something elsewhere.

    most: the edges up to which costs are shown; each is a cut of its own.
    """

    def __init__(self, module: Module, same_mesh: Sequence[SameMesh], most: int | None = None) -> None:
        for function in module.mpmd_functions:
            if not function.is_declaration:
                drop_markers(function)
        self.flow = DataflowHypergraph(module, {pair.output: pair.input for pair in same_mesh})
        self.edges = list(self.flow.edges())
        self.most = most
        self.labels = cut(self.flow.count, len(self.flow.meshes), self.edges)
        self.cost = cost(self.edges, self.labels)
        self.plan = Placed(self.flow, self.labels, Diagnostics())
        #: By label, since it reads all edges.
        self.pulling = functools.cache(self._pulling)

    def placed(self, thing: Value | Op) -> tuple[tuple[str, ...], str]:
        """Return the meshes of a value or op that no name has put anywhere, and the reason."""
        if isinstance(thing, BlockArg):
            return self._argument(thing)
        op = thing if isinstance(thing, Op) else thing.defining_op
        if op in self.flow.node_of:
            node = self.flow.node_of[op]
            why = "no name says where it is, so it is where the fewest bytes move in a step"
            return (self.flow.meshes[self.labels[node]],), why + self._else(node)
        assert op is not None
        read = set().union(*map(self.plan.readers_of, op.results))
        meshes = tuple(self.flow.meshes[label] for label in sorted(read))
        if not meshes:
            if all(not result.has_uses for result in op.results):
                return (), "nothing uses it, so it is removed"
            home = self.plan.home(op.results[0], {})
            return (home or self.flow.meshes[0],), "it is only returned, so it is where what it is computed from is"
        if op in self.flow.free:
            return meshes, "it is cheap to compute from its inputs, so each mesh that uses it computes it"
        if isinstance(op, CallOp):
            return meshes, "a call runs on the meshes of its body; these use its results"
        return meshes, "these use it"

    def _argument(self, value: BlockArg) -> tuple[tuple[str, ...], str]:
        meshes = tuple(self.plan.readers(value))
        home = self.flow.home_of.get(value)
        if not meshes and home is None:
            return (self.flow.meshes[0],), "nothing uses it, so it takes the first mesh"
        if home is not None:
            where = self.flow.meshes[self.labels[home]]
            why = "it shares a mesh with a result that replaces it (MeshOfInput)"
            return (where,), why + (self._else(home) if home >= len(self.flow.meshes) else "")
        if len(meshes) == 1:
            nodes = self.flow.readers[value]
            why = f"it is used on {mesh_list(meshes)} alone"
            if min(nodes) < len(self.flow.meshes):
                return meshes, why
            node = min(nodes)
            return meshes, f"{why}, by unnamed code{self._else(node)}{self.pulling(self.labels[node])}"
        where = "it is on the one that uses it last, and sent to the others once"
        return meshes, f"it is used on {mesh_list(meshes)}: {where}"

    def _pulling(self, label: int) -> str:
        """Return the unnamed op that takes the most from other meshes to this one, if that is not little."""
        op_of = {node: op for op, node in self.flow.node_of.items()}
        taken: dict[int, int] = {}
        for weight, nodes in self.edges:
            if len({self.labels[node] for node in nodes}) > 1:
                for node in nodes:
                    if node in op_of and self.labels[node] == label:
                        taken[node] = taken.get(node, 0) + weight
        if max(taken.values(), default=0) < _LITTLE:
            return ""
        node = max(taken, key=lambda n: (taken[n], -n))
        return (
            f"; there {described(op_of[node])} combines values of several meshes, {taken[node]:,} bytes "
            "from others in a step: let it work on the values of each mesh separately, or on a scalar of them"
        )

    def _else(self, node: int) -> str:
        """Return what a step would move with a node on other meshes."""
        if self.most is not None and len(self.edges) > self.most:
            return "; mpmd-trace explain FILE --value NAME shows what other meshes would cost"
        count = len(self.flow.meshes)
        said = []
        for label, mesh in enumerate(self.flow.meshes):
            if label == self.labels[node]:
                continue
            other = cut(self.flow.count, count, [*self.edges, (_FIXED, (label, node))])
            more = cost(self.edges, other) - self.cost
            said.append(f"on {quote(mesh)} it would be {f'{more:,} more' if more > 0 else 'as many'}")
        return f"; {', '.join(said)} (a transfer counts as {TRANSFER_BYTES} besides what it moves)" if said else ""


def described(op: Op) -> str:
    """Return a few words for an op, and its place."""
    return describe(op) + place(users_place(op.loc))


def describe(thing: Value | Op) -> str:
    """Return a few words for an op or a value."""
    if isinstance(thing, BlockArg):
        around = thing.owner.parent_op
        if isinstance(around, FuncOp):
            role = "input" if around.is_entry_point else "argument"
            return f"{role} {thing.index} of @{function_name(around)}"
        return f"value {thing.index} of a loop" if isinstance(around, ForOp) else f"argument {thing.index}"
    op = thing if isinstance(thing, Op) else thing.defining_op
    assert op is not None
    if isinstance(op, FragmentOp):
        return f"named computation {op.origin[0].short}" if op.origin else "an inferred fragment"
    if isinstance(op, CallOp):
        return f"call of @{op.callee.removeprefix('shardy_mpmd')}"
    name = op.loc.name
    called = f" {quote(name)}" if name is not None and is_meshless(op) else ""
    return f"'{op.name}'{called}"
