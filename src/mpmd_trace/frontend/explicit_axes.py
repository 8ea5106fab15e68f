"""Functions that are written for meshes with Explicit axes: `reshard`, `out_sharding`, shardings in types.

Such a function is written for one mesh.  It is traced with the abstract mesh that all meshes of the topology share, so
that each part of it can be computed on any of them, and then continues without shardings in types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from mpmd_trace.frontend.arg_shardings import kept_sharding, spread
from mpmd_trace.frontend.errors import mistake, warn
from mpmd_trace.frontend.flatten_arguments import Given
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.jax_compat import explicit_axes, layouts, tracing
from mpmd_trace.jax_compat.tracing import Closed


def traced(
    flat: Callable[..., Any], given: Given, leaves: Sequence[Any], in_shardings: Any, meshes: Sequence[Any]
) -> tuple[Closed, list[NamedSharding | None]]:
    """Return the jaxpr of `flat`, without shardings in types, and for each result how its type was sharded, if it was.

    Args:
        flat: a function of the leaves.
        given: the arguments.
        leaves: their arrays, or types.
        in_shardings: a pytree prefix of the positional arguments.
        meshes: those of the topology.
    """
    mesh = explicit_axes.shared_mesh(meshes)
    closed = tracing.lowered(_traced(flat, given, _types(given, leaves, in_shardings, meshes, mesh), meshes, mesh))
    kept = [_sharding(aval) for aval in tracing.out_avals(closed)]
    return without_explicit_axes(closed), kept


def without_explicit_axes(closed: Closed) -> Closed:
    """Return a program without shardings in types; itself, if there are none."""
    plain = explicit_axes.Plain()
    known = {id(closed): closed}

    def inner(key: int) -> list[int]:
        there = [one for eqn in tracing.raw_equations(known[key]) for one in tracing.subjaxprs(eqn)]
        known.update((id(one), one) for one in there)
        return [id(one) for one in there]

    for key in postorder([id(closed)], inner):
        closed = plain.add(known[key])
    return closed


def _sharding(aval: Any) -> NamedSharding | None:
    spec = explicit_axes.spec_of(aval)
    if spec is None or spec.unreduced or all(entry is None for entry in spec) or tracing.is_key(aval):
        return None
    return NamedSharding(aval.sharding.mesh, spec)


def _types(
    given: Given, leaves: Sequence[Any], in_shardings: Any, meshes: Sequence[Any], mesh: AbstractMesh | None
) -> list[jax.ShapeDtypeStruct]:
    """Return the types of the arguments, sharded over the Explicit axes of `mesh`."""
    structs = [leaf.struct for leaf in given.leaves]
    if mesh is None:
        return structs
    try:
        asked = spread(in_shardings, given.in_tree, "in_shardings")
    except ValueError:  # said where shardings are read
        asked = [None] * len(structs)
    shardings = [
        (one.sharding if isinstance(one, layouts.Format) else one) or _given_sharding(leaf, meshes)
        for one, leaf in zip(asked, leaves, strict=True)
    ]
    return [explicit_axes.of_type(s, sharding, mesh) for s, sharding in zip(structs, shardings, strict=True)]


def _given_sharding(leaf: Any, meshes: Sequence[Any]) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding
    return kept_sharding(leaf, meshes)


def _traced(
    flat: Callable[..., Any],
    given: Given,
    types: Sequence[jax.ShapeDtypeStruct],
    meshes: Sequence[Any],
    mesh: AbstractMesh | None,
) -> Closed:
    """Return the jaxpr of `flat`: with shardings in types, or without them where it is not written for that."""
    try:
        with explicit_axes.in_types_of(mesh):
            return jax.make_jaxpr(flat)(*types)
    except (explicit_axes.ShardingTypeError, ValueError) as error:
        if mesh is None:
            if any(_is_traced(flat, types, one) for one in explicit_axes.explicit(meshes)):
                raise mistake(_unlike(given, meshes)) from error
            raise
        if not isinstance(error, explicit_axes.ShardingTypeError):
            raise
        structs = [leaf.struct for leaf in given.leaves]
        if not _is_traced(flat, structs, None):
            raise
        warn(
            f"the meshes have Explicit axes, for which {given.name} is not written "
            f"({' '.join(str(error).split())}); it is traced as if they were Auto. To say so, make the meshes with "
            "axis_types=(jax.sharding.AxisType.Auto,) * (the number of axes)"
        )
        return jax.make_jaxpr(flat)(*structs)


def _is_traced(flat: Callable[..., Any], types: Sequence[jax.ShapeDtypeStruct], mesh: AbstractMesh | None) -> bool:
    """Return whether `flat` can be traced so."""
    try:
        with explicit_axes.in_types_of(mesh):
            jax.make_jaxpr(flat)(*types)
    except Exception:  # the caller raises the first one
        return False
    return True


def _unlike(given: Given, meshes: Sequence[Any]) -> str:
    listed = ", ".join(f"({', '.join(f'{n}: {s} {t.name}' for n, s, t in _axes(mesh))})" for mesh in meshes)
    return (
        f"{given.name} uses shardings of Explicit axes (jax.sharding.reshard, out_sharding), for which it is traced "
        f"with the one abstract mesh that all meshes share; they differ: {listed}. Give all "
        "meshes the same axes, sizes and axis types, or use jax.lax.with_sharding_constraint with a NamedSharding over "
        "meshes with Auto axes."
    )


def _axes(mesh: Any) -> list[tuple[Any, int, Any]]:
    return [(n, mesh.shape[n], t) for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True)]
