"""mpmd-copy-topology-from-main"""

from mpmd_trace.ir.ops import CallOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.import_.copy_topology_from_main import CopyTopologyFromMain


def test_a_call_of_nothing_is_an_error() -> None:
    from mpmd_trace.ir.attributes import SymbolRefAttr
    from mpmd_trace.passes.manager import PassManager

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
    manager = PassManager([CopyTopologyFromMain()], error_is_failure=False)
    try:
        manager.run(module)
    except Exception as error:
        assert "calls @missing, which is not a function" in str(error)
    else:
        raise AssertionError("the missing callee was not noticed")
