"""mpmd-infer-mesh-validate-no-additional-transfers-needed"""

import pytest
from import_programs import diagnostics

PASS = "mpmd-infer-mesh-validate-no-additional-transfers-needed"


@pytest.mark.parametrize(("limit", "lines"), [(1, [4]), (2, [4, 3]), (-1, [4, 3, 2])])
def test_limit(limit: int, lines: list[int]) -> None:
    """Users come before producers, functions after their ops."""
    text = """func.func @main(%a: !T {src=<"p0">, use=<"p2">}, %k: !T) attributes {topology = #topo} {
          %0 = stablehlo.abs %k {src=<"p0">, use=<"p2">} : !T
          %1 = stablehlo.abs %k {src=<"p0">, use=<"p2">} : !T
          return
        }"""
    ok, found = diagnostics("\n" + text, f"{PASS}{{error-limit={limit}}}")
    assert not ok
    positions = [d.location.file[1] for d in found if d.location.file is not None]
    first = positions[0] - lines[0]
    assert [p - first for p in positions] == lines
