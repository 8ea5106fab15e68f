"""From an exported module to its execution plan."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from mpmd_trace.backend.dtypes import dtype_of, tensor_type
from mpmd_trace.backend.plan import Free, Instruction, Place, Plan, ProgramSpec, Run, Slot, Transfer
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.diagnostics.spelling import unquote
from mpmd_trace.ir.attributes import Attribute, BoolAttr, DictAttr, StringAttr, TopologyAttr, UserOriginAttr
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import SHARDED_STATE, FragmentCallOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.shardings import local_shape
from mpmd_trace.ir.types import MeshTensorType, TensorType, Type, mesh_tensor
from mpmd_trace.ir.work import flops


def make_plan(module: Module, function: str = "main", owners: Mapping[str, str] | None = None) -> Plan:
    """Return the plan of an exported module.

    Instructions of one mesh keep the order of the module.  Between meshes the order is that of a simulation,
    so that one thread that issues them keeps every mesh busy.

    Args:
        module: `@main` consists of fragment calls and transfers.
        function: the function to plan.
        owners: for each mesh the first one with the same devices; by default what the function says.

    Raises:
        MpmdError: when the module is not exported (all offending ops at once) or a callee is missing.
    """
    main = module.lookup(function)
    if main is None or main.is_declaration:
        names = ", ".join("@" + f.sym_name for f in module.functions) or "none"
        raise MpmdError(f"the module has no function @{function} to run; its functions: {names}")
    topology = main.topology
    if topology is None:
        raise MpmdError(f"@{function} has no topology: it is not an MPMD program. Run jax.jit programs with jax.jit")
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
    for op in main.body:
        if op is main.body.terminator:
            continue
        if isinstance(op, FragmentCallOp):
            callee = callees.get(op.callee)
            if callee is None or callee.is_declaration:
                problems.error(op, f"there is no function @{op.callee} to call")
            elif op.mesh not in topology.meshes:
                problems.error(op, f"the topology has no mesh '{op.mesh}'")
        elif not isinstance(op, TransferOp):
            problems.error(
                op,
                f"'{op.name}' is not executable; only fragment calls and transfers are. Run the export "
                "passes (mpmd-lower-to-fragment-calls) first",
            )
    if problems.found:
        raise MpmdError(problems.found)


@dataclasses.dataclass(slots=True)
class _Draft:
    """An instruction before slots are numbered: its op, and roots of its operands."""

    op: Op
    inputs: list[Value]
    start: float
    order: int


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
        self.place_numbers: dict[Place, int] = {}
        self.known: dict[tuple[Type, str | None, str | None], _Known] = {}  # by what a value says
        self.layouts: dict[Value, str | None] = {}  # of the values that are returned
        self.number: dict[Value, int] = {}
        self.programs: dict[tuple[object, ...], ProgramSpec] = {}
        self.origins: dict[tuple[UserOriginAttr, ...], tuple[str, tuple[tuple[str, int], ...]]] = {}
        self.signatures: dict[str, tuple[list[str | None], list[int]]] = {}

    def plan(self) -> Plan:
        main = self.main
        arg_names = [_argument_name(v) for v in main.args]
        declared = _memory_kinds(main.arg_attrs)
        donated = [_is_donated(d.entries) for d in main.arg_attrs]
        self.layouts = dict(zip(main.args, map(_layout, main.arg_attrs), strict=True))
        self._add(main.args, declared, arg_names)
        wanted = list(map(_layout, main.res_attrs))
        drafts = self._drafts()
        drafts.sort(key=lambda d: (d.start, d.order))
        groups = _grouped(drafts)
        returned = [self._root(v) for v in main.returned]
        for value, layout in zip(returned, wanted, strict=True):
            self.layouts.setdefault(value, layout)
        last: dict[Value, int] = {}
        for at, group in enumerate(groups):
            for draft in group:
                for value in draft.inputs:
                    last[value] = at
        kept = set(returned)
        args = dict(zip(main.args, donated, strict=True))
        instructions: list[Instruction] = []
        for at, group in enumerate(groups):
            values = group[0].inputs if len(group) == 1 else [v for d in group for v in d.inputs]
            inputs = tuple([self.number[v] for v in values])
            different = dict.fromkeys(values)
            dead = [v for v in different if last[v] == at and v not in kept]
            op = group[0].op
            if isinstance(op, FragmentCallOp):
                given = {v for v in dead if args.get(v, True)}
                if len(different) < len(values):
                    given.difference_update([v for v, times in Counter(values).items() if times > 1])
                donated_here = tuple([i for i in self._signature(op.callee)[1] if values[i] in given])
                instructions.append(self._run(op, inputs, donated_here))
            else:
                instructions.append(self._transfer([cast(TransferOp, d.op) for d in group], inputs))
            dead += [r for d in group for r in d.op.results if r not in last and r not in kept]
            free = sorted([self.number[v] for v in dead])
            if free:
                instructions.append(Free(tuple(free)))
        results = tuple(self._laid_out(returned, wanted, instructions))
        unused = [v for v in main.args if v not in last and v not in kept]
        if unused:
            instructions.insert(0, Free(tuple(self.number[v] for v in unused)))
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

    def _root(self, value: Value) -> Value:
        return self.root.get(value, value)

    def _add(
        self, values: Sequence[Value], kinds: Sequence[str | None], names: Sequence[str] | None = None
    ) -> tuple[int, ...]:
        """New slots for the values; the kinds are their memories where types say none."""
        slots, places, known, layouts = self.slots, self.places, self.known, self.layouts
        first = len(slots)
        for value, kind, name in zip(values, kinds, names or [""] * len(values), strict=True):
            key = value.type, kind, layouts.get(value)
            number, (type, kind, layout), size = known.get(key) or self._learn(*key)
            places.append(number)
            slots.append(Slot(len(slots), type, kind, size, name, layout))
        result = range(first, len(slots))
        self.number.update(zip(values, result, strict=True))
        return tuple(result)

    def _learn(self, type: Type, kind: str | None, layout: str | None) -> _Known:
        plain = _plain(cast(MeshTensorType, type))
        place = plain, plain.memory_kind or kind, layout
        number = self.place_numbers.setdefault(place, len(self.place_numbers))
        known = self.known[type, kind, layout] = number, place, self._bytes(plain)
        return known

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
        return -(-count * _bits(tensor) // 8)

    # Order.

    def _drafts(self) -> list[_Draft]:
        """Return the instructions with the time at which each would start if every mesh ran on its own."""
        ready: dict[Value, float] = dict.fromkeys(self.main.args, 0.0)
        owners = self.owners
        free: dict[str, float] = dict.fromkeys(owners.values(), 0.0)
        bodies = {name: function.regions[0] for name, function in self.callees.items()}
        runs = [bodies[op.callee] for op in self.main.body if isinstance(op, FragmentCallOp)]
        costs = {body: 1.0 + flops(body, self.module) for body in dict.fromkeys(runs)}  # equal functions share bodies
        on_its_way = _ON_ITS_WAY * sum(map(costs.__getitem__, runs)) / max(1, len(runs))
        drafts: list[_Draft] = []
        for order, op in enumerate(self.main.body):
            inputs = [self._root(v) for v in op.operands] if self.root else op.operands
            start = max(map(ready.__getitem__, inputs), default=0.0)
            if isinstance(op, FragmentCallOp):
                start = max(start, free[owners[op.mesh]])
                end = free[owners[op.mesh]] = start + costs[bodies[op.callee]]
            elif isinstance(op, TransferOp):
                end = start
                if _is_alias(op) or self._shares(op, inputs[0]):
                    self.root[op.results[0]] = inputs[0]
                    continue
                if owners[op.source_type.mesh] != owners[op.target_type.mesh]:
                    end += on_its_way
                if op.comes_back:  # not before it is wanted: it was away to leave its memory to others
                    end = start = max(start, free[owners[op.target_type.mesh]])
            else:
                continue
            ready.update(dict.fromkeys(op.results, end))
            drafts.append(_Draft(op, inputs, start, order))
        return drafts

    def _shares(self, op: TransferOp, root: Value) -> bool:
        """Return whether the transfer gives the buffer that it takes, to a mesh of the same devices.

        Results of the step have buffers of their own: callers may donate one of them.
        """
        source, target, meshes = op.source_type, op.target_type, self.topology.meshes
        if self.owners[source.mesh] != self.owners[target.mesh] or meshes[source.mesh] != meshes[target.mesh]:
            return False
        if op.results[0] in self.returned or self.layouts.get(root) is not None:
            return False
        kind = self.slots[self.number[root]].memory_kind if root in self.number else source.memory_kind
        return {source.memory_kind, target.memory_kind, kind} <= {None, "device"} and _same_sharding(source, target)

    # Instructions.

    def _signature(self, callee: str) -> tuple[list[str | None], list[int]]:
        """Return the declared memory of each result, and the arguments that may be donated."""
        result = self.signatures.get(callee)
        if result is None:
            function = self.callees[callee]
            donated = [i for i, d in enumerate(function.arg_attrs) if _is_donated(d.entries)]
            result = self.signatures[callee] = _memory_kinds(function.res_attrs), donated
        return result

    def _run(self, op: FragmentCallOp, inputs: tuple[int, ...], donated: tuple[int, ...]) -> Run:
        out_kinds, _ = self._signature(op.callee)
        outputs = self._add(op.results, out_kinds)
        places = self.places
        in_places = tuple(map(places.__getitem__, inputs))
        if self.shared and any(self.slots[s].mesh != op.mesh for s in inputs):
            in_places = tuple(self._place_on(op.mesh, s) for s in inputs)
        key = (op.callee, op.mesh, in_places, tuple(map(places.__getitem__, outputs)), donated)
        program = self.programs.get(key)
        if program is None:
            known = list(self.place_numbers)
            in_types = tuple(map(known.__getitem__, in_places))
            out_types = tuple(self.slots[s].place for s in outputs)
            program = ProgramSpec(len(self.programs), op.callee, op.mesh, in_types, out_types, donated)
            self.programs[key] = program
        names = op.origin
        origin = self.origins.get(names)
        if origin is None:
            label = ", ".join(o.short.replace('"', "") for o in names) or "inferred"
            origin = self.origins[names] = label, tuple((o.name, o.transpose_count) for o in names)
        return Run(program.number, op.mesh, inputs, outputs, donated, *origin)

    def _place_on(self, mesh: str, number: int) -> int:
        """Return the number of the place that a value has as an argument of a program on `mesh`."""
        slot = self.slots[number]
        if slot.mesh == mesh:
            return self.places[number]
        type = slot.type
        here = mesh_tensor(mesh, type.tensor, type.sharding, type.memory_kind)
        return self._learn(here, slot.memory_kind, None)[0]

    def _transfer(self, ops: Sequence[TransferOp], inputs: tuple[int, ...]) -> Transfer:
        outputs = self._add([op.results[0] for op in ops], [None] * len(ops))
        return Transfer(ops[0].source_type.mesh, ops[0].target_type.mesh, inputs, outputs)


def _grouped(drafts: Sequence[_Draft]) -> list[list[_Draft]]:
    """Adjacent transfers between the same two meshes together; everything else alone."""
    groups: list[list[_Draft]] = []
    link: tuple[str, str] | None = None
    produced: set[Value] = set()
    for draft in drafts:
        op = draft.op
        this = (op.source_type.mesh, op.target_type.mesh) if isinstance(op, TransferOp) else None
        if this is not None and this == link and not produced.intersection(draft.inputs):
            groups[-1].append(draft)
        else:
            groups.append([draft])
            produced = set()
        produced.update(op.results)
        link = this
    return groups


def _is_alias(op: TransferOp) -> bool:
    """Return whether the transfer changes nothing: the same mesh, sharding and memory."""
    source, target = op.source_type, op.target_type
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


def _bits(tensor: TensorType) -> int:
    if tensor.element in ("i1", "i2", "i4", "ui2", "ui4"):
        return 8 if tensor.element == "i1" else int(tensor.element[-1])
    return dtype_of(tensor).itemsize * 8


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
