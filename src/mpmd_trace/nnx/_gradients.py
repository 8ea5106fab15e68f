"""`value_and_grad` over microbatches: by the parameters of a model, whose other state goes through the microbatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from flax import nnx

from mpmd_trace.frontend import gradient_accumulation
from mpmd_trace.frontend.errors import mistake


def value_and_grad(
    fn: Callable[..., Any], *, microbatches: int, wrt: Any = nnx.Param, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """Compute `nnx.value_and_grad(fn)` over a batch in microbatches; see `mpmd_trace.value_and_grad`.

    The other state of the model (running averages, random streams) goes from each microbatch to the next, and the
    model keeps the last.  So each microbatch has a dropout mask of its own, and `BatchNorm` averages over all of them.

    Args:
        fn: a function whose first argument is a module; returns the loss of its rows.
        microbatches: the number of parts.
        wrt: the variables to differentiate with respect to, as `nnx.DiffState` takes them.
        has_aux: whether `fn` returns auxiliary results besides the loss.
        options: those of `mpmd_trace.value_and_grad` except `argnums` and `state_argnum`.

    Returns:
        A function that returns what `nnx.value_and_grad` does: `(value, gradients)`, or `((value, aux), gradients)`,
        with gradients as an `nnx.State`.

    Raises:
        FrontendError: as `mpmd_trace.value_and_grad`; when called, for a first argument that is not a module.
    """
    for name in ("argnums", "state_argnum"):
        if name in options:
            raise mistake(f"value_and_grad of a module differentiates by its first argument, and has no {name}.")
    options.update(has_aux=has_aux, state_argnum=1)

    def shifted(position: int) -> int:
        return position + 1 if position > 0 else position

    for name in ("batch_argnums", "key_argnum"):
        given = options.get(name)
        if given is not None:
            options[name] = shifted(given) if isinstance(given, int) else tuple(map(shifted, given))

    def called(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(model, nnx.Module):
            raise mistake(f"value_and_grad takes a module as the first argument, not a {type(model).__name__}.")
        graph, wanted, rest = nnx.split(model, wrt, ...)

        def loss(wanted: Any, rest: Any, *args: Any, **kwargs: Any) -> Any:
            inner = nnx.merge(graph, wanted, rest, copy=True)  # variables of the trace that changes them
            result = fn(inner, *args, **kwargs)
            after, _, rest = nnx.split(inner, wrt, ...)
            if _unnamed(after) != _unnamed(graph):  # the loss may name layers
                raise mistake(
                    f"{getattr(fn, '__name__', 'the loss')} gives the model new variables or attributes, so the next "
                    "microbatch has another model. Make them before (call the model once), or nnx.pop them in the loss."
                )
            if has_aux:
                value, aux = result
                return value, (rest, aux)
            return result, rest

        loss.__wrapped__ = fn  # type: ignore[attr-defined]  # messages name the arguments of fn
        run = gradient_accumulation.value_and_grad(loss, 0, microbatches=microbatches, **options)
        (value, more), grads = run(wanted, rest, *args, **kwargs)
        rest, aux = more if has_aux else (more, None)
        nnx.update(model, rest)
        return ((value, aux), grads) if has_aux else (value, grads)

    gradient_accumulation.value_and_grad(fn, 0, microbatches=microbatches, **options)  # report mistakes here
    return called


def _unnamed(graph: Any) -> Any:
    """Return the graph of an object with the classes that layers have without names."""

    def plain(kind: Any) -> Any:
        return getattr(kind, "_mpmd_class", kind)

    nodes = [
        dataclasses.replace(node, type=plain(node.type), metadata=plain(node.metadata))
        if isinstance(node, nnx.graph.NodeDef)
        else node
        for node in graph.nodes
    ]
    return dataclasses.replace(graph, nodes=nodes)
