"""What is done to plain bodies without MLIR is what MLIR does."""

from __future__ import annotations

from collections.abc import Callable

import plain_ops
import pytest

from fuzz.traced import imported_modules
from mpmd_trace.ir.bodies import fingerprint
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat import mlir
from mpmd_trace.passes import canonicalize, cse, mlir_parts
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.sharding.plain_bodies import can_do, with_constants_apart
from mpmd_trace.passes.sharding.shardy import run_shardy
from mpmd_trace.passes.trivially_canonical import PLAIN_OPS, is_plain

PASSES: dict[str, tuple[str, Callable[[Region], Region]]] = {
    "mpmd-canonicalize": (canonicalize.PIPELINE, canonicalize.canonical_body),
    "mpmd-cse": ("cse", cse.without_common_subexpressions),
}
SHARDY = [t for t in plain_ops.TEMPLATES if t not in plain_ops.NO_RULE]


def bodies_of(module: Module) -> list[Region]:
    return [op.body for op in module.main.body if isinstance(op, FragmentOp)]


def uses(region: Region) -> list[list[tuple[int, int]]]:
    """The uses of each value, in order, by the number of the owner."""
    values: list[Value] = list(region.block.args)
    numbers: dict[Op, int] = {}
    for number, op in enumerate(region.walk()):
        numbers[op] = number
        values += op.results
        values += [arg for nested in op.regions for block in nested.blocks for arg in block.args]
    return [[(numbers[use.owner], use.index) for use in value.uses] for value in values]


def assert_same(before: str, found: Region, wanted: Region) -> None:
    """The bodies print the same, with locations, and are the same for those who look at uses in order."""
    if fingerprint(found) != fingerprint(wanted):
        pytest.fail(f"before\n{before}\nMLIR\n{fingerprint(wanted)}\nwe\n{fingerprint(found)}")
    assert [str(op.loc) for op in found.walk()] == [str(op.loc) for op in wanted.walk()]
    if fingerprint(found) != before:
        assert uses(found) == uses(wanted)


def check_against_mlir(name: str, module: Module) -> int:
    """Compare what the pass does to each body with what MLIR does; gives the number of plain bodies."""
    pipeline, native = PASSES[name]
    ours = bodies_of(module)
    theirs = [freeze(body.clone()) for body in ours]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlir_parts, "is_plain", lambda body: False)
        mlir_parts.run_on_bodies(theirs, pipeline, module, native)
    plain = [(a, b) for a, b in zip(ours, theirs, strict=True) if is_plain(a)]
    for body, other in plain:
        before, wanted = fingerprint(body), mlir_parts.result_of(other, pipeline)
        found = native(body)
        assert_same(before, found, wanted)
        assert (found is body) == (wanted is other)
        assert fingerprint(body.clone()) == before, "the frozen body changed"
    return len(plain)


def check_against_shardy(module: Module) -> int:
    propagated = run_shardy(module, Diagnostics())
    assert propagated is not None
    after, _ = propagated
    count = 0
    for body, wanted in zip(bodies_of(module), bodies_of(after), strict=True):
        if can_do(body):
            count += 1
            before = fingerprint(body)
            assert_same(before, with_constants_apart(body), wanted)
            assert fingerprint(body.clone()) == before, "the frozen body changed"
    return count


@pytest.fixture(scope="module")
def generated() -> list[Module]:
    return imported_modules(range(314, 320))


@pytest.mark.parametrize("name", PASSES)
def test_bodies_of_generated_steps(name: str, generated: list[Module]) -> None:
    """Duplicates, dead ops, constants, nested regions."""
    assert sum(check_against_mlir(name, module.clone()) for module in generated) > 30


def test_bodies_of_generated_steps_without_shardings(generated: list[Module]) -> None:
    """Shardy splits constant expressions and merges constants."""
    modules = [module.clone() for module in generated if "sharding" not in str(module)]
    assert sum(map(check_against_shardy, modules)) > 30


def test_every_plain_op() -> None:
    """Also with constants as operands, with one operand twice, and with results that are used twice."""
    templates = plain_ops.TEMPLATES
    module = parse(plain_ops.module([plain_ops.instance(*t, inside=templates) for t in templates]))
    assert {op.name for body in bodies_of(module) for op in body.walk()} == PLAIN_OPS
    for name in PASSES:
        assert check_against_mlir(name, module.clone()) == len(templates)
    module = parse(plain_ops.module([plain_ops.instance(*t) for t in SHARDY]))
    assert check_against_shardy(module) == len(SHARDY)


def only(text: str, results: str = "t") -> Module:
    """A program of one fragment that returns %r."""
    return parse(plain_ops.module([(text, [("%r", plain_ops.TYPES[results])])]), allow_unregistered=True)


T = "tensor<4xf32>"
NEGATED = f"%r = stablehlo.negate %a0 : {T}"
REDUCTION = """%{0} = "stablehlo.reduce"(%a0, %a2) <{{dimensions = array<i64: 0>}}> ({{
^bb0(%p: tensor<f32>, %q: tensor<f32>):
  {1}%s = stablehlo.add %p, %q : tensor<f32>
  stablehlo.return %s : tensor<f32>
}}) : (tensor<4xf32>, tensor<f32>) -> tensor<f32>"""
DEAD = "%d = stablehlo.add %p, %q : tensor<f32>\n"


@pytest.mark.parametrize("dead", [("", ""), (DEAD, ""), ("", DEAD), (DEAD, DEAD)])
def test_equal_regions(dead: tuple[str, str]) -> None:
    """Whether an op that goes makes the regions around it differ depends on the release of MLIR."""
    text = f"{REDUCTION.format('0', dead[0])}\n{REDUCTION.format('1', dead[1])}\n"
    assert check_against_mlir("mpmd-cse", only(text + "%r = stablehlo.add %0, %1 : tensor<f32>", "s")) == 1


@pytest.mark.parametrize("name", PASSES)
def test_an_effect_in_a_region_keeps_the_op_around_it(name: str) -> None:
    effect = f"stablehlo.custom_call @f(%a0) {{has_side_effect = true}} : ({T}) -> {T}"
    branch = f"{effect}\nstablehlo.return %a0 : {T}"
    text = "".join(f'%{x} = "stablehlo.case"(%a6) ({{%{x}e = {branch}}}) : (tensor<i32>) -> {T}\n' for x in "xy")
    assert check_against_mlir(name, only(text + NEGATED)) == 1


@pytest.mark.parametrize("dead", [(False, False), (True, False), (True, True)])
def test_equal_fragments(dead: tuple[bool, bool]) -> None:
    """The same holds for fragments."""
    bodies = [(NEGATED + f"\n%d = stablehlo.negate %a0 : {T}" * d, [("%r", T)]) for d in dead]
    module = parse(plain_ops.module(bodies))
    after, _ = mlir.run_pipeline(module.to_generic(), "builtin.module(cse)")
    assert str(run_passes(module, "mpmd-cse")) == str(parse(after))


@pytest.mark.parametrize("first", ["unknown", '"first"'])
def test_locations_of_equal_ops(first: str) -> None:
    """The op that stays takes the location of one that goes where it has none."""
    pair = f'%0 = {{0}} loc({first})\n%1 = {{0}} loc("second")\n'
    text = pair.format(f"stablehlo.negate %a0 : {T}")
    module = only(f"{text}%r = stablehlo.add %0, %1 : {T}")
    assert check_against_mlir("mpmd-cse", module.clone()) == 1
    locations = [str(op.loc) for op in bodies_of(run_passes(module, "mpmd-cse"))[0].block]
    assert ("second" in locations[0]) == (first == "unknown")

    mesh = '!mpmd.mesh_tensor<"m", tensor<4xf32>>'
    transfers = pair.format(f"mpmd.transfer %a : ({mesh}) -> {mesh}")
    module = parse(
        f"func.func @main(%a: {mesh}) -> ({mesh}, {mesh}) attributes "
        f'{{topology = #mpmd.topology<<"m" : <["x"=2]>>>}} {{\n{transfers}return %0, %1 : {mesh}, {mesh}\n}}'
    )
    after, _ = mlir.run_pipeline(module.to_generic(debug_info=True), "builtin.module(cse)")
    ours = [str(op.loc) for op in run_passes(module, "mpmd-cse").main.body]
    assert ours == [str(op.loc) for op in parse(after).main.body]
    assert ("second" in ours[0]) == (first == "unknown")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (NEGATED, True),
        (f'%r = "stablehlo.case"(%a6) ({{stablehlo.return %a0 : {T}}}) : (tensor<i32>) -> {T}', True),
        (
            f'%c = stablehlo.constant dense<0> : tensor<i32>\n%r = "stablehlo.case"(%c) '
            f"({{stablehlo.return %a0 : {T}}}, {{stablehlo.return %a1 : {T}}}) : (tensor<i32>) -> {T}",
            False,
        ),
        (f'%r = "foo.bar"(%a0) : ({T}) -> {T}', False),
        (f"%r = chlo.broadcast_add %a0, %a1 : ({T}, {T}) -> {T}", False),
    ],
)
def test_plain(text: str, plain: bool) -> None:
    """Only what MLIR simplifies by general rules alone."""
    module = only(text)
    assert [is_plain(body) for body in bodies_of(module)] == [plain]
    for name in PASSES:
        assert check_against_mlir(name, module.clone()) == plain


def test_equal_bodies_are_those_that_print_the_same(generated: list[Module]) -> None:
    for module in generated:
        texts: dict[str, Region] = {}
        for body, first in first_equal(bodies_of(module)).items():
            assert texts.setdefault(fingerprint(body), body) is first


@pytest.mark.parametrize(
    "other",
    [
        f"%r = stablehlo.negate %a0 {{a = 1 : i64}} : {T}",
        f"%r = stablehlo.negate %a1 : {T}",
        f"%r = stablehlo.tanh %a0 : {T}",
        f"{NEGATED}\n%s = stablehlo.tanh %r : {T}",
    ],
)
def test_different_bodies(other: str) -> None:
    module = parse(plain_ops.module([(text, [("%r", T)]) for text in (NEGATED, other, NEGATED)]))
    first, second, third = bodies_of(module)
    assert first_equal([first, second, third]) == {first: first, second: second, third: first}
