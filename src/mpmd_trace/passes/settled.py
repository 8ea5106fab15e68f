"""Functions in which nothing can be simplified but the bodies of fragments.

After the schedule a program of many microbatches has thousands of fragments and a few bodies.  Several passes in a row
look for something to simplify and find it in bodies alone.  Instead of looking at each op again, they ask for what the
pass before learned: the manager hands it from pass to pass, and drops it where a pass does not say that it
`keeps_settled`, does not `keep` it, or where hooks may change the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from mpmd_trace.ir.core import OpResult, Region
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp
from mpmd_trace.passes.common.region_simplification import facts_of


class ByBody:
    """The fragments of a function by their bodies, in the order in which these come first."""

    def __init__(self, bodies: dict[Region, list[FragmentOp]]) -> None:
        self.bodies = bodies

    @classmethod
    def of(cls, function: FuncOp) -> Self:
        """Return those of any function, at its top."""
        bodies: dict[Region, list[FragmentOp]] = {}
        for op in function.body:
            if isinstance(op, FragmentOp):
                bodies.setdefault(op.regions[0], []).append(op)
        return cls(bodies)

    def replace_bodies(self, derive: Callable[[Region], Region]) -> bool:
        """Replace each body by what is derived from it; say whether any changed."""
        derived = [(derive(body), body) for body in self.bodies]
        if all(new is body for new, body in derived):
            return False
        bodies: dict[Region, list[FragmentOp]] = {}
        for new, body in derived:
            ops = self.bodies[body]
            if new is not body:
                for op in ops:
                    op.regions[0] = new
            bodies.setdefault(new, []).extend(ops)
        self.bodies = bodies
        return True

    def all_are(self, derive: Callable[[Region], Region]) -> bool:
        """Return whether each body is what is derived from it."""
        return all(derive(body) is body for body in self.bodies)


class Settled(ByBody):
    """Those of a function of fragments and transfers that are all used, none twice, as `_look` says."""

    @property
    def is_settled(self) -> bool:
        """Return whether that is still so, with the bodies there are."""
        return all(facts_of(body).stays for body in self.bodies)


class _State(threading.local):
    #: What the pass before knew, and what the next one is to know.
    views: dict[FuncOp, Settled] | None = None
    kept: dict[FuncOp, Settled] | None = None


_state = _State()


@contextmanager
def shared(views: dict[FuncOp, Settled] | None) -> Iterator[None]:
    """Let a pass take what is known from here; afterwards, only what it kept is here."""
    before = _state.views, _state.kept
    _state.views, _state.kept = views, None if views is None else {}
    try:
        yield
    finally:
        if views is not None and _state.kept is not None:
            views.clear()
            views.update(_state.kept)
        _state.views, _state.kept = before


def take(function: FuncOp) -> Settled | None:
    """Return what is known of the function, None if it is not settled; whoever keeps it so says that with `keep`."""
    views = _state.views
    return views.pop(function) if views is not None and function in views else _look(function)


def known(function: FuncOp) -> Settled | None:
    """Return what `take` does if it is known already, None otherwise: nothing is looked at."""
    return None if _state.views is None else _state.views.pop(function, None)


def keep(function: FuncOp, view: Settled | None) -> None:
    """Say that what `take` or `known` returned is true for the next pass as well."""
    if _state.kept is not None and view is not None and view.is_settled:
        _state.kept[function] = view


def _look(function: FuncOp) -> Settled | None:
    """Return the fragments by body, if the ops of the function are fragments, transfers and a return, and if

    - all results have uses, and no two ops read the same,
    - the operands of a fragment are different, and its body returns and forwards nothing twice or for nothing,
    - transfers change the type, and come from no transfer.
    """
    region = function.regions[0]
    if len(region.blocks) != 1:
        return None
    block = region.blocks[0]
    bodies: dict[Region, list[FragmentOp]] = {}
    arguments: dict[Region, int] = {}
    known: set[object] = set()
    last = block.terminator
    op = block.first
    while op is not None and op is not last:
        results = op.results
        for result in results:
            if result.first_use is None:
                return None
        if op.__class__ is FragmentOp:
            operands = tuple([use.value for use in op.operand_uses])
            body = op.regions[0]
            count = arguments.get(body)
            if count is None:
                if not body.frozen or len(body.blocks) != 1 or not facts_of(body).stays:
                    return None
                count = arguments[body] = len(body.blocks[0].args)
                bodies[body] = []
            if not results or len(operands) != count or (count > 1 and len(set(operands)) < count):
                return None
            bodies[body].append(op)  # type: ignore[arg-type]  # `isinstance` takes longer
            key: object = operands or op.props["mesh_name"]
        elif op.__class__ is TransferOp:
            value = op.operand_uses[0].value
            if value.type is results[0].type or (isinstance(value, OpResult) and value.op.__class__ is TransferOp):
                return None
            key = value
        else:
            return None
        if key in known and "remat" in op.attrs:
            key = "remat", key
        if key in known:
            return None
        known.add(key)
        op = op._next
    return Settled(bodies)
