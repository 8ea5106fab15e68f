"""mpmd-infer-mesh-assign-using-input-output-constraints"""

import pytest
from import_programs import diagnostics

PASS = "mpmd-infer-mesh-assign-using-input-output-constraints"


@pytest.mark.parametrize("constraint", ["1:0", "0:1"])
def test_index_that_does_not_exist(constraint: str) -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          return %a : !T
        }
        """,
        f"{PASS}{{constraints={constraint}}}",
    )
    assert not ok
    assert [d.severity for d in found] == ["error"]
    assert f"the constraint {constraint} names" in found[0].message
    assert "@main has 1" in found[0].message
