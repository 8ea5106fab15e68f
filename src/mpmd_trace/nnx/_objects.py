"""Modules, optimizers and random streams as pytrees of arrays, and the way back into the objects.

Objects of NNX are changed in place, and functions of JAX are not: arrays go in, arrays come out.  So a function of
objects is run in four steps, for which `flax.nnx.update_context` keeps the accounts: the objects are split (1), made
again inside of the function (2), split again when it has changed them (3), and what came out goes into those that were
given (4).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
from flax import nnx


@jax.tree_util.register_pytree_with_keys_class
class Parts:
    """The parts of an object of NNX: arrays, and a graph that says how they hang together."""

    __slots__ = ("graph", "state")

    def __init__(self, graph: Any, state: Any) -> None:
        self.graph = graph
        self.state = state

    def tree_flatten(self) -> tuple[list[Any], _Form]:
        leaves, structure = jax.tree.flatten(self.state)
        return leaves, _Form(self.graph, structure)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], _Form]:
        paths, structure = jax.tree_util.tree_flatten_with_path(self.state)
        return [(_Path(path), leaf) for path, leaf in paths], _Form(self.graph, structure)

    @classmethod
    def tree_unflatten(cls, form: _Form, leaves: Iterable[Any]) -> Parts:
        return cls(form.graph, jax.tree.unflatten(form.structure, leaves))


class _Form(NamedTuple):
    """The structure of an object without arrays: equal for objects that one program serves."""

    graph: Any
    structure: Any

    def __repr__(self) -> str:
        nodes = getattr(self.graph, "nodes", ())
        kinds = [getattr(getattr(node, "type", None), "__name__", "") for node in nodes]
        return f"{kinds[0] if kinds else 'object'} of {len(nodes)} parts"


class _Path:
    """The path of an array in an object, as one would write it: `.blocks[0].linear.kernel`."""

    def __init__(self, path: tuple[Any, ...]) -> None:
        self.path = path

    def __str__(self) -> str:
        keys = [getattr(key, "key", None) for key in self.path]
        return "".join(f".{key}" if isinstance(key, str) else f"[{key}]" for key in keys if key is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Path) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


def is_object(value: Any) -> bool:
    """Return whether `value` is a module, optimizer, stream or variable."""
    return bool(nnx.graph.is_graph_node(value))


def _is_parts(value: Any) -> bool:
    return isinstance(value, Parts)


def split(tree: Any, tag: Hashable) -> Any:
    """Return `tree` with `Parts` in the place of objects: steps 1 and 3."""
    with nnx.split_context(tag) as context:
        return jax.tree.map(lambda x: Parts(*context.split(x)) if is_object(x) else x, tree, is_leaf=is_object)


def merged(tree: Any, tag: Hashable, *, inner: bool) -> Any:
    """Return `tree` with objects in place of `Parts`: steps 2 (inner) and 4, where they are those that were given."""
    with nnx.merge_context(tag, inner) as context:
        return _merge_parts(tree, context)


def _merge_parts(tree: Any, context: Any) -> Any:
    return jax.tree.map(lambda x: context.merge(x.graph, x.state) if _is_parts(x) else x, tree, is_leaf=_is_parts)


def all_parts(tree: Any) -> list[Parts]:
    """Return the parts of objects in `tree`."""
    return [x for x in jax.tree.leaves(tree, is_leaf=_is_parts) if _is_parts(x)]


def nodes(tree: Any, kind: type) -> Iterator[Any]:
    """Yield what is of a kind in the objects in `tree`."""
    for one in jax.tree.leaves(tree, is_leaf=is_object):
        for _, node in nnx.iter_graph(one, graph=True) if is_object(one) else ():
            if isinstance(node, kind):
                yield node


def given(tag: Hashable) -> AbstractContextManager[Any]:
    """Return the time from step 1 to step 4."""
    result: AbstractContextManager[Any] = nnx.update_context(tag)
    return result


def is_lent(node: Any) -> bool:
    """Return whether a running transformation of Flax has made `node` in place of an object that it was given."""
    stacks = nnx.graph.GRAPH_CONTEXT.update_context_stacks.values()
    inner = [context.inner_ref_outer_index for contexts in stacks for context in contexts]
    return any(node in known for known in inner if known is not None)


def states(tree: Any) -> Any:
    """Return `tree` with an `nnx.State` in the place of `Parts`."""
    return jax.tree.map(lambda x: x.state if _is_parts(x) else x, tree, is_leaf=_is_parts)


def pure_function(fn: Callable[..., Any], tag: Hashable) -> Callable[..., Any]:
    """Return `fn` on parts of objects: what becomes of the objects in its arguments, and its result."""

    @functools.wraps(fn, updated=())
    def pure(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = merged((args, kwargs), tag, inner=True)
        result = fn(*args, **kwargs)
        changed = jax.tree.map(lambda x: x if is_object(x) else None, (args, kwargs), is_leaf=is_object)
        return split((changed, result), tag)

    return pure


@jax.tree_util.register_pytree_node_class
class _Changes:
    """A result without the arrays that are operands as they came."""

    def __init__(self, arrays: list[Any], structure: Any, operands: tuple[int | None, ...]) -> None:
        self.arrays = arrays
        self.structure = structure
        #: For each leaf the operand that it is, or None.
        self.operands = operands

    @classmethod
    def of(cls, result: Any, operands: Iterable[Any]) -> _Changes:
        leaves, structure = jax.tree.flatten(result)
        positions = {id(x): i for i, x in enumerate(operands)}
        numbers = tuple(positions.get(id(leaf)) for leaf in leaves)
        return cls([leaf for leaf, i in zip(leaves, numbers, strict=True) if i is None], structure, numbers)

    def result(self, operands: list[Any]) -> Any:
        arrays = iter(self.arrays)
        leaves = [next(arrays) if i is None else operands[i] for i in self.operands]
        return jax.tree.unflatten(self.structure, leaves)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        return self.arrays, (self.structure, self.operands)

    @classmethod
    def tree_unflatten(cls, rest: tuple[Any, ...], arrays: Iterable[Any]) -> _Changes:
        return cls(list(arrays), *rest)


def changing(fn: Callable[..., Any], tag: Hashable) -> Callable[..., Any]:
    """Return a `pure_function` of `fn` for `lifted`: what `fn` only reads is no result of it."""
    pure = pure_function(fn, tag)

    @functools.wraps(fn, updated=())
    def changes(*args: Any, **kwargs: Any) -> _Changes:
        return _Changes.of(pure(*args, **kwargs), jax.tree.leaves((args, kwargs)))

    return changes


def lifted(changes: Callable[..., Any], tag: Hashable) -> Callable[..., Any]:
    """Return a function of objects that runs `changes`, which some transformation made of `changing(...)`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with given(tag):
            before = split((args, kwargs), tag)
            after, result = changes(*before[0], **before[1]).result(jax.tree.leaves(before))
            new = _new_arrays(all_parts(before), all_parts(after))
            if new is None:
                return _rebuilt((args, kwargs), (after, result), tag)
            _write(new)
            with nnx.merge_context(tag, False) as context:
                context.index_ref.update(nnx.graph.current_update_context(tag).outer_index_outer_ref)
                return _merge_parts(result, context)

    return call


def _new_arrays(before: list[Parts], after: list[Parts]) -> list[tuple[nnx.Variable[Any], Any]] | None:
    """Return the variables in `before` that have other values in `after`, and these; None where more than that changed.

    All else is left alone: a variable that nothing changes may be one that nothing may change here, because the
    function under the transformation closes over its model.
    """
    new: list[tuple[nnx.Variable[Any], Any]] = []
    for old, now in zip(before, after, strict=True):
        if old.graph.with_same_outer_index() != now.graph:
            return None
        for variable, x in zip(_leaves(old.state), _leaves(now.state), strict=True):
            if not isinstance(variable, nnx.Variable):
                if variable is not x:
                    return None
            elif variable.get_raw_value() is not x.get_raw_value():
                new.append((variable, x.get_raw_value()))
    return new


def _leaves(state: Any) -> list[Any]:
    leaves: list[Any] = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return leaves


def _write(new: list[tuple[nnx.Variable[Any], Any]]) -> None:
    """Give each variable its new value, or none of them."""
    old = [(variable, variable.get_raw_value()) for variable, _ in new]
    done = 0
    try:
        for variable, value in new:
            variable.set_raw_value(value)
            done += 1
    except BaseException:
        for variable, value in old[:done]:
            variable.set_raw_value(value)
        raise


def _rebuilt(objects: Any, parts: tuple[Any, Any], tag: Hashable) -> Any:
    """Return the result in `parts`, the other half of which goes into `objects`: all of it or nothing."""
    modules = [(node, dict(vars(node))) for node in nodes(objects, nnx.Pytree)]
    variables = [(node, node.copy()) for node in nodes(objects, nnx.Variable)]
    try:
        return merged(parts, tag, inner=False)[1]
    except BaseException:
        for module, attributes in modules:
            vars(module).clear()
            vars(module).update(attributes)
        for variable, copy in variables:
            if variable.get_raw_value() is not copy.get_raw_value():
                variable.update_from_state(copy)
        raise
