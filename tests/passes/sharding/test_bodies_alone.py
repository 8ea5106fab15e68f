"""Where nothing can spread, Shardy sees only the bodies that it changes, with the result of seeing everything."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.text import parse
from mpmd_trace.passes import mlir_pass
from mpmd_trace.passes.sharding import shardy_propagation
from mpmd_trace.passes.sharding.propagate_without_shardings import drop_unused_transfers, has_no_shardings
from mpmd_trace.passes.sharding.shardy_propagation import ShardyPropagation

HEAD = """
#topo = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>
!t = tensor<4x2xui32>
!a = !mpmd.mesh_tensor<"a", tensor<4x2xui32>>
!b = !mpmd.mesh_tensor<"b", tensor<4x2xui32>>
sdy.mesh @empty_mesh = <[]> {stablehlo.mesh = {axes = []}}
sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
func.func public @main(%x: !a, %y: !a) -> (!a, !b) attributes {topology = #topo} {
"""


def random_program(seed: int) -> str:
    """Fragments and transfers, some of them unused; typed keys are constrained, as JAX does it."""
    draw = random.Random(seed)
    values: dict[str, list[str]] = {"a": ["%x", "%y"], "b": []}
    lines = []
    for i in range(draw.randint(2, 6)):
        mesh = draw.choice("ab")
        other = "a" if mesh == "b" else "b"
        if not values[mesh] or (values[other] and draw.random() < 0.3):
            lines.append(f"%t{i} = mpmd.transfer {draw.choice(values[other])} : (!{other}) -> !{mesh}")
            values[mesh].append(f"%t{i}")
            continue
        body, inside = [], [f"%u{i}"]
        for j in range(draw.randint(1, 7)):
            x, y = draw.choice(inside), draw.choice(inside)
            body.append(
                f"%w{i}_{j} = "
                + draw.choice(
                    [
                        f"sdy.sharding_constraint {x} <@empty_mesh, [{{?}}, {{}}]> : !t",
                        f"stablehlo.constant dense<{draw.randint(0, 2)}> : !t",
                        f"stablehlo.add {x}, {y} : !t",
                    ]
                )
            )
            inside.append(f"%w{i}_{j}")
        lines.append(
            f'%r{i} = mpmd.fragment<mesh="{mesh}", origin=["f"]> ({draw.choice(values[mesh])}) (%u{i}: !t) {{\n'
            + "\n".join(body)
            + f"\nmpmd.return {draw.choice(inside)} : !t }} : (!{mesh}) -> !{mesh}"
        )
        values[mesh].append(f"%r{i}")
    lines.append("%last = mpmd.transfer %x : (!a) -> !b")
    return HEAD + "\n".join(lines) + f"\nreturn {values['a'][-1]}, {(values['b'] or ['%last'])[-1]} : !a, !b }}"


def test_as_the_whole() -> None:
    alone = 0
    for seed in range(60):
        text = random_program(seed)
        whole, module = parse(text), parse(text)
        shardy_propagation._run_on_everything(whole, Diagnostics())
        drop_unused_transfers(module.main)
        alone += has_no_shardings(module, module.main)
        ShardyPropagation().run(module, Diagnostics())
        assert str(module) == str(whole), text
    assert alone > 10


KEYS = """
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%x) (%u: !t) {
    %1 = stablehlo.not %u : !t
    mpmd.return %1 : !t } : (!a) -> !a
  %2 = mpmd.fragment<mesh="a", origin=["g"]> (%0) (%u: !t) {
    %1 = sdy.sharding_constraint %u <MESH, [{?}, {}]> : !t
    %3 = stablehlo.not %1 : !t
    mpmd.return %3 : !t } : (!a) -> !a
  %unused = mpmd.transfer %y : (!a) -> !b
  %unused_too = mpmd.transfer %unused : (!b) -> !a
  %4 = mpmd.transfer %2 : (!a) -> !b
  return %2, %4 : !a, !b }
"""


@pytest.mark.parametrize(("mesh", "seen"), [("@empty_mesh", 1), ("@mesh", 2)])
def test_a_constrained_key_sends_no_other_body_to_shardy(mesh: str, seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    run = mlir_pass.run_pipeline

    def spy(text: str, *args: Any, **options: Any) -> Any:
        given.append(text.count('"mpmd.fragment"'))
        return run(text, *args, **options)

    monkeypatch.setattr(mlir_pass, "run_pipeline", spy)
    module = parse(HEAD + KEYS.replace("MESH", mesh))
    ShardyPropagation().run(module, Diagnostics())
    assert given == [seen]
    assert str(module).count("mpmd.transfer") == 1
