"""The attributes that `jax.stages` has for lowered and compiled functions, for ours."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax.stages import ArgInfo

from mpmd_trace.api.options import Settings
from mpmd_trace.frontend.traced import Traced


class InOut(NamedTuple):
    """Something for the arguments, as a pytree `(args, kwargs)`, and the same for the result."""

    inputs: Any
    outputs: Any


class StageInfo:
    """The structure and types of arguments and results, under the names that `jax.stages` has for them."""

    traced: Traced
    settings: Settings

    @property
    def in_tree(self) -> Any:
        """The structure of `(args, kwargs)`, without static arguments; static leaves of `filter_jit` are leaves."""
        return jax.tree.structure(self.args_info, is_leaf=lambda x: isinstance(x, ArgInfo))

    @property
    def out_tree(self) -> Any:
        """The structure of the result."""
        return jax.tree.structure(self.out_info)

    @property
    def in_avals(self) -> Any:
        """The types of the arguments, as `(args, kwargs)`."""
        inputs = self.traced.signature.inputs
        return self._inputs([jax.core.ShapedArray(x.struct.shape, x.struct.dtype) for x in inputs])

    @property
    def args_info(self) -> Any:
        """Type of each argument, and whether it is donated, as `(args, kwargs)`."""
        signature = self.traced.signature
        donated = set(signature.donated)
        avals = [jax.core.ShapedArray(x.struct.shape, x.struct.dtype) for x in signature.inputs]
        return self._inputs([ArgInfo(aval, i in donated) for i, aval in enumerate(avals)])

    @property
    def out_info(self) -> Any:
        """Type of each result, as `jax.ShapeDtypeStruct`."""
        signature = self.traced.signature
        outputs = [jax.ShapeDtypeStruct(x.struct.shape, x.struct.dtype) for x in signature.outputs]
        return self.settings.adapter.unwrap(jax.tree.unflatten(signature.out_tree, outputs))

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The positions among all arrays of the arguments of those that are donated, as `jax.stages` counts them."""
        return tuple(self.traced.signature.donated)

    def _inputs(self, leaves: list[Any]) -> Any:
        return self.settings.adapter.unwrap(jax.tree.unflatten(self.traced.signature.in_tree, leaves))

    def _summary(self) -> str:
        """Return what both stages show of themselves."""
        signature = self.traced.signature
        return f"{self.traced.name}, {len(signature.inputs)} arrays in, {len(signature.outputs)} out"
