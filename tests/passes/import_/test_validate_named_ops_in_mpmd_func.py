"""mpmd-validate-named-ops-in-mpmd-func"""

import pytest
from import_programs import check, diagnostics

from mpmd_trace.diagnostics.messages import MpmdError

PASS = "func.func(mpmd-validate-named-ops-in-mpmd-func)"

NESTED = """
        func.func @main(%a: !T) -> !T ATTRIBUTES {
          %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
            %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
              mpmd.return %y : !T
            } : (!T) -> !T
            %2 = mpmd.named_tensor %1 name="t" : !T
            mpmd.return %2 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """


def test_only_the_outer_op_of_a_plain_function_is_reported() -> None:
    ok, found = diagnostics(NESTED.replace("ATTRIBUTES", ""), PASS)
    assert ok  # the pass itself does not fail
    (error,) = found
    assert error.severity == "error"
    assert "named computation 'outer' is in function @main, which has no topology" in error.message
    with pytest.raises(MpmdError):  # but the pipeline does, in the end
        check(NESTED.replace("ATTRIBUTES", ""), PASS, "module {}")
