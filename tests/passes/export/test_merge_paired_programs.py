"""`mpmd-merge-paired-programs`: a forward and its backward are one program where neither runs anywhere else."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from fragment_texts import function
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, max_examples


def fragment(name: str, origin: str, operands: list[str], op: str) -> str:
    """A fragment on the mesh of its name (`a0`: alpha) that applies an op to its first operand, and adds the others."""
    mesh, kind = {"a": ("alpha", "!A"), "b": ("beta", "!B")}[name[0]]
    args = ", ".join(f"%x{i}: tensor<4xf32>" for i in range(len(operands)))
    lines = [f"%y0 = stablehlo.{op} %x0 : tensor<4xf32>"]
    lines += [f"%y{i} = stablehlo.add %y{i - 1}, %x{i} : tensor<4xf32>" for i in range(1, len(operands))]
    body = "\n    ".join([*lines, f"mpmd.return %y{len(lines) - 1} : tensor<4xf32>"])
    return (
        f'  %{name} = mpmd.fragment<mesh="{mesh}", origin=[{origin}]> ({", ".join(operands)}) ({args}) {{\n    {body}\n'
        f"  }} : ({', '.join([kind] * len(operands))}) -> {kind}"
    )


TO_BETA = "  %{} = mpmd.transfer %{} : (!A) -> !B"
TO_ALPHA = "  %{} = mpmd.transfer %{} : (!B) -> !A"


def fragments_of(module: Module) -> list[FragmentOp]:
    return [op for op in module.main.body if isinstance(op, FragmentOp)]


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
        operands = list(dict.fromkeys(there[k % len(there)] for k in one.reads))
        lines.append(fragment(f"{one.mesh}{i}", '"f"(1)' if one.backward else '"f"', operands, one.op))
        values[one.mesh].append(f"%{one.mesh}{i}")
        if one.sent:
            other, move = ("b", TO_BETA) if one.mesh == "a" else ("a", TO_ALPHA)
            lines.append(move.format(f"{other}{i}t", f"{one.mesh}{i}"))
            values[other].append(f"%{other}{i}t")
    returned = [*values["a"][1:], *values["b"][1:]]
    types = ", ".join("!" + name[1].upper() for name in returned)
    module = parse(PRELUDE + function("\n".join(lines), ", ".join(returned), types))
    before = fragments_of(module)
    work = module.clone()
    PassManager("mpmd-merge-paired-programs", verify=True).run(work)
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
