"""Rows that are encoded in microbatches twice: forward alone for all of them, later again for their gradients.

So no activations are kept meanwhile (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited
Setup", 2021, known as GradCache).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.gradients import added, differentiable, in_parts, joined
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
