"""Collectives are counted as often as they run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace.backend.collectives import Collective, collectives_of

MESH = Mesh(np.array(jax.devices()[:2]), ("data",))


def compiled(function: Any, rows: int = 8) -> Any:
    """`function` of a part of (rows, 4) floats on each of two devices."""
    mapped = jax.shard_map(function, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    return jax.jit(mapped).lower(jax.ShapeDtypeStruct((rows, 4), jnp.float32)).compile()


def summed(x: jax.Array) -> jax.Array:
    return x + jax.lax.psum(jnp.sin(x), "data")


def test_a_collective_counts_with_its_arrays_and_bytes() -> None:
    counts = collectives_of(compiled(summed))
    assert counts["all-reduce"] == Collective(runs=1, arrays=1, bytes=4 * 4 * 4)
    assert counts.total == counts["all-reduce"]
    assert str(counts) == "1 all-reduce"


def test_gathers_count_what_arrives() -> None:
    counts = collectives_of(compiled(lambda x: x * jax.lax.all_gather(jnp.sin(x), "data").sum()))
    assert counts["all-gather"] == Collective(1, 1, 8 * 4 * 4)


def test_collectives_in_loops_count_as_often_as_the_loop_runs() -> None:
    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jnp.cos(summed(c)), None), x, None, 5)[0]

    assert collectives_of(compiled(looped))["all-reduce"].runs == 5


def test_of_branches_the_one_with_most_counts() -> None:
    def either(x: jax.Array) -> jax.Array:
        first = jax.lax.psum(x[0, 0], "data") > 0
        return jax.lax.cond(first, lambda x: summed(jnp.cos(summed(x))), lambda x: x, x)

    assert collectives_of(compiled(either))["all-reduce"].runs == 3


def test_programs_without_collectives_have_none() -> None:
    counts = collectives_of(compiled(jnp.sin))
    assert (counts.total, str(counts)) == (Collective(), "none")


class Text:
    """Stands for a compiled program."""

    def __init__(self, *lines: str) -> None:
        body = "\n".join(f"  {line}" for line in lines)
        self.text = f"""HloModule m

%steps.1 (p: bf16[4,8], q: bf16[8,8]) -> bf16[4,8] {{
  %g.1 = bf16[32,8] all-gather(%p), channel_id=1, frontend_attributes={{chain_id="0"}}
  ROOT %c.1 = bf16[4,8] convolution(%p, %q), dim_labels=bf_io->bf
}}

%step.2 (p: bf16[4,8]) -> bf16[32,8] {{
  ROOT %g.2 = bf16[32,8] all-gather(%p), channel_id=1, frontend_attributes={{chain_id="0"}}
}}

%product.3 (p: bf16[4,8], q: bf16[8,8]) -> bf16[4,8] {{
  ROOT %c.3 = bf16[4,8] convolution(%p, %q), dim_labels=bf_io->bf
}}

ENTRY %main (x: bf16[4,8], w: bf16[8,8]) -> bf16[4,8] {{
  %x = bf16[4,8] parameter(0)
  %w = bf16[8,8] parameter(1)
{body}
}}
"""

    def as_text(self) -> str:
        return self.text


#: As XLA writes it for TPUs: what begins has its operand, its result, and two numbers.
START = "%s = ((bf16[4,8]), bf16[4,8], u32[], u32[]) all-to-all-start(%x), channel_id=1, dimensions={0}"
DONE = "%d = bf16[4,8] all-to-all-done(%s)"
PRODUCT = "%f = bf16[4,8] fusion(%x, %w), kind=kOutput, calls=%product.3"


@pytest.mark.parametrize(
    ("lines", "hidden"),
    [
        ((START, PRODUCT, DONE), 64),
        ((START, DONE, PRODUCT), 0),
        ((PRODUCT, START, "%a = bf16[4,8] add(%x, %x)", DONE), 0),
        ((START, '%f = bf16[4,8] custom-call(%x, %w), custom_call_target="__cublas$gemm"', DONE), 64),
        (("%a = bf16[4,8] all-to-all(%x), channel_id=1", PRODUCT), 0),
    ],
)
def test_bytes_are_hidden_where_a_product_runs_between_start_and_done(lines: tuple[str, ...], hidden: int) -> None:
    whole = collectives_of(Text(*lines))["all-to-all"]
    assert whole == Collective(1, 1, 64, hidden)
    assert whole.hidden_share == hidden / 64


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_call_that_is_prepared_begins_with_its_operands(is_behind: bool) -> None:
    """As XLA for TPUs gives collectives to SparseCores."""
    start = '%s = ((), (), (s32[1])) call-start(), async_execution_thread="sparsecore", to_apply=%step.2'
    given = "%u = ((bf16[4,8]), bf16[32,8]) call-update(%s, %x)"
    middle = (given, PRODUCT) if is_behind else (PRODUCT, given)
    whole = collectives_of(Text(start, *middle, "%d = bf16[32,8] call-done(%u)"))["all-gather"]
    assert whole == Collective(1, 1, 32 * 8 * 2, 32 * 8 * 2 if is_behind else 0)


@pytest.mark.parametrize("hides", [True, False])
def test_a_collective_in_steps_counts_once(hides: bool) -> None:
    """As XLA fuses the steps of a gather with products on TPUs."""
    middle = "%b = bf16[4,8] fusion(%a, %w), kind=kOutput, calls=%steps.1"
    ends = ["%a = bf16[32,8] fusion(%x), kind=kCustom, calls=%step.2", "%c = bf16[32,8] fusion(%a), calls=%step.2"]
    counts = collectives_of(Text(ends[0], *([middle] if hides else []), ends[1]))
    assert counts["all-gather"] == Collective(1, 1, 32 * 8 * 2, 32 * 8 * 2 if hides else 0)
    assert Collective().hidden_share == 0.0


@pytest.mark.parametrize("microbatches", [2, 3])
def test_a_pipeline_counts_the_runs_of_its_programs(microbatches: int) -> None:
    """Rows are sharded, and each microbatch needs their sum."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    topology = {"m0": Mesh(devices[0], ("data",)), "m1": Mesh(devices[1], ("data",))}
    config = mpmd_trace.make_config(topology, {"f": "m0", "g": "m1"})

    def step(batch: jax.Array) -> jax.Array:
        def body(i: Any, total: jax.Array, x: jax.Array) -> jax.Array:
            x = mpmd_trace.named_computation(jnp.sin, name="f")(x)
            return total + mpmd_trace.named_computation(lambda x: jnp.cos(jnp.sum(x)), name="g")(x)

        return mpmd_trace.enumerated_for(body, jnp.zeros(()), batch)

    batch = jax.ShapeDtypeStruct((microbatches, 4, 4), jnp.float32)
    place = jax.sharding.NamedSharding(topology["m0"], P(None, "data"))
    counts = mpmd_trace.jit(step, config, in_shardings=place).lower(batch).compile().collectives()
    assert {mesh: str(one) for mesh, one in counts.items()} == {"m0": "none", "m1": f"{microbatches} all-reduce"}
