"""The steps of a program: running them, and comparing two runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.errors import at_users_place, place_of, problem
from mpmd_trace_cli.console import rounding_hint
from mpmd_trace_cli.program import check_arguments, failed_while_running, user_error
from mpmd_trace_devtools.numbers import difference, on_one_device


def compile_ahead(plain: Any, args: Any) -> None:
    """Compile plain `jax.jit` while the passes run, which leave all cores but one idle.

    JAX keeps the result for the first call.  That one raises what is wrong, too.
    """
    with contextlib.suppress(Exception):
        plain.lower(*on_one_device(args)).compile()


def as_they_are(args: Any) -> Any:
    """Return the arguments as they are."""
    return args


def run_steps(
    program: Any,
    step: Any,
    shown: Callable[[int, str], Any],
    each: Callable[[Any], Any] = as_they_are,
    first: Callable[[Any], Any] = as_they_are,
    get: Callable[[Any], Any] = as_they_are,
) -> dict[str, Any]:
    """Run all steps; gradients of the first one, losses, and seconds per step (the first one left out).

    Also the results that are passed on to the next step as they are, as (argument, result) pairs.

    `each` makes the arguments of every step what the step can take, `first` those of the first step, and `get` fetches
    numbers from where they are.
    """
    args = first(program.args)
    losses: list[float] = []
    gradients: list[tuple[str, Any]] = []
    seconds: list[float] = []
    carried: list[tuple[int, int]] = []
    for i in range(program.steps):
        args = each(args)
        started = time.perf_counter()
        try:
            result = jax.block_until_ready(step(*args))
        except MpmdError as error:
            # Arguments: those of the program, or what it makes of a result.
            raise at_users_place(error, place_of(program.advance) if i else program.where) from None
        except Exception as error:
            if user_error(error) is not None:
                raise
            raise failed_while_running(error, program.where) from error
        seconds.append(time.perf_counter() - started)
        if program.loss is not None:
            losses.append(_number(program, get(program.loss(result))))
        if i == 0 and program.gradients is not None:
            # Now, since the next step may get and donate them.
            gradients = _gradients(program, get(program.gradients(result)))
        if program.advance is not None and i + 1 < program.steps:
            following = program.advance(i, args, result)
            what = "the arguments that advance of the mpmd_trace.Program returns"
            checked = check_arguments(program, following, what, place_of(program.advance))
            if i == 0 and program.loss is not None:
                _check_repeatable(program, args, result, checked)
            args = checked
            made = {id(leaf): number for number, leaf in enumerate(program.arrays(result))}
            leaves = program.arrays(program.dynamic(args))
            carried = [(number, made[id(leaf)]) for number, leaf in enumerate(leaves) if id(leaf) in made]
        shown(i + 1, f"loss {losses[-1]:.4f}" if losses else "")
    timed = sorted(seconds[1:] or seconds)
    return {"gradients": gradients, "losses": losses, "carried": carried, "seconds": timed[len(timed) // 2]}


def _check_repeatable(program: Any, args: tuple[Any, ...], result: Any, following: tuple[Any, ...]) -> None:
    """Raise `MpmdError` when `advance` gives other arguments than before, as one that draws from an iterator does."""
    try:
        again = program.advance(0, args, result)
    except StopIteration:
        changed = ["StopIteration"]
    else:
        before, after = (dict(jax.tree_util.tree_leaves_with_path(each)) for each in (following, again))
        changed = [f"args{jax.tree_util.keystr(path)}" for path in before if not _same(before[path], after.get(path))]
    if changed:
        text = (
            f"advance of the mpmd_trace.Program returns something else when it is called again ({changed[0]}), so "
            "plain jax.jit and the pipeline would not train on the same batches. Its result may depend on its "
            "arguments alone: take batches from a list by the number of the step, not from an iterator"
        )
        raise MpmdError([problem(text, place_of(program.advance))])


def _same(one: Any, other: Any) -> bool:
    """Return whether two leaves are equal; of what this process cannot read, whether they are of one kind."""
    if one is other or type(one) is not type(other):
        return one is other
    if not isinstance(one, jax.Array | np.ndarray | np.generic | int | float | complex):
        return True
    if isinstance(one, jax.Array) and jax.numpy.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = (jax.random.key_data(key) for key in (one, other))
    if not all(x.is_fully_addressable for x in (one, other) if isinstance(x, jax.Array)):
        return True
    a, b = np.asarray(one), np.asarray(other)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _gradients(program: Any, gradients: Any) -> list[tuple[str, Any]]:
    """Return the gradients of a result, with their names.  Raises `MpmdError` for what cannot be compared."""
    result, wrong = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        if isinstance(leaf, int | float | complex):
            leaf = np.asarray(leaf)
        dtype = getattr(leaf, "dtype", None)
        if dtype == jax.dtypes.float0:
            continue  # of an integer
        if dtype is None or not any(jax.numpy.issubdtype(dtype, kind) for kind in (np.number, np.bool_)):
            kind = type(leaf).__name__ if dtype is None else f"array of {dtype}"
            wrong.append(f"{jax.tree_util.keystr(path) or 'what it returns'} is of type {kind}, which has no numbers")
            continue
        wide = np.complex128 if jax.numpy.issubdtype(dtype, jax.numpy.complexfloating) else np.float64
        result.append((jax.tree_util.keystr(path), np.asarray(leaf, dtype=wide)))
    if not result and not wrong:
        wrong.append("it returns no arrays at all")
    if wrong:
        what = "gradients of the mpmd_trace.Program returns the gradients in a result"
        raise MpmdError([problem(f"{what}, but {text}", place_of(program.gradients)) for text in wrong])
    return result


def _number(program: Any, value: Any) -> float:
    """Return the loss as a number.  Raises `MpmdError` when it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        shape = getattr(value, "shape", None)
        kind = type(value).__name__ if shape is None else f"array of shape {shape}"
        message = f"loss of the mpmd_trace.Program returns one number of a result, not a value of type {kind}"
        raise MpmdError([problem(message, place_of(program.loss))]) from None


def compare_steps(program: Any, result: dict[str, Any], reference: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return what differs by more than the program's tolerances, in words, and how large the differences are."""
    problems: list[str] = []
    errors: dict[str, Any] = {}
    if program.gradients is not None:
        if [p for p, _ in result["gradients"]] != [p for p, _ in reference["gradients"]]:
            message = "gradients of the mpmd_trace.Program gives other arrays for the pipeline than for plain jax.jit"
            raise MpmdError([problem(message, place_of(program.gradients))])
        pairs = zip(result["gradients"], reference["gradients"], strict=True)
        differences = [(difference(a, b), path) for (path, a), (_, b) in pairs]
        worst, where = max(differences, key=lambda d: d[0], default=(0.0, ""))
        errors["gradient_error"] = worst
        errors["gradient_error_at"] = where
        if not worst <= program.gradient_tolerance:
            problems.append(
                f"the gradient of {where} differs from plain jax.jit by {worst:.2e} of its norm "
                f"(tolerance {program.gradient_tolerance:.0e})"
                + rounding_hint(worst, "gradient_tolerance= of the Program accepts more")
            )
    losses = list(zip(result["losses"], reference["losses"], strict=True))
    if losses:
        differs = [difference(a, b) for a, b in losses]
        errors["loss_error"] = worst = max(differs)
        first = next((i for i, one in enumerate(differs) if not one <= program.loss_tolerance), None)
        if first is not None:
            a, b = losses[first]
            later = f"; later losses differ by up to {worst:.2e}" if worst > differs[first] else ""
            problems.append(
                f"losses differ from plain jax.jit, first in step {first + 1}: the loss is {a:.7g} and should be "
                f"{b:.7g}, a difference of {differs[first]:.2e} (tolerance {program.loss_tolerance:.0e}){later}"
                + rounding_hint(worst, "loss_tolerance= of the Program accepts more")
            )
    return problems, errors
