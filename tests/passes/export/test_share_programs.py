"""`mpmd-share-programs`: fragments of one stage that differ in repeated operands have one body."""

from __future__ import annotations

from mpmd_trace.compiler import parse
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.manager import PassManager
from mpmd_trace_devtools.comparison import assert_same_meaning

LOCAL = "tensor<4xf32>"
VALUE = f'!mpmd.mesh_tensor<"a", {LOCAL}>'
_ZERO = f"""%z = mpmd.fragment<mesh="a", origin=[]> () () {{
  %c = stablehlo.constant dense<0.0> : {LOCAL}
  mpmd.return %c : {LOCAL}
}} : () -> {VALUE}"""


def fragment(result: str, operands: str, ops: str, *, origin: str = '"f"') -> str:
    """A fragment of a microbatch whose body has arguments `%u0`, `%u1`, ... and returns `%v` and `%w`."""
    count = len(operands.split(","))
    arguments = ", ".join(f"%u{i}: {LOCAL}" for i in range(count))
    types = ", ".join([VALUE] * count)
    return (
        f'{result}:2 = mpmd.fragment<mesh="a", origin=[{origin}]> ({operands})\n'
        f"{{call_counter = {result[1]} : ui32}} ({arguments}) {{\n"
        + ops.replace("!t", LOCAL)
        + f"\nmpmd.return %v, %w : {LOCAL}, {LOCAL}\n}} : ({types}) -> ({VALUE}, {VALUE})"
    )


def program(*fragments: str, returned: str = "%2#0, %2#1") -> Module:
    types = ", ".join([VALUE] * len(returned.split(",")))
    return parse(
        f"func.func public @main(%p: {VALUE}, %q: {VALUE}) -> ({types})\n"
        f'attributes {{topology = #mpmd.topology<<"a" : <["x"=2]>>>}} {{\n'
        + "\n".join([_ZERO, *fragments])
        + f"\nreturn {returned} : {types}\n}}"
    )


SUMS = "%v = stablehlo.add %u1, %u0 : !t\n%w = stablehlo.subtract %u2, %u0 : !t"
SAME = SUMS.replace("%u2", "%u1")


def after(module: Module) -> list[FragmentOp]:
    work = module.clone()
    PassManager("mpmd-share-programs", verify=True).run(work)
    assert_same_meaning(module, work)
    return [op for op in work.main.body if isinstance(op, FragmentOp)]


def test_zeros_for_each_sum() -> None:
    zeros, first, second = after(program(fragment("%1", "%p, %z", SAME), fragment("%2", "%q, %1#0, %1#1", SUMS)))
    assert first.body is second.body and len(zeros.results) == 2
    assert first.operands[1:] == zeros.results


def test_other_places_of_operands() -> None:
    """The value that is repeated comes first here, and last there."""
    swapped = SAME.replace("%u0", "%x").replace("%u1", "%u0").replace("%x", "%u1")
    found = after(program(fragment("%1", "%z, %p", swapped), fragment("%2", "%q, %1#0, %1#1", SUMS)))
    assert found[1].body is found[2].body


def test_what_is_not_equal_stays() -> None:
    for other in (
        fragment("%2", "%q, %1#0, %1#1", SUMS.replace("subtract", "multiply")),
        fragment("%2", "%q, %1#0, %1#1", SUMS, origin='"g"'),
        fragment("%2", "%q, %1#0, %1#1", SUMS.replace("%u2, %u0", "%u2, %u1")),
    ):
        zeros, first, _ = after(program(fragment("%1", "%p, %z", SAME), other))
        assert first.num_operands == 2 and len(zeros.results) == 1


def test_a_zero_that_something_else_reads_later() -> None:
    """The sum has one of its own: the other could not be given away."""
    late = f"""%3 = mpmd.fragment<mesh="a", origin=["g"]> (%z) (%u: {LOCAL}) {{
      %v = stablehlo.sine %u : {LOCAL}
      mpmd.return %v : {LOCAL}
    }} : ({VALUE}) -> {VALUE}"""
    parts = [fragment(f"%{i}", f"%p, {x}", SAME) for i, x in ((1, "%z"), (2, "%1#0"))]
    zeros, first, _, other = after(program(*parts, late, returned="%2#0, %3"))
    assert len(zeros.results) == 2 and first.operand(1) is not other.operand(0)


def test_zeros_of_a_second_loop_are_made_when_it_begins() -> None:
    loops = [f"%{i + 1}|%p, %z|{SAME}|%{i + 2}|%q, %{i + 1}#0, %{i + 1}#1|{SUMS}".split("|") for i in (0, 2)]
    pairs = [fragment(*given) for loop in loops for given in (loop[:3], loop[3:])]
    zeros, first, _, again, second, _ = after(program(*pairs, returned="%2#0, %2#1, %4#0, %4#1"))
    assert first.operands[1:] == zeros.results and second.operands[1:] == again.results
