"""mpmd-copy-topology-from-main"""

import pytest

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import SymbolRefAttr
from mpmd_trace.ir.ops import CallOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.import_.copy_topology_from_main import CopyTopologyFromMain
from mpmd_trace.passes.manager import run_passes


def test_a_call_of_nothing_is_an_error() -> None:
    module = parse(
        """
        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32>
            attributes {topology = #mpmd.topology<<"p0" : <["d"=4]>>>} {
          %0 = mpmd.call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {
          return %a : tensor<4xf32>
        }
        """
    )
    call = module.main.body.first
    assert isinstance(call, CallOp)
    call.props["callee"] = SymbolRefAttr.get("missing")
    with pytest.raises(MpmdError, match="calls @missing, which is not a function"):
        run_passes(module, [CopyTopologyFromMain()])
