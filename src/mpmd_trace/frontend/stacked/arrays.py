"""Arguments and results of a program that are stacked layers: one array to the user, pieces to the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mpmd_trace.frontend.arg_shardings import PerLeaf, same_devices, spread
from mpmd_trace.frontend.flatten_arguments import Given, Leaf, rows_name
from mpmd_trace.frontend.layer_scan import has_marks
from mpmd_trace.frontend.stacked.analysis import Cuts, Rows
from mpmd_trace.frontend.stacked.interpreter import in_pieces
from mpmd_trace.jax_compat.tracing import Closed, out_avals


class Signature(NamedTuple):
    """The arguments and results of a program as its caller has them."""

    in_tree: Any
    out_tree: Any
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    donated: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Stacks:
    """The pieces in the program of the arrays of the caller."""

    signature: Signature
    #: One per array among the arguments and results of the caller; None for one that is whole.
    inputs: tuple[Rows | None, ...]
    outputs: tuple[Rows | None, ...]


@dataclasses.dataclass(frozen=True)
class Split:
    """A traced program in pieces, with what describes its arguments and results."""

    stacks: Stacks
    closed: Closed
    given: Given
    out_names: list[str]
    out_tree: Any

    def leaves(self, leaves: Sequence[Any], topology: Sequence[Any]) -> list[Any]:
        """Return the arguments of the user with a type for each piece in the place of stacked ones."""
        result: list[Any] = []
        for x, cut in zip(leaves, self.stacks.inputs, strict=True):
            if cut is None:
                result.append(x)
                continue
            given = getattr(x, "sharding", None) if getattr(x, "committed", True) else None
            for (a, b), place in zip(cut.pairs, piece_shardings(given, cut, topology), strict=True):
                shape = list(np.shape(x))
                shape[cut.axis] = b - a
                result.append(jax.ShapeDtypeStruct(tuple(shape), x.dtype, sharding=place))
        return result

    def spread(self, prefix: Any, topology: Sequence[Any], *, results: bool) -> Any:
        """Return a pytree prefix of shardings for the arrays of the user as the shardings of the pieces.

        They are no pytree: in one, a None inside of a node that keeps the structure of its children would be lost.
        """
        if prefix is None:
            return None
        signature, stacks = self.stacks.signature, self.stacks
        tree, forms = (signature.out_tree, stacks.outputs) if results else (signature.in_tree, stacks.inputs)
        try:
            wanted = spread(prefix, tree, "out_shardings" if results else "in_shardings")
        except ValueError:
            return prefix  # reported with the pieces
        pieces: list[Any] = []
        arrays: list[int] = []
        for i, (one, cut) in enumerate(zip(wanted, forms, strict=True)):
            own = [one] if cut is None else piece_shardings(one, cut, topology, one)
            pieces += own
            arrays += [i] * len(own)
        return PerLeaf(tuple(pieces), tuple(arrays))


def split(closed: Closed, given: Given, out_names: Sequence[str], out_tree: Any) -> Split | None:
    """Return the program with its stacked layers in pieces; None where it cuts no layers."""
    if not has_marks(closed):
        return None
    cuts = Cuts(closed)
    cuts.find()
    inputs = tuple(cuts.rows(v) for v in cuts.parts.invars)
    outputs = tuple(cuts.rows(v) for v in cuts.parts.outvars)
    if not cuts.any:
        return None
    made = in_pieces(closed, cuts, [leaf.name for leaf in given.leaves])
    leaves: list[Leaf] = []
    donated: list[int] = []
    for i, (leaf, cut) in enumerate(zip(given.leaves, inputs, strict=True)):
        pieces = [leaf] if cut is None else [leaf.rows(cut.axis, a, b) for a, b in cut.pairs]
        donated += range(len(leaves), len(leaves) + len(pieces)) if i in given.donated else ()
        leaves += pieces
    names = []
    for name, cut in zip(out_names, outputs, strict=True):
        names += [name] if cut is None else [rows_name(name, cut.axis, a, b) for a, b in cut.pairs]
    pieced = dataclasses.replace(
        given, leaves=tuple(leaves), in_tree=_opened(given.in_tree, inputs), donated=tuple(donated)
    )
    results = tuple(map(Leaf.of, out_names, out_avals(closed)))
    signature = Signature(given.in_tree, out_tree, given.leaves, results, given.donated)
    stacks = Stacks(signature, inputs, outputs)
    return Split(stacks, made, pieced, names, _opened(out_tree, outputs))


def _opened(tree: Any, forms: Sequence[Rows | None]) -> Any:
    """Return the structure with a tuple of leaves in the place of each stacked one."""
    leaves = [0 if cut is None else (0,) * len(cut.pairs) for cut in forms]
    return jax.tree.structure(jax.tree.unflatten(tree, leaves))


def piece_shardings(sharding: Any, cut: Rows, topology: Sequence[Any], otherwise: Any = None) -> list[Any]:
    """For a sharding over several meshes of the topology, that of each piece on its mesh; else `otherwise`.

    The mesh of such a sharding has one more axis, along which the meshes lie; over it the layers are sharded first.
    """
    mesh, axis, count = getattr(sharding, "mesh", None), cut.axis, len(cut.pairs)
    spec = (*getattr(sharding, "spec", ()), *(None,) * (axis + 1))
    if isinstance(sharding, NamedSharding) and isinstance(mesh, Mesh) and spec[axis] is not None:
        first = (spec[axis],) if isinstance(spec[axis], str) else tuple(spec[axis])
        at = mesh.axis_names.index(first[0])
        others = tuple(name for name in mesh.axis_names if name != first[0])
        if mesh.devices.shape[at] == count:
            shardings = []
            for i in range(count):
                devices = np.take(mesh.devices, i, axis=at)
                one = Mesh(devices if others else devices.reshape(1), others or (first[0],))
                shardings += [m for m in topology if _same_places(one, m)][:1]
            if len(shardings) == count:
                rest = PartitionSpec(*spec[:axis], first[1:] or None, *sharding.spec[axis + 1 :])
                return [NamedSharding(m, rest, memory_kind=sharding.memory_kind) for m in shardings]
    return [otherwise] * count


def _same_places(mesh: Mesh, other: Any) -> bool:
    if same_devices(mesh, other):
        return True
    alone = mesh.size == 1 and isinstance(other, Mesh) and other.size == 1
    return alone and bool(mesh.devices.flat[0] == other.devices.flat[0])
