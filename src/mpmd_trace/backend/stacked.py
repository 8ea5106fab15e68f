"""Stacked layers as the user has them: one array over the meshes of its pieces, or `Pieces` where that cannot be."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mpmd_trace.diagnostics.messages import MpmdError, used_after_donation
from mpmd_trace.jax_compat.layouts import put
from mpmd_trace.jax_compat.runtime import assembled, shards_of
from mpmd_trace.jax_compat.tracing import is_key

#: The axis of the layers, and where an array is cut along it: `(0, (0, 4, 8))`.
Rows = tuple[int, tuple[int, ...]]


class Pieces:
    """An array of stacked layers whose pieces are on several meshes, and that cannot be one `jax.Array`.

    This is the case if the pieces have different numbers of layers, or if a mesh has several pieces.  It is a leaf of
    pytrees; pass it to the next step as it is.  To get the whole array, use `np.asarray`, `jnp.asarray`,
    `jax.device_get`, or, in several processes, `mpmd_trace.fetch`.

    Args:
        bounds: the layers at which the array is cut, such as `(0, 3, 8)`.
        parts: the pieces.
        axis: the axis of the layers.
    """

    def __init__(self, bounds: Sequence[int], parts: Sequence[jax.Array], axis: int = 0) -> None:
        self.bounds = tuple(bounds)
        self.parts = tuple(parts)
        self.axis = axis
        first = self.parts[0]
        #: The type of the whole array.
        self.aval = jax.typeof(first).update(shape=_resized(first.shape, axis, self.bounds[-1]))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the pieces are in several places, so an array of them is a copy")
        whole: np.ndarray[Any, Any] = self.whole(self.parts)  # typed keys for `jax.device_get`, which NumPy refuses
        return whole if dtype is None else whole.astype(dtype)

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(self.whole(self.parts))

    def whole(self, parts: Iterable[Any]) -> Any:
        """Return the whole array of these parts, each an array of NumPy or of typed keys."""
        those = list(parts)
        if not is_key(self):
            return np.concatenate([np.asarray(part) for part in those], self.axis)
        data = [np.asarray(jax.random.key_data(part)) for part in those]
        return jax.random.wrap_key_data(np.concatenate(data, self.axis), impl=jax.random.key_impl(those[0]))

    def is_deleted(self) -> bool:
        """Return whether a piece was donated or deleted."""
        return any(part.is_deleted() for part in self.parts)

    def delete(self) -> None:
        """Free the memory of all pieces."""
        for part in self.parts:
            part.delete()

    def block_until_ready(self) -> Pieces:
        """Wait for all pieces."""
        jax.block_until_ready(self.parts)
        return self

    def __repr__(self) -> str:
        cuts = ", ".join(f"{a}:{b}" for a, b in itertools.pairwise(self.bounds))
        return f"Pieces({self.dtype}{list(self.shape)}, layers {cuts}{f' of axis {self.axis}' if self.axis else ''})"


def check_not_deleted(tree: Any) -> None:
    """Raise `MpmdError` when an array of `tree` was donated or deleted."""
    gone = [
        jax.tree_util.keystr(path) or "the value"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
        if isinstance(x, jax.Array | Pieces) and not isinstance(x, jax.core.Tracer) and x.is_deleted()
    ]
    if gone:
        raise MpmdError(used_after_donation(gone))


class PiecesType(jax.ShapeDtypeStruct):  # type: ignore[misc]
    """The type of `Pieces`; `parts` are those of the pieces, with their shardings."""

    def __init__(self, bounds: Sequence[int], parts: Sequence[jax.ShapeDtypeStruct], axis: int) -> None:
        super().__init__(_resized(parts[0].shape, axis, bounds[-1]), parts[0].dtype)
        self.bounds = tuple(bounds)
        self.parts = tuple(parts)
        self.axis = axis


def _resized(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return *shape[:axis], size, *shape[axis + 1 :]


def union(shardings: Sequence[Any], form: Rows) -> NamedSharding | None:
    """Return the sharding of an array whose pieces have these; None where no sharding says so.

    Its mesh is made of those of the pieces along a new axis, `stage`, over which the layers are sharded first.
    """
    at, bounds = form
    sizes = {b - a for a, b in itertools.pairwise(bounds)}
    if len(sizes) != 1 or not all(isinstance(s, NamedSharding) and isinstance(s.mesh, Mesh) for s in shardings):
        return None
    first = shardings[0]
    kinds = {(s.mesh.axis_names, s.mesh.devices.shape, s.mesh.axis_types, _spec(s), s.memory_kind) for s in shardings}
    devices = [d for s in shardings for d in s.mesh.devices.flat]
    if len(kinds) != 1 or len(set(devices)) != len(devices):
        return None
    axis = "stage"
    while axis in first.mesh.axis_names:
        axis += "s"
    types = (jax.sharding.AxisType.Auto, *first.mesh.axis_types)
    mesh = Mesh(np.stack([s.mesh.devices for s in shardings]), (axis, *first.mesh.axis_names), axis_types=types)
    spec = [*_spec(first), *(None,) * (at + 1 - len(_spec(first)))]
    own = (spec[at],) if isinstance(spec[at], str) else spec[at] or ()
    spec[at] = (axis, *own)
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=first.memory_kind)


def _spec(sharding: NamedSharding) -> tuple[Any, ...]:
    """Return the spec without what says nothing at its end."""
    result = list(sharding.spec)
    while result and result[-1] is None:
        result.pop()
    return tuple(result)


class StackedArrays:
    """Takes the arrays of the user apart into those of a program, and puts results together.

    Args:
        forms: one per array of the user: axis and places where it is cut, None for one that is whole.
        specs: the types of the arrays of the program, with shardings.
        names: the names of the arrays of the program.
    """

    def __init__(
        self, forms: Sequence[Rows | None], specs: Sequence[jax.ShapeDtypeStruct], names: Sequence[str]
    ) -> None:
        self.forms = tuple(forms)
        self._specs = list(specs)
        self._names = list(names)
        ends = itertools.accumulate(1 if form is None else len(form[1]) - 1 for form in self.forms)
        stops = list(ends)
        self.places = [slice(a, b) for a, b in zip([0, *stops], stops, strict=False)]
        #: For each array of the user the sharding over all meshes of its pieces, if there is one.
        self.shardings: list[NamedSharding | None] = [
            None if form is None else union([spec.sharding for spec in self._specs[at]], form)
            for form, at in zip(self.forms, self.places, strict=True)
        ]
        #: For each the type of each piece, and its number of shards in this process.
        self._pieces = [
            [(_aval(spec), len(spec.sharding.addressable_devices)) for spec in self._specs[at]] for at in self.places
        ]
        #: For each the sharding object of the last array that was taken apart without copying.
        self._known: list[Any] = list(self.shardings)

    def apart(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays of the program.  Raises `MpmdError` for those that are gone."""
        result: list[Any] = []
        for i, (x, form) in enumerate(zip(arrays, self.forms, strict=True)):
            if isinstance(x, Pieces) and (x.axis, x.bounds) != form and not x.is_deleted():
                x = x.whole(x.parts)  # cut elsewhere, or not at all: on the host, since one device may lack the memory
            if form is None:
                result.append(x)
            elif is_key(x) and not isinstance(x, Pieces):
                impl = jax.random.key_impl(x)
                data = self._apart(i, jax.random.key_data(x), form)
                result += [jax.random.wrap_key_data(part, impl=impl) for part in data]
            else:
                result += self._apart(i, x, form)
        return result

    def _apart(self, i: int, x: Any, form: Rows) -> list[Any]:
        specs = self._specs[self.places[i]]
        axis, bounds = form
        if isinstance(x, jax.core.Tracer) or np.shape(x)[axis : axis + 1] != bounds[-1:]:
            return [x] * len(specs)  # the program says what is wrong with it
        if isinstance(x, jax.Array | Pieces) and x.is_deleted():
            raise MpmdError(used_after_donation([self._names[self.places[i].start]]))
        if isinstance(x, Pieces) and (x.axis, x.bounds) == form:
            return list(x.parts)
        if isinstance(x, jax.Array) and self._is_ours(i, x):
            shards = iter(shards_of(x))
            return [
                assembled(aval, spec.sharding, list(itertools.islice(shards, count)))
                for spec, (aval, count) in zip(specs, self._pieces[i], strict=True)
            ]
        if not isinstance(x, jax.Array):
            return np.split(np.asarray(x), bounds[1:-1], axis)
        parts = [jax.lax.slice_in_dim(x, a, b, axis=axis) for a, b in itertools.pairwise(bounds)]
        return [put(part, spec) for part, spec in zip(parts, specs, strict=True)]

    def _is_ours(self, i: int, x: jax.Array) -> bool:
        """Return whether the shards of `x` are those of the pieces."""
        wanted = self.shardings[i]
        if wanted is None or x.sharding is self._known[i]:
            return wanted is not None
        if not x.sharding.is_equivalent_to(wanted, x.ndim) or x.sharding.memory_kind != wanted.memory_kind:
            return False
        self._known[i] = x.sharding
        return True

    def together(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays of the user: one over all meshes of its pieces, which shares their buffers, or `Pieces`."""
        return [
            arrays[at.start] if form is None else _together(form, arrays[at], sharding)
            for form, at, sharding in zip(self.forms, self.places, self.shardings, strict=True)
        ]

    def of_arrays(self, facts: Sequence[Any]) -> list[Any]:
        """Facts about the arrays of the program, for those of the user.

        Types and shardings are those of the whole array, if there are such; else a tuple of what its pieces have.
        """
        result: list[Any] = []
        for form, at, sharding in zip(self.forms, self.places, self.shardings, strict=True):
            one = facts[at.start]
            if form is not None and isinstance(one, jax.ShapeDtypeStruct) and sharding is None:
                one = PiecesType(form[1], facts[at], form[0])
            elif form is not None and isinstance(one, jax.ShapeDtypeStruct):
                one = jax.ShapeDtypeStruct(_resized(one.shape, form[0], form[1][-1]), one.dtype, sharding=sharding)
            elif form is not None:
                one = sharding if isinstance(one, jax.sharding.Sharding) and sharding else tuple(facts[at])
            result.append(one)
        return result


def _together(form: Rows, parts: Sequence[Any], sharding: NamedSharding | None) -> Any:
    axis, bounds = form
    if sharding is None:
        return Pieces(bounds, parts, axis)
    if is_key(parts[0]):
        data = _together(form, [jax.random.key_data(part) for part in parts], sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(parts[0]))
    first = parts[0].aval
    aval = first.update(shape=_resized(first.shape, axis, bounds[-1]))
    return assembled(aval, sharding, [shard for part in parts for shard in shards_of(part)])


def _aval(spec: jax.ShapeDtypeStruct) -> Any:
    return jax.core.ShapedArray(spec.shape, spec.dtype)
