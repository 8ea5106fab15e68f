"""Gradients of models with encoders in front: each has a number of microbatches of its own.

Encoders of images or text are small beside the model that reads what they return, so they are better off with fewer and
larger microbatches. They run ahead for the whole batch, then comes the pipeline of the model, then their backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.gradients import (
    added,
    cut_batch,
    differentiable,
    in_parts,
    joined,
    number_of_microbatches,
    with_others,
    zeros_like_sum,
)
from mpmd_trace.frontend.loops import enumerated_for


def encoded_rows(encode: Callable[..., Any], params: Any, slices: tuple[Any, ...], who: str, wanted: str) -> Any:
    """Return what `encode(params, *rows)` returns for all rows, computed in microbatches.

    Args:
        encode: returns a pytree of arrays with as many rows.
        params: its first argument.
        slices: the others, cut into microbatches along a new first axis.
        who: the function, for errors.
        wanted: what it should return instead, for errors.

    Raises:
        FrontendError: for an array with another number of rows.
    """
    rows = jax.tree.leaves(slices)[0].shape[1]

    def body(i: Any, nothing: None, part: Any) -> Any:
        result = encode(params, *part)
        for path, leaf in jax.tree_util.tree_leaves_with_path(result):
            if jnp.shape(leaf)[:1] != (rows,):
                raise mistake(
                    f"{who} returns an array of shape {list(jnp.shape(leaf))} for {rows} rows "
                    f"(result{jax.tree_util.keystr(path)}); {wanted}"
                )
        return nothing, result

    _, parts = enumerated_for(body, None, slices)
    return joined(parts)


def add_gradients(
    encode: Callable[..., Any], params: Any, slices: tuple[Any, ...], cotangents: Any, count: int, sums: Any
) -> Any:
    """Return the sums with the gradients by `params`, for the cotangents of all rows; each microbatch is encoded again.

    `cotangents` are those of what `differentiable` leaves of the encoded rows, `count` is the number of microbatches.
    """
    split = jax.tree.map(lambda x: in_parts(x, count), cotangents)

    def body(i: Any, sums: Any, part: Any) -> Any:
        rows, cotangent = part
        [gradients] = jax.vjp(lambda p: differentiable(encode(p, *rows)), params)[1](cotangent)
        return added(sums, gradients)

    return enumerated_for(body, sums, (slices, split))


Encoder = tuple[Callable[..., Any], int]


def encoded_value_and_grad(
    loss: Callable[..., Any], encoders: Mapping[str, Encoder], *, microbatches: int, sum_dtype: Any = None
) -> Callable[..., Any]:
    """Compute value and gradients of the mean of `loss(params, encoded, *batch)` over microbatches.

    `encoded` is a dictionary with the result of each encoder for the rows of the microbatch. Inside `mpmd_trace.jit`,
    each encoder first runs in its own number of microbatches, forward only. The results are then cut into the
    microbatches of the loss, which run forward and backward. At last, each encoder runs again, each microbatch forward
    and backward; so no activations of encoders are kept meanwhile. Each of these loops follows the schedule. If an
    encoder is random, it must give the same result both times: pass keys as rows. Encoders may have meshes of their
    own. Assign their names to meshes without stage numbers, even if the names of the model have some.

    Args:
        loss: a function of the parameters, of a dictionary of encoded rows, and of rows of the batch; returns a scalar,
            the mean over the rows.
        encoders: for each name, a pair of a function and its number of microbatches. The function takes the parameters
            and some of its rows, and returns a pytree of arrays with as many rows.
        microbatches: the number of microbatches of the loss. Numbers of rows must be multiples of it, and of the
            numbers of microbatches of the encoders.
        sum_dtype: the dtype in which gradients of the loss are summed; by default that of the parameter.

    Returns:
        A function of the parameters, of a dictionary with what each encoder reads, and of the batch, which may be
        several arguments, that returns what `jax.value_and_grad` returns: `(value, gradients)`.

    Raises:
        FrontendError: for wrong arguments; when called, for a batch that cannot be split into these numbers of
            parts, or for encoders that return another number of rows.
    """
    count = number_of_microbatches(microbatches)
    if not callable(loss):
        raise mistake(f"loss is a function, not {loss!r} of type {type(loss).__name__}.")
    if not isinstance(encoders, Mapping) or not encoders:
        raise mistake(f"encoders maps names to pairs of a function and its number of microbatches; got {encoders!r}.")
    for name, one in encoders.items():
        if not isinstance(one, tuple) or len(one) != 2 or not callable(one[0]):
            raise mistake(f"the encoder {name!r} is {one!r}; give a function and its number of microbatches.")
        number_of_microbatches(one[1])

    def called(params: Any, inputs: Mapping[str, Any], *batch: Any) -> tuple[Any, Any]:
        if not isinstance(inputs, Mapping) or set(inputs) != set(encoders):
            given = sorted(inputs, key=str) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise mistake(f"the encoders are {sorted(encoders, key=str)}, and what they read is given for {given}.")
        cuts = {name: cut_batch((params, inputs[name]), [1], n, encode) for name, (encode, n) in encoders.items()}
        encoded = {}
        for name, (encode, _) in encoders.items():
            who = f"the encoder {name!r} ({name_of(encode)})"
            encoded[name] = encoded_rows(encode, params, cuts[name], who, "it has to have a row for each.")
        slices = cut_batch((params, encoded, *batch), range(1, len(batch) + 2), count, loss)

        def body(i: Any, sums: Any, part: Any) -> Any:
            encoded, *rows = part

            def of_part(p: Any, own: Any) -> Any:
                value = loss(p, with_others(own, encoded), *rows)
                is_leaf = jax.tree_util.all_leaves([value])
                if not is_leaf or jnp.shape(value):
                    actual = f"shape {list(jnp.shape(value))}" if is_leaf else type(value).__name__
                    raise mistake(f"the loss ({name_of(loss)}) returns a scalar, the mean over its rows; got {actual}.")
                return value

            value, (direct, cotangents) = jax.value_and_grad(of_part, (0, 1))(params, differentiable(encoded))
            return added(sums, direct), (value, cotangents)

        zeros = jax.tree.map(lambda x: zeros_like_sum(x, sum_dtype), params)
        sums, (values, parts) = enumerated_for(body, zeros, slices)
        cotangents = jax.tree.map(lambda x: x / count, joined(parts))
        sums = jax.tree.map(lambda s: s / count, sums)
        for name, (encode, n) in encoders.items():
            sums = add_gradients(encode, params, cuts[name], cotangents[name], n, sums)
        return jnp.mean(values), sums

    return called


def contrastive_value_and_grad(
    embed: Callable[..., Any],
    loss: Callable[..., Any],
    *,
    microbatches: int,
    has_aux: bool = False,
    sum_dtype: Any = None,
) -> Callable[..., Any]:
    """Compute value and gradients of `loss(params, embed(params, *batch))`, with `embed` in microbatches.

    Use it for losses that compare the rows of a batch with each other, such as those of CLIP and SimCLR;
    `value_and_grad(microbatches=)` would compare only the rows of a microbatch.  Inside `mpmd_trace.jit`, `embed` first
    runs in microbatches, forward only.  Then `loss` runs once, over all rows.  Then `embed` runs again, each microbatch
    forward and backward.  If `embed` is random, it must give the same result both times: pass keys as rows of the
    batch.

    Args:
        embed: a function of the parameters and some rows of the batch.  It returns a pytree of arrays with as many
            rows, such as the embeddings of two towers; labels and masks may be among them.
        loss: a function of the parameters (for example, a temperature) and of the results of `embed` for the whole
            batch.  It returns a scalar, or `(scalar, aux)` with `has_aux`.
        microbatches: the number of parts; the number of rows must be a multiple of it.
        has_aux: whether `loss` returns auxiliary results, too.
        sum_dtype: the dtype in which gradients are summed; by default that of the parameter.

    Returns:
        A function of the parameters and the batch, which may be several arguments, that returns what
        `jax.value_and_grad` returns: `(value, gradients)`, or `((value, aux), gradients)`.

    Raises:
        FrontendError: for wrong arguments; when called, for a batch that cannot be split into this many equal parts,
            or for embeddings with another number of rows.
    """
    count = number_of_microbatches(microbatches)
    for fn, what in ((embed, "embed"), (loss, "loss")):
        if not callable(fn):
            raise mistake(f"{what} is a function, not {fn!r} of type {type(fn).__name__}.")

    def called(params: Any, *batch: Any) -> Any:
        slices = cut_batch((params, *batch), range(1, len(batch) + 1), count, embed)
        wanted = "embeddings have a row for each. What belongs to the batch as a whole is for the loss to compute."
        embeddings = encoded_rows(embed, params, slices, name_of(embed), wanted)

        def of_embeddings(p: Any, own: Any) -> Any:
            return loss(p, with_others(own, embeddings))

        gradient = jax.value_and_grad(of_embeddings, (0, 1), has_aux=has_aux)
        value, (direct, cotangents) = gradient(params, differentiable(embeddings))
        zeros = jax.tree.map(lambda x: zeros_like_sum(x, sum_dtype), params)
        sums = add_gradients(embed, params, slices, cotangents, count, zeros)
        return value, added(sums, direct)

    return called
