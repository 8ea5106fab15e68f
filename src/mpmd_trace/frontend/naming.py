"""The functions with which a program names its parts.

Names do not change results: under `jax.jit`, `grad`, `vmap`, `scan`, `checkpoint` and outside of any
transformation, a program with names computes the same as without them. `mpmd_trace.jit` uses the
names to decide where each part runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from mpmd_trace.frontend import loops, marker_primitives, tags
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.functions import name_of

T = TypeVar("T")

fori_loop = loops.fori_loop
enumerated_for = loops.enumerated_for


@overload
def named_computation(
    fn: Callable[..., T], *, name: str, static_argnames: str | Sequence[str] = ()
) -> Callable[..., T]: ...


@overload
def named_computation(
    fn: None = None, *, name: str, static_argnames: str | Sequence[str] = ()
) -> Callable[[Callable[..., T]], Callable[..., T]]: ...


def named_computation(
    fn: Callable[..., Any] | None = None, *, name: str, static_argnames: str | Sequence[str] = ()
) -> Callable[..., Any]:
    """Name the computation of `fn`, so that a configuration can assign it to a mesh and a stage.

    Also a decorator: `@named_computation(name="encoder")`. Derivatives carry the same name. Arrays in
    the arguments, and in `fn` if it is a module or a method of one, become operands; other leaves are
    static and must be hashable.

    Args:
        fn: any function of pytrees, or a callable module.
        name: the name; may be used several times, also for different functions.
        static_argnames: arguments that are static as a whole, as in `jax.jit`.

    Returns:
        A function with the signature of `fn`.

    Raises:
        FrontendError: for an empty name, a name with characters that assignments reserve, or a
            static argument that does not exist.
    """
    tags.check_name(name, "named_computation")
    if fn is None:
        return functools.partial(named_computation, name=name, static_argnames=static_argnames)
    return tags.tagged(fn, tags.Tag("named_computation", name), static_argnames)


def call(fn: Callable[..., T], call_counter: int | None = None) -> Callable[..., T]:
    """Mark `fn` as a function that is compiled once and called several times, such as once per microbatch.

    Args:
        fn: any function of pytrees.
        call_counter: the number of this call, usually the microbatch; schedules order calls by it.

    Raises:
        FrontendError: if `call_counter` is not a number from 0 to 2**32 - 1.
    """
    name = name_of(fn)
    wrapped = tags.tagged(fn, tags.Tag("call", name))
    if call_counter is None:
        return wrapped
    is_number = isinstance(call_counter, int | np.integer) and not isinstance(call_counter, bool)
    if not is_number or not 0 <= call_counter < 2**32:
        raise mistake(
            f"call_counter of {name!r} must be a Python int from 0 to 2**32 - 1, got "
            f"{call_counter!r}. In a traced loop, use fori_loop, which counts its calls itself."
        )
    scope = tags.counter_scope(int(call_counter))

    @functools.wraps(wrapped)
    def counted(*args: Any, **kwargs: Any) -> T:
        with jax.named_scope(scope):
            result: T = wrapped(*args, **kwargs)
        return result

    return counted


def named_tensor(x: T, name: str) -> T:
    """Name each array of `x` (a pytree), so that a configuration can assign it to a mesh.

    An assignment `mesh#pinned_host` also chooses the memory. Leaves that are not arrays are returned unchanged.
    """
    tags.check_name(name, "named_tensor")
    return _on_arrays(lambda a: marker_primitives.named_tensor_p.bind(a, name=name), x)


def broadcast(x: T) -> T:
    """Return `x` (a pytree of arrays), marked as a value that may be sent to every mesh that uses it."""
    return _on_arrays(marker_primitives.broadcast_p.bind, x)


_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "mul": jnp.multiply,
    "or": jnp.bitwise_or,
    "and": jnp.bitwise_and,
}


def reduce(*operands: T, kind: str = "none") -> T:
    """Mark a value as a reduction across meshes: each mesh reduces its own operands, and one mesh the partial results.

    `reduce(x)` marks a value that you have computed by additions, maxima and the like.
    `reduce(a, b, c, kind="add")` computes the reduction, too; `kind` is one of `add`, `max`, `min`,
    `mul`, `or`, `and`. Operands are pytrees of equal structure.

    Raises:
        FrontendError: for an unknown `kind`, no operand, or several operands without a `kind`.
    """
    if kind != "none" and kind not in _FOLDS:
        raise mistake(f"reduce has no kind {kind!r}; the kinds are none, {', '.join(_FOLDS)}.")
    if not operands or (kind == "none" and len(operands) > 1):
        raise mistake(
            f"reduce of {len(operands)} operands needs "
            + ("at least one." if not operands else f"kind=, one of {', '.join(_FOLDS)}.")
        )
    folded = functools.reduce(lambda a, b: jax.tree.map(_FOLDS[kind], a, b), operands)
    return _on_arrays(marker_primitives.reduce_p.bind, folded)


def _on_arrays(mark: Callable[[Any], Any], tree: T) -> T:
    def one(leaf: Any) -> Any:
        if tags.is_array(leaf) or isinstance(leaf, (bool, int, float, complex)):
            return mark(jnp.asarray(leaf))
        return leaf

    marked: T = jax.tree.map(one, tree)
    return marked
