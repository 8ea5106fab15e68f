"""`mpmd-reuse-programs`: what several stages compute is one program for all of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace import named_computation
from mpmd_trace.compiler import parse
from mpmd_trace.ir.bodies import fingerprint
from mpmd_trace.ir.ops import FragmentCallOp, FragmentOp
from mpmd_trace.passes.manager import PassManager
from mpmd_trace.passes.programs import reuse_programs
from mpmd_trace_devtools.comparison import assert_same_meaning
from pipelines import summed_values

LOCAL, SCALAR = "tensor<4xf32>", "tensor<f32>"
FILL = "stablehlo.broadcast_in_dim %r, dims = [] : (!s) -> !t"
#: Of an array `%u` and a scalar `%k`.
PART = f"""%r = stablehlo.sqrt %k : !s
%b = {FILL}
%v = stablehlo.divide %u, %b : !t
%w = stablehlo.negate %v : !t"""


def types(names: str, mesh: str | None = None) -> str:
    """The types of values, of which `%r` is a scalar."""
    local = [SCALAR if name.strip() == "%r" else LOCAL for name in names.split(",")]
    return ", ".join(t if mesh is None else f'!mpmd.mesh_tensor<"{mesh}", {t}>' for t in local)


def fragment(mesh: str, ops: str, returned: str, microbatch: int | None = None) -> str:
    """A fragment of the two arguments of its mesh; `%a`, or `%am0` of a microbatch."""
    name = mesh if microbatch is None else f"{mesh}m{microbatch}"
    attrs = "" if microbatch is None else f"{{call_counter = {microbatch} : ui32}}"
    text = f"""%{name}:{len(returned.split(","))} = mpmd.fragment<mesh="{mesh}", origin=[]>
    (%{mesh}0, %{mesh}1) {attrs} (%u: !t, %k: !s) {{
      {ops}
      mpmd.return {returned} : {types(returned)}
    }} : ({types("%u, %r", mesh)}) -> ({types(returned, mesh)})"""
    return text.replace("!t", LOCAL).replace("!s", SCALAR)


def after(whole: str, returned: str, mesh: str = '["x"=2]') -> list[FragmentOp]:
    """The fragments of a program of the part on mesh `a` and of the whole on mesh `b`."""
    count = len(returned.split(","))
    results = f"{types('%w', 'a')}, {types(returned, 'b')}"
    arguments = ", ".join(f"%{m}{i}: {types(name, m)}" for m in "ab" for i, name in enumerate(("%u", "%r")))
    module = parse(
        'sdy.mesh @mesh = <["x"=2]>\n'
        f"func.func public @main({arguments}) -> ({results})\n"
        f'attributes {{topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <{mesh}>>>}} {{\n'
        f"{fragment('a', PART, '%w')}\n{fragment('b', whole, returned)}\n"
        f"return %a#0, {', '.join(f'%b#{i}' for i in range(count))} : {results}\n}}"
    )
    work = module.clone()
    PassManager("mpmd-reuse-programs{least=2}", verify=True).run(work)
    assert_same_meaning(module, work)
    return [op for op in work.main.body if isinstance(op, FragmentOp)]


def test_the_rest_first_with_scalars_of_its_own() -> None:
    first, rest, second = after(f"%x = stablehlo.sine %u : !t\n{PART}\n%y = stablehlo.add %x, %b : !t", "%y, %w")
    assert second.body is first.body
    assert [op.name for op in rest.body.block][:-1] == [
        f"stablehlo.{name}" for name in ("sine", "sqrt", "broadcast_in_dim", "add")
    ]


def test_the_rest_makes_what_the_part_reads() -> None:
    first, rest, second = after("%q = stablehlo.tanh %k : !s\n" + PART.replace("%k", "%q"), "%w, %r")
    assert second.body is first.body and second.operand(1) in rest.results


def test_the_rest_reads_what_the_part_makes() -> None:
    first, second, rest = after(f"{PART}\n%x = stablehlo.sine %w : !t", "%x, %w")
    assert second.body is first.body and rest.operands == [second.results[0]]


def test_shardings_are_kept_in_both() -> None:
    """Programs of several devices state shardings, which stay where they are, between the same ops."""
    constrained = "%{0} = sdy.sharding_constraint %{1} <@mesh, [{{}}]> : !t"
    whole = f"{PART}\n%x = stablehlo.sine %w : !t\n{constrained.format('y', 'x')}"
    first, second, rest = after(whole, "%y, %w")
    assert second.body is first.body
    assert [op.name for op in rest.body.block][:-1] == ["stablehlo.sine", "sdy.sharding_constraint"]


def test_other_orders_of_scalars() -> None:
    """What is filled with a scalar comes where it is first used, which may be in the rest."""
    filled = f"%r = stablehlo.sqrt %k : !s\n%b = {FILL}\n%x = stablehlo.add %u, %b : !t\n"
    first, _, second = after(filled + "\n".join(PART.splitlines()[2:]), "%x, %w")
    assert second.body is first.body


@pytest.mark.parametrize(
    ("whole", "returned", "mesh"),
    [
        pytest.param(f"%x = stablehlo.sine %u : !t\n{PART}", "%x, %w", '["x"=4]', id="axes"),
        pytest.param(f"%x = stablehlo.sine %u : !t\n{PART.replace('divide', 'power')}", "%x, %w", '["x"=2]', id="ops"),
        pytest.param(f"{PART}\n%x = stablehlo.sine %v : !t", "%x, %w", '["x"=2]', id="not returned"),
        pytest.param(
            f"{PART}\n%x = stablehlo.sine %w : !t\n%y = sdy.sharding_constraint %x <@mesh, [{{}}]> : !t",
            "%x, %w",
            '["x"=2]',
            id="sharding of what has no other use",
        ),
        pytest.param(
            "%u1 = stablehlo.sine %u : !t\n" + PART.replace("%u", "%u1") + "\n%x = stablehlo.add %w, %u1 : !t",
            "%x, %w",
            '["x"=2]',
            id="neither first",
        ),
    ],
)
def test_what_stays(whole: str, returned: str, mesh: str) -> None:
    assert len(after(whole, returned, mesh)) == 2


def test_updates_of_all_stages_are_one_program() -> None:
    """The first stage has an embedding besides, the last one a head and the loss.

    The first one's norm is in one fragment with the update, which contains that of the other stages, too.  Norms are
    one program where they begin with the same terms.
    """
    meshes = {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), ("data",)) for i in range(4)}
    config = mpmd_trace.make_config(
        meshes, {"embed": "m0", **{f"layer{i}": f"m{i}" for i in range(4)}, "head": "m3"}, pipeline_schedule="1F1B"
    )
    names = [f"w{i:02}" for i in range(20)]
    rng = np.random.default_rng(0)
    weights = {
        "embed": rng.normal(size=(4, 3)).astype(np.float32),
        "head": rng.normal(size=(3, 2)).astype(np.float32),
        **{f"layer{i}": {n: rng.normal(size=3).astype(np.float32) for n in names} for i in range(4)},
    }

    def loss(w: Any, x: jax.Array) -> jax.Array:
        x = named_computation(lambda e, x: x @ e, name="embed")(w["embed"], x)
        for i in range(4):
            x = named_computation(lambda w, x: jnp.tanh(sum(w.values()) * x), name=f"layer{i}")(w[f"layer{i}"], x)
        return jnp.mean(named_computation(lambda h, x: x @ h, name="head")(w["head"], x))

    def step(w: Any, m: Any, batch: jax.Array) -> Any:
        value, grads = summed_values(loss, w, batch)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        m = jax.tree.map(lambda g, m: 0.9 * m + g / norm, grads, m)
        return value, jax.tree.map(lambda w, m: w - m / (1 + jnp.abs(m)), w, m), m

    args = weights, weights, rng.normal(size=(2, 2, 4)).astype(np.float32)
    lowered = mpmd_trace.jit(step, config).lower(*args)
    module = lowered.partitioned.module
    calls = [op for op in module.main.body if isinstance(op, FragmentCallOp) and not op.origin]
    for count, distinct, runs in ((1, 2, 3), (2 * len(names), 1, 4)):
        made = [op for op in calls if len(op.results) == count and op.num_operands >= len(names)]
        functions = [module.lookup(op.callee) for op in made]
        assert len({fingerprint(f.regions[0]) for f in functions if f is not None}) == distinct
        assert len(made) == runs
    for wanted, got in zip(*(jax.tree.leaves(f(*args)) for f in (jax.jit(step), lowered.compile())), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("sent", "cost", "wanted"), [("%x, %w", 1, 5), ("%x, %w", 2, 3), ("%w", 2, 5)])
def test_transfers_must_pay(sent: str, cost: int, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that one fragment sends travel together; apart they cost as much as so many ops, for each microbatch."""
    a, b = types("%w", "a"), types("%w", "b")
    values = [i for i, name in enumerate(("%x", "%w")) if name in sent]
    results = ", ".join([a] * (1 + 2 * len(values)))
    lines = [fragment("a", PART, "%w")]
    for n in range(2):
        lines.append(fragment("b", f"%x = stablehlo.sine %u : !t\n{PART}", "%x, %w", n))
        lines += [f"%t{n}{i} = mpmd.transfer %bm{n}#{i} : ({b}) -> {a}" for i in values]
    returned = ", ".join(["%a#0", *[f"%t{n}{i}" for n in range(2) for i in values]])
    text = (
        f"func.func public @main(%a0: {a}, %a1: {types('%r', 'a')}, %b0: {b}, %b1: {types('%r', 'b')})"
        f" -> ({results})\n"
        'attributes {topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>} {\n'
        + "\n".join(lines)
        + f"\nreturn {returned} : {results}\n}}"
    )
    module = parse(text.replace("!t", LOCAL))
    work = module.clone()
    monkeypatch.setattr(reuse_programs, "OPS_OF_A_LAUNCH", 1)
    monkeypatch.setattr(reuse_programs, "OPS_OF_A_TRANSFER", cost)
    PassManager("mpmd-reuse-programs{least=2}", verify=True).run(work)
    assert_same_meaning(module, work)
    assert sum(isinstance(op, FragmentOp) for op in work.main.body) == wanted


def test_launches_must_pay() -> None:
    """Both stages have the same two layers, the first an embedding besides, which two microbatches run."""
    body = 'mpmd.fragment<mesh="{m}", origin=[{o}]> (%{m}{i}) {{call_counter = {i} : ui32}} (%u: !t) {{ {ops} }}'
    layer = "%v = stablehlo.negate %{x} : !t\n%w = stablehlo.sine %v : !t\nmpmd.return %w : !t"
    embed = "%x = stablehlo.cosine %u : !t\n" + layer.format(x="x")
    text = (
        'func.func public @main({args}) -> ({types}) attributes {{topology = #mpmd.topology<<"a" : <["x"=2]>>, '
        '<"b" : <["x"=2]>>>}} {{\n{ops}\nreturn %ra0, %ra1, %rb0, %rb1 : {types}\n}}'
    )
    ops = "\n".join(
        f"%r{m}{i} = {body.format(m=m, i=i, o=o, ops=code)} : ({types('%w', m)}) -> {types('%w', m)}"
        for m, o, code in (("a", '"embed", "layer0"', embed), ("b", '"layer1"', layer.format(x="u")))
        for i in range(2)
    )
    args = ", ".join(f"%{m}{i}: {types('%w', m)}" for m in "ab" for i in range(2))
    results = ", ".join(types("%w", m) for m in "aabb")
    module = parse(text.format(args=args, types=results, ops=ops).replace("!t", LOCAL))
    for launches, wanted in ((4, 4), (1, 6)):
        work = module.clone()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reuse_programs, "OPS_OF_A_LAUNCH", launches)
            PassManager("mpmd-reuse-programs{least=2}", verify=True).run(work)
        assert_same_meaning(module, work)
        found = [op for op in work.main.body if isinstance(op, FragmentOp)]
        assert len(found) == wanted
    assert [[o.name for o in op.origin] for op in found] == [["embed"], ["layer0"]] * 2 + [["layer1"]] * 2
    assert [op.call_counter for op in found] == [0, 0, 1, 1, 0, 1] and len({op.body for op in found}) == 2
