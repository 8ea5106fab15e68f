"""`mpmd-simplify-program`."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from util import check, distinct_bodies

PASS = "mpmd-simplify-program"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
"""


def fragment(results: str, body: str, operands: str = "(%a, %b)", kinds: str = "!s", inner: str = "") -> str:
    count = operands.count("%")
    args = ", ".join(f"%{n}: tensor<4xf32>" for n in "xyz"[:count])
    return (
        f'{results} = mpmd.fragment<mesh="s0", origin=["f"]> {operands} {inner} ({args}) {{ {body} }} '
        f": ({', '.join(['!s'] * count)}) -> ({kinds})\n"
    )


def program(body: str, returned: str, kinds: str) -> str:
    return (
        f"func.func public @main(%a: !s, %b: !s) -> ({kinds}) "
        f'attributes {{topology = #mpmd.topology<<"s0" : <["d"=2]>>>}} '
        f"{{\n{body}\nreturn {returned} : {kinds}\n}}"
    )


def test_a_forwarded_argument_with_another_type_stays() -> None:
    types = PRELUDE + '!h = !mpmd.mesh_tensor<"s0", tensor<4xf32>, memory_kind="pinned_host">\n'
    body = fragment("%f:2", "mpmd.return %x, %x : tensor<4xf32>, tensor<4xf32>", "(%a)", "!s, !h")
    after = fragment("%f", "mpmd.return %x : tensor<4xf32>", "(%a)", "!h")
    check(program(body, "%f#0, %f#1", "!s, !h"), PASS, program(after, "%a, %f", "!s, !h"), types)


def test_an_unused_result_frees_the_fragment_that_made_its_operand() -> None:
    first = fragment("%f", "%u = stablehlo.sine %x : tensor<4xf32> mpmd.return %u : tensor<4xf32>", "(%b)")
    second = fragment(
        "%g:2",
        "%u = stablehlo.sine %x : tensor<4xf32> %v = stablehlo.cosine %y : tensor<4xf32> "
        "mpmd.return %u, %v : tensor<4xf32>, tensor<4xf32>",
        "(%a, %f)",
        "!s, !s",
    )
    after = fragment("%g", "%u = stablehlo.sine %x : tensor<4xf32> mpmd.return %u : tensor<4xf32>", "(%a)")
    check(program(first + second, "%g#0", "!s"), PASS, program(after, "%g", "!s"), PRELUDE)


def test_effects_keep_a_fragment() -> None:
    call = "stablehlo.custom_call @log(%x) {has_side_effect = true} : (tensor<4xf32>) -> ()"
    body = fragment("%f:2", f"{call} mpmd.return %x, %y : tensor<4xf32>, tensor<4xf32>", kinds="!s, !s")
    text = program(body, "%a", "!s")
    check(text, PASS, text, PRELUDE)  # every result is unused, but the fragment is not pure: no match


def test_attribute_lists_are_copied_as_they_are() -> None:
    inner = "{arg_attrs = [{p}, {q}], call_counter = 3 : ui32}"
    text = "%u = stablehlo.sine %y : tensor<4xf32> mpmd.return %u : tensor<4xf32>"
    after = fragment("%f", text.replace("%y", "%x"), "(%b)", inner=inner)
    check(program(fragment("%f", text, inner=inner), "%f", "!s"), PASS, program(after, "%f", "!s"), PRELUDE)


def test_constants_are_unique_and_in_front() -> None:
    ops = (
        "%u = stablehlo.sine %x : tensor<4xf32> %c = stablehlo.constant dense<1.0> : tensor<4xf32> "
        "%d = stablehlo.constant dense<2.0> : tensor<4xf32> %e = stablehlo.constant dense<1.0> : "
        "tensor<4xf32> "
        "%v = stablehlo.add %u, %c : tensor<4xf32> %w = stablehlo.add %d, %e : tensor<4xf32> "
    )
    hoisted = (
        "%d = stablehlo.constant dense<2.0> : tensor<4xf32> %c = stablehlo.constant dense<1.0> : "
        "tensor<4xf32> "
        "%u = stablehlo.sine %x : tensor<4xf32> %v = stablehlo.add %u, %c : tensor<4xf32> "
        "%w = stablehlo.add %d, %c : tensor<4xf32> "
    )
    end = "mpmd.return %v, %w : tensor<4xf32>, tensor<4xf32>"
    check(
        program(fragment("%f:2", ops + end, "(%a)", "!s, !s"), "%f#0, %f#1", "!s, !s"),
        PASS,
        program(fragment("%f:2", hoisted + end, "(%a)", "!s, !s"), "%f#0, %f#1", "!s, !s"),
        PRELUDE,
    )


def test_equal_changes_give_one_body() -> None:
    text = "%u = stablehlo.sine %y : tensor<4xf32> mpmd.return %u : tensor<4xf32>"
    body = "".join(fragment(f"%f{i}", text) for i in range(5))
    module = parse(PRELUDE + program(body, "%f0, %f1, %f2, %f3, %f4", "!s, !s, !s, !s, !s"))
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    for op in fragments:
        op.body = fragments[0].body
    run_passes(module, PASS)
    assert distinct_bodies(module) == 1
