"""Arguments that are Refs (`jax.new_ref`): a step changes them in place, on the meshes of what uses them.

Their arrays are the first argument of the program, which is donated, and their new ones come before its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax

from mpmd_trace.api.options import Adapter
from mpmd_trace.config import Config, MeshOfInput
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.jax_compat.refs import array_in, is_ref, replace_array


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Place:
    """The place in the arguments of the Ref of this number."""

    number: int


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Ref:
    """A Ref in a structure that a message shows."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Outcome:
    """The new arrays of the Refs, and what the function returned; or something about both."""

    refs: Any
    result: Any


def has_refs(tree: Any) -> bool:
    """Return whether any leaf of `tree` is a Ref."""
    return any(map(is_ref, jax.tree.leaves(tree)))


#: The Refs of the call that is being made.
_given: ContextVar[list[Any]] = ContextVar("refs", default=[])  # noqa: B039 (replaced, never changed)


class Refs(Adapter):
    """Refs as arguments of a program of arrays."""

    def wrap(self, tree: Any) -> Any:
        """Return arguments `(args, kwargs)` with the arrays of all Refs before them."""
        args, kwargs = tree
        refs: list[Any] = []

        def place(leaf: Any) -> Any:
            if not is_ref(leaf):
                return leaf
            if any(leaf is other for other in refs):
                raise mistake("one Ref is given twice to a step; give it once, as jax.jit demands, too")
            refs.append(leaf)
            return _Place(len(refs) - 1)

        args, kwargs = jax.tree.map(place, (args, kwargs))
        _given.set(refs)
        return ([array_in(ref) for ref in refs], *args), kwargs

    def unwrap(self, tree: Any) -> Any:
        """Facts about arrays, those of Refs in their places."""
        if isinstance(tree, Outcome):
            return tree.result
        (refs, *args), kwargs = tree
        return _filled((tuple(args), kwargs), refs)

    def placed(self, tree: Any) -> Any:
        """Return the arguments; the Refs have the arrays that have been moved."""
        (arrays, *args), kwargs = tree
        refs = _given.get()
        for ref, array in zip(refs, arrays, strict=True):
            replace_array(ref, array)
        return _filled((tuple(args), kwargs), refs)

    def structure(self, wrapped: Any) -> Any:
        """Return the structure of the arguments, with Refs in it."""
        (refs, *args), kwargs = jax.tree.unflatten(wrapped, [0] * wrapped.num_leaves)
        return jax.tree.structure(_filled((tuple(args), kwargs), [Ref()] * len(refs)))

    def unwrap_result(self, tree: Any) -> Any:
        """Return what the function returned, when the Refs have their new arrays."""
        for ref, array in zip(_given.get(), tree.refs, strict=True):
            replace_array(ref, array)
        return tree.result

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """While a call is made, it is known which Refs were given."""
        token = _given.set([])
        try:
            yield
        finally:
            _given.reset(token)


def _filled(tree: Any, refs: list[Any]) -> Any:
    def fill(x: Any) -> Any:
        return refs[x.number] if isinstance(x, _Place) else x

    return jax.tree.map(fill, tree, is_leaf=lambda x: isinstance(x, _Place))


def on_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` as a function of the arrays of its Refs, then its arguments, with their new arrays in its result."""

    @functools.wraps(fn)
    def wrapped(arrays: list[Any], *args: Any, **kwargs: Any) -> Outcome:
        refs = [jax.new_ref(x) for x in arrays]
        args, kwargs = _filled((args, kwargs), refs)
        result = fn(*args, **kwargs)
        return Outcome([ref[...] for ref in refs], result)

    del wrapped.__wrapped__  # its signature lacks the arrays
    return wrapped


def with_refs_first(config: Config) -> Config:
    """Return the configuration for such a function: Refs stay on the meshes where they are."""

    def behind(assigned: Any) -> Any:
        number = getattr(assigned, "argument", None)
        return dataclasses.replace(assigned, argument=number + 1) if isinstance(number, int) else assigned

    inputs, outputs = config.input_mesh_assignment, config.output_mesh_assignment
    outputs = jax.tree.map(behind, outputs, is_leaf=lambda x: isinstance(x, MeshOfInput) or x is None)
    return dataclasses.replace(
        config,
        input_mesh_assignment=(None, *inputs) if isinstance(inputs, tuple) and inputs else inputs,
        output_mesh_assignment=Outcome(MeshOfInput(0), None if outputs == () else outputs),
    )
