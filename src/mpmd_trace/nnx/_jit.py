"""`jit` for functions of modules and optimizers that change them in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Unpack

import jax
from flax import nnx

from mpmd_trace.api.jit import Jitted, takes_options
from mpmd_trace.api.options import Adapter, JitOptions, Settings
from mpmd_trace.config import Config
from mpmd_trace.frontend.errors import warn
from mpmd_trace.nnx import _objects


class Objects(Adapter):
    """Objects of NNX as arguments and results of a program."""

    def __init__(self) -> None:
        #: The graphs of objects that programs have returned, by identity.
        self._seen: dict[int, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects, ()

    def wrap(self, tree: Any) -> Any:
        """Arguments `(args, kwargs)`."""
        return _objects.split(tree, self)

    def unwrap(self, tree: Any) -> Any:
        """Facts about arrays, an `nnx.State` for each object."""
        return _objects.states(tree)

    def unwrap_result(self, tree: Any) -> Any:
        """Return what the function returned, when what it changed is in the objects that were given."""
        changed, result = _objects.merged(tree, self, inner=False)
        graphs = {id(parts.graph): parts.graph for parts in _objects.all_parts(tree[0])}
        if not graphs.keys() <= self._seen.keys():  # once for each program
            self._seen.update(graphs)
            _warn_of_metrics(changed)
        return result

    def together(self, tree: Any) -> list[list[int]]:
        """Return the numbers of each metric, of which `compute` makes one."""
        with self.calling():
            changed, _ = _objects.merged(tree, self, inner=True)
        return [numbers for _, numbers in _numbers_of_metrics(changed)]

    def calling(self) -> AbstractContextManager[Any]:
        """Return the time of a call, in which it is known which objects were given."""
        return _objects.given(self)


def _warn_of_metrics(changed: Any) -> None:
    """Warn of metrics on several meshes: what `compute` does with their numbers is a program for one."""
    for metric, numbers in _numbers_of_metrics(changed):
        places = {
            frozenset(x.sharding.device_set)
            for x in numbers
            if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
        }
        if len(places) > 1:
            warn(
                f"the numbers of a metric ({type(metric).__name__}) are on several meshes, and metric.compute() "
                "outside of the step needs them on one. Name its update, and assign the name to a mesh: "
                'mpmd_trace.nnx.named_computation(metrics.update, name="metrics")(...)'
            )
            return


def _numbers_of_metrics(objects: Any) -> Iterator[tuple[nnx.Metric, list[Any]]]:
    for metric in _objects.nodes(objects, nnx.Metric):
        variables = [x for x in vars(metric).values() if isinstance(x, nnx.Variable)]
        yield metric, jax.tree.leaves([x.get_raw_value() for x in variables])


@takes_options
def jit(fn: Callable[..., Any], config: Config, **options: Unpack[JitOptions]) -> Jitted:
    """Compile a function of NNX objects like `mpmd_trace.jit`, in the manner of `nnx.jit`.

    If `fn` updates its arguments (parameters, optimizer states, running averages, random streams, attributes), the
    objects of the caller are updated in place.  If two arguments share a variable, they still share it afterwards.
    Each array stays on the mesh of its layer.  Without `fn`, this is a decorator.

    Properties of the compiled program (`compiled.input_shardings`, `function_mesh_assignment`, `mpmd_trace.abstract`)
    have an `nnx.State` in place of each object.

    Args:
        fn: a function of modules, optimizers, arrays and pytrees of those.
        config: the meshes, and which name is assigned to which mesh; see `make_config`.
        in_shardings: a pytree prefix of the arguments, of `NamedSharding` or None; one for all arrays of an object.
        out_shardings: the same for the result.
        donate_argnums: positions of arguments whose buffers may be reused.  The objects get new arrays.
        donate_argnames: names of such arguments.
        static_argnums: positions of arguments that are part of the program; they must be hashable.
        static_argnames: names of such arguments.
        keep_unused: see `mpmd_trace.jit`.
        compiler_options: see `mpmd_trace.jit`.
        engine: see `mpmd_trace.jit`.

    Raises:
        MpmdError: as `mpmd_trace.jit`.
    """

    settings, objects = Settings.of(fn, config, options), Objects()
    out = None if settings.out_shardings is None else (None, settings.out_shardings)
    settings = dataclasses.replace(settings, out_shardings=out, adapter=objects)
    return Jitted(_objects.pure_function(fn, objects), config, settings)
