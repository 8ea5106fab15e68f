"""mpmd-generate-sdy-meshes-from-topology"""

import pytest

from util import check, diagnostics

PASS = "mpmd-generate-sdy-meshes-from-topology"
TOPO = '#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>\n'


def test_meshes_without_axes_and_maximal_meshes_stay() -> None:
    check(
        """
        module {
          sdy.mesh @empty_mesh = <[]>
          sdy.mesh @one = <[], device_ids=[3]>
          sdy.mesh @old = <["fast_x"=2]>
          func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@one, []>},
                          %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>},
                          %c: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{}]>})
              -> tensor<8xf32> attributes {topology = #topo} {
            return %a : tensor<8xf32>
          }
        }
        """,
        PASS,
        """
        module {
          sdy.mesh @fast = <["fast_x"=2]>
          sdy.mesh @slow = <["slow_y"=2]>
          sdy.mesh @empty_mesh = <[]>
          sdy.mesh @one = <[], device_ids=[3]>
          func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@one, []>},
                          %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>},
                          %c: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>})
              -> tensor<8xf32> attributes {topology = #topo} {
            return %a : tensor<8xf32>
          }
        }
        """,
        TOPO,
    )


def test_constraints_inside_of_named_computations() -> None:
    check(
        """
        module {
          sdy.mesh @old = <["fast_x"=2, "fast_z"=4]>
          func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> attributes {topology = #topo} {
            %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<8xf32>) {
              %1 = sdy.sharding_constraint %x <@old, [{"fast_z":(1)2}],
                  replicated={"fast_x"}> : tensor<8xf32>
              mpmd.return %1 : tensor<8xf32>
            } : (tensor<8xf32>) -> tensor<8xf32>
            return %0 : tensor<8xf32>
          }
        }
        """,
        PASS,
        """
        module {
          sdy.mesh @fast = <["fast_x"=2, "fast_z"=4]>
          sdy.mesh @slow = <["slow_y"=2]>
          func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> attributes {topology = #topo} {
            %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<8xf32>) {
              %1 = sdy.sharding_constraint %x <@fast, [{"fast_z":(1)2}],
                  replicated={"fast_x"}> : tensor<8xf32>
              mpmd.return %1 : tensor<8xf32>
            } : (tensor<8xf32>) -> tensor<8xf32>
            return %0 : tensor<8xf32>
          }
        }
        """,
        '#topo = #mpmd.topology<<"fast" : <["fast_x"=2, "fast_z"=4]>>, <"slow" : <["slow_y"=2]>>>\n',
    )


def test_replicated_and_unreduced_axes_name_their_mesh_too() -> None:
    """The reference points these to the empty mesh, which does not have their axes."""
    check(
        """
        module {
          sdy.mesh @old = <["fast_x"=2, "slow_y"=2]>
          func.func @main(
              %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{}], replicated={"fast_x"}>},
              %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{?}], unreduced={"slow_y"}>})
              attributes {topology = #topo} {
            return
          }
        }
        """,
        PASS,
        """
        module {
          sdy.mesh @fast = <["fast_x"=2]>
          sdy.mesh @slow = <["slow_y"=2]>
          func.func @main(
              %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@fast, [{}], replicated={"fast_x"}>},
              %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@slow, [{?}], unreduced={"slow_y"}>})
              attributes {topology = #topo} {
            return
          }
        }
        """,
        TOPO,
    )


def test_a_module_without_meshes_gets_them() -> None:
    check(
        "module { func.func @main() attributes {topology = #topo} { return } }",
        PASS,
        """
        module {
          sdy.mesh @fast = <["fast_x"=2]>
          sdy.mesh @slow = <["slow_y"=2]>
          func.func @main() attributes {topology = #topo} { return }
        }
        """,
        TOPO,
    )


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
    ok, found = diagnostics(
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
    assert not ok
    assert message in found[0].message


def test_an_empty_mesh_with_axes_is_an_error() -> None:
    ok, found = diagnostics(
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
    assert not ok
    assert "must be a mesh without axes" in found[0].message


def test_no_topology_is_an_error() -> None:
    ok, found = diagnostics("module {}", PASS, TOPO)
    assert not ok
    assert "no function of the module has a topology" in found[0].message
