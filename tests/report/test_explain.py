"""Why is this value on that mesh?"""

import pytest

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.report.explain import explain, explain_ends

TEXT = """
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
func.func @main(%a: !T loc("params['w']"), %b: !T, %c: !T, %d: !P2, %e: !T) -> (!T, !P0)
    attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : !T loc("jit(f)/scale"("model.py":12:4))
  %1 = mpmd.assign {origin = "first"} %0 : (!T) -> !P1 loc("model.py":20:1)
  %2 = mpmd.fragment<mesh="p1", origin=["first"]> (%1) (%x: !T) {
    %9 = stablehlo.sine %x : !T loc("model.py":21:1)
    mpmd.return %9 : !T
  } : (!P1) -> !P1 loc("model.py":20:1)
  %3 = mpmd.unassign {origin = "first"} %2 : (!P1) -> !T loc("model.py":20:1)
  %4 = stablehlo.multiply %3, %e : !T loc("jit(f)/loss"("model.py":30:1))
  %5 = mpmd.call @shardy_mpmdlayer(%c) : (!T) -> !T
  %6 = mpmd.assign {origin = "second"} %5 : (!T) -> !P0 loc("model.py":40:1)
  %7 = mpmd.assign {origin = "third"} %c : (!T) -> !P2 loc("model.py":41:1)
  return %4, %6 : !T, !P0
}
func.func private @shardy_mpmdlayer(%x: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.tanh %x : !T loc("model.py":50:1)
  return %0 : !T
}
"""


@pytest.fixture(scope="module")
def module() -> Module:
    return parse(TEXT)


@pytest.mark.parametrize("question", ["model.py:12", "model.py:12:4", "scale", "jit(f)/scale", "add"])
def test_op_that_a_computation_needs(module: Module, question: str) -> None:
    found = explain(module, question)
    (placement,) = found.placements
    assert placement.meshes == ("p1",)
    (chain,) = placement.needed
    assert chain.mesh == "p1"
    assert chain.steps == ("'stablehlo.add' \"jit(f)/scale\"", "needed (model.py:20:1)")
    assert '"first"' in chain.reason
    assert [c.steps[-1] for c in placement.available] == ["input 0 of @main", "input 1 of @main"]
    text = str(found)
    assert text.startswith('\'stablehlo.add\' "jit(f)/scale" (model.py:12:4) is on mesh "p1"')
    assert 'it is needed on mesh "p1"' in text


def test_op_that_follows_its_operands(module: Module) -> None:
    (placement,) = explain(module, "loss").placements
    assert placement.meshes == ("p1",)
    assert "no computation asks for it" in placement.rule
    assert any(c.mesh == "p1" and c.steps[-1] == 'named computation "first"' for c in placement.available)


def test_inputs(module: Module) -> None:
    (by_name,) = explain(module, "params['w']").placements
    (by_number,) = explain(module, "input 0").placements
    assert by_name == by_number
    assert by_name.meshes == ("p1",)
    (several,) = explain(module, "input 2").placements
    assert several.meshes == ("p0",)
    assert {c.mesh for c in several.needed} == {"p0", "p2"}
    assert "is on the first of them by name and transferred" in several.rule
    through_call = next(c for c in several.needed if c.mesh == "p0")
    assert "argument 0 of @layer" in through_call.steps
    assert "call of @layer" in through_call.steps
    (assigned,) = explain(module, "input 3").placements
    assert assigned.meshes == ("p2",)


def test_unused_input_takes_the_first_mesh() -> None:
    text = TEXT.replace("stablehlo.multiply %3, %e", "stablehlo.multiply %3, %3")
    (placement,) = explain(parse(text), "input 4").placements
    assert placement.meshes == ("p0",)
    assert "nothing uses it" in placement.rule


def test_ops_of_named_computations(module: Module) -> None:
    (placement,) = explain(module, "model.py:21").placements
    assert placement.meshes == ("p1",)
    assert placement.rule == 'it is part of named computation "first", which is assigned to mesh "p1"'


def test_ops_of_callees(module: Module) -> None:
    (placement,) = explain(module, "tanh").placements
    assert placement.meshes == ("p0",)


def test_the_module_stays_as_it_is(module: Module) -> None:
    before = str(module)
    explain(module, "scale")
    assert str(module) == before


def test_nothing_fits(module: Module) -> None:
    with pytest.raises(MpmdError, match=r"nothing in the module is called or located at 'scal'.*scale"):
        explain(module, "scal")


def test_conflicts() -> None:
    text = TEXT.replace("stablehlo.multiply %3, %e", "stablehlo.multiply %3, %7").replace(
        '%7 = mpmd.assign {origin = "third"} %c : (!T) -> !P2 loc("model.py":41:1)', ""
    )
    conflict = """
      %7 = mpmd.unassign {origin = "user_in"} %d : (!P2) -> !T
      %8 = stablehlo.divide %7, %3 : !T
      %4 ="""
    text = text.replace("%4 =", conflict).replace("%3, %7", "%3, %8")
    (placement,) = explain(parse(text), "divide").placements
    assert "on different meshes" in placement.rule
    assert {c.mesh for c in placement.available} == {"p1", "p2"}


def test_where_the_fewest_bytes_move(module: Module) -> None:
    """`placement="cut"`: 6 x 2 numbers of four bytes, and 16 bytes for the transfer."""
    (placement,) = explain(module, "loss", placement="cut").placements
    assert placement.meshes == ("p1",)
    assert 'the fewest bytes move in a step; on "p0" it would be 64 more, on "p2" it would be 64 more' in placement.rule
    assert any(c.mesh == "p1" and c.steps[-1] == 'named computation "first"' for c in placement.available)
    (alone,) = explain(module, "params['w']", placement="cut").placements
    assert alone.meshes == ("p1",)
    assert alone.rule.startswith('it is used on mesh "p1" alone, by unnamed code; on "p0" it would be 64 more')
    assert [c.mesh for c in alone.needed] == ["p1"]
    (several,) = explain(module, "input 2", placement="cut").placements
    assert several.meshes == ("p0", "p2") and "is on the one that uses it last, and sent to the others" in several.rule
    (named,) = explain(module, "model.py:21", placement="cut").placements
    assert named.rule == 'it is part of named computation "first", which is assigned to mesh "p1"'


def test_what_is_made_where_it_is_used() -> None:
    fill = '%f = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> !T loc("fill")\n'
    text = TEXT.replace("%4 = stablehlo.multiply %3, %e", f"{fill} %4 = stablehlo.multiply %3, %f")
    (placement,) = explain(parse(text.replace("%e: !T", "%s: tensor<f32>")), "fill", placement="cut").placements
    assert placement.meshes == ("p1",) and "each mesh that uses it computes it" in placement.rule


def test_what_is_only_returned() -> None:
    """A cheap op that nothing but the result needs is where its operand is, as in the compiled step."""
    text = TEXT.replace("tensor<6x2xf32>", "tensor<f32>").replace("stablehlo.multiply %3, %e", "stablehlo.negate %3")
    (placement,) = explain(parse(text), "result 0", placement="cut").placements
    assert placement.meshes == ("p1",) and placement.rule.startswith("it is only returned")


def test_many_and_long_chains_are_cut_short() -> None:
    sums = ["%s0 = stablehlo.add %3, %3 : !T", *(f"%s{i} = stablehlo.add %s{i - 1}, %i{i} : !T" for i in range(1, 12))]
    inputs = ", ".join(f"%i{i}: !T" for i in range(1, 12))
    text = TEXT.replace("%e: !T", f"%e: !T, {inputs}").replace(
        "%4 = stablehlo.multiply %3", "\n".join(sums) + "\n%4 = stablehlo.multiply %s11"
    )
    explanation = explain(parse(text), "loss", placement="cut")
    chains = explanation.placements[0].available
    assert len(chains) == 13 and len(chains[-1].steps) == 14
    printed = str(explanation).split("computed from:\n")[1].splitlines()
    assert len(printed) == 7 and printed[-1] == "    and 7 more, farther away (all of them: --json)"
    assert printed[-2].endswith('<- named computation "first" on "p1"') and " <- ... 6 more ... <- " in printed[-2]


def test_of_ends_no_more_is_written_than_is_printed() -> None:
    """A norm makes every result depend on all gradients."""
    names = [f"%i{i}" for i in range(20)]
    sums = [f"%s{i} = stablehlo.add %s{i - 1}, {name} : !T" for i, name in enumerate(names[1:], 1)]
    start = f"%s0 = stablehlo.add %3, {names[0]} : !T"
    text = TEXT.replace("%e: !T", f"%e: !T, {', '.join(f'{name}: !T' for name in names)}").replace(
        "%4 = stablehlo.multiply %3", "\n".join([start, *sums]) + "\n%4 = stablehlo.multiply %s19"
    )
    module = parse(text)
    options = CompileOptions(placement="cut")
    of_ends = explain_ends(module, PartitionRequest("main", module.main.topology, options=options))[-2]
    (asked,) = explain(module, "result 0", placement="cut").placements
    assert len(of_ends.available) == 6 and len(asked.available) == 22
    assert str(of_ends).splitlines()[2:] == str(asked).splitlines()[2:]
