"""Meshes with Explicit axes, whose shardings are a part of the types of arrays.

Types with shardings serve to check a function while it is traced, and to choose the shardings of what it computes.
Afterwards they say no more than sharding constraints do: `Plain` puts these in their place, so that all that follows
sees programs of one kind.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax._src import core
from jax._src.mesh import empty_abstract_mesh
from jax._src.named_sharding import NamedSharding
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from mpmd_trace.jax_compat.tracing import Closed, Equation, is_jaxpr, subjaxprs

ShardingTypeError = core.ShardingTypeError


def shared_mesh(meshes: Iterable[Any]) -> AbstractMesh | None:
    """Return the abstract mesh that all of `meshes` have, if they have one and any axis of it is Explicit."""
    shared = _abstract(meshes)
    return shared[0] if len(shared) == 1 and _is_explicit(shared[0]) else None


def explicit(meshes: Iterable[Any]) -> list[AbstractMesh]:
    """Return the abstract meshes among those of `meshes` that have Explicit axes."""
    return [mesh for mesh in _abstract(meshes) if _is_explicit(mesh)]


def _abstract(meshes: Iterable[Any]) -> list[AbstractMesh]:
    return list(dict.fromkeys(mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh for mesh in meshes))


def in_types_of(mesh: AbstractMesh | None) -> contextlib.AbstractContextManager[Any]:
    """Trace with the shardings of this mesh in the types, as under `jax.set_mesh`."""
    return contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh)


def of_type(struct: jax.ShapeDtypeStruct, sharding: Any, mesh: AbstractMesh | None) -> jax.ShapeDtypeStruct:
    """Return `struct` with what the Explicit axes of `mesh` are for in `sharding`, if that is over such a mesh."""
    if mesh is None or not isinstance(sharding, NamedSharding) or dict(sharding.mesh.shape) != dict(mesh.shape):
        return struct
    return jax.ShapeDtypeStruct(
        struct.shape, struct.dtype, sharding=NamedSharding(mesh, sharding.spec), weak_type=struct.weak_type
    )


def spec_of(aval: Any) -> PartitionSpec | None:
    """Return how a type says that its arrays are sharded; None where it does not say it."""
    sharding = getattr(aval, "sharding", None)
    return None if sharding is None or not _is_explicit(sharding.mesh) else sharding.spec


def _is_explicit(mesh: Any) -> bool:
    return AxisType.Explicit in mesh.axis_types


def _with_auto_axes(mesh: AbstractMesh) -> AbstractMesh:
    """Return `mesh` with Auto axes in place of Explicit ones; no mesh where it then has Auto axes alone."""
    changed = mesh.update_axis_types({n: AxisType.Auto for n, t in _types(mesh) if t is AxisType.Explicit})
    return changed if AxisType.Manual in changed.axis_types else empty_abstract_mesh


def _types(mesh: AbstractMesh) -> Iterable[tuple[Any, AxisType]]:
    return zip(mesh.axis_names, mesh.axis_types, strict=True)


def _plain_aval(aval: Any) -> Any:
    inner = getattr(aval, "inner_aval", None)  # of a Ref
    if inner is not None:
        plain = _plain_aval(inner)
        return aval if plain is inner else aval.update(inner_aval=plain)
    mesh = getattr(getattr(aval, "sharding", None), "mesh", empty_abstract_mesh)
    if not _is_explicit(mesh):
        return aval
    spec = PartitionSpec(*[None] * len(aval.shape))
    return aval.update(sharding=NamedSharding(_with_auto_axes(mesh), spec))


def _mentions_explicit(inner: Any) -> bool:
    """Return whether Explicit axes occur in a jaxpr itself."""
    if any(_has_explicit(v.aval) for v in (*inner.constvars, *inner.invars)):
        return True
    for eqn in inner.eqns:
        if _is_explicit(eqn.ctx.cur_abstract_mesh) or any(_has_explicit(v.aval) for v in eqn.outvars):
            return True
        if any(isinstance(value, _WITH_MESH) and _has_explicit(value) for value in eqn.params.values()):
            return True
    return False


_WITH_MESH = (Mesh, AbstractMesh, NamedSharding)


def _has_explicit(value: Any) -> bool:
    """Return whether a type, a sharding or a mesh has Explicit axes."""
    value = getattr(value, "inner_aval", value)  # of a Ref
    value = getattr(value, "sharding", value)
    return AxisType.Explicit in getattr(getattr(value, "mesh", value), "axis_types", ())


#: Primitives that change the sharding of a type and nothing else.
_CASTS = frozenset({"reshard", "mesh_cast"})


class Plain:
    """The jaxprs of a program without shardings in types; inner ones are given before outer ones."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Closed, Closed]] = {}

    def add(self, closed: Closed) -> Closed:
        """Return `closed` in such types; itself, if no type in it has a sharding."""
        inner: Any = getattr(closed, "jaxpr", closed)
        if inner is not closed and id(inner) not in self._made:
            self.add(inner)
        plain = self._made[id(inner)][1] if inner is not closed else self._converted(inner)
        result = closed if plain is inner else plain if inner is closed else closed.replace(jaxpr=plain)
        self._made[id(closed)] = closed, result
        return result

    def _converted(self, inner: Any) -> Any:
        parts = (part for eqn in inner.eqns for part in subjaxprs(eqn))
        if not _mentions_explicit(inner) and all(self._made[id(part)][1] is part for part in parts):
            return inner
        with jax.sharding.use_abstract_mesh(empty_abstract_mesh):
            return _Conversion(self._param).of(inner)

    def _param(self, value: Any) -> Any:
        """Return a parameter of an equation without Explicit axes."""
        if type(value) in (tuple, list):
            parts = [self._param(v) for v in value]
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else type(value)(parts)
        if is_jaxpr(value):
            return self._made[id(value)][1]
        if isinstance(value, Mesh) and _is_explicit(value):
            value = value.abstract_mesh
        if isinstance(value, AbstractMesh) and _is_explicit(value):
            return value.update_axis_types({n: AxisType.Auto for n, t in _types(value) if t is AxisType.Explicit})
        return value


class _Conversion:
    """Of the variables and equations of one jaxpr."""

    def __init__(self, param: Callable[[Any], Any]) -> None:
        self._param = param
        self._variables: dict[Any, Any] = {}
        self._eqns: list[Equation] = []

    def of(self, inner: Any) -> Any:
        constvars, invars = ([self._variable(v) for v in vs] for vs in (inner.constvars, inner.invars))
        for eqn in inner.eqns:
            self._equation(eqn)
        outvars = [self._atom(v) for v in inner.outvars]
        return inner.replace(constvars=constvars, invars=invars, eqns=self._eqns, outvars=outvars)

    def _variable(self, v: Any) -> Any:
        aval = _plain_aval(v.aval)
        self._variables[v] = v if aval is v.aval or isinstance(v, core.DropVar) else core.Var(aval)
        return self._variables[v]

    def _atom(self, v: Any) -> Any:
        if not isinstance(v, core.Literal):
            return self._variables[v]
        aval = _plain_aval(v.aval)
        return v if aval is v.aval else core.Literal(v.val, aval)

    def _equation(self, eqn: Equation) -> None:
        operands = [self._atom(v) for v in eqn.invars]
        if eqn.primitive.name in _CASTS:
            self._variables[eqn.outvars[0]] = self._cast(eqn, operands[0])
            return
        changed = [v for v in eqn.outvars if _plain_aval(v.aval) is not v.aval]
        shardings = {k: None for k, v in eqn.params.items() if k.endswith("sharding") and _is_over_explicit(v)}
        params = {k: self._param(v) for k, v in eqn.params.items()} | shardings
        outvars = [self._variable(v) for v in eqn.outvars]
        self._eqns.append(eqn.replace(invars=operands, outvars=outvars, params=params, ctx=_plain_context(eqn.ctx)))
        if any(True for _ in subjaxprs(eqn)) or _keeps_sharding(eqn):
            return
        for v in changed:
            if not isinstance(v, core.DropVar) and _axes(v.aval):
                self._variables[v] = self._constrained(eqn, self._variables[v], v.aval.sharding)

    def _cast(self, eqn: Equation, x: Any) -> Any:
        before, after = eqn.invars[0].aval, eqn.outvars[0].aval
        if not _is_explicit(after.sharding.mesh) or (not _axes(before) and not _axes(after)):
            return x  # its axes are Auto from here on, or it is whole and stays so
        return self._constrained(eqn, x, after.sharding)

    def _constrained(self, eqn: Equation, x: Any, sharding: Any) -> Any:
        """Add an equation that gives `x` this sharding, at the place of `eqn`; return its result."""
        if sharding.spec.unreduced:
            return x
        has_others = any(t is not AxisType.Explicit for _, t in _types(sharding.mesh))
        made = _constraint(x.aval, sharding.mesh, PartitionSpec(*_entries(sharding.spec, has_others)))
        result = core.Var(x.aval)
        self._eqns.append(made.replace(invars=[x], outvars=[result], source_info=eqn.source_info))
        return result


def _entries(spec: PartitionSpec, is_open: bool) -> list[Any]:
    """Return the entries of a spec; where Auto axes may shard dimensions further, those without an axis are open."""
    return [PartitionSpec.UNCONSTRAINED if entry is None and is_open else entry for entry in spec]


@functools.lru_cache(1024)
def _constraint(aval: Any, mesh: AbstractMesh, spec: PartitionSpec) -> Equation:
    auto = mesh.update_axis_types({n: AxisType.Auto for n, t in _types(mesh) if t is AxisType.Explicit})
    wanted = NamedSharding(auto, spec)
    traced = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, wanted))(
        jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    )
    return traced.eqns[0]


@functools.lru_cache(256)
def _plain_context(context: Any) -> Any:
    """Return the settings that an equation was made under, without a mesh of Explicit axes."""
    mesh = context.cur_abstract_mesh
    if not _is_explicit(mesh):
        return context
    with context.manager, jax.sharding.use_abstract_mesh(_with_auto_axes(mesh)):
        return type(context)()


def _is_over_explicit(value: Any) -> bool:
    return isinstance(value, NamedSharding) and _is_explicit(value.mesh)


def _axes(aval: Any) -> bool:
    """Return whether any dimension of this type is sharded."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and any(entry is not None for entry in sharding.spec)


def _keeps_sharding(eqn: Equation) -> bool:
    """Return whether propagation gives the results of `eqn` the shardings of their types: those of all its operands."""
    if eqn.primitive.name == "dot_general":
        return False
    avals = [v.aval for v in (*eqn.invars, *eqn.outvars) if getattr(v.aval, "shape", ())]
    return bool(eqn.invars) and len({(a.shape, a.sharding.spec) for a in avals}) == 1 and len(avals) > len(eqn.outvars)
