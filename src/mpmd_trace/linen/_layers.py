"""Naming the submodules of a Linen model from outside.

Submodules exist only while a model is applied, so it is their calls that are intercepted.  A call is lifted, as
`nn.jit` lifts it: variables and random numbers go in, changed variables come out, and no tracer stays in a scope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flax import linen as nn
from flax.core import lift

from mpmd_trace.frontend import tags
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.name_checks import is_path

F = TypeVar("F", bound=Callable[..., Any])


def name_layers(
    fn: F, where: str | type | Sequence[str | type], *, name: str | Callable[[str], str] | None = None
) -> F:
    """Return `fn` with the calls of the submodules that `where` selects as named computations.

        apply = name_layers(model.apply, ["embed", "block_*", "head"])
        state = TrainState.create(apply_fn=apply, params=params, tx=tx)

    Variables have the same paths as before, and mutable collections (`batch_stats`) and random numbers
    (`rngs={"dropout": key}`) work as before.

    Args:
        fn: `model.apply`, or any function that applies Linen modules.
        where: paths of submodules (the paths of their variables, with dots), such as `"encoder.layer_*"`, where `*`
            stands for anything in one name; classes; or a list of these.
        name: one name for all of them, or a function from the default name, which is the path with "_".

    Raises:
        FrontendError: for a `where` of another form, or an invalid name; when called, if it selects nothing.
    """
    several: list[Any] = list(where) if isinstance(where, list | tuple) else [where]
    for one in several:
        if not isinstance(one, str | type):
            raise mistake(f"name_layers: `where` is made of paths and classes, not {one!r}.")
    if isinstance(name, str):
        tags.check_name(name, "name_layers")
    if not callable(fn) or isinstance(fn, nn.Module):
        raise mistake(f"name_layers takes a function, such as model.apply, not a {type(fn).__name__}.")

    def fits(module: nn.Module) -> bool:
        return any(is_path(one, module.path) if isinstance(one, str) else isinstance(module, one) for one in several)

    @functools.wraps(fn)
    def named(*args: Any, **kwargs: Any) -> Any:
        seen: dict[str, bool] = {}

        def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            module = context.module
            if context.method_name != "__call__":
                return call(*args, **kwargs)
            wanted = seen[".".join(module.path)] = fits(module)
            if not wanted:
                return call(*args, **kwargs)
            default = "_".join(module.path) or "model"
            chosen = name(default) if callable(name) else name or default
            return _run(tags.check_name(chosen, "name_layers"), context, args, kwargs)

        with nn.intercept_methods(intercept):
            result = fn(*args, **kwargs)
        if seen and not any(seen.values()):
            what = ", ".join(repr(one) if isinstance(one, str) else one.__name__ for one in several)
            known = ", ".join(sorted(path for path in seen if path)[:12])
            raise mistake(f"name_layers: `where` selects no layer: there is no {what} in the model, which has {known}.")
        return result

    return named  # type: ignore[return-value]


def _run(name: str, context: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the call as a named computation."""

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return context.orig_method.func(module, *args, **kwargs)

    def transform(fn: Callable[..., Any], scopes: Any, *args: Any, **kwargs: Any) -> Any:
        def inner(scope: Any, repack: Any, variables: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
            def run(variables: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
                inside = scope(variables, rngs)
                return fn(inside, *args, **kwargs), repack(inside)

            return tags.tagged(run, tags.Tag("named_computation", name))(variables, rngs, *args, **kwargs)

        return lift.pack(inner, (True,), (True,), (True,), name=name, enable_kwargs=True)(scopes, *args, **kwargs)

    return nn.transforms.lift_direct_transform(transform, (call,), context.module, *args, **kwargs)
