"""The calling convention: from a caller's pytrees to the arrays of a compiled program, and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.options import Adapter
from mpmd_trace.api.stage_info import InOut
from mpmd_trace.backend.arguments import put_apart
from mpmd_trace.backend.stacked import Pieces, StackedArrays
from mpmd_trace.diagnostics.messages import MpmdError, shortened
from mpmd_trace.frontend.flatten_arguments import Leaf
from mpmd_trace.frontend.traced import Traced
from mpmd_trace.jax_compat.runtime import with_weak_type
from mpmd_trace.jax_compat.tracing import is_key, structure_differences


def _without_values(leaves: Sequence[Leaf]) -> list[tuple[int, Any]]:
    """Return the leaves that are tangents of integers, which have no values: position and array."""
    empty = jax.dtypes.float0
    return [(i, np.zeros(x.struct.shape, empty)) for i, x in enumerate(leaves) if x.struct.dtype == empty]


def _argument(path: tuple[Any, ...]) -> str:
    """Return a path into (args, kwargs) in words."""
    if len(path) < 2:
        return ("positional arguments", "keyword arguments")[path[0].idx] if path else "the arguments"
    rest = jax.tree_util.keystr(path[2:])
    return f"argument {path[1].idx}{rest}" if path[0].idx == 0 else f"keyword argument {path[1].key}{rest}"


class CallingConvention:
    """The caller's side of a compiled program: pytrees, typed keys, tangents of integers, arrays of stacked layers.

    Args:
        traced: the program.
        adapter: how the caller's pytrees become pytrees of arrays alone.
        inputs: types and shardings of what the program takes, without constants.
        outputs: those of what it returns.
    """

    def __init__(
        self, traced: Traced, adapter: Adapter, inputs: list[jax.ShapeDtypeStruct], outputs: list[jax.ShapeDtypeStruct]
    ) -> None:
        self._traced = traced
        self._adapter = adapter
        self._inputs = inputs
        self._in_tree = traced.signature.in_tree
        self._out_tree = traced.signature.out_tree
        self._keys_in = [(i, leaf.key_impl) for i, leaf in enumerate(traced.inputs) if leaf.key_impl]
        self._keys_out = [(i, leaf.key_impl) for i, leaf in enumerate(traced.outputs) if leaf.key_impl]
        self._void_in = _without_values(traced.inputs)
        self._void_out = _without_values(traced.outputs)
        self._weak_out = [i for i, leaf in enumerate(traced.outputs) if leaf.struct.weak_type]
        #: Arguments and results with stacked layers in pieces; None where there are none.
        self.stacked_in: StackedArrays | None = None
        self.stacked_out: StackedArrays | None = None
        if traced.stacks is not None:
            self.stacked_in = StackedArrays(traced.stacks.inputs, inputs, traced.in_names)
            self.stacked_out = StackedArrays(traced.stacks.outputs, outputs, traced.out_names)

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves of the arguments.  Raises `MpmdError` for another structure than it was compiled for."""
        flat: list[Any]
        flat, tree = jax.tree.flatten(self._adapter.wrap((args, kwargs)))
        if tree != self._in_tree:
            differences = structure_differences(*map(self._adapter.structure, (self._in_tree, tree)))
            lines = [f"  {_argument(path)}: {text}" for path, text in differences]
            is_number = bool(differences) and all(
                re.match(r"the static value -?[\d.]", text) for _, text in differences
            )
            raise MpmdError(
                f"{self._traced.name} was compiled for other arguments:\n" + "\n".join(shortened(lines)) + "\n"
                "Compile it again for these (static arguments are left out of the call), or pass what it was "
                "compiled for." + " Numbers that change are passed as arrays: jnp.asarray(number)." * is_number
            )
        return flat

    def physical(self, given: list[Any]) -> list[Any]:
        """Return the leaves as the compiled program takes them: numbers alone, stacked layers in their pieces.

        Raises `MpmdError` for keys and tangents that are others than it was compiled for.
        """
        result = given if self.stacked_in is None else self.stacked_in.apart(given)
        if not self._keys_in and not self._void_in:
            return result
        result = list(result)
        for i, impl in self._keys_in:
            if not is_key(result[i]):
                raise self._misfit(i, f"a typed PRNG key ({impl})", "; wrap it with jax.random.wrap_key_data")
            found_impl = str(jax.random.key_impl(result[i]))
            if found_impl != impl:
                instead = f", not of {found_impl}; make it with jax.random.key(seed, impl={impl!r})"
                raise self._misfit(i, f"a typed PRNG key of {impl}", instead)
            result[i] = jax.random.key_data(result[i])
        for i, void in self._void_in:
            if getattr(result[i], "dtype", None) != void.dtype or result[i].shape != void.shape:
                raise self._misfit(i, f"an array float0{list(void.shape)}")
            result[i] = np.zeros(void.shape, np.bool_)
        return result

    def _misfit(self, index: int, wanted: str, instead: str = "") -> MpmdError:
        name = self._traced.inputs[index].name
        return MpmdError(f"argument {name} must be {wanted}, as it was when the program was compiled{instead}")

    def placed(self, physical: list[Any]) -> Any:
        """Return the arguments `(args, kwargs)` of these leaves, each array where the program wants it."""
        placed: list[Any] = put_apart(physical, self._inputs, self._traced.donated)
        for i, impl in self._keys_in:
            placed[i] = jax.random.wrap_key_data(placed[i], impl=impl)
        for i, void in self._void_in:
            placed[i] = void
        if self.stacked_in is not None:
            placed = self.stacked_in.together(placed)
        return self._adapter.placed(jax.tree.unflatten(self._in_tree, placed))

    def delete_donated(self, given: Sequence[Any]) -> None:
        """Delete the stacked arrays that were donated and had to be copied to the meshes of their pieces."""
        if self.stacked_in is None:
            return
        for i in self._traced.signature.donated:
            x = given[i]
            if self.stacked_in.forms[i] is not None and isinstance(x, jax.Array | Pieces) and not x.is_deleted():
                x.delete()

    def result(self, results: list[Any]) -> Any:
        """Return what the caller gets for the arrays that the program returns."""
        for i, impl in self._keys_out:
            results[i] = jax.random.wrap_key_data(results[i], impl=impl)
        for i, void in self._void_out:
            results[i] = void
        for i in self._weak_out:
            results[i] = with_weak_type(results[i])
        if self.stacked_out is not None:
            results = self.stacked_out.together(results)
        return self._adapter.unwrap_result(jax.tree.unflatten(self._out_tree, results))

    def of_inputs(self, facts: list[Any]) -> Any:
        """Facts about the arrays that the program takes, as `(args, kwargs)`."""
        facts = facts if self.stacked_in is None else self.stacked_in.of_arrays(facts)
        return self._adapter.unwrap(jax.tree.unflatten(self._in_tree, facts))

    def of_outputs(self, facts: list[Any]) -> Any:
        """Facts about the arrays that the program returns, in the structure of the result."""
        facts = facts if self.stacked_out is None else self.stacked_out.of_arrays(facts)
        return self._adapter.unwrap(jax.tree.unflatten(self._out_tree, facts))

    def in_out(self, inputs: list[Any], outputs: list[Any]) -> InOut:
        """Both."""
        return InOut(self.of_inputs(inputs), self.of_outputs(outputs))
