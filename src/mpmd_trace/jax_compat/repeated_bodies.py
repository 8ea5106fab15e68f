"""Running passes on a function of many ops that have the same few regions, written and read back once each.

To print and read every region would take longer than the passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.jax_compat.mlir import _parse, _run, module_to_generic, new_context

#: The name of ops that stand for fragments with the region of an earlier one: an op with results that may be anything.
#: For one of no dialect, the bindings would look for a Python module of that dialect, each time.
REPEATED = "builtin.unrealized_conversion_cast"


class Changes(NamedTuple):
    """The changes of a numbered op by passes."""

    #: The new text of each attribute that changed; None for one that is gone.
    attributes: dict[str, str | None]
    #: Which of the printed regions the op has; None if it has none.
    region: int | None


class Run(NamedTuple):
    """A module after passes, with the changes of its numbered ops."""

    #: The module in generic form.  With `changes`, the function has in place of its ops one op per distinct region.
    text: str
    #: By number, in order, those of the ops that are left; None if there are new ops.
    changes: dict[int, Changes] | None
    diagnostics: list[Diagnostic]


def run_on_numbered(generic: str, pipeline: str, function: str, attribute: str, regions: Mapping[int, Hashable]) -> Run:
    """Run passes that decide on attributes; raises `MpmdError` when one fails.

    Args:
        generic: the module. An op called `REPEATED`, with the operands, attributes and types of a fragment but without
            a region, stands for one with the region of the first op for which `regions` has the same.
        pipeline: the passes.
        function: the name of a function of one block, in which `attribute` numbers all ops but the terminator.
        attribute: a discardable attribute, an integer.
        regions: by number, something that is equal for ops with equal regions.  These have at most one region, of
            one block.  Two of them count as equal afterwards if their ops have the same names and shardings.
    """
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    with new_context(allow_unregistered=True) as context:
        module = _parse(generic, context, "-")
        block = _block_of(module, function)
        with context, ir.Location.unknown():
            _repeat(block, attribute, regions)
        before = {number: _attributes(op) for number, op in _numbered(block, attribute) if number is not None}
        diagnostics = _run(module, pipeline, context)
        block = _block_of(module, function)
        ops = list(_numbered(block, attribute))
        if any(number is None for number, _ in ops[:-1]):
            return Run(module_to_generic(module), None, diagnostics)
        changes: dict[int, Changes] = {}
        texts: dict[Any, str | None] = {None: None}
        known: dict[Hashable, int] = {}
        holders: list[Any] = []
        for number, op in ops[:-1]:
            assert number is not None
            old, new = before[number], _attributes(op)
            changed = [n for n in {**old, **new} if n not in old or n not in new or old[n] != new[n]]
            for value in map(new.get, changed):
                if value not in texts:
                    texts[value] = str(value)
            region = None
            if number in regions:
                key = regions[number], tuple(_look(op))
                region = known.setdefault(key, len(known))
                if region == len(holders):
                    holders.append(op)
            changes[number] = Changes({name: texts[new.get(name)] for name in changed}, region)
        with ir.Location.unknown(context):
            shown = [ir.Operation.create("mpmd.fragment", regions=1) for _ in holders]
        for op, holder in zip(shown, holders, strict=True):
            holder.regions[0].blocks[0].append_to(op.regions[0])
        for _, op in reversed(ops):
            op.erase()
        for op in shown:
            block.append(op)
        return Run(module_to_generic(module), changes, diagnostics)


def _repeat(block: Any, attribute: str, regions: Mapping[int, Hashable]) -> None:
    """Replace ops called `REPEATED` by fragments with regions."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    first: dict[Hashable, Any] = {}
    for number, op in _numbered(block, attribute):
        if number is None or number not in regions:
            continue
        holder: Any = first.setdefault(regions[number], op)
        if op.name != REPEATED:
            continue
        types = [result.type for result in op.results]
        with op.location, ir.InsertionPoint(op):
            copy = ir.Operation.create("mpmd.fragment", types, list(op.operands), _attributes(op), regions=1)
        holder.clone(ip=False).regions[0].blocks[0].append_to(copy.regions[0])
        for old, new in zip(op.results, copy.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def _block_of(module: Any, function: str) -> Any:
    for op in module.operation.regions[0].blocks[0].operations:
        attributes = op.operation.attributes
        if "sym_name" in attributes and attributes["sym_name"].value == function:
            return op.operation.regions[0].blocks[0]
    raise AssertionError(f"no function @{function}")


def _numbered(block: Any, attribute: str) -> list[tuple[int | None, Any]]:
    result = []
    for view in block.operations:
        op = view.operation
        attributes = op.attributes
        result.append((attributes[attribute].value if attribute in attributes else None, op))
    return result


def _attributes(op: Any) -> dict[str, Any]:
    attributes = op.attributes
    named = [attributes[i] for i in range(len(attributes))]
    return {n.name: n.attr for n in named}


def _look(fragment: Any) -> list[Any]:
    """Return the names and shardings of a fragment and of the ops in it, which are not the same everywhere."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    entries: list[Any] = []

    def visit(op: Any) -> Any:
        name, attributes = op.name, op.attributes
        entries.append(name)
        if "sdy.sharding" in attributes:
            entries.append(attributes["sdy.sharding"])
        # A constant is the same everywhere, and jaxlib cannot read numbers of some types, such as complex ones.
        if name.startswith("sdy.") and name != "sdy.constant":
            entries.extend(_attributes(op).values())
        return ir.WalkResult.ADVANCE

    fragment.walk(visit)
    return entries
