"""A step with example arguments and a configuration: what the command line works on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax

from mpmd_trace.api.filter_jit import filter_jit, is_dynamic, plain_jit
from mpmd_trace.api.jit import Jitted, jit
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.location import UNKNOWN
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.errors import callers_place, raise_problems
from mpmd_trace.frontend.explanations import numbers_in_modules


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A step with example arguments and a configuration, for `mpmd-trace run FILE` and the other commands.

    A file defines a `Program` at module level, under the name `program`; give another name as `FILE:name`.  A function
    without arguments that returns a `Program` is also accepted.
    """

    #: The step: a function of `args`.
    fn: Callable[..., Any]
    #: Example arguments, which are also those of the first step.
    args: tuple[Any, ...]
    config: Config
    #: The number of steps that `run` runs.
    steps: int = 1
    #: `(step, args, result) -> args`: from the number of the last step (the first is 0), its arguments and its result,
    #: return the arguments of the next step.  By default, every step gets the same arguments.  It is called for plain
    #: `jax.jit` and again for the pipeline, so its result must depend only on its arguments.
    advance: Callable[[int, tuple[Any, ...], Any], tuple[Any, ...]] | None = None
    #: The loss in a result, for the loss curves.
    loss: Callable[[Any], Any] | None = None
    #: The gradients in a result, compared leaf by leaf with those of the plain program in the first step.
    gradients: Callable[[Any], Any] | None = None
    #: The number of tokens (or samples) per step, from which `run` computes tokens per second.
    tokens: int | None = None
    donate_argnums: int | Sequence[int] = ()
    static_argnums: int | Sequence[int] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    #: Whether to use `mpmd_trace.filter_jit`, for steps that take and return models: only arrays are inputs, and
    #: everything else in `args` and the result is static.  By default (None), it is used if `args` contain something
    #: that `jax.jit` does not accept, such as the activation function or dropout rate of an Equinox model.
    filter_jit: bool | None = None
    #: Options of XLA; see `mpmd_trace.jit`.
    compiler_options: Mapping[str, Any] | None = None
    #: Relative tolerances of the comparison with plain `jax.jit`.
    gradient_tolerance: float = 1e-5
    loss_tolerance: float = 1e-4
    name: str = "program"
    #: Where it was made (`file:line`), for messages.
    where: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.where is None:
            object.__setattr__(self, "where", callers_place())
        for name in ("donate_argnums", "static_argnums"):
            if isinstance(number := getattr(self, name), int):
                object.__setattr__(self, name, (number,))

    def __repr__(self) -> str:
        called = getattr(self.fn, "__name__", None) or type(self.fn).__name__
        arrays, steps = len(jax.tree.leaves(self.args)), "1 step" if self.steps == 1 else f"{self.steps} steps"
        meshes = ", ".join(self.config.topology)
        return f"<mpmd_trace Program {self.name}: {called}, {arrays} leaves in, {steps}; {meshes}>"

    @property
    def static_positions(self) -> set[int]:
        """The positions of the static arguments, none of them negative."""
        numbers = cast(Sequence[int], self.static_argnums)  # see `__post_init__`
        return {number % len(self.args) for number in numbers} if self.args else set()

    @functools.cached_property
    def filters(self) -> bool:
        """True if arrays alone are inputs; see `filter_jit`."""
        if self.filter_jit is not None or not isinstance(self.args, tuple):
            return bool(self.filter_jit)
        static = self.static_positions
        args = [arg for number, arg in enumerate(self.args) if number not in static]
        return bool(numbers_in_modules("", args)) or any(
            callable(leaf) and not is_dynamic(leaf) for leaf in jax.tree.leaves(args)
        )

    def dynamic(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments that a compiled step takes: all but the static ones, which `filter_jit` takes, too."""
        static = set() if self.filters else self.static_positions
        return tuple(arg for number, arg in enumerate(args) if number not in static)

    def arrays(self, tree: Any) -> list[Any]:
        """Return the leaves of dynamic arguments or of a result that the compiled step takes or returns."""
        leaves = jax.tree.leaves(tree)
        return [leaf for leaf in leaves if is_dynamic(leaf)] if self.filters else leaves

    def jitted(self, engine: str = "python") -> Jitted:
        """Return the step under `mpmd_trace.jit` or `mpmd_trace.filter_jit`."""
        make = filter_jit if self.filters else jit
        try:
            return make(
                self.fn,
                self.config,
                in_shardings=self.in_shardings,
                out_shardings=self.out_shardings,
                donate_argnums=self.donate_argnums,
                static_argnums=self.static_argnums,
                compiler_options=self.compiler_options,
                engine=engine,
            )
        except MpmdError as error:  # our caller is not where the options are written
            raise_problems([dataclasses.replace(d, location=UNKNOWN) for d in error.diagnostics], self.where)
            raise  # for the type checker: there was a problem

    def plain(self) -> Callable[..., Any]:
        """Return the step under plain `jax.jit`, for comparison."""
        if self.filters:
            return plain_jit(self.fn)
        plain: Callable[..., Any] = jax.jit(self.fn, static_argnums=self.static_argnums)
        return plain
