"""Gradients of losses that compare the rows of a batch: embeddings in microbatches, one loss over all of them.

The gradients are those of the whole batch, for the memory of one microbatch's activations: embeddings are computed
twice, first without what their backward needs (`encoding.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from mpmd_trace.frontend.encoding import add_gradients, encoded_rows
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.gradients import (
    added,
    cut_batch,
    differentiable,
    number_of_microbatches,
    with_others,
    zeros_like_sum,
)


def contrastive_value_and_grad(
    embed: Callable[..., Any],
    loss: Callable[..., Any],
    *,
    microbatches: int,
    has_aux: bool = False,
    sum_dtype: Any = None,
) -> Callable[..., Any]:
    """Compute value and gradients of `loss(params, embed(params, *batch))`, with `embed` in microbatches.

    For losses that compare the rows of a batch with each other, such as those of CLIP and SimCLR, for which
    `value_and_grad(microbatches=)` computes another one.  Inside `mpmd_trace.jit` the rows are embedded in microbatches
    of the pipeline; then comes the loss over all rows, once; then they are embedded again, each microbatch forward and
    backward.  A random function must give the same both times: pass keys as rows of the batch.

    Args:
        embed: a function of the parameters and some rows of the batch; returns a pytree of arrays with as many rows,
            such as the embeddings of two towers; labels and masks may be among them.
        loss: a function of the parameters (for a temperature, say) and of what `embed` returns for the whole batch;
            returns a scalar, with `has_aux` `(scalar, aux)`.
        microbatches: the number of parts; it must divide the length of the first axes of the batch.
        has_aux: whether `loss` returns auxiliary results besides.
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
