"""Gradients of models with encoders in front: each has a number of microbatches of its own.

Encoders of images or text are small beside the model that reads what they return, so they are better off with fewer and
larger microbatches. They run ahead of the pipeline of the model, and again for their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.gradient_accumulation import (
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


def encoded_rows(
    encode: Callable[..., Any], params: Any, slices: tuple[Any, ...], pieces: int, who: str, wanted: str
) -> Any:
    """Return what `encode(params, *rows)` returns for each microbatch, stacked.

    Args:
        encode: returns a pytree of arrays with as many rows.
        params: its first argument.
        slices: the others, cut into microbatches along a new first axis.
        pieces: in how many pieces what it returns for a microbatch is read.
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
        return nothing, in_pieces(result, pieces)

    return enumerated_for(body, None, slices)[1]


def in_pieces(tree: Any, count: int) -> Any:
    """Return the rows of all arrays in `count` pieces along a new first axis, or as they are for one piece."""
    return tree if count == 1 else jax.tree.map(lambda x: in_parts(x, count), tree)


def of_pieces(pieces: list[Any]) -> Any:
    """Return the rows of all pieces, one behind the other."""
    return pieces[0] if len(pieces) == 1 else joined(jax.tree.map(lambda *rows: jnp.stack(rows), *pieces))


def regrouped(parts: Any, pieces: int, count: int) -> list[Any]:
    """Return for microbatches of `count` pieces each what others of `pieces` each computed, piece by piece.

    Inside of `mpmd_trace.jit` nothing is stacked: a microbatch waits for those that have its rows, not for all.
    """
    if pieces == count or not jax.tree.leaves(parts):
        return [parts] * count
    each = [jax.tree.map(lambda x, at=i: x[at], parts) for i in range(len(jax.tree.leaves(parts)[0]))]
    if pieces > 1:
        each = [jax.tree.map(lambda x, at=i: x[at], part) for part in each for i in range(pieces)]
    return [jax.tree.map(lambda *rows: jnp.stack(rows), *each[i::count]) for i in range(count)]


def add_gradients(
    encode: Callable[..., Any], params: Any, slices: tuple[Any, ...], cotangents: list[Any], count: int, sums: Any
) -> Any:
    """Return the sums with the gradients by `params`; each microbatch is encoded again.

    `cotangents` are those of what `differentiable` leaves of the encoded rows, stacked, piece by piece; the loss is the
    mean over `count` microbatches.
    """

    def body(i: Any, sums: Any, part: Any) -> Any:
        rows, pieces = part
        cotangent = jax.tree.map(lambda x: x / count, of_pieces(pieces))
        [gradients] = jax.vjp(lambda p: differentiable(encode(p, *rows)), params)[1](cotangent)
        return added(sums, gradients)

    return enumerated_for(body, sums, (slices, cotangents))


Encoder = tuple[Callable[..., Any], int]


def encoded_value_and_grad(
    loss: Callable[..., Any], encoders: Mapping[str, Encoder], *, microbatches: int, sum_dtype: Any = None
) -> Callable[..., Any]:
    """Compute value and gradients of the mean of `loss(params, encoded, *batch)` over microbatches.

    `encoded` is a dictionary with the result of each encoder for the rows of the microbatch. Inside `mpmd_trace.jit`,
    each encoder first runs in its own number of microbatches, forward only. A microbatch of the loss begins as soon as
    its rows are encoded. Then each encoder runs again for its gradients, so no activations of encoders are kept
    meanwhile: forward while its meshes would wait for the loss, and backward as soon as the microbatches that read its
    rows are done. Each of these loops follows the schedule. If an encoder is random, it must give the same result both
    times: pass keys as rows. Encoders may have meshes of their own. Assign their names to meshes without stage numbers,
    even if the names of the model have some.

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
        rows = {name: jax.tree.leaves(inputs[name])[0] for name in encoders}
        _, *slices = cut_batch((params, rows, *batch), range(1, len(batch) + 2), count, loss)
        encoded = {}
        for name, (encode, n) in encoders.items():
            who = f"the encoder {name!r} ({name_of(encode)})"
            pieces = math.lcm(count, n)
            made = encoded_rows(encode, params, cuts[name], pieces // n, who, "it has to have a row for each.")
            encoded[name] = regrouped(made, pieces // n, pieces // count)

        def body(i: Any, sums: Any, part: Any) -> Any:
            pieces, *rows = part
            encoded = {name: of_pieces(own) for name, own in pieces.items()}

            def of_part(p: Any, own: Any) -> Any:
                value = loss(p, with_others(own, encoded), *rows)
                is_leaf = jax.tree_util.all_leaves([value])
                if not is_leaf or jnp.shape(value):
                    actual = f"shape {list(jnp.shape(value))}" if is_leaf else type(value).__name__
                    raise mistake(f"the loss ({name_of(loss)}) returns a scalar, the mean over its rows; got {actual}.")
                return value

            value, (direct, cotangents) = jax.value_and_grad(of_part, (0, 1))(params, differentiable(encoded))
            cotangents = {n: in_pieces(own, len(pieces[n])) for n, own in cotangents.items()}
            return added(sums, direct), (value, cotangents)

        zeros = jax.tree.map(lambda x: zeros_like_sum(x, sum_dtype), params)
        sums, (values, cotangents) = enumerated_for(body, zeros, (encoded, *slices))
        sums = jax.tree.map(lambda s: s / count, sums)
        for name, (encode, n) in encoders.items():
            pieces = math.lcm(count, n)
            parts = regrouped(cotangents[name], pieces // count, pieces // n)
            sums = add_gradients(encode, params, cuts[name], parts, count, sums)
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
        embeddings = joined(encoded_rows(embed, params, slices, 1, name_of(embed), wanted))

        def of_embeddings(p: Any, own: Any) -> Any:
            return loss(p, with_others(own, embeddings))

        gradient = jax.value_and_grad(of_embeddings, (0, 1), has_aux=has_aux)
        value, (direct, cotangents) = gradient(params, differentiable(embeddings))
        zeros = jax.tree.map(lambda x: zeros_like_sum(x, sum_dtype), params)
        parts = jax.tree.map(lambda x: in_parts(x, count), cotangents)
        sums = add_gradients(embed, params, slices, [parts], 1, zeros)
        return value, added(sums, direct)

    return called
