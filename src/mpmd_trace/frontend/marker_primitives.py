"""Identities that carry a mark on one array through JAX's transformations.

Each is a primitive whose value, outside `mpmd_trace.jit`, is its operand. Derivatives are marked
too: the tangent and cotangent of a named tensor have its name; broadcasting to several meshes and
reducing from several meshes are each other's transposes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpmd_trace.jax_compat.tracing import identity_primitive

#: On the results of a named computation: counts how often it was transposed. The name stack cannot
#: tell a transposition of the computation from one that merely runs it, as a custom_vjp rule does.
transposes_p: Any = identity_primitive(
    "mpmd_trace_transposes", lambda cotangent, params: transposes_p.bind(cotangent, count=params["count"] + 1)
)
named_tensor_p: Any = identity_primitive(
    "mpmd_trace_named_tensor", lambda cotangent, params: named_tensor_p.bind(cotangent, **params)
)
broadcast_p: Any = identity_primitive("mpmd_trace_broadcast", lambda cotangent, _: reduce_p.bind(cotangent))
reduce_p: Any = identity_primitive("mpmd_trace_reduce", lambda cotangent, _: broadcast_p.bind(cotangent))
MARKERS = (named_tensor_p, broadcast_p, reduce_p)


def counted(tree: Any) -> Any:
    """Return `tree`, with a count of transpositions, 0 so far, on each array that has derivatives."""

    def one(leaf: Any) -> Any:
        is_inexact = jnp.issubdtype(getattr(leaf, "dtype", np.bool_), jnp.inexact)
        if is_inexact or isinstance(leaf, float | complex):
            return transposes_p.bind(jnp.asarray(leaf), count=0)
        return leaf

    return jax.tree.map(one, tree)
