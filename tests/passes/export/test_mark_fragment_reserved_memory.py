"""`mpmd-mark-fragment-reserved-memory`."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from util import diagnostics, run

PASS = "mpmd-mark-fragment-reserved-memory"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!u = !mpmd.mesh_tensor<"s1", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>
"""


def fragment(result: str, operand: str, attrs: str = "", mesh: str = "s0") -> str:
    kind = "!s" if mesh == "s0" else "!u"
    return (
        f'{result} = mpmd.fragment<mesh="{mesh}", origin=["f"]> ({operand}) {{{attrs}}} (%x: tensor<4xf32>) '
        f"{{ %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> }} : ({kind}) -> {kind}\n"
    )


def reserved(text: str) -> list[str]:
    module = run(text, PASS, PRELUDE)
    return [op.attrs["reserved_hbm_bytes"].text for op in module.main.body if isinstance(op, FragmentOp)]


def test_host_values_and_unused_donated_arguments_take_nothing() -> None:
    text = (
        'func.func public @main(%p: !s, %h: !s {mhlo.memory_kind = "pinned_host"}, '
        "%d: !s {jax.buffer_donor = true}, %k: !s) -> !s attributes {topology = #topo} {\n"
        + fragment("%f", "%p")
        + "return %f : !s }"
    )
    assert reserved(text) == ["16 : i64"]


def test_a_repeated_operand_counts_once() -> None:
    both = fragment("%f", "%p, %p").replace("(%x: tensor<4xf32>)", "(%x: tensor<4xf32>, %z: tensor<4xf32>)")
    text = (
        "func.func public @main(%p: !s, %q: !s) -> !s attributes {topology = #topo} {\n"
        + both.replace("(!s) -> !s", "(!s, !s) -> !s")
        + "return %f : !s }"
    )
    assert reserved(text) == ["16 : i64"]


def test_a_host_operand_takes_nothing_and_leaves_nothing() -> None:
    text = (
        'func.func public @main(%p: !s {jax.buffer_donor = true, mhlo.memory_kind = "pinned_host"}, %q: !s) -> (!s, !s)'
        " attributes {topology = #topo} {\n"
        + fragment("%f", "%p", 'arg_attrs = [{mhlo.memory_kind = "pinned_host"}]')
        + fragment("%g", "%q")
        + "return %f, %g : !s, !s }"
    )
    assert reserved(text) == ["16 : i64", "16 : i64"]


def test_values_marked_host_on_the_fragment_are_not_counted() -> None:
    text = (
        "func.func public @main(%p: !s, %q: !s) -> (!s, !s) attributes {topology = #topo} {\n"
        + fragment("%f", "%p", 'res_attrs = [{mhlo.memory_kind = "pinned_host"}]')
        + fragment("%g", "%q")
        + "return %f, %g : !s, !s }"
    )
    assert reserved(text) == ["16 : i64", "16 : i64"]


def test_transfers_move_bytes_between_meshes() -> None:
    text = (
        "func.func public @main(%p: !s {jax.buffer_donor = true}, %q: !u) -> !u attributes {topology = "
        "#topo} {\n"
        + fragment("%f", "%p")
        + "%t = mpmd.transfer %f : (!s) -> !u\n"
        + fragment("%g", "%q", mesh="s1")
        + fragment("%h", "%t", mesh="s1")
        + "return %h : !u }"
    )
    assert reserved(text) == ["0 : i64", "16 : i64", "16 : i64"]


def test_sizes_are_per_device_and_by_element() -> None:
    prelude = (
        PRELUDE
        + """
!d = !mpmd.mesh_tensor<"s0", tensor<6xf32>, sharding=<@mesh, [{"d"}]>>
!b = !mpmd.mesh_tensor<"s0", tensor<4xi1>>
!c = !mpmd.mesh_tensor<"s0", tensor<2xcomplex<f32>>>
"""
    )
    text = (
        """module {
sdy.mesh @mesh = <["d"=2]>
func.func public @main(%p: !s, %d: !d, %b: !b, %c: !c) -> !s attributes {topology = #topo} {
"""
        + fragment("%f", "%p")
        + "return %f : !s } }"
    )
    module = run(text, PASS, prelude)
    (op,) = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert op.attrs["reserved_hbm_bytes"].text == "29 : i64"  # ceil(12 + 0.5 + 16)


def test_other_ops_are_an_error() -> None:
    text = """
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %c = mpmd.call @g(%p) : (!s) -> !s
  return %c : !s
}
func.func private @g(%p: !s) -> !s attributes {topology = #topo} { return %p : !s }
"""
    succeeded, found = diagnostics(text, PASS, PRELUDE)
    assert not succeeded
    assert [d.severity for d in found] == ["error"]
    assert "mpmd.call" in found[0].message
