"""mpmd-infer-mesh-assign-mesh-func-leaves"""

import pytest
from import_programs import diagnostics, refusal

PASS = "mpmd-infer-mesh-assign-mesh-func-leaves"


@pytest.mark.parametrize(("limit", "fails"), [(1, True), (3, True), (4, False), (-1, False)])
def test_outputs_without_a_mesh_fail_at_the_limit(limit: int, fails: bool) -> None:
    """Every one is reported, but only `error-limit` of them make the pass fail."""
    ok, found = diagnostics(
        """
        func.func @main(%a: !T {src=<>}) -> (!T, !T {jax.result_info = "loss"}, !T)
            attributes {topology = #topo} {
          return %a, %a, %a : !T, !T, !T
        }
        """,
        f"{PASS}{{error-limit={limit}}}",
    )
    assert ok is not fails
    assert [d.severity for d in found] == ["error"] * 3
    assert "output 1 (loss) of @main can be on no mesh" in found[1].message
    assert "mpmd_infer_transfers" in found[1].message


def test_unused_and_resultless_ops_fail_at_once() -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !T) attributes {topology = #topo} {
          %0 = stablehlo.abs %a {src=<>} : !T
          %1 = stablehlo.negate %a {src=<>} : !T
          sdy.sharding_group %a group_id=0 {src=<>} : !T
          return
        }
        """,
        PASS,
    )
    assert not ok
    assert len(found) == 3
    assert "the unused 'stablehlo.abs'" in found[0].message
    assert "has no tensor result" in found[2].message


def test_callee_boundaries() -> None:
    """The first bad argument and the first bad result of a function are reported."""
    ok, found = diagnostics(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0:3 = mpmd.call @f(%a, %a) : (!T, !T) -> (!T, !T, !T)
          return %0#0 : !T
        }
        func.func private @f(%a: !T {src=<>}, %b: !T {src=<>}) -> (!T, !T, !T)
            attributes {topology = #topo} {
          %0 = stablehlo.constant {src=<>} dense<1.0> : !T
          %1 = stablehlo.constant dense<1.0> : !T
          return %1, %0, %0 : !T, !T, !T
        }
        """,
        f"{PASS}{{error-limit=2}}",
    )
    assert not ok
    assert "argument 0 of @f, which @f does not use," in found[0].message
    assert "output 1 of @f, which no call uses," in found[1].message
    assert len(found) == 2


def test_error_limit_zero() -> None:
    assert "error-limit is a positive number, or -1" in refusal(
        "func.func @main() { return }", f"{PASS}{{error-limit=0}}"
    )
