"""Explanations of placements: why is this value on that mesh?

    explanation = explain(module, "model.py:12")     # or an input ("input 0"), or a name
    print(explanation)

The module is one whose named computations have become fragments and assigns (after
`mpmd-introduce-transfers`, before mesh inference).  The answer is read off the sets that mesh inference
computes: the chain of uses that asks for the mesh, and the sources that allow it.  With `placement="cut"` it is
one before `mpmd-place`, and `CutExplainer` tells which bytes decide.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.diagnostics.source_files import is_users
from mpmd_trace.frontend.errors import at_users_place, users_place
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Value
from mpmd_trace.ir.ops import AssignOp, FragmentOp, FuncOp, Module, NamedComputationOp, UnassignOp
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.infer_mesh_assign_mesh_func_leaves import InferMeshAssignMeshFuncLeaves
from mpmd_trace.passes.import_.infer_mesh_assign_using_input_output_constraints import (
    InferMeshAssignUsingInputOutputConstraints,
)
from mpmd_trace.passes.import_.mesh_flow import Flow, because, is_user_label, mesh_list, place
from mpmd_trace.passes.import_.mesh_sets import MeshSets, is_meshless, names, src_of_op
from mpmd_trace.passes.manager import PassManager, PassRun
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.report.cut_explainer import CutExplainer, describe
from mpmd_trace.report.query import Thing, UnknownName, close_names, find, location_of, made_by, things_of

_ANALYSIS = ("mpmd-infer-mesh-populate-use-set", "mpmd-infer-mesh-populate-src-set")


@dataclasses.dataclass(frozen=True)
class Chain:
    """The steps between a value and what asks for it on `mesh`, or gives it there."""

    mesh: str | None
    steps: tuple[str, ...]
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Placement:
    """The place of one value or op, and why it is there.

    `needed` leads from it to the uses that ask for a mesh, `available` back to what it is computed from, except for
    `untold` chains that are longer.
    """

    what: str
    location: Location
    meshes: tuple[str, ...]
    rule: str
    needed: tuple[Chain, ...] = ()
    available: tuple[Chain, ...] = ()
    untold: int = 0

    def __str__(self) -> str:
        verb = "is on" if self.meshes else "has"
        lines = [f"{self.what}{place(self.location)} {verb} {mesh_list(self.meshes)}", f"  {self.rule}"]
        needed, available = ("needed by:", "->", self.needed, 0), ("computed from:", "<-", self.available, self.untold)
        for title, arrow, chains, untold in (needed, available):
            if chains:
                lines.append(f"  {title}")
            shown = [chains[i] for i in _near([chain.mesh for chain in chains])]
            for chain in shown:
                where = "" if chain.mesh is None else f" on {quote(chain.mesh)}"
                why = f" because of {chain.reason}" if chain.reason else ""
                lines.append(f"    {f' {arrow} '.join(_short(chain.steps))}{where}{why}")
            if more := len(chains) - len(shown) + untold:
                lines.append(f"    and {more} more, farther away (all of them: --json)")
        return "\n".join(lines)


#: How many chains of a placement are printed, besides the first of each mesh, and how many steps of each.
_CHAINS, _STEPS = 5, 8


def _near(meshes: Sequence[str | None]) -> list[int]:
    """Return which chains to these meshes are the first, or the first of their mesh."""
    first = {mesh: i for i, mesh in reversed(list(enumerate(meshes))) if mesh is not None}
    return sorted({*range(min(_CHAINS, len(meshes))), *first.values()})


def _short(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Return the steps, without the middle ones of many."""
    if len(steps) <= _STEPS:
        return steps
    half = _STEPS // 2
    return (*steps[:half], f"... {len(steps) - 2 * half} more ...", *steps[-half:])


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Everything that was asked for: one placement per value that fits the question."""

    question: str
    placements: tuple[Placement, ...]

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.placements)


def explain(
    module: Module,
    question: str,
    *,
    infer_transfers: bool = True,
    same_mesh: Sequence[tuple[int, int]] = (),
    placement: str = "reference",
    most: int = 10,
) -> Explanation:
    """Tell why values are on their meshes; `module` is not changed.

    Args:
        module: a module before mesh inference.
        question: `input 2` or `result 2` of the main function, a source position (`model.py:12`, `model.py:12:4`, line
            numbers of the MLIR text as `-:12`), or a name that occurs in the location of an op or input
            (`params['w']`, `jit(f)/add`, `add`).
        infer_transfers: as the option of mesh inference of that name.
        same_mesh: inputs and outputs of the main function that are to share a mesh.
        placement: how unnamed code is placed: "reference" or "cut".
        most: explain at most that many of the values that fit.

    Raises:
        UnknownName: when nothing fits; the message lists names that come close.
    """
    copy = module.clone()
    for thing, _ in things_of(copy):
        if isinstance(thing, NamedComputationOp):
            name = thing.origin.name
            raise MpmdError(
                f"the named computation '{name}' has no mesh yet, so nothing is known about meshes; run mpmd-trace "
                f"opt FILE -mpmd-map-named-ops-to-mpmd-ops='assignment={name}@MESH,...' "
                "-mpmd-introduce-transfers first, and explain what it prints"
            )
    targets = find(copy, question)
    if not targets:
        raise UnknownName(f"nothing in the module is called or located at '{question}'{close_names(copy, question)}")
    return Explanation(question, _Explainer(copy, infer_transfers, same_mesh, placement).placements(targets[:most]))


#: The edges of a program up to which each of its arguments and results is priced on other meshes, too.
_PRICED = 400
#: How many ops of a place are looked at, and how many in all.
_OF_A_PLACE, _PLACES = 8, 200


def rules_of(request: PartitionRequest) -> dict[str, Any]:
    """Return what `explain` has to know of how a program is placed."""
    options = request.options
    infers = bool(options.mpmd_infer_transfers)
    return {"infer_transfers": infers, "same_mesh": request.same_mesh, "placement": options.placement}


def explain_ends(module: Module, request: PartitionRequest) -> tuple[Placement, ...]:
    """Return where each input, and then each result, of the main function is, and why; see `explain`.

    Of large programs it does not tell what other meshes would cost, and of many chains only those that are printed.
    """
    copy = module.clone()
    body = copy.main.body
    ends = [made_by(value) for value in (*body.args, *body.terminator.operands)]
    return _Explainer(copy, **rules_of(request), most=_PRICED, brief=True).placements(ends)


def explain_places(module: Module, request: PartitionRequest) -> dict[str, list[Placement]]:
    """Return the mesh of unnamed code, and why, by its place in the user's files (`step.py:12`); see `explain`.

    Of the first ops of the first places one placement for each mesh.
    """
    copy = module.clone()
    by_place: dict[str, list[Thing]] = {}
    for thing, home in things_of(copy):
        if home is not None or not isinstance(thing, Op) or not is_meshless(thing) or not thing.results:
            continue
        file = next((place for place in thing.loc.files if is_users(place[0])), None)
        if file is not None:
            by_place.setdefault(f"{os.path.relpath(file[0])}:{file[1]}", []).append((thing, None))
    places = [(at, thing) for at, things in by_place.items() for thing in things[:_OF_A_PLACE]][:_PLACES]
    explainer = _Explainer(copy, **rules_of(request), most=_PRICED, brief=True)
    placements = explainer.placements([thing for _, thing in places])
    told: dict[str, list[Placement]] = {}
    for (at, _), one in zip(places, placements, strict=True):
        if not any(other.meshes == one.meshes for other in told.setdefault(at, [])):
            told[at].append(one)
    return told


#: By placement: after this pass computations are fragments, and the search for meshes has not begun.
_READY = {"reference": "mpmd-introduce-transfers", "cut": "mpmd-regroup-sums"}


class _Reached(Exception):
    """The pass has run."""


def before_placement(lowered: PartitionedProgram) -> Module | None:
    """Return the module of a program in which values can be explained; None if there are no meshes to choose from.

    It is partitioned up to there.  Raises `MpmdError`.
    """
    request = lowered.request
    reached: list[Module] = []

    def keep(run: PassRun, module: Module) -> None:
        if run.name == _READY[request.options.placement]:
            reached.append(module.clone())
            raise _Reached

    try:
        with contextlib.suppress(_Reached):
            partition_as(lowered.traced.module, request, hooks=[keep], phases="import")
    except MpmdError as error:
        raise at_users_place(error, lowered.config.where) from None
    return reached[0] if reached else None


class _Explainer:
    """Runs the analysis on a module of its own and reads it.

    brief: of the chains of a placement it writes only those that are printed.
    """

    def __init__(
        self,
        module: Module,
        infer_transfers: bool,
        same_mesh: Sequence[tuple[int, int]],
        placement: str,
        most: int | None = None,
        brief: bool = False,
    ) -> None:
        self.module = module
        self.brief = brief
        self.infer_transfers = infer_transfers
        self.constraints = tuple(SameMesh(i, o) for i, o in same_mesh)
        self.cut = CutExplainer(module, self.constraints, most) if placement == "cut" else None

    def placements(self, targets: list[Thing]) -> tuple[Placement, ...]:
        sets = self._inferred(targets) if self.cut is None else [((), None)] * len(targets)
        flow = Flow(MeshSets(self.module))
        back = functools.cache(flow.step_back)
        return tuple(self._placement(*target, flow, back, *known) for target, known in zip(targets, sets, strict=True))

    def _inferred(self, targets: list[Thing]) -> list[tuple[tuple[str, ...], tuple[str, ...] | None]]:
        """Infer meshes; for each thing, what it was needed on and what it could be computed on before that."""
        PassManager(_ANALYSIS, error_is_failure=False).run(self.module)
        before = MeshSets(self.module)
        result = []
        for thing, _ in targets:
            values = _values(thing)
            sources = src_of_op(thing) if isinstance(thing, Op) else before.src_of(thing)
            needed = names(before.use_of(values[0])) if values else ()
            result.append((needed, None if sources is None else names(sources)))
        leaves = InferMeshAssignMeshFuncLeaves(self.infer_transfers, error_limit=-1)
        with contextlib.suppress(MpmdError):  # what could not be placed says so below
            together = InferMeshAssignUsingInputOutputConstraints(self.constraints)
            PassManager([together, leaves, _ANALYSIS[0]], error_is_failure=False).run(self.module)
        return result

    def _placement(
        self,
        thing: Value | Op,
        home: FragmentOp | None,
        flow: Flow,
        back: Callable[[Value], list[Value]],
        wanted: tuple[str, ...],
        possible: tuple[str, ...] | None,
    ) -> Placement:
        what, location = describe(thing), users_place(location_of(thing))
        fragment = home or (thing if isinstance(thing, FragmentOp) else None)
        if fragment is not None:
            rule = f"{describe(fragment)} is assigned to {mesh_list([fragment.mesh])}"
            if home is not None:
                rule = f"it is part of {rule.replace(' is', ', which is', 1)}"
            return Placement(what, location, (fragment.mesh,), rule)
        values = _values(thing)
        typed = [v.type.mesh for v in values if isinstance(v.type, MeshTensorType)]
        if typed:
            rule = "an assignment, or a transfer, puts it there"
            if isinstance(thing, BlockArg) and any(_is_shared(use.owner) for use in thing.uses):
                rule = "it shares a mesh with a result (MeshOfInput)"
            if isinstance(thing, BlockArg) and not thing.has_uses:
                rule = "nothing uses it, so it takes the mesh with the smallest name"
            return Placement(what, location, tuple(dict.fromkeys(typed)), rule)
        chains = tuple(self._forward(values, flow)), *self._backward(thing, back)
        if self.cut is not None:
            places, rule = self.cut.placed(thing)
            return Placement(what, location, places, rule, *chains)
        meshes: dict[str, None] = {}
        for value in values:
            meshes.update(dict.fromkeys(names(flow.sets.needed(value))))
        places = tuple(meshes)
        if isinstance(thing, BlockArg) and _is_input(thing) and len(places) > 1:
            places = (min(places, key=str.encode),)
        if isinstance(thing, Op) and thing.block is None:  # it had no result and is in fragments by now
            places = possible or ()
        rule = _rule(places, tuple(meshes), wanted, possible)
        if isinstance(thing, BlockArg) and places and possible is None and not wanted:
            rule = "nothing with a mesh uses it, so it goes where what is computed from it goes"
        return Placement(what, location, places, rule, *chains)

    def _forward(self, values: list[Value], flow: Flow) -> Iterator[Chain]:
        """For each mesh one shortest chain to a use that asks for it, a use that the user named if any."""
        chosen: dict[str, Chain] = {}
        by_user: set[str] = set()
        before = _reached(values, flow.step_forward)
        for value in before:
            for use in value.uses:
                user = use.owner
                if not isinstance(user, AssignOp) or user.mesh_type.mesh in by_user:
                    continue
                mesh = user.mesh_type.mesh
                named = user.label is not None and is_user_label(user.label)
                if mesh not in chosen or named:
                    reason = because([user.label]) if user.label else ""
                    chosen[mesh] = Chain(mesh, (*_path(value, before), f"needed{place(users_place(user.loc))}"), reason)
                if named:
                    by_user.add(mesh)
        yield from chosen.values()

    def _backward(self, thing: Value | Op, step: Callable[[Value], list[Value]]) -> tuple[tuple[Chain, ...], int]:
        """Return a shortest chain to everything on a mesh that it is computed from, and how many are left out."""
        before = _reached(thing.operands if isinstance(thing, Op) else step(thing), step)
        sources: list[tuple[str | None, Value]] = []
        for value in before:
            if isinstance(value, OpResult) and isinstance(value.op, UnassignOp):
                sources.append((value.op.mesh_type.mesh, value))
            elif isinstance(value, BlockArg) and _is_input(value):
                sources.append((None, value))
        chosen = [sources[i] for i in _near([mesh for mesh, _ in sources])] if self.brief else sources
        what = describe(thing)
        chains = []
        for mesh, value in chosen:
            path = _path(value, before)
            if isinstance(value, OpResult):
                path = (*path[:-1], describe(value.op.operand(0)))
            chains.append(Chain(mesh, (what, *path)))
        return tuple(chains), len(sources) - len(chains)


def _reached(starts: list[Value], step: Callable[[Value], list[Value]]) -> dict[Value, Value | None]:
    """Return every reachable value, near ones first, with the one before it on a shortest path."""
    before: dict[Value, Value | None] = dict.fromkeys(starts)
    waiting = list(before)
    for value in waiting:
        for following in step(value):
            if following not in before:
                before[following] = value
                waiting.append(following)
    return before


def _path(value: Value, before: dict[Value, Value | None]) -> tuple[str, ...]:
    """Return the values on the shortest path to this one, in words."""
    path: list[str] = []
    at: Value | None = value
    while at is not None:
        path.append(describe(at))
        at = before[at]
    return tuple(reversed(path))


def _values(thing: Value | Op) -> list[Value]:
    return list(thing.results) if isinstance(thing, Op) else [thing]


def _is_shared(op: Op) -> bool:
    return isinstance(op, UnassignOp) and op.label == "io_constraint_in"


def _is_input(value: BlockArg) -> bool:
    owner = value.owner.parent_op
    return isinstance(owner, FuncOp) and owner.is_entry_point


def _rule(
    meshes: tuple[str, ...], asked: tuple[str, ...], wanted: tuple[str, ...], possible: tuple[str, ...] | None
) -> str:
    """Return which rule of mesh inference decided."""
    if not meshes:
        return "nothing uses it, so it is removed"
    if len(asked) > len(meshes):
        return f"it is needed on {mesh_list(asked)}; an input is on the first of them by name and transferred"
    if any(mesh in wanted for mesh in meshes):
        if len(meshes) > 1:
            return f"it is needed on {mesh_list(meshes)} and computed on each of them"
        return f"it is needed on {mesh_list(meshes)}"
    if possible:
        return (
            f"no computation asks for it; what it is computed from is on {mesh_list(possible)}, of which the "
            "smallest name is taken"
        )
    if possible is not None:
        return "what it is computed from is on different meshes; it takes the mesh with the smallest name"
    return "nothing says where it should be, so it takes the mesh with the smallest name"
