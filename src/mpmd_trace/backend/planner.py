"""From an exported module to its execution plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, cast

from mpmd_trace.backend.dtypes import tensor_type
from mpmd_trace.backend.plan import Free, Instruction, Place, Plan, ProgramSpec, Run, Slot, Transfer
from mpmd_trace.diagnostics.messages import MpmdError, raise_errors
from mpmd_trace.diagnostics.mlir_text import unquote
from mpmd_trace.ir.attributes import Attribute, BoolAttr, DictAttr, StringAttr, TopologyAttr
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.garbage_collection import paused_collector
from mpmd_trace.ir.ops import SHARDED_STATE, FragmentCallOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.shardings import bit_width, local_shape
from mpmd_trace.ir.types import MeshTensorType, Type, mesh_tensor


@paused_collector()
def make_plan(module: Module, owners: Mapping[str, str] | None = None) -> Plan:
    """Return the plan of an exported module.

    Instructions of one mesh keep the order of the module.  Between meshes the order is that of a simulation,
    so that one thread that issues them keeps every mesh busy.

    Args:
        module: `@main` consists of fragment calls and transfers.
        owners: for each mesh the first one with the same devices; by default what the function says.

    Raises:
        MpmdError: when the module is not exported (all offending ops at once) or a callee is missing.
    """
    main = module.lookup("main")
    if main is None or main.is_declaration:
        names = ", ".join("@" + f.sym_name for f in module.functions) or "none"
        raise MpmdError(f"the module has no function @main to run; its functions: {names}")
    topology = main.topology
    if topology is None:
        raise MpmdError("@main has no topology: it is not an MPMD program. Run jax.jit programs with jax.jit")
    callees = {f.sym_name: f for f in module.functions}
    _check(main, topology, callees)
    return _Planner(module, main, topology, callees, owners or main.device_owners).plan()


def _check(main: FuncOp, topology: TopologyAttr, callees: Mapping[str, FuncOp]) -> None:
    problems = Diagnostics()
    for value in [*main.args, *main.returned]:
        if not isinstance(value.type, MeshTensorType):
            problems.error(
                value,
                f"an argument or result of @{main.sym_name} has type {value.type.text}, which is on "
                "no mesh; the module must have gone through the import passes",
            )
    fine: set[tuple[Attribute, Attribute]] = set()
    for op in main.body:
        if op.__class__ is TransferOp or op is main.body.terminator:
            continue
        if isinstance(op, FragmentCallOp):
            kind = op.props["callee"], op.props["mesh_name"]
            if kind in fine:
                continue
            callee = callees.get(op.callee)
            if callee is None or callee.is_declaration:
                problems.error(op, f"there is no function @{op.callee} to call")
            elif op.mesh not in topology.meshes:
                problems.error(op, f"the topology has no mesh '{op.mesh}'")
            else:
                fine.add(kind)
        else:
            problems.error(
                op,
                f"'{op.name}' is not executable; only fragment calls and transfers are. Run the export "
                "passes (mpmd-lower-to-fragment-calls) first",
            )
    raise_errors(problems.found)


@dataclasses.dataclass(slots=True, eq=False)
class _Call:
    """Describe the calls of one function on one mesh with the same origin; each value is the same for all of them."""

    callee: str
    mesh: str
    #: The mesh with its devices, and what is taken for its time.
    owner: str
    cost: float
    label: str
    origins: tuple[tuple[str, int], ...]
    #: The arguments that may be donated, and the declared memory of each result.
    donatable: list[int]
    kinds: list[str | None]
    #: What is known of the results, by their types.
    results: dict[tuple[Type, ...], list[_Known]] = dataclasses.field(default_factory=dict)


class _Link(NamedTuple):
    """Describe the transfers of one type to another; each value is the same for all of them."""

    source: str
    target: str
    #: Whether they change nothing, whether they take time, and whether they may give the buffer that they take.
    is_alias: bool
    takes_time: bool
    may_share: bool


#: An instruction before slots are numbered: when it would start, its place in the module, the op, its kind, and roots
#: of its operands.
_Draft = tuple[float, int, Op, _Call | _Link, list[Value]]

#: One or several with numbered slots: their kind, inputs and outputs.
_Step = tuple[_Call | _Link, list[int], list[int]]

#: How long a value is taken to be on its way, as a part of the mean time of a program.  How much hardly matters, but
#: with nothing at all, what a mesh sends and receives at about the same time may come in the wrong order.
_ON_ITS_WAY = 0.05

#: A place, with its number before it and the bytes of a value behind it.
_Known = tuple[int, Place, int]


class _Planner:
    def __init__(
        self,
        module: Module,
        main: FuncOp,
        topology: TopologyAttr,
        callees: Mapping[str, FuncOp],
        owners: Mapping[str, str],
    ) -> None:
        self.module, self.main, self.topology, self.callees = module, main, topology, callees
        self.owners = {mesh: owners.get(mesh, mesh) for mesh in topology.meshes}
        self.shared = {mesh: owner for mesh, owner in self.owners.items() if owner != mesh}
        self.returned = set(main.returned)
        self.root: dict[Value, Value] = {}  # an aliasing transfer gives the value it takes
        self.slots: list[Slot] = []
        self.places: list[int] = []  # of each slot: the number of its type and memory
        self.last: list[int] = []  # of each slot: the last step that makes or reads it, -1 for arguments before
        self.place_numbers: dict[Place, int] = {}
        self.known: dict[tuple[Type, str | None, str | None], _Known] = {}  # by what a value says
        self.layouts: dict[Value, str | None] = {}  # of arguments and of what is returned; empty if all are the usual
        self.number: dict[Value, int] = {}
        self.programs: dict[tuple[object, ...], ProgramSpec] = {}
        self.costs: dict[Region, float] = {}
        self.calls: dict[tuple[Attribute | None, ...], _Call] = {}
        self.links: dict[tuple[Type, Type], _Link] = {}

    def plan(self) -> Plan:
        main = self.main
        donated = [_is_donated(d.entries) for d in main.arg_attrs]
        self.layouts = dict(zip(main.args, map(_layout, main.arg_attrs), strict=True))
        self._add(main.args, self._described(main.args, _memory_kinds(main.arg_attrs)), -1)
        self.slots = [s._replace(name=_argument_name(v)) for s, v in zip(self.slots, main.args, strict=True)]
        drafts = self._drafts()
        drafts.sort(key=itemgetter(0, 1))
        returned = [self.root.get(v, v) for v in main.returned]
        wanted = list(map(_layout, main.res_attrs))
        for value, layout in zip(returned, wanted, strict=True):
            self.layouts.setdefault(value, layout)
        if not any(self.layouts.values()):
            self.layouts.clear()
        steps = self._numbered(drafts)
        for value in returned:
            self.last[self.number[value]] = len(steps)
        instructions = self._instructions(steps, {n for n, given in enumerate(donated) if not given})
        results = tuple(self._laid_out(returned, wanted, instructions))
        unused = [n for n in range(len(main.args)) if self.last[n] < 0]
        if unused:
            instructions.insert(0, Free(tuple(unused)))
        return Plan(
            name=self.module.name or main.sym_name,
            meshes={n: m.body for n, m in self.topology.meshes.items()},
            slots=tuple(self.slots),
            programs=tuple(self.programs.values()),
            instructions=tuple(instructions),
            arguments=tuple(self.number[v] for v in main.args),
            results=results,
            donated=frozenset(i for i, given in enumerate(donated) if given),
            result_names=tuple(_result_name(d.entries.get("jax.result_info")) for d in main.res_attrs),
            movable=frozenset(i for i, d in enumerate(main.arg_attrs) if SHARDED_STATE in d.entries),
            shared=self.shared,
        )

    # Values.

    def _described(self, values: Sequence[Value], kinds: Sequence[str | None]) -> list[_Known]:
        """Return what is known of values; the kinds are their memories where types say none."""
        layouts = self.layouts
        return [self._learn(v.type, kind, layouts.get(v)) for v, kind in zip(values, kinds, strict=True)]

    def _learn(self, type: Type, kind: str | None, layout: str | None) -> _Known:
        known = self.known.get((type, kind, layout))
        if known is None:
            plain = _plain(cast(MeshTensorType, type))
            place = plain, plain.memory_kind or kind, layout
            number = self.place_numbers.setdefault(place, len(self.place_numbers))
            known = self.known[type, kind, layout] = number, place, self._bytes(plain)
        return known

    def _add(self, values: Iterable[Value], described: Sequence[_Known], step: int) -> list[int]:
        """Return new slots for the values, which are made in that step."""
        slots, places, number, last = self.slots, self.places, self.number, self.last
        result = []
        for value, (place, (type, kind, layout), size) in zip(values, described, strict=True):
            slot = number[value] = len(slots)
            slots.append(Slot(slot, type, kind, size, "", layout))
            places.append(place)
            last.append(step)
            result.append(slot)
        return result

    def _laid_out(
        self, returned: Sequence[Value], wanted: Sequence[str | None], instructions: list[Instruction]
    ) -> Iterator[int]:
        """Yield the slots of the results; what has another layout than its result wants is laid out anew in the end."""
        made: dict[tuple[int, str | None], int] = {}
        for value, layout in zip(returned, wanted, strict=True):
            slot = self.slots[self.number[value]]
            made.setdefault((slot.number, slot.layout), slot.number)
            if (slot.number, layout) not in made:
                number, _, size = self._learn(slot.type, slot.memory_kind, layout)
                new = made[slot.number, layout] = len(self.slots)
                self.places.append(number)
                self.slots.append(Slot(new, slot.type, slot.memory_kind, size, layout=layout))
                instructions.append(Transfer(slot.mesh, slot.mesh, (slot.number,), (new,)))
            yield made[slot.number, layout]

    def _bytes(self, type: MeshTensorType) -> int:
        tensor = tensor_type(type)
        count = math.prod(local_shape(tensor, type.sharding, self.topology.meshes[type.mesh]))
        return -(-count * bit_width(tensor.element) // 8)

    # Order.

    def _drafts(self) -> list[_Draft]:
        """Return the instructions with the time at which each would start if every mesh ran on its own."""
        ready: dict[Value, float] = dict.fromkeys(self.main.args, 0.0)
        free: dict[str, float] = dict.fromkeys(self.owners.values(), 0.0)
        kinds = [self._call(op) if isinstance(op, FragmentCallOp) else None for op in self.main.body]
        costs = [kind.cost for kind in kinds if kind is not None]
        on_its_way = _ON_ITS_WAY * sum(costs) / max(1, len(costs))
        drafts: list[_Draft] = []
        for order, (op, call) in enumerate(zip(self.main.body, kinds, strict=True)):
            inputs = op.operands
            if self.root:
                inputs = [self.root.get(v, v) for v in inputs]
            start = max(map(ready.__getitem__, inputs), default=0.0)
            kind: _Call | _Link
            if call is not None:
                kind = call
                start = max(start, free[call.owner])
                end = free[call.owner] = start + call.cost
            elif isinstance(op, TransferOp):
                kind = self._link(op)
                end = start
                if kind.is_alias or (kind.may_share and self._shares(op, inputs[0])):
                    self.root[op.results[0]] = inputs[0]
                    continue
                if kind.takes_time:
                    end += on_its_way
                if op.comes_back:  # not before it is wanted: it was away to leave its memory to others
                    end = start = max(start, free[self.owners[kind.target]])
            else:
                continue
            for result in op.results:
                ready[result] = end
            drafts.append((start, order, op, kind, inputs))
        return drafts

    def _call(self, op: FragmentCallOp) -> _Call:
        props = op.props
        key = props["callee"], props["mesh_name"], props.get("origin")
        call = self.calls.get(key)
        if call is None:
            function = self.callees[op.callee]
            call = self.calls[key] = _Call(
                callee=op.callee,
                mesh=op.mesh,
                owner=self.owners[op.mesh],
                cost=self._cost(function.regions[0]),
                label=", ".join(o.short.replace('"', "") for o in op.origin) or "inferred",
                origins=tuple((o.name, o.transpose_count) for o in op.origin),
                donatable=[i for i, d in enumerate(function.arg_attrs) if _is_donated(d.entries)],
                kinds=_memory_kinds(function.res_attrs),
            )
        return call

    def _cost(self, body: Region) -> float:
        cost = self.costs.get(body)  # equal functions share bodies
        if cost is None:
            cost = self.costs[body] = 1.0 + flops(body, self.module)
        return cost

    def _link(self, op: TransferOp) -> _Link:
        source, target = key = op.source_type, op.target_type
        link = self.links.get(key)
        if link is None:
            meshes = self.topology.meshes
            same_devices = self.owners[source.mesh] == self.owners[target.mesh]
            link = self.links[key] = _Link(
                source=source.mesh,
                target=target.mesh,
                is_alias=_is_alias(source, target),
                takes_time=not same_devices,
                may_share=same_devices
                and meshes[source.mesh] == meshes[target.mesh]
                and {source.memory_kind, target.memory_kind} <= {None, "device"}
                and _same_sharding(source, target),
            )
        return link

    def _shares(self, op: TransferOp, root: Value) -> bool:
        """Return whether the transfer, whose kind allows it, gives the buffer that it takes.

        Results of the step have buffers of their own: callers may donate one of them.
        """
        if op.results[0] in self.returned or self.layouts.get(root) is not None:
            return False
        kind = self.slots[self.number[root]].memory_kind if root in self.number else op.source_type.memory_kind
        return kind in (None, "device")

    # Instructions.

    def _numbered(self, drafts: Iterable[_Draft]) -> list[_Step]:
        """Return the drafts with numbered values, adjacent transfers between the same two meshes as one."""
        number, last = self.number, self.last
        steps: list[_Step] = []
        link: tuple[str, str] | None = None
        made = 0  # by transfers of the last step: slots from this one on
        for _, _, op, kind, values in drafts:
            inputs = [number[v] for v in values]
            if isinstance(kind, _Call):
                steps.append((kind, inputs, self._add(op.results, self._results(kind, op.results), len(steps))))
                link = None
            else:
                this = kind.source, kind.target
                if this != link or inputs[0] >= made:
                    link, made = this, len(self.slots)
                    steps.append((kind, [], []))
                steps[-1][1].append(inputs[0])
                steps[-1][2].extend(self._add(op.results, self._described(op.results, [None]), len(steps) - 1))
            at = len(steps) - 1
            for slot in inputs:
                last[slot] = at
        return steps

    def _results(self, call: _Call, results: Sequence[Value]) -> Sequence[_Known]:
        if self.layouts:
            return self._described(results, call.kinds)
        types = tuple([r.type for r in results])
        described = call.results.get(types)
        if described is None:
            described = call.results[types] = self._described(results, call.kinds)
        return described

    def _instructions(self, steps: Iterable[_Step], held: Container[int]) -> list[Instruction]:
        """Return what runs, moves and is dropped; callers keep the arguments that are `held`."""
        last = self.last
        instructions: list[Instruction] = []
        for at, (kind, inputs, outputs) in enumerate(steps):
            dead = [slot for slot in inputs if last[slot] == at]
            if isinstance(kind, _Call):
                donated = [i for i in kind.donatable if last[inputs[i]] == at and inputs[i] not in held]
                if len(set(dead)) < len(dead):
                    donated = [i for i in donated if dead.count(inputs[i]) == 1]
                instructions.append(self._run(kind, tuple(inputs), tuple(outputs), tuple(donated)))
            else:
                instructions.append(Transfer(kind.source, kind.target, tuple(inputs), tuple(outputs)))
            dead += [slot for slot in outputs if last[slot] == at]
            if dead:
                instructions.append(Free(tuple(sorted(set(dead)))))
        return instructions

    def _run(self, call: _Call, inputs: tuple[int, ...], outputs: tuple[int, ...], donated: tuple[int, ...]) -> Run:
        places, mesh = self.places, call.mesh
        in_places = tuple([places[slot] for slot in inputs])
        if self.shared and any(self.slots[s].mesh != mesh for s in inputs):
            in_places = tuple(self._place_on(mesh, s) for s in inputs)
        key = call.callee, mesh, in_places, tuple([places[slot] for slot in outputs]), donated
        program = self.programs.get(key)
        if program is None:
            known = list(self.place_numbers)
            in_types = tuple(map(known.__getitem__, in_places))
            out_types = tuple(self.slots[s].place for s in outputs)
            program = ProgramSpec(len(self.programs), call.callee, mesh, in_types, out_types, donated)
            self.programs[key] = program
        return Run(program.number, mesh, inputs, outputs, donated, call.label, call.origins)

    def _place_on(self, mesh: str, number: int) -> int:
        """Return the number of the place that a value has as an argument of a program on `mesh`."""
        slot = self.slots[number]
        if slot.mesh == mesh:
            return self.places[number]
        type = slot.type
        here = mesh_tensor(mesh, type.tensor, type.sharding, type.memory_kind)
        return self._learn(here, slot.memory_kind, None)[0]


def _is_alias(source: MeshTensorType, target: MeshTensorType) -> bool:
    """Return whether a transfer changes nothing: the same mesh, sharding and memory."""
    memories = {source.memory_kind or "device", target.memory_kind or "device"}
    return source.mesh == target.mesh and len(memories) == 1 and _same_sharding(source, target)


def _same_sharding(source: MeshTensorType, target: MeshTensorType) -> bool:
    return source.sharding is target.sharding or (_replicated(source) and _replicated(target))


def _plain(type: MeshTensorType) -> MeshTensorType:
    """Return the type without a sharding that shards nothing: programs that differ in this are one."""
    if type.sharding is None or not _replicated(type):
        return type
    return type.with_sharding(None)


def _replicated(type: MeshTensorType) -> bool:
    return type.sharding is None or (type.sharding.is_fully_replicated and not type.sharding.unreduced)


def _is_donated(entries: Mapping[str, Attribute]) -> bool:
    donor = entries.get("jax.buffer_donor")
    return "tf.aliasing_output" in entries or (isinstance(donor, BoolAttr) and donor.value)


def _memory_kinds(dicts: Sequence[DictAttr]) -> list[str | None]:
    kinds = [d.entries.get("mhlo.memory_kind") for d in dicts]
    return [k.value if isinstance(k, StringAttr) else None for k in kinds]


def _layout(attributes: DictAttr) -> str | None:
    """Return the layout of an argument or result; None where it is the usual one or may be."""
    layout = attributes.entries.get("mhlo.layout_mode")
    return layout.value if isinstance(layout, StringAttr) and layout.value.startswith("{") else None


def _argument_name(value: Value) -> str:
    """Return the name that the location of an argument gives it, as JAX writes: `"params['w']"`."""
    text = value.location.resolved
    if text.startswith('"') and text.endswith('"') and text.count('"') == 2:
        return unquote(text)
    return ""


def _result_name(attribute: Attribute | None) -> str:
    return attribute.value if isinstance(attribute, StringAttr) else ""
