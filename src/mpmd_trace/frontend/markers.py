"""Identities that carry a mark on one array through JAX's transformations.

Each is a primitive whose value, outside `mpmd_trace.jit`, is its operand. Derivatives are marked
too: the tangent and cotangent of a named tensor have its name; broadcasting to several meshes and
reducing from several meshes are each other's transposes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mpmd_trace.jax_compat.tracing import identity_primitive


def _named_cotangent(cotangent: Any, params: dict[str, Any]) -> Any:
    return named_tensor_p.bind(cotangent, **params)


def _broadcast_cotangent(cotangent: Any, _params: dict[str, Any]) -> Any:
    return reduce_p.bind(cotangent)


def _reduce_cotangent(cotangent: Any, _params: dict[str, Any]) -> Any:
    return broadcast_p.bind(cotangent)


def _counted(cotangent: Any, params: dict[str, Any]) -> Any:
    return transposes_p.bind(cotangent, count=params["count"] + 1)


#: On the results of a named computation: counts how often it was transposed. The name stack cannot
#: tell a transposition of the computation from one that merely runs it, as a custom_vjp rule does.
transposes_p = identity_primitive("mpmd_trace_transposes", _counted)
named_tensor_p = identity_primitive("mpmd_trace_named_tensor", _named_cotangent)
broadcast_p = identity_primitive("mpmd_trace_broadcast", _broadcast_cotangent)
reduce_p = identity_primitive("mpmd_trace_reduce", _reduce_cotangent)


def counted(tree: Any) -> Any:
    """`tree`, with a count of transpositions, 0 so far, on each array that has derivatives."""

    def one(leaf: Any) -> Any:
        if jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.inexact):
            return transposes_p.bind(jnp.asarray(leaf), count=0)
        return leaf

    return jax.tree.map(lambda leaf: one(leaf) if _is_data(leaf) else leaf, tree)


def _is_data(leaf: Any) -> bool:
    if isinstance(leaf, (bool, int, float, complex)):
        return True
    return hasattr(leaf, "dtype") and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
