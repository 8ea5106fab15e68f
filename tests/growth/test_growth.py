"""Compiling takes work in proportion to what a user makes large, whatever that is.

Work is counted in calls of functions of this package, so that no machine can be too slow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import pytest

import mpmd_trace
from growth.counting import calls_of
from growth.knobs import KNOBS, Setup
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.tracing import subjaxprs
from mpmd_trace.passes.common.absorption import Absorption
from mpmd_trace.passes.greedy import apply_greedily
from mpmd_trace.passes.partition import partition_as
from util import nightly

#: The smallest of three sizes, each of which is twice the one before.
SMALLEST = 4
#: Other sizes for knobs that cost much by themselves, or little.
SIZES = {
    **dict.fromkeys(("meshes, little memory", "meshes, recomputed"), 16),
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
#: Where JAX's own program grows faster than its size: each conditional hands on what all those in it save for the
#: backward pass.
FASTER = frozenset({"nested cond", "nested cond between layers"})


def lower(setup: Setup) -> None:
    """Trace, partition and plan a step."""
    step, config, arguments = setup.sized()
    traced = mpmd_trace.jit(step, config).trace(*arguments)
    make_plan(traced.lower(lowering_platforms=(setup.platform,)).partitioned.module)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What is imported or remembered once is done."""
    lower(Setup())


#: One of each kind of program; the others, of the same kinds at other places, in `make nightly`.
EACH_TIME = frozenset(
    {
        *("layers", "microbatches", "fan-out between layers", "all of a result's graph", "depth of summed gradients"),
        *(
            "depth of weights before the microbatches",
            "depth of a constant in a branch",
            "layers, little memory",
            "metrics",
        ),
    }
)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in EACH_TIME else [pytest.mark.nightly]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in KNOBS])
def test_work_grows_with_the_program(name: str) -> None:
    check(name, KNOBS[name])


@pytest.mark.parametrize("name", ["draws of one key", *map(nightly, ("experts", "draws between layers"))])
def test_work_on_gpus(name: str) -> None:
    """What JAX lowers to other ops there."""
    check(name, lambda n: dataclasses.replace(KNOBS[name](n), platform="cuda"))


def test_work_of_the_reference() -> None:
    """Its pipeline has passes that `mpmd_trace.jit` does without."""

    def partition(setup: Setup) -> None:
        step, config, arguments = setup.sized()
        lowered = mpmd_trace.jit(step, config).trace(*arguments).lower(lowering_platforms=(setup.platform,))
        request = lowered.request_for("reference")
        options = dataclasses.replace(request.options, mpmd_equal_microbatches=False, mpmd_infer_transfers=True)
        text = lowered.traced.mlir_text()
        result = partition_as(text, dataclasses.replace(request, step=None, options=options))
        assert any(run.name == "mpmd-absorb-inferred-fragments" and run.changed for run in result.runs)

    check("metrics", KNOBS["metrics"], partition)


def test_work_of_absorbing_what_reads_a_root_of_many_results() -> None:
    def absorb(n: int) -> None:
        function = parse(root_of_many_results(n)).functions[0]
        absorption = Absorption(function)
        assert apply_greedily(function, [absorption], settle=absorption.settle).changed
        assert len(list(function.body)) == 2  # one fragment, and the return

    first, second, third = (calls_of(lambda n=n: absorb(n)).total() for n in (32, 64, 128))
    assert power_of(first, second, third) <= MOST


def root_of_many_results(n: int) -> str:
    """Return a function in which an inferred fragment reads each of the `n` results of a user fragment."""
    mesh, t = '!mpmd.mesh_tensor<"m", tensor<4xf32>>', "tensor<4xf32>"
    meshes, ts = ", ".join([mesh] * n), ", ".join([t] * n)
    negated = [
        f'%{i} = mpmd.fragment<mesh="m", origin=[]> (%root#{i}) (%x: {t}) {{\n'
        f"%y = stablehlo.negate %x : {t}\nmpmd.return %y : {t}\n}} : ({mesh}) -> {mesh}"
        for i in range(n)
    ]
    lines = [
        f"func.func private @f(%p: {mesh}) -> ({meshes})"
        ' attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {',
        f'%root:{n} = mpmd.fragment<mesh="m", origin=["f"]> (%p) (%x: {t}) {{',
        *(f"%y{i} = stablehlo.sine %x : {t}" for i in range(n)),
        f"mpmd.return {', '.join(f'%y{i}' for i in range(n))} : {ts}\n}} : ({mesh}) -> ({meshes})",
        *negated,
        f"return {', '.join(f'%{i}' for i in range(n))} : {meshes}\n}}",
    ]
    return "\n".join(lines)


def check(name: str, knob: Callable[[int], Setup], work: Callable[[Setup], None] = lower) -> None:
    size = SIZES.get(name, SMALLEST)
    sizes = (size, 2 * size, 4 * size)
    work(knob(size))  # what is remembered for good is not counted, whichever tests ran before
    first, second, third = (calls_of(lambda n=n: work(knob(n))) for n in sizes)
    power = power_of(first.total(), second.total(), third.total())
    own = power_of(*(jax_size(knob(n)) for n in sizes)) if name in FASTER else 1.0
    more = {f: (first[f], second[f], third[f]) for f in third if third[f] - second[f] > 3 * (second[f] - first[f])}
    fastest = sorted(more, key=lambda f: more[f][2] - more[f][1], reverse=True)[:8]
    assert power <= MOST * own, [f"{f} {more[f]}" for f in fastest]


def power_of(first: int, second: int, third: int) -> float:
    """Return the power of the size with which something grows that has these values at `n`, `2 n` and `4 n`."""
    return math.log2((third - second) / (second - first))


def jax_size(setup: Setup) -> int:
    """Return the number of equations and of their operands and results in what `jax.jit` makes of a step."""
    step, _, arguments = setup.sized()
    left, count = [jax.make_jaxpr(step)(*arguments).jaxpr], 0
    while left:
        for equation in left.pop().eqns:
            count += 1 + len(equation.invars) + len(equation.outvars)
            left += [getattr(inner, "jaxpr", inner) for inner in subjaxprs(equation)]
    return count
