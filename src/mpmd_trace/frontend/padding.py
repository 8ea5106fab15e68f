"""`pad_rows`: pad a batch with rows of weight 0, so that it divides into microbatches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mpmd_trace.frontend.errors import mistake


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
