"""`value_and_grad` of a loss over microbatches: the batch is split, values and gradients are accumulated.

The loop over microbatches is the main difference between a pipelined training step and an ordinary one.  It is also a
common source of mistakes: a mean of means is not the mean if microbatches have different weights, and a key or a
running average has to be passed through all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from mpmd_trace.frontend import mutation
from mpmd_trace.frontend.errors import mistake, warn
from mpmd_trace.frontend.functions import name_of, parameters_of, positional_names
from mpmd_trace.frontend.loops import loop_over
from mpmd_trace.frontend.nonlinear_losses import LOOP
from mpmd_trace.frontend.tags import is_array
from mpmd_trace.jax_compat.explicit_axes import spec_of
from mpmd_trace.jax_compat.tracing import is_key, is_key_data

#: How microbatches become one: the mean of them, their sum, or the sum of totals over the sum of weights.
Reduce = Literal["mean", "sum", "weighted"]
#: How auxiliary results do; "stack" and "concatenate" keep them all, "last" keeps one.
Aux = Literal["mean", "sum", "weighted", "stack", "concatenate", "last"]
REDUCE, AUX = get_args(Reduce), get_args(Aux)


#: Why the program that is being traced cannot have so many microbatches, or None.
Refusal = Callable[[int], str | None]
_refusal: ContextVar[Refusal | None] = ContextVar("refusal", default=None)


@contextlib.contextmanager
def microbatches_refused_by(refusal: Refusal | None) -> Iterator[None]:
    """Within, `value_and_grad` raises for numbers of microbatches that are refused, before it traces the loss."""
    token = _refusal.set(refusal)
    try:
        yield
    finally:
        _refusal.reset(token)


class _Parts(NamedTuple):
    """The results of the loss for one microbatch."""

    total: Any
    weight: Any
    state: Any
    aux: Any


def value_and_grad(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    microbatches: int,
    batch_argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    allow_int: bool = False,
    reduce: Reduce = "mean",
    aux: Any = None,
    state_argnum: int | None = None,
    key_argnum: int | None = None,
    sum_dtype: Any = None,
) -> Callable[..., Any]:
    """Compute `jax.value_and_grad(fn, argnums)` over a batch in microbatches (gradient accumulation).

    Inside `mpmd_trace.jit`, each part of the batch is a microbatch of the pipeline.  Elsewhere, the parts are the
    iterations of a `jax.lax.scan`.  Microbatch i has the rows `i * n` to `(i + 1) * n - 1` of every array of the batch.

    The result is that of the whole batch if the loss is linear over rows: a mean, a sum, or a weighted mean of the
    losses of the rows.  Other losses depend on the number of microbatches: balancing of experts, batch normalization,
    scales of quantized activations, ratios of sums, and contrastive losses (use `contrastive_value_and_grad` for
    these).  `mpmd_trace.jit` warns if it can prove that a loss is not linear, unless `state_argnum` is given.

    Args:
        fn: a function of positional and keyword arguments that returns a scalar, the loss of its rows.
            With `reduce="weighted"` it returns `(total, weight)` instead: the sum of the losses of its rows, and their
            weight, such as the number of tokens.  The totals of all microbatches are added, and divided by the sum of
            their weights, which is not differentiated.  With `state_argnum`, `fn` returns `(loss, state)`; with
            `has_aux`, `(loss, aux)`; with both, `(loss, (state, aux))`.
        argnums: the arguments to differentiate with respect to, as in `jax.value_and_grad`.
        microbatches: the number of parts; the number of rows must be a multiple of it.
        batch_argnums: the arguments that are split into microbatches, along the first axis of each array.  By default,
            these are all positional arguments with arrays, except those in `argnums`, `state_argnum` and `key_argnum`.
            Every microbatch gets all other arguments, and all keyword arguments, as they are.
        has_aux: whether `fn` returns auxiliary results besides the loss.
        allow_int: whether to allow integers and booleans in `argnums`, as in `jax.value_and_grad`; their gradients are
            zeros of the dtype `float0`.
        reduce: "mean" if the loss is a mean over equally many rows, "sum" if it is a sum, or "weighted".
        aux: how to combine the auxiliary results of all microbatches: "mean", "sum", "weighted" (totals, which are
            summed and divided by the sum of the weights of the loss), "stack" (along a new first axis), "concatenate"
            (for results per row) or "last"; or a pytree prefix of these.  The default is `reduce`; a warning says if a
            result seems to be per row.  Auxiliary results should be small, because all of them are kept until the last
            microbatch is done.
        state_argnum: the position of a state, such as the running averages of batch normalization: each microbatch
            gets the state that the previous one returned.
        key_argnum: the position of a PRNG key; microbatch i gets `jax.random.fold_in(key, i)`.
        sum_dtype: the dtype in which gradients are summed; by default that of the argument.

    Returns:
        A function of the arguments of `fn` that returns what `jax.value_and_grad` returns: `(value, gradients)`, or
        `((value, state), gradients)`, `((value, aux), gradients)`, `((value, (state, aux)), gradients)`.

    Raises:
        FrontendError: for inconsistent options; when called, for a batch that cannot be split into this many equal
            parts, or for results of `fn` of another form.
    """
    count = number_of_microbatches(microbatches)
    if not callable(fn):
        raise mistake(f"value_and_grad takes a function, not {fn!r} of type {type(fn).__name__}.")
    _check_reductions(reduce, aux, has_aux=has_aux)

    def called(*args: Any, **kwargs: Any) -> Any:
        refusal = _refusal.get()
        refused = None if refusal is None else refusal(count)
        if refused is not None:
            raise mistake(refused)
        at = _Positions.of(args, argnums, batch_argnums, state_argnum, key_argnum)
        slices = cut_batch(args, at.batch, count, fn)
        _warn_of_shared_keys(args, kwargs, at, fn)

        def loss(*wrt: Any, i: Any, state: Any, rows: Any) -> tuple[Any, _Parts]:
            own = list(args)
            for position, value in (*zip(at.wrt, wrt, strict=True), *zip(at.batch, rows, strict=True)):
                own[position] = value
            if at.state is not None:
                own[at.state] = state
            if at.key is not None:
                own[at.key] = jax.random.fold_in(args[at.key], i)
            outputs = mutation.kept(fn, tuple(own), kwargs, "value_and_grad", "mpmd_trace.nnx.value_and_grad")
            parts = _parts(outputs, fn, reduce, state_argnum is not None, has_aux)
            return parts.total, parts

        wrt = tuple(args[i] for i in at.wrt)
        gradient = jax.value_and_grad(loss, tuple(range(len(wrt))), has_aux=True, allow_int=allow_int)

        def microbatch(i: Any, carry: Any, rows: Any) -> Any:
            sums, state = carry
            (_, parts), gradients = gradient(*wrt, i=i, state=state, rows=rows)
            return (added(sums, differentiable(gradients)), _like(state, parts.state, fn)), parts._replace(state=None)

        zeros = jax.tree.map(lambda x: zeros_like_sum(x, sum_dtype), differentiable(wrt))
        start = None if at.state is None else args[at.state]
        name = LOOP if at.state is None else f"{LOOP} with a state"
        (sums, state), all_parts = loop_over(name, microbatch, (zeros, start), slices, count)
        weight = jnp.sum(all_parts.weight) if reduce == "weighted" else count if reduce == "mean" else None
        value = _reduced(all_parts.total, reduce, weight)
        gradients = sums if weight is None else jax.tree.map(lambda s: s / jnp.asarray(weight, s.dtype), sums)
        gradients = with_others(gradients, jax.tree.map(lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0), wrt))
        result = gradients if isinstance(argnums, Sequence) else gradients[0]
        besides = [state] if at.state is not None else []
        if has_aux:
            if aux is None:
                _warn_of_rows(all_parts.aux, jax.tree.leaves(slices), reduce, fn)
            besides.append(_reduced_aux(all_parts.aux, reduce if aux is None else aux, weight))
        if besides:
            value = value, besides[0] if len(besides) == 1 else tuple(besides)
        return value, result

    return called


def _check_reductions(reduce: Reduce, aux: Any, *, has_aux: bool) -> None:
    """Raise `FrontendError` unless these options of `value_and_grad` are known and fit together."""
    if reduce not in REDUCE:
        raise mistake(f"reduce is one of {', '.join(map(repr, REDUCE))}, not {reduce!r}.")
    known = [name for name in AUX if name != "weighted" or reduce == "weighted"]
    for one in jax.tree.leaves(aux):
        if one not in known:
            raise mistake(f"aux is made of {', '.join(map(repr, known))}; got {one!r}.")
    if aux is not None and not has_aux:
        raise mistake("aux says what becomes of auxiliary results; without has_aux=True there are none.")


class _Positions(NamedTuple):
    """The positions of the arguments by their purpose."""

    wrt: tuple[int, ...]
    batch: tuple[int, ...]
    state: int | None
    key: int | None

    @staticmethod
    def of(args: Sequence[Any], wrt: Any, batch: Any, state: int | None, key: int | None) -> _Positions:
        def positions(given: Any, what: str) -> tuple[int, ...]:
            listed = tuple(given) if isinstance(given, Sequence) else (given,)
            for n in listed:
                if isinstance(n, bool) or not isinstance(n, int) or not -len(args) <= n < len(args):
                    raise mistake(f"{what} names argument {n!r}; there are {len(args)} positional arguments.")
            return tuple(n % len(args) for n in listed)

        wrt = positions(wrt, "argnums")
        states = () if state is None else positions(state, "state_argnum")
        keys = () if key is None else positions(key, "key_argnum")
        others = {*wrt, *states, *keys}
        rows = (
            tuple(i for i, x in enumerate(args) if i not in others and any(map(is_array, jax.tree.leaves(x))))
            if batch is None
            else positions(batch, "batch_argnums")
        )
        named = [*wrt, *rows, *states, *keys]
        twice = sorted({n for n in named if named.count(n) > 1})
        if twice:
            raise mistake(
                f"argument {twice[0]} is named twice by argnums, batch_argnums, state_argnum and key_argnum; each says "
                "another thing of an argument."
            )
        return _Positions(wrt, rows, next(iter(states), None), next(iter(keys), None))


def number_of_microbatches(microbatches: object) -> int:
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise mistake(f"microbatches is a Python int from 1 on, not {microbatches!r}; it is part of the program.")
    return microbatches


def cut_batch(args: Sequence[Any], positions: Sequence[int], count: int, fn: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the arguments at `positions` with their first axes in `count` parts, along a new first axis."""
    wrong = []
    rows: dict[int, str] = {}
    lengths = {jnp.shape(leaf)[0] for i in positions for leaf in jax.tree.leaves(args[i]) if jnp.ndim(leaf)}
    names = positional_names(parameters_of(fn) or [])
    for position in positions:
        name = names[position] if position < len(names) else f"argument {position}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(args[position]):
            shape = jnp.shape(leaf) if is_array(leaf) else ()
            if (not shape and is_key(leaf)) or (is_key_data(leaf) and len(lengths) > 1):
                verb = "is" if is_key(leaf) else "has the type of"
                raise mistake(
                    f"{name}{jax.tree_util.keystr(path)} {verb} a PRNG key, which is not cut into microbatches. "
                    f"key_argnum={position} gives each microbatch a key of its own; keys for each row, "
                    "jax.random.split(key, rows), are part of the batch, and rows draw the same numbers whatever the "
                    "number of microbatches."
                )
            if not shape or shape[0] % count:
                other = "a scalar" if is_array(leaf) else f"{leaf!r}, which is not an array"
                actual = f"{list(shape)}" if shape else other
                wrong.append(f"{name}{jax.tree_util.keystr(path)} is {actual}")
            else:
                rows.setdefault(shape[0], f"{name}{jax.tree_util.keystr(path)}")
    if not jax.tree.leaves([args[i] for i in positions]):
        raise mistake(
            f"there is no batch to cut into {count} microbatches: of the positional arguments, those that are not "
            "differentiated are the batch, or those of batch_argnums, and there is no array in them. Pass the batch as "
            "a positional argument."
        )
    if wrong:
        raise mistake(
            f"the batch cannot be cut into {count} microbatches of equally many rows: {'; '.join(wrong)}. Choose a "
            "number of microbatches that divides the first axes, or fill up the batch with rows of weight 0 "
            '(mpmd_trace.pad_rows, reduce="weighted"); leave what is not a batch out of batch_argnums, or pass it by '
            "keyword."
        )
    if len(rows) > 1:
        raise mistake(
            "the arrays of the batch have different numbers of rows: "
            f"{', '.join(f'{array} has {number}' for number, array in rows.items())}. A microbatch has as many rows "
            "of each of them, so several for each row of the batch are given along another axis; leave what is not a "
            "batch out of batch_argnums, or pass it by keyword."
        )
    return tuple(jax.tree.map(lambda x: in_parts(x, count), args[i]) for i in positions)


def in_parts(x: Any, count: int) -> Any:
    """Return an array with its first axis in `count` parts; the type says that each part is sharded as the whole is."""
    spec = spec_of(jax.typeof(x))
    sharding = {} if spec is None else {"out_sharding": jax.P(None, *spec)}
    return jnp.reshape(x, (count, x.shape[0] // count, *x.shape[1:]), **sharding)


def joined(parts: Any) -> Any:
    """Return arrays in parts along a first axis, joined along their second one."""
    return jax.tree.map(lambda x: jnp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), parts)


def differentiable(tree: Any) -> Any:
    """Return a tree with None for the arrays that have no derivatives, such as labels, masks and keys."""
    return jax.tree.map(lambda x: x if jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact) else None, tree)


def with_others(own: Any, tree: Any) -> Any:
    """Return what `differentiable` leaves of a tree, with the other arrays of that tree."""
    return jax.tree.map(lambda x, other: other if x is None else x, own, tree, is_leaf=lambda x: x is None)


def added(sums: Any, gradients: Any) -> Any:
    """Return sums with these gradients, each in the dtype of the sum."""
    return jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, gradients)


def zeros_like_sum(x: Any, dtype: Any) -> Any:
    """Return zeros for the sum of gradients by `x`, sharded as the type of `x` says."""
    spec = spec_of(jax.typeof(x))
    sharding = {} if spec is None else {"out_sharding": spec}
    return jnp.zeros(jnp.shape(x), dtype or jnp.result_type(x), **sharding)


def _name(fn: Callable[..., Any]) -> str:
    return name_of(getattr(fn, "__wrapped__", fn))


def _parts(result: Any, fn: Callable[..., Any], reduce: Reduce, has_state: bool, has_aux: bool) -> _Parts:
    loss = "(total, weight)" if reduce == "weighted" else "loss"
    besides = [name for name, is_there in (("state", has_state), ("aux", has_aux)) if is_there]
    form = f"({loss}, {besides[0] if len(besides) == 1 else '(state, aux)'})" if besides else loss
    name = _name(fn)

    def pair(value: Any, what: str) -> Any:
        if not isinstance(value, tuple) or len(value) != 2:
            raise mistake(f"{name} returns {what} for these options of value_and_grad, as {form}; got {_shown(value)}.")
        return value

    value, more = pair(result, "a pair") if besides else (result, None)
    total, weight = pair(value, "a total and a weight") if reduce == "weighted" else (value, None)
    state, aux = (
        pair(more, "a state and an auxiliary result")
        if len(besides) == 2
        else ((more, None) if has_state else (None, more))
    )
    return _Parts(total, jax.lax.stop_gradient(weight), state, aux)


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


def _like(before: Any, after: Any, fn: Callable[..., Any]) -> Any:
    """Return `after`, if it can be the state of the next microbatch."""
    structures = [jax.tree.structure(state) for state in (before, after)]
    wrong = None
    if structures[0] != structures[1]:
        wrong = f"{structures[1]} for {structures[0]}"
    else:
        for (path, leaf), other in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
            old, new = (f"{jnp.result_type(x)}{[*jnp.shape(x)]}" for x in (leaf, other))
            if new != old:
                wrong = f"state{jax.tree_util.keystr(path)} is {new}, not {old}"
                break
    if wrong is not None:
        raise mistake(
            f"the state that {_name(fn)} returns is not like the one it gets, so the next microbatch cannot have it: "
            f"{wrong}."
        )
    return after


def _reduced(parts: Any, how: str, weight: Any) -> Any:
    match how:
        case "mean":
            return jnp.mean(parts, axis=0)
        case "sum":
            return jnp.sum(parts, axis=0)
        case "weighted":
            return jnp.sum(parts, axis=0) / weight
        case "last":
            return parts[-1]
        case "concatenate":
            if parts.ndim < 2:
                raise mistake(
                    'an auxiliary result is a scalar, which aux="concatenate" cannot join along its first axis; '
                    '"stack" can.'
                )
            return joined(parts)
    return parts


def _warn_of_shared_keys(args: Sequence[Any], kwargs: Any, at: _Positions, fn: Callable[..., Any]) -> None:
    """Warn of a key from which all microbatches draw the same numbers, such as the same dropout masks."""
    names = positional_names(parameters_of(fn) or [])
    known = {*at.wrt, *at.batch, at.state, at.key}
    others = {names[i] if i < len(names) else f"argument {i}": x for i, x in enumerate(args) if i not in known}
    for name, value in {**others, **kwargs}.items():
        if (is_key(value) and not value.shape) or is_key_data(value):
            condition = "" if is_key(value) else f", if this {value.dtype}{list(value.shape)} is a PRNG key"
            warn(
                f"all microbatches draw the same random numbers from {name}{condition}. key_argnum names a positional "
                "argument of which each microbatch gets a key of its own"
            )


def _warn_of_rows(parts: Any, slices: Sequence[Any], how: str, fn: Callable[..., Any]) -> None:
    """Warn of results per row that become one for all microbatches by default."""
    rows = {slice.shape[1] for slice in slices if jnp.ndim(slice) > 1}
    for part in jax.tree.leaves(parts):
        if jnp.ndim(part) > 1 and part.shape[1] > 1 and rows == {part.shape[1]}:
            warn(
                f"an auxiliary result of {_name(fn)} has the shape {part.shape[1:]}, a row for each of the "
                f"{part.shape[1]} rows of a microbatch, and becomes their {how} over the microbatches. "
                f'aux="concatenate" gives the rows of the whole batch; aux="{how}" says that this is meant.'
            )
            return


def _reduced_aux(parts: Any, reductions: Any, weight: Any) -> Any:
    def below(how: str, tree: Any) -> Any:
        return jax.tree.map(lambda x: _reduced(x, how, weight), tree)

    try:
        return jax.tree.map(below, reductions, parts)
    except ValueError as error:
        raise mistake(f"aux is not a pytree prefix of the auxiliary result: {error}") from None


def pad_rows(batch: Any, multiple: int) -> tuple[Any, jax.Array]:
    """Pad the first axes of `batch` to a multiple of `multiple`; return it and row weights (1, or 0 for padding).

        batch, weights = mpmd_trace.pad_rows(batch, 8)
        gradient = mpmd_trace.value_and_grad(loss, microbatches=8, reduce="weighted")
        value, grads = gradient(params, batch, weights)

    In this example, `loss` returns `(jnp.sum(weights * losses), jnp.sum(weights))`.  The padding repeats the last row,
    so that it has no values that do not occur in the data.

    Args:
        batch: a pytree of arrays whose first axes have the same length, at least 1.
        multiple: the number of microbatches, or a multiple of it, so that batches of several lengths share one program.

    Raises:
        FrontendError: if the first axes differ, or there are no rows.
    """
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise mistake(f"pad_rows fills up to a multiple of a Python int from 1 on, not of {multiple!r}.")
    lengths = {jnp.shape(x)[:1] for x in jax.tree.leaves(batch)}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        shapes = ", ".join(str(list(jnp.shape(x))) for x in jax.tree.leaves(batch))
        raise mistake(f"pad_rows takes arrays with the same number of rows, at least one; got {shapes or 'none'}.")
    (count,) = lengths.pop()
    more = -count % multiple
    padded = jax.tree.map(lambda x: jnp.concatenate([jnp.asarray(x), jnp.repeat(x[-1:], more, axis=0)]), batch)
    return padded, (jnp.arange(count + more) < count).astype(jnp.float32)
