"""Queries for parts of a module: inputs, results, lines of the user's files, names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.messages import MpmdError, did_you_mean
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.ops import AssignOp, FragmentOp, Module, UnassignOp

#: An op or a value, and the fragment that it is in.
Thing = tuple[Value | Op, FragmentOp | None]


class UnknownName(MpmdError):
    """A question names nothing in the module."""


def things_of(module: Module) -> Iterator[Thing]:
    """Yield inputs and ops of MPMD functions, each with the fragment that it is in."""
    for function in module.mpmd_functions:
        if function.is_declaration:
            continue
        for arg in function.body.args:
            yield arg, None
        for op in function.regions[0].walk(post_order=False):
            if isinstance(op, FragmentOp):
                yield op, None
                for nested in op.body.walk():
                    if not nested.is_terminator:
                        yield nested, op
            elif op.block is not None and not op.block.frozen and not op.is_terminator:
                yield op, None


def location_of(thing: Value | Op) -> Location:
    """Return where a value or an op comes from."""
    return thing.loc if isinstance(thing, Op) else thing.location


def find(module: Module, question: str) -> list[Thing]:
    """Return what `question` names: `input 0`, `result 1`, `file:line`, a name of the user, or of an op."""
    numbered = re.fullmatch(r"(?:(input|argument|arg)|result|output) ?(\d+)", question.strip())
    if numbered is not None:
        return _numbered(module, "result" if numbered.group(1) is None else "input", int(numbered.group(2)))
    position = re.fullmatch(r"(.*?):(\d+)(?::(\d+))?", question.strip())

    def at(loc: Location) -> bool:
        if position is None:
            return False
        file, line, column = position.groups()
        return any(
            f.endswith(file) and n == int(line) and (column is None or c == int(column)) for f, n, c in loc.files
        )

    def called(loc: Location) -> bool:
        name = loc.name
        return name is not None and (name == question or name.rsplit("/", 1)[-1] == question)

    things = list(things_of(module))
    named = [t for t in things if question in _names(t[0])]
    if named:
        return named
    for fits in (at, called):
        matching = [t for t in things if fits(location_of(t[0]))]
        if matching:  # assigns and unassigns only where nothing else fits
            return [t for t in matching if not isinstance(t[0], AssignOp | UnassignOp)] or matching
    return [t for t in things if isinstance(t[0], Op) and t[0].name in (question, f"stablehlo.{question}")]


def _numbered(module: Module, kind: str, index: int) -> list[Thing]:
    """Return an input or result of the functions that are called from outside."""
    entries = [f for f in module.mpmd_functions if f.is_entry_point and not f.is_declaration]
    ends = [(f, f.body.args if kind == "input" else f.body.terminator.operands) for f in entries]
    result = [made_by(values[index]) for _, values in ends if index < len(values)]
    if not result:
        known = ", ".join(f"{len(values)} (@{f.sym_name})" for f, values in ends) or "none"
        raise UnknownName(f"there is no {kind} {index}; {kind}s are counted from 0, and there are {known}")
    return result


def made_by(value: Value) -> Thing:
    """Return the op, or the input, that a value is of, whatever it is assigned to on the way."""
    op = value.defining_op
    while isinstance(op, AssignOp | UnassignOp):
        value = op.operand(0)
        op = value.defining_op
    return (value if op is None else op), None


def _names(thing: Value | Op) -> list[str]:
    """Return the names of the named computation or tensor that an op is, as the user gave them."""
    if isinstance(thing, FragmentOp):
        return [name for origin in thing.origin for name in (origin.name, origin.short.strip('"'))]
    return []


def close_names(module: Module, question: str) -> str:
    """Return the end of a message: what may have been meant, and the names that there are."""
    known: dict[str, None] = {}
    computations: dict[str, None] = {}
    for thing, _ in things_of(module):
        loc = location_of(thing)
        if isinstance(thing, FragmentOp):
            computations.update(dict.fromkeys(origin.name for origin in thing.origin))
        if loc.name is not None:
            known[loc.name] = None
            known[loc.name.rsplit("/", 1)[-1]] = None
        if loc.file is not None:
            known[f"{loc.file[0].rsplit('/', 1)[-1]}:{loc.file[1]}"] = None
    entries = [f for f in module.mpmd_functions if f.is_entry_point and not f.is_declaration]
    inputs = [arg.location.name for f in entries for arg in f.body.args if arg.location.name is not None]
    meant = did_you_mean(question, [*computations, *known], cutoff=0.4) or "."
    return meant + _listed("names", computations) + _listed("inputs", inputs)


def _listed(what: str, names: Iterable[str]) -> str:
    first, *rest = [*names][:13] or [""]
    more = ", ..." if len(rest) == 12 else ""
    return f" The {what} are {', '.join([first, *rest[:11]])}{more}." if first else ""
