"""`mpmd-mark-aliasing-and-donation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.export.mark_aliasing_and_donation import MarkAliasingAndDonation
from mpmd_trace.passes.programs.mark_equal_donation import MarkEqualDonation
from mpmd_trace.passes.programs.share_programs import SharePrograms
from util import run

PASS = "mpmd-mark-aliasing-and-donation"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>
"""


def marks(signature: str, results: str, body: str, passes: Sequence[str | Pass] = (PASS,)) -> list[str]:
    """The `arg_attrs` of the fragments."""
    head = f"func.func public @main({signature}) -> ({results}) attributes {{topology = #more}}"
    text = f"{head} {{\n{body}\n}}"
    module = run(text, passes, MORE)
    return [
        op.attrs["arg_attrs"].text if "arg_attrs" in op.attrs else "none"
        for op in module.main.body
        if isinstance(op, FragmentOp)
    ]


MORE = (
    PRELUDE
    + """
!b = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
!t = !mpmd.mesh_tensor<"s1", tensor<4xf32>>
#more = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>
"""
)
ALIAS = "{tf.aliasing_output = 0 : i32}"
DONOR = "{jax.buffer_donor = true}"


def fragment(result: str, operand: str, kind: str = "!s", out: str = "!s", attrs: str = "") -> str:
    inner = "tensor<8xf32>" if kind == "!b" else "tensor<4xf32>"
    made = (
        "%y = stablehlo.constant dense<0.0> : tensor<4xf32>"
        if kind == "!b"
        else "%y = stablehlo.sine %x : tensor<4xf32>"
    )
    return (
        f'{result} = mpmd.fragment<mesh="s0", origin=["f"]> ({operand}) {{{attrs}}} (%x: {inner}) '
        f"{{ {made} mpmd.return %y : tensor<4xf32> }} : ({kind}) -> {out}\n"
    )


def test_an_alias_without_a_fitting_output_becomes_a_donation() -> None:
    body = fragment("%f", "%p", "!b") + "return %f : !s"
    assert marks(f"%p: !b {ALIAS}", "!s", body) == [f"[{DONOR}]"]


def test_arguments_that_the_user_keeps_are_not_touched() -> None:
    assert marks("%p: !s", "!s", fragment("%f", "%p") + "return %f : !s") == ["none"]


def test_only_the_last_reader_gets_the_buffer() -> None:
    body = fragment("%f", "%p") + fragment("%g", "%p") + "return %f, %g : !s, !s"
    assert marks(f"%p: !s {DONOR}", "!s, !s", body) == ["none", f"[{DONOR}]"]
    body = fragment("%f", "%p") + "return %f, %p : !s, !s"
    assert marks(f"%p: !s {DONOR}", "!s, !s", body) == ["none"]


def test_the_last_of_equal_operands_gets_the_mark() -> None:
    body = (
        '%f = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %z: tensor<4xf32>) {'
        "mpmd.return %x : tensor<4xf32> } : (!s, !s) -> !s\nreturn %f : !s"
    )
    assert marks(f"%p: !s {ALIAS}", "!s", body) == [f"[{{}}, {ALIAS}]"]


def test_transferred_values_are_not_donated() -> None:
    body = (
        fragment("%f", "%p") + "%t = mpmd.transfer %f : (!s) -> !t\n" + fragment("%g", "%f") + "return %g, %t : !s, !t"
    )
    assert marks("%p: !s", "!s, !t", body) == ["none", "none"]


def test_host_values_are_skipped_and_layouts_must_agree() -> None:
    host = '{mhlo.memory_kind = "pinned_host"}'
    auto = '{mhlo.layout_mode = "auto"}'
    body = fragment("%f", "%p", attrs=f"arg_attrs = [{host}]") + "return %f : !s"
    assert marks(f"%p: !s {ALIAS}", "!s", body) == [f"[{host}]"]
    body = fragment("%f", "%p", attrs=f"res_attrs = [{host}]") + "return %f : !s"
    assert marks(f"%p: !s {ALIAS}", "!s", body) == [f"[{DONOR}]"]
    body = fragment("%f", "%p", attrs=f"res_attrs = [{auto}]") + "return %f : !s"
    assert marks(f"%p: !s {ALIAS}", "!s", body) == [f"[{DONOR}]"]


def test_the_annotated_output_is_preferred() -> None:
    def two(order: str) -> str:
        return (
            '%f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {'
            "%y = stablehlo.sine %x : tensor<4xf32> %z = stablehlo.cosine %x : tensor<4xf32> "
            f"mpmd.return %y, %z : tensor<4xf32>, tensor<4xf32> }} : (!s) -> (!s, !s)\nreturn {order} : !s, "
            f"!s"
        )

    assert marks(f"%p: !s {ALIAS}", "!s, !s", two("%f#0, %f#1")) == ["[{tf.aliasing_output = 0 : i32}]"]
    assert marks(f"%p: !s {ALIAS}", "!s, !s", two("%f#1, %f#0")) == ["[{tf.aliasing_output = 1 : i32}]"]


def test_a_chain_of_intermediates_reuses_one_buffer() -> None:
    body = fragment("%f", "%p") + fragment("%g", "%f") + fragment("%h", "%g") + "return %h : !s"
    assert marks("%p: !s", "!s", body) == ["none", f"[{ALIAS}]", f"[{ALIAS}]"]


def test_microbatches_of_one_program_donate_the_same() -> None:
    """Also in a module that was read, where equal bodies are not one object: the last reader keeps it, too."""
    body = fragment("%f", "%p") + fragment("%g", "%p") + "return %f, %g : !s, !s"
    mark = MarkEqualDonation()
    for passes in ([mark], [SharePrograms(), mark]):
        assert marks(f"%p: !s {DONOR}", "!s, !s", body, passes) == ["none", "none"]


def test_an_operand_takes_the_place_of_what_is_made_of_all_that_reads_it() -> None:
    """The first result is there while the second is still made of the operand; the third is made of both.

    Where an operand can take one place alone, and another one any, the first of these has it.
    """
    t = "tensor<4xf32>"
    made = f"""%g = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: {t}) {{
      %y = stablehlo.sine %x : {t} mpmd.return %y : {t} }} : (!s) -> !s
    %h = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: {t}) {{
      %y = stablehlo.cosine %x : {t} mpmd.return %y : {t} }} : (!s) -> !s\n"""
    update = f"""%f:3 = mpmd.fragment<mesh="s0", origin=[]> (%g) (%x: {t}) {{
      %m = stablehlo.negate %x : {t} %n = stablehlo.multiply %x, %x : {t} %v = stablehlo.divide %m, %n : {t}
      mpmd.return %m, %n, %v : {t}, {t}, {t} }} : (!s) -> (!s, !s, !s)\nreturn %f#0, %f#1, %f#2 : !s, !s, !s"""
    both = f"""%f:2 = mpmd.fragment<mesh="s0", origin=[]> (%g, %h) (%x: {t}, %z: {t}) {{
      %m = stablehlo.negate %x : {t} %n = stablehlo.multiply %m, %z : {t}
      mpmd.return %n, %m : {t}, {t} }} : (!s, !s) -> (!s, !s)\nreturn %f#0, %f#1 : !s, !s"""

    def last(results: str, body: str, ours: bool) -> str:
        return marks("%p: !s", results, made + body, [MarkEqualDonation() if ours else MarkAliasingAndDonation()])[-1]

    def place(k: int) -> str:
        return f"{{tf.aliasing_output = {k} : i32}}"

    assert last("!s, !s, !s", update, ours=True) == f"[{place(2)}]"
    assert last("!s, !s, !s", update, ours=False) == f"[{place(0)}]"
    assert last("!s, !s", both, ours=True) == f"[{place(1)}, {place(0)}]"


def test_halves_of_a_program_of_two_microbatches_wait_not_for_each_other() -> None:
    """A result of one half is not in the place of what the other reads; a sum stays in its place."""
    t = "tensor<4xf32>"
    made = "".join(
        f"""%{name} = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: {t}) {{
          %y = stablehlo.{op} %x : {t} mpmd.return %y : {t} }} : (!s) -> !s\n"""
        for name, op in (("sum", "sine"), ("kept", "cosine"), ("x", "negate"))
    )

    def last(attributes: str) -> str:
        body = f"""%f:3 = mpmd.fragment<mesh="s0", origin=[]> (%sum, %kept, %x) {attributes}
              (%s: {t}, %k: {t}, %u: {t}) {{
            %g = stablehlo.multiply %k, %k : {t} %n = stablehlo.add %s, %g : {t} %v = stablehlo.tanh %u : {t}
            %w = stablehlo.add %v, %u : {t} mpmd.return %w, %n, %v : {t}, {t}, {t} }} : (!s, !s, !s) -> (!s, !s, !s)
          return %f#0, %f#1, %f#2 : !s, !s, !s"""
        return marks("%p: !s", "!s, !s, !s", made + body, [MarkEqualDonation()])[-1]

    place = "{{tf.aliasing_output = {} : i32}}".format
    assert last("") == f"[{place(1)}, {place(2)}, {place(0)}]"
    assert last("{mpmd.merged_call_counters = [0 : ui32, 1 : ui32]}") == f"[{place(1)}, {{}}, {place(0)}]"


@pytest.mark.parametrize("donated", [(), (0, 1)])
def test_updates_copy_no_gradients(donated: tuple[int, ...]) -> None:
    """XLA copies an operand whose place a result takes that is there too early, and pairs what is left."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    config = mpmd_trace.make_config(
        {"a": mesh, "b": Mesh(np.array(jax.devices()[1:2]), ("data",))},
        {"one": "a", "two": "b"},
        pipeline_schedule="1F1B",
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def loss(w: Any, x: jax.Array) -> jax.Array:
        x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name="one")(w[0], x)
        return mpmd_trace.named_computation(lambda w, x: jnp.mean((x @ w) ** 2), name="two")(w[1], x)

    def step(w: Any, state: Any, batch: jax.Array) -> Any:
        def microbatch(i: jax.Array, total: Any, x: jax.Array) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x))

        grads = mpmd_trace.enumerated_for(microbatch, jax.tree.map(jnp.zeros_like, w), batch)
        updates, state = optimizer.update(grads, state, w)
        return optax.apply_updates(w, updates), state

    rng = np.random.default_rng(0)
    w = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2)]
    args = w, optimizer.init(w), rng.normal(size=(4, 3, 8)).astype(np.float32)
    compiled = mpmd_trace.jit(step, config, donate_argnums=donated).lower(*args).compile()
    updates = [one.as_text() for one in compiled.executables() if "power" in one.as_text()]
    assert len(updates) == 2 and not any("f32[8,8]{1,0} copy(" in text for text in updates)
    for wanted, got in zip(*(jax.tree.leaves(f(*args)) for f in (jax.jit(step), compiled)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
