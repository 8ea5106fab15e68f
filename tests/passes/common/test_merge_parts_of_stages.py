"""`mpmd-merge-parts-of-stages`."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

import mpmd_trace
from fragment_texts import frag, function
from mpmd_trace import MpmdError, named_computation
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, max_examples, run

PASS = "mpmd-merge-parts-of-stages"
COUNTER = "{call_counter = 0 : ui32}"


def origins(text: str) -> list[str]:
    """The origins of each fragment; the program must mean what it meant before."""
    before = parse(PRELUDE + text)
    after = run(text, PASS)
    assert_same_meaning(before, after)
    return [", ".join(o.short for o in op.origin) for op in after.main.body if isinstance(op, FragmentOp)]


@pytest.mark.parametrize(
    ("origin", "attrs", "stage"),
    [
        ('"g"', COUNTER, ", stage=0"),
        ('"g"(1)', "{call_counter = 1 : ui32}", ", stage=0"),
        ('"g"(1)', COUNTER, ", stage=1"),
        ('"g"(1)', COUNTER, ""),
        ("", COUNTER, ""),
    ],
    ids=["phase", "microbatch", "stage", "no stage", "inferred"],
)
def test_what_is_not_one_unit(origin: str, attrs: str, stage: str) -> None:
    first = frag("alpha", '"f"(1)', "%p", attrs=COUNTER, stage=", stage=0")
    body = f"  %0 = {first}\n  %1 = {frag('alpha', origin, '%p', 'abs', attrs=attrs, stage=stage)}"
    assert origins(function(body, "%0, %1", "!A, !A")) == ['"f"(1)', origin]
    same = frag("alpha", '"g"(1)', "%p", "abs", attrs=COUNTER, stage=", stage=0")
    assert origins(function(f"  %0 = {first}\n  %1 = {same}", "%0, %1", "!A, !A")) == ['"f"(1), "g"(1)']


def test_a_cycle_stays() -> None:
    """What lies between on another mesh needs the first and feeds the second."""
    stage = ", stage=0"
    body = f"""\
  %0 = {frag("alpha", '"f"', "%p", attrs=COUNTER, stage=stage)}
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = {frag("beta", '"g"', "%1", "abs")}
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = {frag("alpha", '"f"', "%3", attrs=COUNTER, stage=stage)}"""
    assert origins(function(body, "%4", "!A")) == ['"f"', '"g"', '"f"']


def test_parts_that_are_apart() -> None:
    """As a discriminator of data, what generates something, and the discriminator of that; then the next microbatch."""
    lines = []
    for i in (0, 1):
        attrs = f"{{call_counter = {i} : ui32}}"
        lines += [
            f"%{3 * i} = " + frag("alpha", '"d"', "%p", attrs=attrs, stage=", stage=1"),
            f"%{3 * i + 1} = " + frag("alpha", '"g"', "%p", "abs", attrs=attrs, stage=", stage=0"),
            f"%{3 * i + 2} = " + frag("alpha", '"e"', f"%{3 * i + 1}", attrs=attrs, stage=", stage=1"),
        ]
    found = origins(function("\n".join(lines), "%0, %2, %3, %5", "!A, !A, !A, !A"))
    assert found == ['"g"', '"d", "e"'] * 2


@max_examples(40)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 3)), min_size=2, max_size=7))
def test_random_fragments(fragments: list[tuple[int, int, int]]) -> None:
    """Of each fragment: its stage, its microbatch, and which value it reads."""
    values, lines = ["%p"], []
    for i, (stage, counter, read) in enumerate(fragments):
        attrs = f"{{call_counter = {counter} : ui32}}"
        value = values[-1 - read % len(values)]
        fragment = frag("alpha", f'"f{i}"', value, attrs=attrs, stage=f", stage={stage}")
        lines.append(f"  %{i} = {fragment}")
        values.append(f"%{i}")
    found = origins(function("\n".join(lines), ", ".join(values), ", ".join(["!A"] * len(values))))
    neighbours = [(a, b) for a, b in itertools.pairwise(fragments) if a[:2] == b[:2]]
    assert len({f[:2] for f in fragments}) <= len(found) <= len(fragments) - len(neighbours)


def test_the_backwards_of_a_sum() -> None:
    """A schedule with stages runs a step that the reference refuses."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        h = named_computation(lambda w, x: jnp.tanh(x @ w), name="f")(p["f"], x)
        h = named_computation(lambda w, h: h + w[:2], name="g")(p["g"], h)
        return named_computation(lambda w, h: jnp.mean((h @ w) ** 2), name="h")(p["h"], h)

    def step(p: Any, x: jax.Array) -> Any:
        return mpmd_trace.call(jax.grad(loss), 0)(p, x)

    p = {name: jnp.linspace(-1, 1, 16).reshape(4, 4) + i for i, name in enumerate("fgh")}
    x = jnp.linspace(0, 1, 8).reshape(2, 4)
    meshes = {f"m{i}": Mesh(np.array([device]), ("x",)) for i, device in enumerate(jax.devices()[:2])}
    names = {"f": ("m0", 0), "g": ("m0", 0), "h": ("m1", 1)}
    config = mpmd_trace.make_config(meshes, names)
    lowered = mpmd_trace.jit(step, config).lower(p, x)
    assert sum("(1)" in line for line in str(lowered.partitioned.module.main).splitlines() if "m0" in line) == 1
    for name, found in lowered.compile()(p, x).items():
        np.testing.assert_allclose(found, jax.jit(step)(p, x)[name], rtol=1e-5)
    with pytest.raises(MpmdError, match="stage 0 runs twice"):
        mpmd_trace.compiler.partition(
            lowered.traced.mlir_text(),
            "step",
            [("m0", [("x", 1)]), ("m1", [("x", 1)])],
            names,
            [None] * 4,
            [None] * 3,
            partitioning_options={"mpmd_infer_transfers": True},
        )
