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


def origins(text: str) -> list[str]:
    """The origins of each fragment; the program must mean what it meant before."""
    before = parse(PRELUDE + text)
    after = run(text, PASS)
    assert_same_meaning(before, after)
    return [", ".join(o.short for o in op.origin) for op in after.main.body if isinstance(op, FragmentOp)]


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
