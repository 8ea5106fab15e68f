"""Objects that are changed in place: what is lost when a function of JAX changes them.

JAX gives a traced function copies of the objects in its arguments, and takes back arrays alone.  Flax's NNX has
transformations of its own that carry changes over; here, a change that nothing carries over is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.functions import labels, name_of

T = TypeVar("T")


def kept(
    fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], what: str, instead: str, owner: Any = None
) -> T:
    """`fn(*args, **kwargs)`, with arrays that a trace has made.

    Args:
        fn: a function of the user.
        args: its arguments.
        kwargs: likewise.
        what: what runs it, in the error.
        instead: what to use in the place of that.
        owner: an object that `fn` belongs to and that is not among the arguments.

    Raises:
        FrontendError: when it changes variables of NNX objects in them, and does not return what they are now.
    """
    if "flax.nnx" not in sys.modules:
        return fn(*args, **kwargs)
    objects = {**dict(zip(labels(fn, len(args)), args, strict=True)), **kwargs}
    if owner is not None:
        objects["self"] = owner
    before = {id(variable): value for _, variable, value in _variables(objects)}
    result = fn(*args, **kwargs)
    if not before:
        return result
    returned = {id(leaf) for leaf in jax.tree.leaves(result)}
    lost = [
        path
        for path, variable, value in _variables(objects)
        if before.get(id(variable), before) is not value and id(value) not in returned
    ]
    if lost:
        more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
        raise mistake(
            f"{name_of(fn)} changes variables of objects in its arguments, which {what} would lose, as jax.jit does: "
            f"{', '.join(lost[:4])}{more}. Use {instead}, which keeps such changes (for a Program, "
            "mpmd_trace.nnx.program), or return what they become."
        )
    return result


def _variables(objects: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each variable of NNX in named arguments: where it is, the variable, and its value."""
    variable: Any = sys.modules["flax.nnx"].Variable
    for name, tree in objects.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, variable)):
            if isinstance(leaf, variable):
                yield name + jax.tree_util.keystr(path), leaf, leaf.get_raw_value()
