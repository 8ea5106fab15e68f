"""A traced program: its jaxpr, its arguments and results, and its MLIR module with `mpmd` ops."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.frontend.arg_shardings import Spec
from mpmd_trace.frontend.batch_rows import SplitRows
from mpmd_trace.frontend.errors import without_warnings
from mpmd_trace.frontend.flatten_arguments import Leaf
from mpmd_trace.frontend.memory_kinds import HOST
from mpmd_trace.frontend.stacked.arrays import Signature, Stacks
from mpmd_trace.ir.garbage_collection import paused_collector
from mpmd_trace.jax_compat import lowering
from mpmd_trace.jax_compat.calls import with_bodies

Specs = tuple[Spec | None, ...]


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The program with `mpmd` equations in the place of tagged jits, and what was found on the way."""

    #: Of the constants, then the arguments; see `tracing.make_program`.
    program: Any
    #: Each name that occurs, with the places (`file:line`) where.
    names: dict[str, list[str]]
    #: The named computations among them that are not inside another one, with a place.
    computations: dict[str, str | None]
    #: Each name inside named computations, behind the names of these, outermost first; with a place.
    nested: dict[tuple[str, ...], str | None]
    #: Where `jax.checkpoint` recomputes a part for another one that runs elsewhere (`file:line`), if it does.
    recomputed: str | None
    #: The text of each `sdy.mesh` op that the shardings of the program need.
    mesh_ops: tuple[str, ...]
    #: Whether some calls stand for several iterations of a loop: `mpmd-repeat-calls` makes these.
    is_short: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A traced program.

    The arguments of `main` in the MLIR module are the arrays of `constants` (closed-over arrays that
    are too large to be written into the program), followed by the leaves of the dynamic arguments,
    used or not. Typed PRNG keys are represented by their key data.
    """

    #: What JAX traced, with names as tagged jits.
    jaxpr: Any
    #: The structure of `(args, kwargs)` without static arguments, and of the result.
    in_tree: Any
    out_tree: Any
    #: One per leaf of the arguments and results: name, shape, dtype, weak type, PRNG of typed keys.
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    #: Large closed-over arrays: the leading inputs of `main`.
    constants: tuple[Any, ...]
    #: Indices into `inputs` of the leaves that the caller gives away.
    donated: tuple[int, ...]
    #: One per leaf: where it is to be, as far as that was said.
    in_shardings: tuple[Spec | None, ...]
    out_shardings: tuple[Spec | None, ...]
    #: One per result: the memory to which it is to be moved in the end, or None.
    out_memories: tuple[str | None, ...]
    #: The results that are arguments as they came, each with the number of the argument.
    returned: dict[int, int]
    platform: str
    name: str
    #: Rewrites the program, with one call for many alike iterations of a loop or with all; raises `FrontendError` with
    #: what is wrong in it.
    rewrite: Callable[[bool], Rewritten]
    #: `out_shardings` and `out_memories` on a platform.
    results_on: Callable[[str], tuple[Specs, tuple[str | None, ...]]] | None = None
    #: How arrays of the user are in pieces here; None where all are whole.
    stacks: Stacks | None = None
    #: The arguments whose rows are sharded and cut into microbatches.
    split_rows: tuple[SplitRows, ...] = ()

    @property
    def signature(self) -> Signature:
        """Arguments and results as the caller has them: stacked layers are one array."""
        if self.stacks is not None:
            return self.stacks.signature
        return Signature(self.in_tree, self.out_tree, self.inputs, self.outputs, self.donated)

    @functools.cached_property
    def rewritten(self) -> Rewritten:
        """The program after rewriting, when it is first asked for: one call may stand for many iterations of a loop."""
        return self.rewrite(True)

    @functools.cached_property
    def _whole(self) -> Rewritten:
        """The program with all iterations."""
        if not self.rewritten.is_short:
            return self.rewritten
        with without_warnings():
            return self.rewrite(False)

    def on_platform(self, platform: str) -> Traced:
        """Return the same program, to be lowered for this platform."""
        if platform == self.platform or self.results_on is None:
            return self
        out_specs, out_memories = self.results_on(platform)
        return dataclasses.replace(self, platform=platform, out_shardings=out_specs, out_memories=out_memories)

    @property
    def names(self) -> dict[str, list[str]]:
        """See `Rewritten`."""
        return self.rewritten.names

    @property
    def in_avals(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the arguments."""
        return tuple(leaf.struct for leaf in self.inputs)

    @property
    def out_avals(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the results."""
        return tuple(leaf.struct for leaf in self.outputs)

    @property
    def in_names(self) -> tuple[str, ...]:
        """Names of the arguments, such as `model.layers[0].weight`."""
        return tuple(leaf.name for leaf in self.inputs)

    @property
    def out_names(self) -> tuple[str, ...]:
        """Names of the results."""
        return tuple(leaf.name for leaf in self.outputs)

    @property
    def host_callbacks(self) -> tuple[Any, ...]:
        """The Python functions that the module calls back (`jax.pure_callback`), by their number in it."""
        callbacks: tuple[Any, ...] = self._short[1]
        return callbacks

    @functools.cached_property
    def _short(self) -> tuple[Any, tuple[Any, ...]]:
        return self._lower(self.rewritten)

    @functools.cached_property
    def _lowered(self) -> tuple[Any, tuple[Any, ...]]:
        module, callbacks = self._lower(self._whole) if self.rewritten.is_short else self._short
        return with_bodies(module), callbacks

    @paused_collector()
    def _lower(self, rewritten: Rewritten) -> tuple[Any, tuple[Any, ...]]:
        module, callbacks = lowering.lower(rewritten.program, self.platform)
        given = []
        for i, spec in enumerate(self.in_shardings):
            compiled = spec._replace(memory=None) if spec is not None and i in self.on_host else spec
            donor = {"jax.buffer_donor": "true"} if i in self.donated else {}
            given.append({**donor, **_attributes(compiled)})
        results = [
            {"jax.result_info": quote(leaf.name), **_attributes(spec)}
            for leaf, spec in zip(self.outputs, self.out_shardings, strict=True)
        ]
        lowering.annotate_main(
            module,
            arguments=[{} for _ in self.constants] + given,
            argument_names=[f"constant{i}" for i in range(len(self.constants))] + list(self.in_names),
            results=results,
            meshes=rewritten.mesh_ops,
        )
        return module, callbacks

    @property
    def on_host(self) -> tuple[int, ...]:
        """The arguments with a sharding in host memory.

        The module does not say so: its passes refuse what one buffer may well be, an argument that programs read there,
        that is sent to other meshes, named, and returned.
        """
        return tuple(i for i, s in enumerate(self.in_shardings) if s is not None and s.memory == HOST)

    @property
    def module(self) -> Any:
        """The jaxlib module with `mpmd` ops, without topology; not to be changed."""
        return self._lowered[0]

    @property
    def short_module(self) -> Any:
        """The `module`, but one call may stand for many alike iterations of a loop: `mpmd-repeat-calls` makes these.

        Named computations with the same body call one function that is this body.
        """
        return self._short[0]

    def mlir_text(self, debug_info: bool = True) -> str:
        """Return the module with `mpmd` ops, without topology; with source locations on request."""
        return lowering.module_text(self.module, debug_info)


def _attributes(spec: Spec | None) -> dict[str, str]:
    """Return what the module says of the place of an argument or result."""
    attributes: dict[str, str] = {}
    if spec is not None and spec.text is not None:
        attributes["sdy.sharding"] = f"#sdy.sharding<{spec.text}>"
    if spec is not None and spec.memory is not None:
        attributes["mhlo.memory_kind"] = quote(spec.memory)
    return attributes
