"""The work of passes grows with the program, not with its square: bytecode that runs for n and for 4 n."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.absorb_inferred_fragments import AbsorbInferredFragments
from mpmd_trace.passes.common.merge_inferred_fragments import MergeInferredFragments
from mpmd_trace.passes.import_.infer_mesh_rewrite_using_analysis import InferMeshRewriteUsingAnalysis
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.programs.mark_equal_donation import MarkEqualDonation

HEAD = """#topo = #mpmd.topology<<"a" : <["x"=2]>>>
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
"""


def work(run: Callable[[], object]) -> int:
    """The number of bytecode instructions of this package that run."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "mpmd_trace" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def function(lines: list[str], returned: list[str]) -> str:
    types = ", ".join(["!a"] * len(returned))
    body = "\n".join(lines)
    return (
        f"{HEAD}func.func public @main(%x: !a, %y: !a) -> ({types}) attributes {{topology = #topo}} {{\n"
        f"{body}\nreturn {', '.join(returned)} : {types} }}"
    )


def fragment(name: str, operands: list[str], results: int = 1, origin: str = "") -> str:
    """A fragment that returns the sum of its operands, as often as it has results."""
    args = [f"%u{i}" for i in range(len(operands))]
    body, total = "", args[0]
    for i, arg in enumerate(args[1:]):
        body += f"%s{i} = stablehlo.add {total}, {arg} : !t\n"
        total = f"%s{i}"
    for i in range(results):
        body += f"%r{i} = stablehlo.negate {total} : !t\n"
    origins = f'["{origin}"]' if origin else "[]"
    return (
        f'{name}{f":{results}" if results > 1 else ""} = mpmd.fragment<mesh="a", origin={origins}> '
        f"({', '.join(operands)}) ({', '.join(f'{arg}: !t' for arg in args)}) {{\n{body}"
        f"mpmd.return {', '.join(f'%r{i}' for i in range(results))} : {', '.join(['!t'] * results)} }} : "
        f"({', '.join(['!a'] * len(operands))}) -> ({', '.join(['!a'] * results)})"
    )


def fan_out(n: int) -> str:
    """One fragment with n results, each read by an inferred one."""
    lines = [fragment("%f", ["%x"], n, "f"), *(fragment(f"%g{i}", [f"%f#{i}", "%y"]) for i in range(n))]
    return function(lines, [f"%g{i}" for i in range(n)])


def shared(n: int) -> str:
    """One result that n inferred fragments read."""
    lines = [fragment("%f", ["%x"], 1, "f"), *(fragment(f"%g{i}", ["%f", "%y"]) for i in range(n))]
    return function(lines, [f"%g{i}" for i in range(n)])


def there_and_back(n: int) -> str:
    """A chain, and another one that reads the values of the first from the last to the first."""
    lines = [fragment("%f0", ["%x"], 1, "f")]
    lines += [fragment(f"%f{i + 1}", [f"%f{i}"]) for i in range(n)]
    lines.append(fragment(f"%b{n}", [f"%f{n}"], 1, "b"))
    lines += [fragment(f"%b{i}", [f"%b{i + 1}", f"%f{i}"]) for i in reversed(range(n))]
    return function(lines, ["%b0"])


def into_one(n: int) -> str:
    """n inferred fragments whose results one fragment reads."""
    lines = [fragment(f"%f{i}", ["%x", "%y"]) for i in range(n)]
    lines.append(fragment("%g", [f"%f{i}" for i in range(n)], 1, "g"))
    return function(lines, ["%g"])


def update(n: int) -> str:
    """One fragment from n values to n."""
    lines = [fragment("%f", ["%x"], n, "f")]
    args = [f"%u{i}" for i in range(n)]
    body = "".join(f"%r{i} = stablehlo.negate {arg} : !t\n" for i, arg in enumerate(args))
    lines.append(
        f'%g:{n} = mpmd.fragment<mesh="a", origin=["g"]> ({", ".join(f"%f#{i}" for i in range(n))}) '
        f"({', '.join(f'{arg}: !t' for arg in args)}) {{ {body} "
        f"mpmd.return {', '.join(f'%r{i}' for i in range(n))} : {', '.join(['!t'] * n)} }} : "
        f"({', '.join(['!a'] * n)}) -> ({', '.join(['!a'] * n)})"
    )
    return function(lines, [f"%g#{i}" for i in range(n)])


def unnamed(n: int) -> str:
    """A constant and a negated value that n fragments read."""
    lines = ["%c = stablehlo.constant dense<1.0> : !t", "%p = mpmd.unassign %x : (!a) -> !t"]
    lines.append("%v = stablehlo.negate %p : !t")
    for i in range(n):
        lines += [f"%a{i} = mpmd.assign %c : (!t) -> !a", f"%b{i} = mpmd.assign %v : (!t) -> !a"]
        lines.append(fragment(f"%f{i}", [f"%a{i}", f"%b{i}"], 1, "f"))
    return function(lines, [f"%f{i}" for i in range(n)])


MERGE = [MergeInferredFragments(), MergeInferredFragments(merge_any_consumer=True)]
MERGE += [MergeInferredFragments(merge_sideways=True)]
ABSORB = AbsorbInferredFragments(absorb_on_entry_point_function=True)
DONATE = MarkEqualDonation()


@pytest.mark.parametrize(
    ("one", "program"),
    [
        *((MERGE[0], program) for program in (fan_out, shared, there_and_back, into_one)),
        (MERGE[1], there_and_back),
        (MERGE[2], into_one),
        *((ABSORB, program) for program in (fan_out, there_and_back)),
        (DONATE, update),
        (InferMeshRewriteUsingAnalysis(max_clones=10**6), unnamed),
    ],
)
def test_work(one: Pass, program: Callable[[int], str]) -> None:
    counts = []
    for n in (20, 80):
        module = parse(program(n))
        counts.append(work(lambda module=module: run_passes(module, [one])))  # type: ignore[misc]
    assert counts[1] <= 4.2 * counts[0]
