"""mpmd-infer-mesh-assign-mesh-func-leaves"""

import pytest
from import_programs import diagnostics

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
