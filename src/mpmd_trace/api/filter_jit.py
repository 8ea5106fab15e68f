"""`filter_jit`: arrays are arguments of the program, everything else is part of it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Unpack, overload

import jax

from mpmd_trace.api.jit import Jitted, with_defaults
from mpmd_trace.api.options import DEFAULTS, DONATE, Adapter, Donation, FilterJitOptions, Settings
from mpmd_trace.config import Config
from mpmd_trace.frontend import mutation, tags
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.statics import StaticLeaf, is_hashable, without_statics
from mpmd_trace.jax_compat.refs import is_ref


def is_dynamic(leaf: Any) -> bool:
    """Return whether `leaf` is an array, or stands for one."""
    return tags.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


class StaticLeaves(Adapter):
    """Puts leaves that are no arrays into the structure, and takes them out again.

    Arguments at the static positions and names go there as a whole.  `callee`: a function that is itself a module, or
    a method of one; it becomes the first argument.
    """

    def __init__(
        self, static: tuple[tuple[int, ...], tuple[str, ...]] = ((), ()), callee: Callable[..., Any] | None = None
    ) -> None:
        self._numbers, self._names = static
        self._callee = callee

    def wrap(self, tree: Any) -> Any:
        """Arguments `(args, kwargs)`."""
        args, kwargs = tree
        numbers = {n % len(args) for n in self._numbers if -len(args) <= n < len(args)}
        args = tuple(_whole(f"at position {i}", a) if i in numbers else a for i, a in enumerate(args))
        kwargs = {k: _whole(repr(k), v) if k in self._names else v for k, v in kwargs.items()}
        if self._callee is not None:
            args = (self._callee, *args)
        return self.wrap_result((args, kwargs))

    def wrap_result(self, tree: Any) -> Any:
        return jax.tree_util.tree_map_with_path(_static, tree)

    def unwrap(self, tree: Any) -> Any:
        return without_statics(tree)

    unwrap_result = unwrap


def _whole(where: str, argument: Any) -> StaticLeaf:
    if not is_hashable(argument):
        raise mistake(
            f"the static argument {where} is a {type(argument).__name__}, which cannot be hashed. Static arguments are "
            "part of the program and compared by value; what is not an array is static without being declared so."
        )
    return StaticLeaf(argument)


def _static(path: Sequence[Any], leaf: Any) -> Any:
    if is_dynamic(leaf):
        return leaf
    if is_ref(leaf):
        raise mistake(
            f"the leaf {jax.tree_util.keystr(tuple(path))} is a Ref (jax.new_ref), which filter_jit does not take. "
            "Give it to mpmd_trace.jit, with the arrays of modules split from the rest (eqx.partition)"
        )
    if not is_hashable(leaf):
        raise mistake(
            f"the leaf {jax.tree_util.keystr(tuple(path))} of type {type(leaf).__name__} is neither an "
            "array nor hashable, so it can be neither an input nor a static part of a program. Make it "
            "an array or something hashable: a tuple instead of a list or set, for example."
        )
    return StaticLeaf(leaf)


class _Decorating(Protocol):
    @overload
    def __call__(self, fn: Callable[..., Any], config: Config, **options: Unpack[FilterJitOptions]) -> Jitted: ...

    @overload
    def __call__(
        self, fn: Config | None = None, config: Config | None = None, **options: Unpack[FilterJitOptions]
    ) -> Callable[[Callable[..., Any]], Jitted]: ...


def _takes_options(function: Callable[..., Jitted]) -> _Decorating:
    result: _Decorating = with_defaults(function, {**DEFAULTS, "donate": "none"})
    return result


@_takes_options
def filter_jit(fn: Callable[..., Any], config: Config, **options: Unpack[FilterJitOptions]) -> Jitted:
    """Compile a function of modules and other pytrees like `mpmd_trace.jit`, in the manner of `equinox.filter_jit`.

    All JAX and NumPy arrays in the arguments are inputs of the program; everything else (numbers, strings,
    functions) is static, also in the result.  If `fn` is a module or a method of one, its arrays are inputs
    as well.  Without `fn`, this is a decorator: `@mpmd_trace.filter_jit(config=config)`.

    Args:
        fn: any function of pytrees, or a callable module.
        config: the meshes, and which name is assigned to which mesh; see `make_config`.
        in_shardings: a pytree prefix of the arguments, of `NamedSharding` or None (chosen by the compiler).
        out_shardings: the same for the result.
        donate: the arrays whose buffers may be reused: "all", "all-except-first" (all but those of the first argument),
            or "none".  "warn" and "warn-except-first" also warn of donated buffers that are not reused.
        donate_argnums: instead of `donate`, positions of arguments whose buffers may be reused.
        donate_argnames: names of such arguments.
        static_argnums: positions of arguments that are static as a whole; rarely needed.
        static_argnames: names of such arguments.
        keep_unused: see `mpmd_trace.jit`.
        compiler_options: see `mpmd_trace.jit`.
        engine: see `mpmd_trace.jit`.

    Raises:
        MpmdError: for inconsistent options.  When called: for leaves that are neither arrays nor hashable, and in the
            cases of `mpmd_trace.jit`.
    """

    callee = None if jax.tree_util.all_leaves([fn]) else fn
    settings = Settings.of(fn, config, options)
    leaves = StaticLeaves((settings.static_argnums, settings.static_argnames), callee)
    settings = dataclasses.replace(
        settings,
        donation=_donation(options["donate"], settings.donation),
        static_argnums=(),
        static_argnames=(),
        adapter=leaves,
    )
    settings = settings if callee is None else settings.behind_first()
    return Jitted(_on_wrapped(fn, callee is not None, leaves), config, settings)


def _on_wrapped(fn: Callable[..., Any], is_argument: bool, leaves: StaticLeaves) -> Callable[..., Any]:
    """Return `fn` on wrapped arguments, with a wrapped result; a module is its own first argument."""

    @functools.wraps(fn, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = leaves.unwrap((args, kwargs))
        target, args = (args[0], args[1:]) if is_argument else (fn, args)
        instead = "mpmd_trace.nnx.jit"
        owner = target if is_argument else None
        return leaves.wrap_result(mutation.kept(target, args, kwargs, "mpmd_trace.filter_jit", instead, owner))

    if is_argument:
        wrapped.__name__ = type(fn).__name__
        del wrapped.__wrapped__  # its signature lacks the module
        wrapped.__signature__ = _with_module(fn)  # type: ignore[attr-defined]
    return wrapped


def _with_module(fn: Callable[..., Any]) -> inspect.Signature:
    module = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = list(inspect.signature(fn).parameters.values())
    return inspect.Signature([module, *parameters])


def plain_jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` under plain `jax.jit` with the arrays of its arguments as inputs, to be compared with."""
    leaves = StaticLeaves()
    jitted = jax.jit(_on_wrapped(fn, False, leaves))

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = leaves.wrap((args, kwargs))
        return leaves.unwrap(jitted(*args, **kwargs))

    return run


def _donation(donate: str, listed: Donation) -> Donation:
    if donate not in DONATE:
        raise mistake(f"donate is one of {', '.join(map(repr, DONATE))}, not {donate!r}")
    if donate == "none":
        return listed
    if listed != Donation():
        raise mistake(f"donate={donate!r} says which arguments are donated; donate_argnums and donate_argnames do, too")
    return Donation(all_but=(0,) if donate.endswith("except-first") else (), warns=donate.startswith("warn"))
