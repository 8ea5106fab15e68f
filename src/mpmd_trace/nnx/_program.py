"""Steps of NNX objects for the command line, which compares functions of arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from mpmd_trace.api.program import Program
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.nnx import _objects


def program(
    fn: Callable[..., Any],
    args: Sequence[Any],
    config: Config,
    *,
    advance: Callable[[int, tuple[Any, ...], Any], Sequence[Any]] | None = None,
    loss: Callable[[Any], Any] | None = None,
    gradients: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Program:
    """Return a `Program` for a step that updates NNX objects in place.

    Each object among `args` becomes its `nnx.State`, and the step returns the new states as well.  `fn`, `advance`,
    `loss` and `gradients` see the objects, and what `fn` returns, as under `mpmd_trace.nnx.jit`:

        program = mpmd_trace.nnx.program(
            step,
            (model, optimizer, batch(0)),
            config,
            steps=3,
            advance=lambda i, args, value: (*args[:2], batch(i + 1)),
            loss=lambda value: value,
        )

    Args:
        fn: a step of objects and pytrees of arrays.
        args: example arguments; objects are arguments of their own, not parts of pytrees.
        config: the meshes, and which name is assigned to which mesh.
        advance: see `Program.advance`.  By default, each step gets the objects as the last one left them.
        loss: see `Program.loss`.
        gradients: see `Program.gradients`.
        options: the other fields of `Program`.

    Raises:
        MpmdError: if no argument is an NNX object.
    """
    numbers = [number for number, arg in enumerate(args) if _objects.is_object(arg)]
    if not numbers:
        raise MpmdError("mpmd_trace.nnx.program: no argument is an NNX object; use mpmd_trace.Program")
    graph, _ = nnx.split(tuple(args[number] for number in numbers))

    def with_states(given: Sequence[Any]) -> tuple[Any, ...]:
        values = list(given)
        for number, state in zip(numbers, _states([given[number] for number in numbers]), strict=True):
            values[number] = state
        return tuple(values)

    def with_objects(given: Sequence[Any], states: Sequence[Any]) -> tuple[Any, ...]:
        values = list(given)
        whole = nnx.State({position: state for position, state in enumerate(states) if state})
        for number, made in zip(numbers, nnx.merge(graph, whole), strict=True):
            values[number] = made
        return tuple(values)

    @functools.wraps(fn)
    def step(*given: Any) -> Any:
        made = with_objects(given, [given[number] for number in numbers])
        result = fn(*made)
        return _states([made[number] for number in numbers]), result

    def following(index: int, given: tuple[Any, ...], returned: Any) -> tuple[Any, ...]:
        states, result = returned
        made = with_objects(given, states)
        return with_states(made if advance is None else tuple(advance(index, made, result)))

    return Program(
        step,
        with_states(args),
        config,
        advance=following,
        loss=None if loss is None else lambda returned: loss(returned[1]),
        gradients=None if gradients is None else lambda returned: gradients(returned[1]),
        **options,
    )


def _states(objects: Sequence[Any]) -> tuple[Any, ...]:
    """Return the variables of each object; those that several share are in the state of the first."""
    state = nnx.state(tuple(objects))
    return tuple(state.get(position, nnx.State({})) for position in range(len(objects)))
