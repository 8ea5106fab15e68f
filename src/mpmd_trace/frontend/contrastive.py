"""Gradients of losses that compare the rows of a batch: embeddings in microbatches, one loss over all of them.

The gradients are those of the whole batch, for the memory of one microbatch's activations: embeddings are computed
twice, first without what their backward needs (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory
Limited Setup", 2021, known as GradCache).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.gradients import (
    cut_batch,
    differentiable,
    in_parts,
    joined,
    number_of_microbatches,
    with_others,
    zeros_like_sum,
)
from mpmd_trace.frontend.loops import enumerated_for

__all__ = ["contrastive_value_and_grad"]


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
        rows = jax.tree.leaves(slices)[0].shape[1]

        def first(i: Any, nothing: None, part: Any) -> Any:
            result = embed(params, *part)
            for path, leaf in jax.tree_util.tree_leaves_with_path(result):
                if jnp.shape(leaf)[:1] != (rows,):
                    raise mistake(
                        f"{name_of(embed)} returns an array of shape {list(jnp.shape(leaf))} for {rows} rows "
                        f"(result{jax.tree_util.keystr(path)}); embeddings have a row for each. What belongs to the "
                        "batch as a whole is for the loss to compute."
                    )
            return nothing, result

        _, parts = enumerated_for(first, None, slices)
        embeddings = joined(parts)

        def of_embeddings(p: Any, own: Any) -> Any:
            return loss(p, with_others(own, embeddings))

        gradient = jax.value_and_grad(of_embeddings, (0, 1), has_aux=has_aux)
        value, (direct, cotangents) = gradient(params, differentiable(embeddings))
        split = jax.tree.map(lambda x: in_parts(x, count), cotangents)

        def second(i: Any, sums: Any, part: Any) -> Any:
            given, cotangent = part
            gradients = jax.vjp(lambda p: differentiable(embed(p, *given)), params)[1](cotangent)[0]
            return jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, gradients)

        zeros = jax.tree.map(lambda x: zeros_like_sum(x, sum_dtype), params)
        sums = enumerated_for(second, zeros, (slices, split))
        return value, jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, direct)

    return called
