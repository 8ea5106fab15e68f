"""Checks the rules of the mpmd dialect (and those of functions, symbols and SSA form) on our IR.

    problems = verify(module)     # a list of diagnostics; empty for a valid module

The answer is MLIR's on the printed module: the first problem of each function (and of each fragment of a
function that has no other problem), at the same ops.  Only ops of other dialects are taken for valid.  Frozen
bodies are looked at once, however many ops share them.

Source: the verifiers of the mpmd dialect (Shardy).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpmd_trace.diagnostics.messages import Diagnostic, Note
from mpmd_trace.ir.attributes import StringAttr
from mpmd_trace.ir.bodies import remembered, remembers
from mpmd_trace.ir.core import Block, BlockArg, Op, Region, Value
from mpmd_trace.ir.diagnostics import describe
from mpmd_trace.ir.ops import CallOp, FragmentCallOp, FuncOp, Module
from mpmd_trace.ir.verify_ops import (
    Problem,
    block_problem,
    call_problem,
    fragment_call_problem,
    func_call_problem,
    op_problem,
    parent_problem,
)

#: Ops whose regions see nothing of what is around them.
ISOLATED = frozenset(
    {"builtin.module", "func.func", "mpmd.fragment", "mpmd.named_computation", "sdy.manual_computation"}
)


def verify(module: Module) -> list[Diagnostic]:
    """Return what is wrong with the module, as errors; empty when it is valid."""
    return _Verifier(module).run()


class _Verifier:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.found: list[Diagnostic] = []

    def run(self) -> list[Diagnostic]:
        if self.isolated(self.module.op, None) and self.symbols(self.module.op):
            self.ssa(self.module.op)
        return self.found

    def report(self, problem: Problem) -> bool:
        """Record a problem.  Gives False, "not valid"."""
        op = problem.where
        self.found.append(Diagnostic("error", problem.message, op.loc, tuple(problem.notes), describe(op)))
        return False

    # Ops.

    def isolated(self, op: Op, function: FuncOp | None) -> bool:
        """Return an op whose regions stand for themselves: first everything in it, then the isolated ops in it."""
        if isinstance(op, FuncOp):
            function = op
        problem = op_problem(op, None if op is function else function)
        if problem is not None:
            return self.report(problem)
        inner: list[Op] = []
        for region in op.regions:
            problem = self.region(region, op, function, inner)
            if problem is not None:
                return self.report(problem)
        good = [self.isolated(nested, function) for nested in inner]
        return all(good)

    def region(self, region: Region, parent: Op, function: FuncOp | None, inner: list[Op]) -> Problem | None:
        """Return the first problem of the ops in a region; isolated ops are left for later (`inner`)."""
        if region.frozen and parent is not function:
            # A body has no relation to the function around it, so its problems are the same wherever it is.
            def make() -> tuple[Problem | None, tuple[Op, ...]]:
                later: list[Op] = []
                return self.blocks(region, parent, None, later), tuple(later)

            problem, later = remembered(region, ("verified", parent.name), make)
            inner += later
            return problem
        return self.blocks(region, parent, function, inner)

    def blocks(self, region: Region, parent: Op, function: FuncOp | None, inner: list[Op]) -> Problem | None:
        for block in region.blocks:
            problem = block_problem(block, parent)
            if problem is not None:
                return problem
            for op in block:
                if op.name in ISOLATED:
                    # Its own parent decides before anything in it is looked at.
                    problem = parent_problem(op, parent)
                    if problem is not None:
                        return problem
                    inner.append(op)
                    continue
                problem = op_problem(op, function, parent)
                for nested in op.regions if problem is None else ():
                    problem = problem or self.region(nested, op, function, inner)
                if problem is not None:
                    return problem
        return None

    # Symbols.

    def symbols(self, table: Op) -> bool:
        """Symbols are defined once; callees exist and fit."""
        known: dict[str, Op] = {}
        for region in table.regions:
            for block in region.blocks:
                for op in block:
                    if op.name == "builtin.module" and not self.symbols(op):
                        return False
                    name = op.attr("sym_name")
                    if not isinstance(name, StringAttr):
                        continue
                    if name.value in known:
                        note = Note("it is defined here, too", known[name.value].loc)
                        return self.report(Problem(op, f"@{name.value} is defined twice", [note]))
                    known[name.value] = op
        for op in _symbol_users(table):
            problem = None
            if isinstance(op, CallOp):
                problem = call_problem(op, known)
            elif isinstance(op, FragmentCallOp):
                problem = fragment_call_problem(op, known)
            elif op.name == "func.call":
                problem = func_call_problem(op, known)
            if problem is not None:
                return self.report(problem)
        return True

    # Values.

    def ssa(self, op: Op) -> bool:
        """Values are defined before they are used, and not used where they cannot be seen."""
        good = True
        for region in op.regions:
            for block in region.blocks:
                for nested in block:
                    if nested.name == "builtin.module":
                        good = self.ssa(nested) and good
                        continue
                    for body in nested.regions:
                        problem = self.visibility(body)
                        good = (problem is None or self.report(problem)) and good
        return good

    def visibility(self, region: Region) -> Problem | None:
        """Return the first use, in an isolated region, of a value that cannot be seen there."""

        def make() -> Problem | None:
            bodies: list[Region] = []
            problem = _check_region(region, set(), bodies)
            for body in bodies:
                problem = problem or self.visibility(body)
            return problem

        return remembered(region, "visible", make) if region.frozen else make()


_USERS = ("mpmd.call", "mpmd.fragment_call", "func.call")


def _symbol_users(table: Op) -> Iterator[Op]:
    """Ops that refer to symbols of the table, in the order in which MLIR looks at them: last region first."""
    work = list(table.regions)
    while work:
        region = work.pop()
        if region.frozen:
            yield from _users_in(region)
            continue
        for block in region.blocks:
            for op in block:
                if op.name in _USERS:
                    yield op
                if op.name != "builtin.module":
                    work += op.regions


@remembers
def _users_in(body: Region) -> Sequence[Op]:
    return [op for op in body.walk(post_order=False) if op.name in _USERS]


def _check_region(region: Region, seen: set[Value], bodies: list[Region]) -> Problem | None:
    """Check uses in a region; `seen` holds what it may use of its surroundings."""
    graph = region.is_graph
    if len(region.blocks) == 1:
        added: list[Value] = []
        problem = _check_block(region.blocks[0], seen, added, bodies, graph)
        seen.difference_update(added)
        return problem
    dominators = _dominators(region)
    values = {block: [*block.args, *(result for op in block for result in op.results)] for block in region.blocks}
    for block in region.blocks:
        above = dominators.get(block)
        if above is None:
            continue  # never executed: anything goes
        own: list[Value] = [v for other in above if other is not block for v in values[other]]
        seen.update(own)
        problem = _check_block(block, seen, own, bodies, graph)
        seen.difference_update(own)
        if problem is not None:
            return problem
    return None


def _check_block(
    block: Block, seen: set[Value], added: list[Value], bodies: list[Region], graph: bool
) -> Problem | None:
    """Check uses in a block; `graph`: its ops may refer to each other in any order."""
    values: list[Value] = list(block.args)
    if graph:
        values += [result for op in block for result in op.results]
    seen.update(values)
    added += values
    for op in block:
        for i, value in enumerate(op.operands):
            if value not in seen:
                return _invisible(op, i, value)
        for region in op.regions:
            if op.name in ISOLATED:
                bodies.append(region)
                continue
            problem = _check_region(region, seen, bodies)
            if problem is not None:
                return problem
        seen.update(op.results)
        added += op.results
    return None


def _invisible(op: Op, index: int, value: Value) -> Problem:
    source = value.defining_op
    place = Note("the value is defined here", source.loc if source is not None else value.location)
    if source is op:
        return Problem(op, f"operand {index} of '{op.name}' is a result of the op itself", [place])
    same = value.block is op.block and not isinstance(value, BlockArg)
    reason = "is defined later" if same else "cannot be seen here"
    return Problem(op, f"operand {index} of '{op.name}' {reason}", [place])


def _dominators(region: Region) -> dict[Block, set[Block]]:
    """For each block that can be reached: the blocks on every way to it, itself included."""
    entry = region.blocks[0] if region.blocks else None
    if entry is None:
        return {}
    followers = {b: list(b.last.successors) if b.last is not None else [] for b in region.blocks}
    order, work = [entry], [entry]
    reached = {entry}
    while work:
        for after in followers[work.pop()]:
            if after not in reached and after in followers:
                reached.add(after)
                order.append(after)
                work.append(after)
    before: dict[Block, list[Block]] = {b: [] for b in order}
    for block in order:
        for after in followers[block]:
            if after in before:
                before[after].append(block)
    above = {block: set(order) for block in order}
    above[entry] = {entry}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            new = set.intersection(*(above[b] for b in before[block])) | {block}
            if new != above[block]:
                above[block] = new
                changed = True
    return above
