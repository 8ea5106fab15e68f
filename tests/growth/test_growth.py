"""Compiling takes work in proportion to what a user makes large, whatever that is.

Work is counted in calls of functions of this package, so that no machine can be too slow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest

import mpmd_trace
from growth.counting import calls_of
from growth.knobs import KNOBS, Setup
from mpmd_trace.backend.planner import make_plan

#: The smallest of three sizes, each of which is twice the one before.
SMALLEST = 4
#: Other sizes for knobs that cost much by themselves, or little.
SIZES = {
    "metrics": 16,
    "leaves": 12,
    "arguments that nothing reads": 32,
    "depth of weights in a layer": 8,
    "depth of weights in a microbatch": 12,
    "depth of activations in a layer": 8,
    "depth of activations between layers": 12,
}
#: The power of the size that work may grow with.
MOST = 1.1
#: What is known to grow faster.
KNOWN: dict[str, str] = {
    "nested cond between layers": "ops of opened conditionals know all around them",
    "nested cond": "ops inside are looked at once for each op around them",
    "nested custom_vjp": "JAX's name stacks are as long as functions are nested",
    "nested scan between layers": "ops inside are looked at once for each op around them",
    "nested scan": "ops inside are looked at once for each op around them",
}


def lower(setup: Setup) -> None:
    """Trace, partition and plan a step."""
    step, config, arguments = setup.sized()
    traced = mpmd_trace.jit(step, config).trace(*arguments)
    make_plan(traced.lower(lowering_platforms=(setup.platform,)).partitioned.module)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What is imported or remembered once is done."""
    lower(Setup())


#: Those that take seconds, for `make nightly`.
SLOW = frozenset(
    {
        *("leaves", "metrics", "layers that are alike", "layers, little memory", "layers, much memory"),
        *("depth of weights in a layer", "depth of weights in a microbatch"),
        *("depth of activations in a layer", "depth of activations between layers"),
        *("nested cond", "nested cond between layers"),
    }
)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    known = [pytest.mark.xfail(strict=True, reason=KNOWN[name])] if name in KNOWN else []
    return [*known, *([pytest.mark.nightly] if name in SLOW else [])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in KNOBS])
def test_work_grows_with_the_program(name: str) -> None:
    check(name, KNOBS[name])


@pytest.mark.parametrize("name", ["experts", "draws of one key", "draws between layers"])
def test_work_on_gpus(name: str) -> None:
    """What JAX lowers to other ops there."""
    check(name, lambda n: dataclasses.replace(KNOBS[name](n), platform="cuda"))


def check(name: str, knob: Callable[[int], Setup]) -> None:
    size = SIZES.get(name, SMALLEST)
    first, second, third = (calls_of(lambda n=n: lower(knob(n))) for n in (size, 2 * size, 4 * size))
    steps = second.total() - first.total(), third.total() - second.total()
    more = {f: (first[f], second[f], third[f]) for f in third if third[f] - second[f] > 3 * (second[f] - first[f])}
    fastest = sorted(more, key=lambda f: more[f][2] - more[f][1], reverse=True)[:8]
    assert math.log2(steps[1] / steps[0]) <= MOST, [f"{f} {more[f]}" for f in fastest]
