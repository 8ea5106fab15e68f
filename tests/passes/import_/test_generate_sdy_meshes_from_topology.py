"""mpmd-generate-sdy-meshes-from-topology"""

import pytest

from util import refusal

PASS = "mpmd-generate-sdy-meshes-from-topology"
TOPO = '#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>\n'


@pytest.mark.parametrize(
    ("mesh", "axes", "message"),
    [
        ('<["x"=2]>', '{"x"}', "does not say its mesh"),
        ('<["x_"=2]>', '{"x_"}', "does not say its mesh"),
        ('<["fast_x"=2, "slow_y"=2]>', '{"fast_x", "slow_y"}', "mixes axes of different meshes"),
        ('<["old_x"=2]>', '{"old_x"}', "the program has an sdy mesh of that name"),
        ('<["other_x"=2]>', '{"other_x"}', "which is not in the topology"),
    ],
)
def test_wrong_axes(mesh: str, axes: str, message: str) -> None:
    said = refusal(
        f"""
        module {{
          sdy.mesh @old = {mesh}
          func.func @main(%a: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@old, [{axes}]>}})
              attributes {{topology = #topo}} {{
            return
          }}
        }}
        """,
        PASS,
        TOPO,
    )
    assert message in said


def test_an_empty_mesh_with_axes_is_an_error() -> None:
    message = refusal(
        """
        module {
          sdy.mesh @empty_mesh = <["fast_x"=2]>
          func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>})
              attributes {topology = #topo} {
            return
          }
        }
        """,
        PASS,
        TOPO,
    )
    assert "must be a mesh without axes" in message


def test_no_topology_is_an_error() -> None:
    assert "no function of the module has a topology" in refusal("module {}", PASS, TOPO)
