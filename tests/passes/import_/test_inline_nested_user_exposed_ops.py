"""mpmd-inline-nested-user-exposed-ops"""

import pytest
from import_programs import diagnostics


def spec(assignment: str) -> str:
    return f"func.func(mpmd-inline-nested-user-exposed-ops{{assignment={assignment}}})"


TENSOR = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
            %1 = mpmd.named_tensor %x name="t" : !T
            %2 = stablehlo.abs %1 : !T
            mpmd.return %2 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """


def test_a_memory_kind_of_a_nested_tensor_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert diagnostics(TENSOR, spec("f@p0,t@p0#pinned_host")) == (True, [])
    assert "named tensor 't' is assigned to memory kind \"pinned_host\"" in caplog.text
