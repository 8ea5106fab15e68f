"""`filter_value_and_grad` over microbatches: by the floating-point arrays of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx

from mpmd_trace.frontend.gradient_accumulation import value_and_grad


def filter_value_and_grad(fn: Callable[..., Any], *, microbatches: int, **options: Any) -> Callable[..., Any]:
    """Compute `equinox.filter_value_and_grad(fn)` over a batch in microbatches; see `mpmd_trace.value_and_grad`.

    Args:
        fn: a function whose first argument is a module; returns the loss of its rows.
        microbatches: the number of parts.
        options: those of `mpmd_trace.value_and_grad` except `argnums`: gradients are with respect to the floating-point
            arrays of the first argument, with None in place of everything else.

    Raises:
        FrontendError: as `mpmd_trace.value_and_grad`.
    """

    def called(model: Any, *args: Any, **kwargs: Any) -> Any:
        arrays, rest = eqx.partition(model, eqx.is_inexact_array)

        def loss(arrays: Any, *args: Any, **kwargs: Any) -> Any:
            return fn(eqx.combine(arrays, rest), *args, **kwargs)

        loss.__wrapped__ = fn  # type: ignore[attr-defined]  # messages name the arguments of fn
        return value_and_grad(loss, 0, microbatches=microbatches, **options)(arrays, *args, **kwargs)

    value_and_grad(fn, 0, microbatches=microbatches, **options)  # report mistakes here, not at the first step
    return called
