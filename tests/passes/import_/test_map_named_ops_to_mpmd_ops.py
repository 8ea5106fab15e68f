"""mpmd-map-named-ops-to-mpmd-ops"""

import pytest
from import_programs import diagnostics


def spec(assignment: str) -> str:
    return f"builtin.module(func.func(mpmd-map-named-ops-to-mpmd-ops{{assignment={assignment}}}))"


F = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
            mpmd.return %x : !T
          } : (!T) -> !T
          %1 = mpmd.named_computation<"g"> (%0) (%x: !T) {
            mpmd.return %x : !T
          } : (!T) -> !T
          return %1 : !T
        }
        """


def test_a_memory_kind_of_a_computation_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert diagnostics(F, spec("f@p0#device,g@p0")) == (True, [])
    assert "named computation 'f' is assigned to \"p0#device\"" in caplog.text
