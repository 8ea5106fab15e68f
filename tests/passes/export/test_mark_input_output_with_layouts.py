"""`mpmd-mark-input-output-with-layouts`."""

from __future__ import annotations

from util import diagnostics, run

PASS = "mpmd-mark-input-output-with-layouts"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>
"""


MORE = (
    PRELUDE
    + """
!c = !mpmd.mesh_tensor<"s0/cpu", tensor<4xf32>>
!h = !mpmd.mesh_tensor<"s0", tensor<4xf32>, memory_kind="pinned_host">
#both = #mpmd.topology<<"s0" : <["d"=2]>>, <"s0/cpu" : <["d"=2]>>>
"""
)
CUSTOM = 'mhlo.layout_mode = "{0}"'
AUTO = 'mhlo.layout_mode = "auto"'


def fragment(result: str, operand: str) -> str:
    return (
        f'{result} = mpmd.fragment<mesh="s0", origin=["f"]> ({operand}) (%x: tensor<4xf32>) '
        f"{{ %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> }} : (!s) -> !s\n"
    )


def layouts(text: str) -> tuple[list[str], list[str], list[str]]:
    """The attributes of the function's arguments, of its results, and of its fragments."""
    main = run(text, PASS, MORE).main
    fragments = [
        f"{op.attrs['arg_attrs'].text} {op.attrs['res_attrs'].text}"
        for op in main.body
        if "res_attrs" in op.attrs and "arg_attrs" in op.attrs
    ]
    return [d.text for d in main.arg_attrs], [d.text for d in main.res_attrs], fragments


def test_auto_of_an_argument_with_two_users_becomes_default() -> None:
    text = (
        f"func.func public @main(%p: !s {{{AUTO}}}) -> (!s, !s) attributes {{topology = #both}} {{\n"
        + fragment("%f", "%p")
        + fragment("%g", "%p")
        + "return %f, %g : !s, !s }"
    )
    assert layouts(text) == (["{}"], ["{}", "{}"], ["[{}] [{}]"] * 2)


def test_a_custom_layout_goes_to_all_users_and_through_transfers() -> None:
    text = (
        f"func.func public @main(%p: !s {{{CUSTOM}}}) -> (!s, !h {{{AUTO}}}) attributes {{topology = #both}} "
        f"{{\n"
        + fragment("%f", "%p")
        + "%t = mpmd.transfer %p : (!s) -> !h\n"
        + "%u = mpmd.transfer %t : (!h) -> !h\n"
        + "return %f, %u : !s, !h }"
    )
    args, results, fragments = layouts(text)
    assert (args, results) == ([f"{{{CUSTOM}}}"], ["{}", f"{{{CUSTOM}}}"])
    assert fragments == [f"[{{{CUSTOM}}}] [{{}}]"]


def test_another_result_decides_for_auto() -> None:
    text = (
        f"func.func public @main(%p: !s) -> (!s {{{AUTO}}}, !s {{{CUSTOM}}}) attributes {{topology = #both}} "
        f"{{\n" + fragment("%f", "%p") + "return %f, %f : !s, !s }"
    )
    assert layouts(text)[1:] == ([f"{{{CUSTOM}}}"] * 2, [f"[{{}}] [{{{CUSTOM}}}]"])


def test_an_unused_result_may_have_any_layout() -> None:
    text = (
        "func.func public @main(%p: !s) -> !s attributes {topology = #both} {\n"
        + fragment("%f", "%p")
        + "return %p : !s }"
    )
    assert layouts(text)[2] == [f"[{{}}] [{{{AUTO}}}]"]


def test_a_transfer_to_a_host_mesh_forces_the_default_and_warns() -> None:
    text = (
        f"func.func public @main(%p: !s {{{CUSTOM}}}) -> (!s, !c {{{AUTO}}}) attributes {{topology = #both}} "
        f"{{\n" + fragment("%f", "%p") + "%t = mpmd.transfer %p : (!s) -> !c\n" + "return %f, %t : !s, !c }"
    )
    assert layouts(text) == (["{}"], ["{}", "{}"], ["[{}] [{}]"])
    succeeded, found = diagnostics(text, PASS, MORE)
    assert succeeded
    assert [d.severity for d in found] == ["warning"]
