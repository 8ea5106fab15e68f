"""`mpmd-find-stages`: meshes in the order of the flow, stages numbered along it, contradictions told."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace import MpmdError
from mpmd_trace.compiler import parse, run_passes
from mpmd_trace.ir.ops import FragmentOp, Module
from util import max_examples

#: (name, mesh, stage or None, names of those that it uses)
Computation = tuple[str, str, int | None, tuple[str, ...]]


def _program(meshes: list[str], computations: list[Computation], backward: bool = True) -> Module:
    """Forward fragments, each followed by unnamed code, and their backwards in the other order."""

    def on(mesh: str) -> str:
        return f'!mpmd.mesh_tensor<"{mesh}", tensor<4xf32>>'

    lines, made = [], {}
    rows = [(name, 0, mesh, stage, uses) for name, mesh, stage, uses in computations]
    if backward:
        rows += [(name, 1, mesh, stage, (name,)) for name, mesh, stage, _ in reversed(computations)]
    for number, (name, transposed, mesh, stage, uses) in enumerate(rows):
        operands = [made[use] for use in uses] or ["%x"]
        for i, operand in enumerate(operands):
            lines.append(f"%a{number}_{i} = mpmd.assign {operand} : (tensor<4xf32>) -> {on(mesh)}")
        given = ", ".join(f"%a{number}_{i}" for i in range(len(operands)))
        arguments = ", ".join(f"%b{i}: tensor<4xf32>" for i in range(len(operands)))
        count = f"({transposed})" if transposed else ""
        label = f'<mesh="{mesh}", origin=["{name}"{count}]{"" if stage is None else f", stage={stage}"}>'
        types = ", ".join([on(mesh)] * len(operands))
        lines += [
            f"%f{number} = mpmd.fragment{label} ({given}) ({arguments}) {{",
            "  mpmd.return %b0 : tensor<4xf32>",
            f"}} : ({types}) -> {on(mesh)}",
            f"%u{number} = mpmd.unassign %f{number} : ({on(mesh)}) -> tensor<4xf32>",
            f"%n{number} = stablehlo.negate %u{number} : tensor<4xf32>",
        ]
        made[name] = f"%n{number}"
    topology = ", ".join(f'<"{mesh}": <["x"=1]>>' for mesh in meshes)
    text = "\n".join(lines)
    return parse(
        f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> attributes {{topology = #mpmd.topology<{topology}>}} {{\n"
        f"{text}\nreturn {made[computations[0][0]]} : tensor<4xf32>\n}}"
    )


def _chain(*meshes: str) -> list[Computation]:
    return [(f"f{i}", mesh, None, (f"f{i - 1}",) if i else ()) for i, mesh in enumerate(meshes)]


def _order(module: Module) -> str:
    assert module.topology is not None
    return " ".join(module.topology.meshes)


def _stages(module: Module) -> dict[str, int | None]:
    """The stage of each computation and of its backward."""
    return {op.origin[0].short.replace('"', ""): op.stage for op in module.main.walk() if isinstance(op, FragmentOp)}


@pytest.mark.parametrize("meshes", list(itertools.permutations("abc")))
def test_meshes_follow_the_flow(meshes: tuple[str, ...]) -> None:
    module = _program(list(meshes), _chain("b", "b", "c", "a"))
    run_passes(module, "mpmd-find-stages")
    assert _order(module) == "b c a"
    assert set(_stages(module).values()) == {None}


@pytest.mark.parametrize("meshes", [list("abcd"), list("dbac")])
def test_two_chains_in_opposite_directions_have_the_order_of_their_stages(meshes: list[str]) -> None:
    """As those of DualPipe: both ends are the first mesh of a chain."""
    down = [(f"down{i}", mesh, i, (f"down{i - 1}",) if i else ()) for i, mesh in enumerate("abcd")]
    up = [(f"up{i}", mesh, 4 + i, (f"up{i - 1}",) if i else ()) for i, mesh in enumerate("dcba")]
    assert _order_after(meshes, [*down, *up]) == "a b c d"


def test_meshes_without_a_flow_keep_their_order() -> None:
    towers: list[Computation] = [("f", "z", None, ()), ("g", "a", None, ())]
    assert _order_after(["z", "a"], towers) == "z a"
    assert _order_after(["a", "z"], towers) == "a z"


def _order_after(meshes: list[str], computations: list[Computation]) -> str:
    module = _program(meshes, computations)
    run_passes(module, "mpmd-find-stages")
    return _order(module)


def test_arguments_of_calls_that_come_twice() -> None:
    on = {mesh: f'!mpmd.mesh_tensor<"{mesh}", tensor<f32>>' for mesh in "ab"}

    def function(name: str, mesh: str) -> str:
        return (
            f"func.func private @{name}(%u: {on['a']}, %v: {on['a']}, %w: {on['a']}) -> {on[mesh]} "
            f'attributes {{topology = #mpmd.topology<<"b": <["x"=1]>>, <"a": <["x"=1]>>>}} {{\n'
            f"%0 = mpmd.transfer %w : ({on['a']}) -> {on[mesh]}\n"
            f'%1 = mpmd.fragment<mesh="{mesh}", origin=["{name}"]> (%0) (%x: tensor<f32>) '
            f"{{ mpmd.return %x : tensor<f32> }} : ({on[mesh]}) -> {on[mesh]}\nreturn %1 : {on[mesh]}\n}}\n"
        )

    types = f"({on['a']}, {on['a']}, {on['a']})"
    module = parse(
        f"func.func @main(%x: {on['a']}) -> {on['b']} "
        'attributes {topology = #mpmd.topology<<"b": <["x"=1]>>, <"a": <["x"=1]>>>} {\n'
        f"%0 = mpmd.call @f(%x, %x, %x) : {types} -> {on['a']}\n"
        f"%1 = mpmd.call @g(%x, %x, %0) : {types} -> {on['b']}\nreturn %1 : {on['b']}\n}}\n"
        + function("f", "a")
        + function("g", "b")
    )
    run_passes(module, "mpmd-find-stages")
    assert _order(module) == "a b"


def test_meshes_without_names_keep_their_places() -> None:
    assert _order_after(["b", "m/cpu", "a"], _chain("a", "b")) == "a m/cpu b"


def test_what_nothing_precedes_is_as_deep_as_what_it_is_for() -> None:
    # The embedding of the decoder's tokens is a source, too, but of the stage of the decoder.
    computations: list[Computation] = [
        ("embed_target", "d", None, ()),
        ("norm", "d", None, ("embed_target",)),
        ("embed_source", "e", None, ()),
        ("encoder", "e", None, ("embed_source",)),
        ("decoder", "d", None, ("norm", "encoder")),
    ]
    module = _program(["d", "e"], computations)
    run_passes(module, "mpmd-find-stages{number=loop}")
    assert _order(module) == "e d"
    wanted = {"embed_source": 0, "encoder": 0, "embed_target": 1, "norm": 1, "decoder": 1}
    assert _stages(module) == {**wanted, **{f"{name}(1)": stage for name, stage in wanted.items()}}


def test_stages_of_a_loop() -> None:
    module = _program(["b", "a"], _chain("a", "a", "b", "a", "b"))
    run_passes(module, "mpmd-find-stages{number=loop}")
    forward = {"f0": 0, "f1": 0, "f2": 1, "f3": 2, "f4": 3}
    assert _stages(module) == {**forward, **{f"{name}(1)": stage for name, stage in forward.items()}}


def test_stages_of_a_flow_that_turns() -> None:
    module = _program(["a", "b"], _chain("a", "b", "b", "b", "a"))
    run_passes(module, "mpmd-find-stages{number=v}")
    assert [_stages(module)[f"f{i}"] for i in range(5)] == [0, 1, 1, 2, 3]
    module = _program(["a", "b"], _chain("a", "b", "b", "b", "a"))
    run_passes(module, "mpmd-find-stages{number=loop}")
    assert [_stages(module)[f"f{i}"] for i in range(5)] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("number", ["no", "loop", "v"])
def test_nothing_forward(number: str) -> None:
    """As where the forward pass was folded, since its arrays have no elements."""
    module = _program(["a"], _chain("a"))
    [forward] = [op for op in module.main.walk() if isinstance(op, FragmentOp) and "(1)" not in op.origin[0].short]
    forward.replace_all_uses_with(forward.operands)
    forward.erase()
    run_passes(module, f"mpmd-find-stages{{number={number}}}")
    assert _stages(module) == {"f0(1)": None}


def test_numbers_of_the_user_stay() -> None:
    computations: list[Computation] = [("f", "a", 3, ()), ("g", "b", None, ("f",)), ("h", "a", None, ("g",))]
    module = _program(["a", "b"], computations)
    run_passes(module, "mpmd-find-stages{number=loop}")
    assert _stages(module) == {"f": 3, "g": None, "h": None, "f(1)": 3, "g(1)": None, "h(1)": None}


def test_a_name_that_several_stages_share_is_not_numbered() -> None:
    computations: list[Computation] = [("f", "a", None, ()), ("g", "b", None, ("f",))]
    module = _program(["a", "b"], computations, backward=False)
    again = _program(["a", "b"], [*computations, ("f", "a", None, ("g",))], backward=False)
    for program in (module, again):
        run_passes(program, "mpmd-find-stages{number=loop}")
    assert _stages(module) == {"f": 0, "g": 1}
    assert _stages(again) == {"f": None, "g": None}


def test_an_early_computation_comes_before_all_that_use_it() -> None:
    """Where another of the same mesh is used beside it, too."""
    computations: list[Computation] = [
        ("f", "a", None, ()),
        ("g", "a", None, ()),
        ("h", "b", None, ("f", "g")),
        ("k", "a", None, ("g", "h")),
    ]
    module = _program(["a", "b"], computations, backward=False)
    run_passes(module, "mpmd-find-stages{number=loop}")
    assert _stages(module) == {"f": 0, "g": 0, "h": 1, "k": 2}


def test_stages_against_the_flow_are_errors() -> None:
    computations: list[Computation] = [
        ("f", "a", 1, ()),
        ("g", "b", 0, ("f",)),
        ("h", "c", 3, ("g",)),
        ("k", "d", 2, ("h",)),
    ]
    module = _program(["a", "b", "c", "d"], computations)
    with pytest.raises(MpmdError) as caught:
        run_passes(module, "mpmd-find-stages")
    first, second = (d.message for d in caught.value.diagnostics if d.severity == "error")
    assert first.startswith("'g' is of stage 0 and needs what 'f' of stage 1 computes")
    assert second.startswith("'k' is of stage 2 and needs what 'h' of stage 3 computes")


def test_a_flow_that_goes_round_has_no_such_order() -> None:
    computations: list[Computation] = [("f", "a", 0, ()), ("g", "b", 1, ("f",)), ("h", "a", 0, ("g",))]
    module = _program(["a", "b"], computations, backward=False)
    run_passes(module, "mpmd-find-stages")
    assert _stages(module) == {"f": 0, "g": 1, "h": 0}


@max_examples(60)
@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    """Stages never go against the flow, are whole numbers from 0 on, and depend on the order of nothing but it."""
    meshes = ["a", "b", "c"]
    count = data.draw(st.integers(1, 7))
    computations: list[Computation] = []
    for i in range(count):
        uses = data.draw(st.lists(st.sampled_from(range(i)), unique=True, max_size=2)) if i else []
        computations.append((f"f{i}", data.draw(st.sampled_from(meshes)), None, tuple(f"f{u}" for u in sorted(uses))))
    module = _program(data.draw(st.permutations(meshes)), computations)
    run_passes(module, "mpmd-find-stages{number=loop}")
    stages = _stages(module)
    for name, mesh, _, uses in computations:
        for use in uses:
            used = next(c for c in computations if c[0] == use)
            before, after = stages[use], stages[name]
            assert before is not None and after is not None
            assert before < after or (before == after and used[1] == mesh)
        assert stages[f"{name}(1)"] == stages[name]
    numbers = {stage for stage in stages.values() if stage is not None}
    assert numbers == set(range(len(numbers)))
    text = str(module)
    run_passes(module, "mpmd-find-stages")  # the numbers found are along the flow
    assert str(module) == text
