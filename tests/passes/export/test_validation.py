"""The passes that only look."""

from __future__ import annotations

import pytest

from util import diagnostics

PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!u = !mpmd.mesh_tensor<"s1", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>
"""


def found(text: str, spec: str) -> tuple[bool, list[tuple[str, str]]]:
    succeeded, messages = diagnostics(text, spec, PRELUDE)
    return succeeded, [(d.severity, d.message) for d in messages]


def params(name: str, at: str = "arg") -> str:
    locs = {"arg": "", "op": ""}
    locs[at] = f' loc("{name}")'
    return f"""
func.func public @main(%p: !s{locs["arg"]}) -> !u attributes {{topology = #topo}} {{
  %t = mpmd.transfer %p : (!s) -> !u{locs["op"]}
  return %t : !u
}}
"""


@pytest.mark.parametrize("at", ["arg", "op"])
def test_transferred_parameters_warn(at: str) -> None:
    succeeded, messages = found(params("params['transformer/w']", at), "mpmd-validate-no-param-transfers")
    assert succeeded
    assert [severity for severity, _ in messages] == ["warning"]
    for word in ("params['transformer/w']", "'s0'", "'s1'"):
        assert word in messages[0][1]


def test_transfers_on_one_mesh_are_fine() -> None:
    text = params("params['transformer").replace("!u", "!s")
    assert found(text, "mpmd-validate-no-param-transfers") == (True, [])


def inferred(attrs: str) -> str:
    return f"""
func.func public @main(%p: !s) -> !s attributes {{topology = #topo}} {{
  %f = mpmd.fragment<mesh="s0", origin=[]> (%p) {{{attrs}}} (%x: tensor<4xf32>) {{
    mpmd.return %x : tensor<4xf32> }} : (!s) -> !s
  return %f : !s
}}
"""


@pytest.mark.parametrize(
    ("attrs", "spec", "severity", "succeeds"),
    [
        ('mpmd.inferred_by = ["uniquify"]', "", "warning", True),
        ('mpmd.inferred_by = ["mine", "extract_reshards"]', "", "warning", True),
        ('mpmd.inferred_by = ["mine"]', "", "error", False),
        ('mpmd.inferred_by = ["mine"]', "{fail-on-inferred-fragments=false}", "warning", True),
        ("mpmd.inferred_by = []", "{fail-on-inferred-fragments=false}", "error", False),
        ("", "", "error", False),
    ],
)
def test_inferred_fragments(attrs: str, spec: str, severity: str, succeeds: bool) -> None:
    succeeded, messages = found(inferred(attrs), "mpmd-validate-no-inferred-fragments" + spec)
    assert (succeeded, [s for s, _ in messages]) == (succeeds, [severity])


def calls(first: str, second: str, body: str = "%y = stablehlo.sine %x : tensor<4xf32>", result: str = "%y") -> str:
    return f"""
func.func public @main(%p: !u) -> (!s {{jax.result_info = "loss"}}) attributes {{topology = #topo}} {{
  %f = mpmd.fragment_call<mesh="s1", origin=[{first}]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=[{second}]> @g(%t) : (!s) -> !s
  return %g : !s
}}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {{mesh_shape = #sdy.mesh<["d"=2]>}} {{
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {{mesh_shape = #sdy.mesh<["d"=2]>}} {{
  {body}
  return {result} : tensor<4xf32>
}}
"""


def test_reshards_warn_with_their_values() -> None:
    text = calls('"f"', "", body="", result="%x")
    succeeded, messages = found(text, "mpmd-validate-no-reshards")
    assert succeeded
    ((severity, message),) = messages
    assert severity == "warning"
    for word in ("@g", "Replicated", "tensor<4xf32>", "loss"):
        assert word in message


def test_reshards_fail_on_request() -> None:
    spec = "mpmd-validate-no-reshards{fail-on-reshard-only-fragments=true}"
    assert found(calls('"f"', "", body="", result="%x"), spec)[0] is False
    assert found(calls('"f"', ""), spec) == (True, [])


def test_a_named_reshard_is_an_internal_error() -> None:
    succeeded, messages = found(calls('"f"', '"g"', body="", result="%x"), "mpmd-validate-no-reshards")
    assert not succeeded
    assert messages[0][0] == "error"


def test_backward_dependencies() -> None:
    name = "mpmd-validate-no-backward-deps"
    text = calls('"f"', '"g"')
    succeeded, messages = found(text, name)
    assert succeeded
    ((severity, message),) = messages
    assert severity == "warning"
    for word in ("@f", "@g", "'s0'", "'s1'"):
        assert word in message
    succeeded, messages = found(text, name + "{fail-on-backward-deps=true}")
    assert not succeeded
    assert [s for s, _ in messages] == ["error"]


def test_backward_dependencies_of_a_program_with_a_backward_pass() -> None:
    name = "mpmd-validate-no-backward-deps"
    text = calls('"f"', '"g"(1)')
    assert found(text, name) == (True, [])
    succeeded, messages = found(text, name + "{fail-on-backward-deps=true}")
    assert not succeeded
    assert "forward-only" in messages[0][1]
