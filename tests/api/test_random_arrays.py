"""Random programs with random shardings, layouts, memories and donation, against `jax.jit`."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import named_computation, named_tensor
from pipelines import assert_same
from util import max_examples

MESHES = {f"m{i}": Mesh(np.array(jax.devices()[4 * i : 4 * i + 4]).reshape(2, 2), ("x", "y")) for i in range(2)}
SHAPE = (4, 8)

PLACES = st.builds(
    lambda mesh, spec, order, kind: (mesh, spec, order, kind),
    st.sampled_from(sorted(MESHES)),
    st.sampled_from([(), ("x",), (None, "x"), ("x", "y"), ("y", "x"), (None, ("x", "y"))]),
    st.sampled_from([None, (0, 1), (1, 0)]),
    st.sampled_from([None, None, None, "pinned_host"]),
)


def place(mesh: str, spec: Any, order: Any, kind: str | None) -> Any:
    sharding = NamedSharding(MESHES[mesh], PartitionSpec(*spec), memory_kind=kind)
    return sharding if order is None else Format(Layout(order), sharding)


OPS = st.sampled_from(["add", "scale", "flip", "mix", "tensor"])


@st.composite
def programs(draw: st.DrawFn) -> Any:
    count = draw(st.integers(1, 3))
    # op, mesh, numbers of two values
    steps = draw(st.lists(st.tuples(OPS, st.sampled_from(sorted(MESHES)), *[st.integers(0, 9)] * 2), max_size=4))
    results = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    maybe = st.none() | PLACES
    return {
        "count": count,
        "steps": steps,
        "results": results,
        "arrays": draw(st.lists(maybe, min_size=count, max_size=count)),
        "in": draw(st.none() | st.lists(maybe, min_size=count, max_size=count)),
        "out": draw(st.none() | st.lists(maybe, min_size=len(results), max_size=len(results))),
        "donate": draw(st.lists(st.integers(0, count - 1), unique=True)),
        "host": draw(st.lists(st.booleans(), min_size=4, max_size=4)),
    }


def function(program: Any) -> Any:
    def fn(*args: jax.Array) -> Any:
        values = list(args)
        for i, (op, _, a, b) in enumerate(program["steps"]):
            left, right = values[a % len(values)], values[b % len(values)]
            if op == "tensor":
                values.append(named_tensor(left, name=f"n{i}"))
                continue
            body = {
                "add": lambda x, y: jnp.tanh(x + y),
                "scale": lambda x, y: x * jnp.cos(y[0, 1]) + 1,
                "flip": lambda x, y: x[::-1] - y.sum(axis=0),
                "mix": lambda x, y: jnp.sin((x @ y.T) @ x / 16),
            }[op]
            values.append(named_computation(body, name=f"n{i}")(left, right))
        return [values[r % len(values)] for r in program["results"]]

    return fn


def run(program: Any) -> None:
    fn = function(program)
    numbers = [np.linspace(-1, 1 + i, 32, dtype=np.float32).reshape(SHAPE) for i in range(program["count"])]
    expected = jax.jit(fn)(*numbers)
    used = _names(program)
    names = {
        f"n{i}": mesh + ("#pinned_host" if op == "tensor" and program["host"][i] else "")
        for i, (op, mesh, _, _) in enumerate(program["steps"])
        if f"n{i}" in used
    }
    where = mpmd_trace.make_config(MESHES, names)
    wanted = [None if p is None else place(*p) for p in program["in"]] if program["in"] else None
    out = [None if p is None else place(*p) for p in program["out"]] if program["out"] else None
    jitted = mpmd_trace.jit(fn, where, in_shardings=wanted, out_shardings=out, donate_argnums=program["donate"])
    assert_same(jitted(*numbers), expected)
    compiled = jitted.lower(*numbers).compile()

    def arrays() -> list[Any]:
        return [
            x if p is None else jax.device_put(x, place(*p)) for x, p in zip(numbers, program["arrays"], strict=True)
        ]

    args, _ = compiled.place(*arrays())
    found = compiled(*args)
    assert_same(found, expected)
    # A donated array is gone, unless a result is that array.
    returned = {id(x) for x in found}
    for i, x in enumerate(args):
        assert x.is_deleted() == (i in program["donate"] and id(x) not in returned), i
    for x, p in zip(found, program["out"] or [None] * len(found), strict=True):
        if p is not None:
            mesh, spec, order, kind = p
            assert x.sharding.is_equivalent_to(place(mesh, spec, None, kind), 2)
            assert x.format.layout.major_to_minor == (order or (0, 1))
    # Arrays as they are: the same numbers, or an error that names them.
    try:
        assert_same(jitted(*arrays()), expected)
    except mpmd_trace.MpmdError as error:
        assert "and the program wants" in str(error)


def _names(program: Any) -> set[str]:
    """The names of what the results need."""
    count = program["count"]
    uses: list[set[str]] = [set() for _ in range(count)]
    for i, (op, _, a, b) in enumerate(program["steps"]):
        left, right = uses[a % len(uses)], uses[b % len(uses)]
        uses.append({f"n{i}"} | left | (set() if op == "tensor" else right))
    return set().union(*(uses[r % len(uses)] for r in program["results"]))


@max_examples(12)
@given(programs())
def test_random_programs_equal_plain_jit(program: Any) -> None:
    run(program)
