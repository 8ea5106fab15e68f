"""Shardings of arguments and results: `in_shardings`, `out_shardings`, and arrays that are placed already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from mpmd_trace.frontend.flatten_arguments import Leaf, one_line, spread_prefix
from mpmd_trace.frontend.shardings import Meshes, no_named_sharding
from mpmd_trace.jax_compat import layouts, tracing
from mpmd_trace.jax_compat.targets import is_described


class Spec(NamedTuple):
    """The known place of one argument or result; None where nothing is known."""

    #: `<mesh, dims>`, as in `sdy.sharding`.
    text: str | None = None
    memory: str | None = None
    #: The layout in memory as the text of `mhlo.layout_mode`; None is the default.
    layout: str | None = None
    #: The mesh of the topology that the user named by giving a sharding over it.
    mesh: Mesh | None = None


class PerLeaf(NamedTuple):
    """`in_shardings` or `out_shardings` without the pytree: what is said of each leaf, in order."""

    places: tuple[Any, ...]
    #: For each leaf the number of the user's array that it is, or is a part of.
    arrays: tuple[int, ...]


def shardings(
    prefix: Any,
    tree: Any,
    leaves: Sequence[Leaf],
    meshes: Meshes,
    topology: Sequence[Any],
    what: str,
    kept: Sequence[NamedSharding | None] = (),
    layouts_given: Sequence[str | None] = (),
) -> tuple[tuple[Spec | None, ...], list[str]]:
    """Return the place of each leaf, and the mistakes.

    Args:
        prefix: a pytree prefix of the positional arguments, or of the result, of `NamedSharding`, `Format` or None; or
            what `PerLeaf` says.
        tree: the structure of the leaves.
        leaves: the arguments or results.
        meshes: the axes that shardings may refer to.
        topology: the meshes, those with devices and others.
        what: `in_shardings` or `out_shardings`.
        kept: for each leaf the sharding that counts where `prefix` says nothing.
        layouts_given: for each leaf the layout that counts where `prefix` names none.
    """
    if prefix is None and not any(kept) and not any(layouts_given):
        return (None,) * len(leaves), []
    try:
        per_leaf = spread(prefix, tree, what)
    except ValueError as error:
        whole = "arguments" if what == "in_shardings" else "result"
        return (None,) * len(leaves), [
            f"{what} does not fit the {whole}: it must be a pytree prefix of them. {one_line(error)}"
        ]
    specs: list[Spec | None] = []
    problems: dict[int, str] = {}  # one for each array: its parts have the same
    arrays = prefix.arrays if isinstance(prefix, PerLeaf) else range(len(leaves))
    for i, (leaf, wanted) in enumerate(zip(leaves, per_leaf, strict=True)):
        sharding, layout = (wanted.sharding, wanted) if isinstance(wanted, layouts.Format) else (wanted, None)
        asked = sharding is not None
        if not asked and kept:
            sharding = kept[i]
        text, wrong = None, None
        if sharding is not None:
            text, wrong = meshes.text(sharding, jax.core.ShapedArray(leaf.struct.shape, leaf.struct.dtype))
            wrong = wrong or _misfit(sharding, leaf) or (_foreign(sharding, topology) if asked else None)
        order = layouts_given[i] if layouts_given else None
        if layouts.has_layout(layout):
            order, bad = _layout(layout, leaf)
            wrong = wrong or bad
        if wrong is not None:
            problems.setdefault(arrays[i], f"{what} of {leaf.name}: {wrong}")
        if wrong is not None or (sharding is None and order is None):
            specs.append(None)
            continue
        mesh = sharding.mesh if asked and any(same_devices(sharding.mesh, m) for m in topology) else None
        specs.append(Spec(text, getattr(sharding, "memory_kind", None), order, mesh))
    return tuple(specs), list(problems.values())


def spread(prefix: Any, tree: Any, what: str) -> list[Any]:
    """Return what the pytree prefix `in_shardings` or `out_shardings` says of each leaf; `ValueError` if it is none."""
    if isinstance(prefix, PerLeaf):
        return list(prefix.places)
    full = jax.tree.unflatten(tree, range(tree.num_leaves))
    if what == "in_shardings":
        full, _ = full
        if isinstance(prefix, list):
            prefix = tuple(prefix)
    per_leaf = spread_prefix(prefix, full, what)
    return [per_leaf.get(i) for i in range(tree.num_leaves)]


def known(prefix: Any, tree: Any, kept: Sequence[NamedSharding | None]) -> list[NamedSharding | None]:
    """Return the sharding of each argument, as far as the prefix `in_shardings` or what is `kept` says it."""
    result = []
    for asked, own in zip(spread(prefix, tree, "in_shardings"), kept, strict=True):
        sharding = asked.sharding if isinstance(asked, layouts.Format) else asked
        result.append(sharding if isinstance(sharding, NamedSharding) else own)
    return result


def staying(
    specs: Sequence[Spec | None],
    kept: Sequence[NamedSharding | None],
    idle: Sequence[int],
    leaves: Sequence[Any],
    topology: Sequence[Any],
) -> tuple[Spec | None, ...]:
    """Return the specs, where the arguments `idle`, which are only returned, stay on the mesh that they are on."""
    result = list(specs)
    for i in idle:
        spec, sharding = result[i] or Spec(), kept[i]
        mesh = _mesh_of_device(leaves[i], topology) if sharding is None else sharding.mesh
        if spec.mesh is None and mesh is not None:
            result[i] = spec._replace(mesh=mesh)
    return tuple(result)


def _mesh_of_device(leaf: Any, topology: Sequence[Any]) -> Mesh | None:
    """For an array that was put on one device, the mesh that is that device."""
    if not isinstance(getattr(leaf, "sharding", None), SingleDeviceSharding) or not getattr(leaf, "committed", True):
        return None
    places = leaf.sharding.device_set
    return next((m for m in topology if isinstance(m, Mesh) and set(m.devices.flat) == places), None)


def same_devices(mesh: Any, other: Any) -> bool:
    """Return whether both are meshes of the same devices with the same axes."""
    return (
        isinstance(mesh, Mesh)
        and isinstance(other, Mesh)
        and mesh.axis_names == other.axis_names
        and mesh.devices.shape == other.devices.shape
        and bool((mesh.devices == other.devices).all())
    )


def _foreign(sharding: NamedSharding, topology: Sequence[Any]) -> str | None:
    """Return what is wrong with a mesh whose devices are those of no mesh of the topology."""
    mesh = sharding.mesh
    known = [m for m in topology if isinstance(m, Mesh)]
    if not isinstance(mesh, Mesh) or mesh.empty or not known or any(same_devices(mesh, m) for m in known):
        return None
    listed = " or ".join(map(_devices, known))
    return (
        f"sharding over a mesh of devices {_devices(mesh)}, which is not a mesh of the topology (devices {listed}). "
        "Use a mesh of the topology."
    )


def _devices(mesh: Mesh) -> str:
    return "[" + ", ".join(str(d.id) for d in mesh.devices.flat) + "]"


def _layout(wanted: Any, leaf: Leaf) -> tuple[str | None, str | None]:
    """Return the text of the layout of a `Format`, None for the default; and what is wrong with it."""
    rank = len(leaf.struct.shape)
    if leaf.key_impl is not None:
        return None, "a typed PRNG key has no layout; give a sharding, or pass jax.random.key_data(key)."
    if len(wanted.layout.major_to_minor) != rank:
        return None, f"{wanted.layout} is for {len(wanted.layout.major_to_minor)} dimensions, the array has {rank}."
    if sorted(wanted.layout.major_to_minor) != list(range(rank)):
        return None, f"{wanted.layout} does not list each dimension of the array once."
    if not wanted.layout.tiling and wanted.layout.major_to_minor == tuple(range(rank)):
        return None, None
    return layouts.to_text(wanted.layout, leaf.struct.dtype), None


def given_layouts(leaves: Sequence[Any], topology: Sequence[Any]) -> list[str | None]:
    """For each leaf the layout of its array, if it is on a mesh and not laid out as usual; it then keeps that."""
    places = [set(mesh.devices.flat) for mesh in topology if isinstance(mesh, Mesh)]
    return [_given_layout(leaf, places) for leaf in leaves]


def _given_layout(leaf: Any, places: Sequence[set[Any]]) -> str | None:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        sharding, layout = leaf.sharding, leaf.format.layout if layouts.has_layout(leaf.format) else None
    else:
        if not isinstance(leaf, jax.Array) or not leaf.committed or leaf.is_deleted() or leaf.ndim < 2:
            return None
        if tracing.is_key(leaf):
            return None
        sharding, layout = leaf.sharding, leaf.format.layout
    if layout is None or sharding is None or sharding.device_set not in places:
        return None
    if layout == layouts.default_layout(leaf.shape, leaf.dtype, sharding):
        return None
    if not layout.tiling and layout.major_to_minor == tuple(range(len(leaf.shape))):
        return None
    return layouts.to_text(layout, leaf.dtype)


def kept_sharding(leaf: Any, topology: Sequence[Any]) -> NamedSharding | None:
    """Return the sharding that an array was given on one of the meshes, which it then keeps."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return None
    if not getattr(leaf, "committed", True) or sharding.mesh not in topology:
        return None
    if tracing.is_key(leaf) and not sharding.is_fully_replicated:
        return None  # the compiler sees the key data, which has another shape
    device = sharding.mesh.devices.flat[0]
    default = "device" if is_described(device) else device.default_memory().kind
    kind = sharding.memory_kind
    return NamedSharding(sharding.mesh, sharding.spec, memory_kind=None if kind == default else kind)


def _misfit(sharding: Any, leaf: Leaf) -> str | None:
    if not isinstance(sharding, NamedSharding):
        return no_named_sharding(sharding)
    spec, shape = sharding.spec, leaf.struct.shape
    if len(spec) > len(shape):
        return f"{spec} has {len(spec)} entries for an array of shape {shape}."
    for size, entry in zip(shape, spec, strict=False):
        axes = (entry,) if isinstance(entry, str) else entry if isinstance(entry, tuple) else ()
        parts = math.prod(sharding.mesh.shape[axis] for axis in axes)
        if size % parts:
            return (
                f"a dimension of size {size} (shape {shape}) cannot be divided into {parts} parts "
                f"by {spec}. Choose a size divisible by {parts}, or leave the dimension whole."
            )
    return None
