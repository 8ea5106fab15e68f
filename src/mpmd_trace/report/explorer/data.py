"""Data of the explorer for each pass: the program as boxes and arrows, bodies once.

A *view* is the main function after a pass that changed something.  Values are numbers, types and bodies are numbers
of tables that all views share, so that a hundred microbatches of a layer cost a hundred short rows.
"""

from __future__ import annotations

import dataclasses
import linecache
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from mpmd_trace.ir.attributes import IntegerAttr, SymbolRefAttr
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.ops import CallOp, FragmentCallOp, FragmentOp, FuncOp, Module, NamedComputationOp, TransferOp
from mpmd_trace.ir.printer import print_op, print_region
from mpmd_trace.ir.shardings import byte_size, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.report.ir_diff import Changes, Outline, changes, mesh_of, outline
from mpmd_trace.report.snapshots import count_ops
from mpmd_trace.report.sources import written_in

#: What a box is; the page knows the numbers.
FRAGMENT, TRANSFER, NAMED, CALL, OTHER = range(5)
#: Large constants, of which the page shows the beginning.
_LONG = re.compile(r'dense<"?([^>"]{24})[^>"]{400,}"?>')
#: Things of a kind that the page lists, and users of a value.
_THINGS = 40
_USERS = 8


@dataclasses.dataclass
class Recorder:
    """A pass hook that keeps a view of the module after each pass that changed it.

    names: those of the arguments, for people; results: those of the results; error: how far the numbers of a module are
    off, and where, if that is to be shown.
    """

    names: Sequence[str] = ()
    results: Sequence[str] = ()
    error: Callable[[Module], tuple[float, str]] | None = None
    #: A row for every pass, and the views by the number of the pass.
    passes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    views: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    types: dict[str, int] = dataclasses.field(default_factory=dict)
    bodies: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    #: What stands at the places that bodies were written in.
    lines: dict[str, str] = dataclasses.field(default_factory=dict)
    #: For each argument and result what there is to tell of it after the passes that changed that.
    ends: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last: Outline | None = None
        self._of_text: dict[str, int] = {}
        self._of_region: dict[Region, int] = {}
        #: Functions are not frozen: what is known of them holds for one view.
        self._functions: dict[FuncOp, int] = {}

    def start(self, module: Module) -> None:
        """Record the module before the first pass."""
        self.snapshot(0, "traced", module)

    def snapshot(self, number: int, spec: str, module: Module) -> None:
        """Record a module that is known to be what a pass left."""
        self(PassRun(number - 1, spec, True, 0.0), module)

    def __call__(self, run: PassRun, module: Module) -> None:
        number = run.index + 1
        milliseconds = round(1000 * run.seconds, 2)
        row: dict[str, Any] = {"pass": number, "spec": run.spec, "ms": milliseconds, "changed": run.changed}
        main = module.lookup("main")
        if run.changed and main is not None:
            current = outline(module)
            if self._last is not None:
                row["changes"] = _told(changes(self._last, current))
            self._last = current
            view = self.views[number] = self._view(module, main)
            self._tell_ends(number, view)
            nodes = view["nodes"]
            row["ops"] = sum(count_ops(module).values())
            row["fragments"] = sum(node["k"] == FRAGMENT for node in nodes)
            row["transfers"] = sum(node["k"] == TRANSFER for node in nodes)
            row["bytes"] = sum(node.get("n", 0) for node in nodes)
            row["bodies"] = len({node["b"] for node in nodes if "b" in node})
            row["work"] = _makespan(nodes, self.bodies)
            if self.error is not None:
                error, result = self.error(module)
                row["error"] = error if math.isfinite(error) else str(error)
                row["error_at"] = result
        self.passes.append(row)

    def _view(self, module: Module, main: FuncOp) -> dict[str, Any]:
        symbols = mesh_symbols(module)
        self._functions.clear()
        number: dict[Value, int] = {}
        kinds: list[int] = []

        def define(value: Value) -> int:
            number[value] = len(kinds)
            kinds.append(self.types.setdefault(value.type.text, len(self.types)))
            return number[value]

        arguments = [define(arg) for arg in main.args]
        nodes = []
        terminator = main.body.terminator
        for op in main.body:
            if op is terminator:
                continue
            node = self._node(op, module, symbols)
            node["i"] = [number[v] for v in op.operands]
            node["o"] = [define(r) for r in op.results]
            nodes.append(node)
        topology = main.topology
        return {
            "meshes": list(topology.meshes) if topology is not None else [],
            "arguments": [
                [self.names[i] if i < len(self.names) else f"argument {i}", v] for i, v in enumerate(arguments)
            ],
            "results": [
                [self.results[i] if i < len(self.results) else f"result {i}", number[v]]
                for i, v in enumerate(terminator.operands if terminator is not None else ())
            ],
            "types": kinds,
            "nodes": nodes,
        }

    def _tell_ends(self, number: int, view: dict[str, Any]) -> None:
        nodes = view["nodes"]
        named = {value: name for name, value in [*view["results"], *view["arguments"]]}
        users: dict[int, list[int]] = {value: [] for value in named}
        makers: dict[int, int] = {}
        for at, node in enumerate(nodes):
            for value in node["i"]:
                if value in users and users[value][-1:] != [at]:
                    users[value].append(at)
            makers.update((value, at) for value in node["o"] if value in named)
        for name, value in [*view["arguments"], *view["results"]]:
            used, maker = users[value], makers.get(value)
            told = {
                "type": view["types"][value],
                "made": None if maker is None else _place(nodes[maker]),
                "used": [_place(nodes[at]) for at in used[:_USERS]],
                "uses": len(used),
                "sent": sorted({nodes[at]["m"] for at in used if nodes[at]["k"] == TRANSFER}),
            }
            rows = self.ends.setdefault(name, [])
            if not rows or {k: rows[-1][k] for k in told} != told:
                rows.append({"pass": number, **told, "at": [maker, *used[:_USERS]]})

    def _node(self, op: Op, module: Module, symbols: Any) -> dict[str, Any]:
        """One op: k kind, m mesh, l label, a its named computations, c microbatch, s stage, b body, n bytes sent."""
        if isinstance(op, TransferOp):
            source, target = op.operand(0).type, op.results[0].type
            size = byte_size(target, symbols) if isinstance(target, MeshTensorType) else 0
            return {"k": TRANSFER, "m": mesh_of(target), "f": mesh_of(source), "n": int(size), "l": "transfer"}
        if isinstance(op, NamedComputationOp):
            atom = [op.origin.name, op.origin.transpose_count]
            return {"k": NAMED, "l": _label([atom]), "a": [atom], "b": self._body(op.body, module)}
        if isinstance(op, FragmentOp | FragmentCallOp):
            node: dict[str, Any] = {"k": FRAGMENT, "m": op.mesh}
            node["a"] = [[o.name, o.transpose_count] for o in op.origin]
            counter, stage = op.attrs.get("call_counter"), getattr(op, "stage", None)
            if isinstance(counter, IntegerAttr):
                node["c"] = counter.value
            if stage is not None:
                node["s"] = stage
            if isinstance(op, FragmentOp):
                node["l"] = _label(node["a"]) or "inferred"
                node["b"] = self._body(op.body, module)
                return node
            callee = cast(SymbolRefAttr, op.props["callee"]).name
            node["l"] = _label(node["a"]) or callee
        elif isinstance(op, CallOp):
            callee = op.callee
            node = {"k": CALL, "l": callee}
            if op.call_counter is not None:
                node["c"] = op.call_counter
        else:
            node = {"k": OTHER, "l": op.name}
            if op.regions:
                node["b"] = self._text(print_op(op), [op], 0.0)
            return node
        function = module.lookup(callee)
        if function is not None:
            node["b"] = self._function(function, module)
        return node

    def _body(self, body: Region, module: Module) -> int:
        if body not in self._of_region:
            ops = [op for block in body.blocks for op in block]
            self._of_region[body] = self._text(print_region(body), ops, flops(body, module))
        return self._of_region[body]

    def _function(self, function: FuncOp, module: Module) -> int:
        if function not in self._functions:
            body = function.regions[0]
            ops = [op for block in body.blocks for op in block]
            self._functions[function] = self._text(print_op(function), ops, flops(body, module))
        return self._functions[function]

    def _text(self, text: str, ops: Sequence[Op], work: float) -> int:
        result = self._of_text.get(text)
        if result is None:
            result = self._of_text[text] = len(self.bodies)
            shown = _LONG.sub(lambda m: f'dense<"{m.group(1)}..."> /* {len(m.group())} characters */', text)
            sources = written_in(ops)
            self.bodies.append({"text": shown, "ops": len(ops), "flops": work, "sources": sources})
            for source in sources:
                file, _, line = source.rpartition(":")
                self.lines.setdefault(source, linecache.getline(file, int(line)).strip())
        return result


def _told(changes: Changes) -> dict[str, Any]:
    """Return the changes for the page: lines, and lists of things with their number in the view (none if gone)."""
    lists = {
        name: [[str(thing), None if name == "gone" else thing.place] for thing in things[:_THINGS]]
        for name, things in changes.things.items()
    }
    counts = {name: len(things) for name, things in changes.things.items()}
    return {"head": changes.head(), "lists": lists, "counts": counts}


def _place(node: dict[str, Any]) -> str:
    """Return a node in words, as the page says it."""
    call, mesh = node.get("c"), node.get("m")
    return f"{node['l'][:60]}{'' if call is None else f' ({call})'}{f' on {mesh}' if mesh else ''}"


def _label(atoms: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{name}{chr(39) * count}" for name, count in atoms)


def _makespan(nodes: Sequence[dict[str, Any]], bodies: Sequence[dict[str, Any]]) -> float:
    """Millions of operations from the start to the end of the step, each mesh in its order, transfers free."""
    ready: dict[int, float] = {}
    free: dict[str, float] = {}
    end = 0.0
    for node in nodes:
        at = max((ready.get(v, 0.0) for v in node["i"]), default=0.0)
        if node["k"] == FRAGMENT:
            at = max(at, free.get(node["m"], 0.0)) + (bodies[node["b"]]["flops"] / 1e6 if "b" in node else 0.0)
            free[node["m"]] = at
        ready.update(dict.fromkeys(node["o"], at))
        end = max(end, at)
    return end
