"""`filter_jit`: arrays are arguments of the program, everything else is part of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mpmd_trace.api.jit import Jitted
from mpmd_trace.frontend import tags
from mpmd_trace.frontend.config import Config
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.statics import StaticLeaf, is_hashable, without_statics

__all__ = ["StaticLeaves", "filter_jit"]


def is_dynamic(leaf: Any) -> bool:
    """Whether `leaf` is an array, or stands for one."""
    return tags.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


class StaticLeaves:
    """Puts leaves that are no arrays into the structure, and takes them out again."""

    def wrap(self, tree: Any) -> Any:
        return jax.tree_util.tree_map_with_path(self._one, tree)

    def unwrap(self, tree: Any) -> Any:
        return without_statics(tree)

    def _one(self, path: Sequence[Any], leaf: Any) -> Any:
        if is_dynamic(leaf):
            return leaf
        if not is_hashable(leaf):
            raise mistake(
                f"the leaf {jax.tree_util.keystr(tuple(path))} of type {type(leaf).__name__} is neither an "
                "array nor hashable, so it can be neither an input nor a static part of a program. Make it "
                "an array or something hashable: a tuple instead of a list or set, for example."
            )
        return StaticLeaf(leaf)


class _WithCallee(StaticLeaves):
    """For a function that is itself a module: it becomes the first argument."""

    def __init__(self, callee: Any) -> None:
        self.callee = callee

    def wrap(self, tree: Any) -> Any:
        args, kwargs = tree
        return super().wrap(((self.callee, *args), kwargs))


def filter_jit(
    fn: Callable[..., Any],
    config: Config,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    engine: str = "python",
) -> Jitted:
    """`mpmd_trace.jit` for functions of Equinox modules and other pytrees, as `equinox.filter_jit`.

    All JAX and NumPy arrays in the arguments are inputs of the program; everything else (numbers, strings,
    functions) is static, also in the result.  When `fn` is a module or a method of one, its arrays are inputs
    as well.

    Args:
        fn: any function of pytrees, or a callable module.
        config: which name lives on which mesh; see `make_config`.
        in_shardings: a pytree prefix of the arguments, of `NamedSharding` or None (chosen by the compiler).
        out_shardings: likewise for the result.
        donate_argnums: positions of arguments whose buffers may be reused.
        engine: see `mpmd_trace.jit`.

    Raises:
        MpmdError: when called, for leaves that are neither arrays nor hashable, and as `mpmd_trace.jit`.
    """
    callee = None if _is_plain(fn) else fn
    leaves = StaticLeaves()

    @functools.wraps(fn, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = leaves.unwrap((args, kwargs))
        target = fn
        if callee is not None:
            target, args = args[0], args[1:]
        return leaves.wrap(target(*args, **kwargs))

    if callee is None:
        return Jitted(
            wrapped,
            config,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            donate_argnums=donate_argnums,
            engine=engine,
            adapter=leaves,
        )
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    wrapped.__name__ = type(callee).__name__
    del wrapped.__wrapped__  # its signature lacks the module
    return Jitted(
        wrapped,
        config,
        in_shardings=None if in_shardings is None else (None, *in_shardings),
        out_shardings=out_shardings,
        donate_argnums=tuple(n + 1 if n >= 0 else n for n in donated),
        engine=engine,
        adapter=_WithCallee(callee),
    )


def _is_plain(fn: Any) -> bool:
    leaves = jax.tree.leaves(fn)
    return len(leaves) == 1 and leaves[0] is fn
