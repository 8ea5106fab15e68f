"""A step that was traced and not lowered yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mpmd_trace.api.lowered import Lowered
from mpmd_trace.api.stage_info import Adapter, StageInfo
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.trace import Traced
from mpmd_trace.passes.manager import Hook


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TracedStep(StageInfo):
    """What `mpmd_trace.jit(...).trace(...)` gives, as `jax.stages.Traced`; `traced` has more of it."""

    traced: Traced
    adapter: Adapter
    _lower: Callable[[Sequence[Hook], str], Lowered]

    @explains_internal_errors
    def lower(self, *, lowering_platforms: Sequence[str] | None = None, hooks: Sequence[Hook] = ()) -> Lowered:
        """Partition the program; `hooks` are called after every pass.  Raises `MpmdError` with all problems.

        `lowering_platforms`: the one platform to lower for ("cpu", "cuda", "rocm", "tpu"), which need not be there;
        by default that of the meshes.  What is lowered for another one cannot be compiled here.
        """
        given = (lowering_platforms,) if isinstance(lowering_platforms, str) else tuple(lowering_platforms or ())
        if lowering_platforms is not None and len(given) != 1:
            raise mistake(
                f"lowering_platforms has one platform for mpmd_trace, not {list(given)}: programs differ between "
                "platforms; lower once for each"
            )
        lowered = self._lower(hooks, given[0] if given else self.traced.platform)
        _ = lowered.partitioned
        return lowered

    @property
    def jaxpr(self) -> Any:
        """What JAX traced, with names as tagged jits; stacked layers that are cut are several arrays."""
        return self.traced.jaxpr

    @property
    def fun_name(self) -> str:
        """The name of the function."""
        return self.traced.name

    @property
    def out_avals(self) -> Any:
        """The types of the results, in their structure."""
        return jax.tree.map(lambda x: jax.core.ShapedArray(x.shape, x.dtype), self.out_info)

    @property
    def effects(self) -> Any:
        """The effects of the function, such as callbacks."""
        return self.traced.jaxpr.effects

    @property
    def names(self) -> dict[str, list[str]]:
        """Each name that occurs, with the places (`file:line`) where."""
        return self.traced.names

    def __repr__(self) -> str:
        return f"<mpmd_trace Traced: {self._summary()}>"
