"""`mpmd-merge-paired-programs`: a forward and its backward are one program where neither runs anywhere else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, check, max_examples

PASS = "mpmd-merge-paired-programs"


def fragment(name: str, origin: str, operands: str, op: str, microbatch: int | None = 0, attrs: str = "") -> str:
    """A fragment on the mesh of its name (`a0`: alpha) that applies an op to its first operand, and adds the others."""
    mesh = {"a": "alpha", "b": "beta"}[name[0]]
    given = [] if microbatch is None else [f"call_counter = {microbatch} : ui32"]
    count = len([x for x in operands.split(",") if x])
    args = ", ".join(f"%x{i}: tensor<4xf32>" for i in range(count))
    lines = [f"%y0 = stablehlo.{op} %x0 : tensor<4xf32>" if count else f"%y0 = stablehlo.{op} : tensor<4xf32>"]
    lines += [f"%y{i} = stablehlo.add %y{i - 1}, %x{i} : tensor<4xf32>" for i in range(1, count)]
    body = "\n    ".join([*lines, f"mpmd.return %y{len(lines) - 1} : tensor<4xf32>"])
    kind = f"!{name[0].upper()}"
    return (
        f'  %{name} = mpmd.fragment<mesh="{mesh}", origin=[{origin}]> ({operands}) '
        f"{{{', '.join([*given, attrs] if attrs else given)}}} ({args}) {{\n    {body}\n  }} : "
        f"({', '.join([kind] * count)}) -> {kind}"
    )


FORWARD, BACKWARD = '"f"', '"f"(1)'
TO_BETA = "  %{} = mpmd.transfer %{} : (!A) -> !B"
TO_ALPHA = "  %{} = mpmd.transfer %{} : (!B) -> !A"


def pair(i: int, forward: str = "negate", backward: str = "sine") -> list[str]:
    """The forward `%a<i>f` and backward `%a<i>b` of a microbatch, on alpha."""
    return [fragment(f"a{i}f", FORWARD, "%p", forward, i), fragment(f"a{i}b", BACKWARD, f"%a{i}f", backward, i)]


def function(lines: list[str], returned: str) -> str:
    types = ", ".join("!" + name.strip()[1].upper() for name in returned.split(","))
    body = "\n".join(lines)
    return (
        f"func.func public @main(%p: !A, %q: !B) -> ({types}) attributes {{topology = #topo}} {{\n{body}\n"
        f"  return {returned} : {types}\n}}"
    )


def after(lines: list[str], returned: str) -> list[FragmentOp]:
    """The fragments that the pass leaves."""
    before = parse(PRELUDE + function(lines, returned))
    work = before.clone()
    PassManager(PASS, verify=True).run(work)
    parse(work.to_generic())
    assert_same_meaning(before, work)
    return fragments_of(work)


def fragments_of(module: Module) -> list[FragmentOp]:
    return [op for op in module.main.body if isinstance(op, FragmentOp)]


def origins(found: list[FragmentOp]) -> list[str]:
    return [" ".join(o.short.replace('"', "") for o in op.origin) for op in found]


def test_the_pair_of_each_microbatch_is_one_program() -> None:
    """It keeps the number of the microbatch."""
    module = check(
        function([*pair(0), *pair(1)], "%a0b, %a1b"),
        PASS,
        """
func.func public @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}
""",
    )
    assert len({op.body for op in fragments_of(module)}) == 1


@pytest.mark.parametrize("op", ["negate", "sine"])
def test_a_program_that_another_stage_runs_stays(op: str) -> None:
    """The forward (negate) or the backward (sine) is on beta as well, so that no program would be saved."""
    found = after([*pair(0), fragment("b0", '"g"', "%q", op), *pair(1)], "%a0b, %a1b, %b0")
    assert origins(found) == ["f", "f(1)", "g", "f", "f(1)"]


def test_all_microbatches_or_none() -> None:
    """A forward without a backward at its side needs the program of the forward, so the others run that too."""
    late = [*pair(0), fragment("a1f", FORWARD, "%p", "negate", 1), fragment("a2", '"g"', "%p", "cosine", None)]
    found = after([*late, fragment("a1b", BACKWARD, "%a1f", "sine", 1)], "%a0b, %a1b, %a2")
    assert origins(found) == ["f", "f(1)", "f", "g", "f(1)"]


def test_what_depends_on_a_pair_that_stays_stays() -> None:
    """The first forward runs alone, too; hence its backward, and hence the other forward of that."""
    lines = [*pair(0), *pair(1, "tanh"), fragment("a2f", FORWARD, "%p", "negate", 2)]
    assert origins(after(lines, "%a0b, %a1b, %a2f")) == ["f", "f(1)", "f", "f(1)", "f"]


def test_forwards_that_differ_may_have_one_backward() -> None:
    """As where the last one finishes the sum of the losses: two programs instead of three."""
    found = after([*pair(0), *pair(1), *pair(2, "tanh")], "%a0b, %a1b, %a2b")
    assert origins(found) == ["f f(1)"] * 3
    assert found[0].body is found[1].body is not found[2].body


def test_nobody_waits_longer_for_what_the_forward_sends() -> None:
    lines = [*pair(0)]
    lines.insert(1, TO_BETA.format("b0", "a0f"))
    assert origins(after(lines, "%a0b, %b0")) == ["f", "f(1)"]


def test_the_forward_waits_for_no_more_than_it_needs() -> None:
    sent = [fragment("b0", '"g"', "%q", "abs"), TO_ALPHA.format("a0", "b0")]
    forward = fragment("a0f", FORWARD, "%p", "negate")
    backward = fragment("a0b", BACKWARD, "%a0f, %a0", "sine")
    assert origins(after([*sent, forward, backward], "%a0b")) == ["g", "f", "f(1)"]
    both = fragment("a0f", FORWARD, "%p, %a0", "negate")
    assert origins(after([*sent, both, backward], "%a0b")) == ["g", "f f(1)"]
    # What the forward waits for anyway is computed later still.
    later = [fragment("b1", '"h"', "%b0", "cosine"), TO_ALPHA.format("a1", "b1")]
    also = fragment("a0f", FORWARD, "%p, %a1", "negate")
    assert origins(after([*sent, *later, also, backward], "%a0b")) == ["g", "h", "f f(1)"]
    # Or at once: an argument.
    given = [TO_ALPHA.format("a0", "q"), forward, backward]
    assert origins(after(given, "%a0b")) == ["f f(1)"]


def test_what_lies_between() -> None:
    """Zeros for a sum can as well be made in front of both; anything else comes where the schedule has it."""
    forward, backward = pair(0)
    zeros = fragment("a1", "", "", "constant dense<0.0>", None)
    adds = fragment("a0b", BACKWARD, "%a0f, %a1", "sine")
    assert origins(after([forward, zeros, adds], "%a0b")) == ["", "f f(1)"]
    other = fragment("a1", '"g"', "%p", "cosine")
    assert origins(after([forward, other, backward], "%a0b, %a1")) == ["f", "g", "f(1)"]


def test_what_has_effects_comes_where_it_is() -> None:
    call = "%y0 = stablehlo.custom_call @f() {has_side_effect = true} : () -> tensor<4xf32>"
    effect = fragment("a1", "", "", "constant dense<0.0>", None).replace(
        "%y0 = stablehlo.constant dense<0.0> : tensor<4xf32>", call
    )
    assert call in effect
    work = parse(PRELUDE + function([pair(0)[0], effect, pair(0)[1]], "%a0b, %a1"))
    PassManager(PASS, verify=True).run(work)
    assert origins(fragments_of(work)) == ["f", "", "f(1)"]


def test_what_the_backward_does_not_use_is_not_its_forward() -> None:
    lines = [fragment("a0f", FORWARD, "%p", "negate"), fragment("a0b", BACKWARD, "%p", "sine")]
    assert origins(after(lines, "%a0f, %a0b")) == ["f", "f(1)"]


def test_another_microbatch_is_another_matter() -> None:
    lines = [fragment("a0f", FORWARD, "%p", "negate", 0), fragment("a0b", BACKWARD, "%a0f", "sine", 1)]
    assert origins(after(lines, "%a0b")) == ["f", "f(1)"]


def test_what_is_recomputed_stays_apart() -> None:
    """XLA would find that both forwards are the same, and keep what was to be computed again."""
    lines = [fragment("a0f", FORWARD, "%p", "negate", attrs="remat"), fragment("a0b", BACKWARD, "%a0f", "sine")]
    assert origins(after(lines, "%a0b")) == ["f", "f(1)"]


def test_what_is_kept_on_the_host_is_not_kept_on_the_device() -> None:
    text = function(pair(0), "%a0b").replace("} : (!A) -> !A\n", "} : (!A) -> !H\n", 1)
    text = text.replace("} : (!A) -> !A\n  return", "} : (!H) -> !A\n  return")
    host = '!H = !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="pinned_host">\n'
    work = parse(PRELUDE + host + text)
    PassManager(PASS, verify=True).run(work)
    assert origins(fragments_of(work)) == ["f", "f(1)"]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One fragment of a random program."""

    mesh: str
    backward: bool
    op: str
    reads: tuple[int, ...]
    sent: bool


drawn = st.builds(
    Drawn,
    mesh=st.sampled_from("ab"),
    backward=st.booleans(),
    op=st.sampled_from(["negate", "sine"]),
    reads=st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True).map(tuple),
    sent=st.booleans(),
)


@max_examples(80)
@given(program=st.lists(drawn, min_size=2, max_size=8))
def test_programs_become_fewer_and_mean_the_same(program: list[Drawn]) -> None:
    """Whatever is merged, there is a program less to run for each pair, and no more to compile."""
    lines: list[str] = []
    values = {"a": ["%p"], "b": ["%q"]}  # the newest last, which is what 0 reads
    for i, one in enumerate(program):
        there = values[one.mesh][::-1]
        operands = ", ".join(dict.fromkeys(there[k % len(there)] for k in one.reads))
        lines.append(fragment(f"{one.mesh}{i}", BACKWARD if one.backward else FORWARD, operands, one.op, None))
        values[one.mesh].append(f"%{one.mesh}{i}")
        if one.sent:
            other, move = ("b", TO_BETA) if one.mesh == "a" else ("a", TO_ALPHA)
            lines.append(move.format(f"{other}{i}t", f"{one.mesh}{i}"))
            values[other].append(f"%{other}{i}t")
    module = parse(PRELUDE + function(lines, ", ".join([*values["a"][1:], *values["b"][1:]])))
    before = fragments_of(module)
    work = module.clone()
    PassManager(PASS, verify=True).run(work)
    parse(work.to_generic())
    assert_same_meaning(module, work)
    found = fragments_of(work)
    merged = [op for op in found if len(op.origin) == 2]
    assert len(found) == len(before) - len(merged)
    programs = [{_body(op) for op in ops} for ops in (before, found)]
    assert len(programs[1]) <= len(programs[0])
    assert not merged or programs[0] - programs[1], "a program that others run is still needed"


def _body(op: FragmentOp) -> str:
    return "\n".join(str(inner) for inner in op.body.block)
