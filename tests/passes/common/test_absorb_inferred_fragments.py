# ruff: noqa: E501
"""`mpmd-absorb-inferred-fragments`."""

from __future__ import annotations

from fragment_texts import frag, function

from util import check, run


def test_entry_points_only_with_the_option() -> None:
    """A public function is left alone unless the option says otherwise."""
    body = "  %0 = " + frag("alpha", "", "%p") + "\n  %1 = " + frag("alpha", '"f"', "%0", "abs")
    text = function(body, "%1", "!A")
    check(text, "mpmd-absorb-inferred-fragments", text)
    module = run(text, "mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}")
    assert str(module).count("mpmd.fragment") == 1


def test_inferred_chain_keeps_all_reasons() -> None:
    """Of two inferred fragments the later is the root: its entries come first."""
    body = (
        "  %0 = "
        + frag("alpha", "", "%p", attrs='{mpmd.inferred_by = ["a", "b"]}')
        + "\n  %1 = "
        + frag("alpha", "", "%0", "abs", attrs='{call_counter = 1 : ui32, mpmd.inferred_by = ["b", "c"]}')
    )
    module = run(function(body, "%1", "!A", visibility="private"), "mpmd-absorb-inferred-fragments")
    text = str(module)
    assert '{call_counter = 1 : ui32, mpmd.inferred_by = ["b", "c", "a"]}' in text


def test_constants_leave_nested_regions() -> None:
    """The home of a constant is the body of the fragment, not the region of an op in it."""
    loop = """
    {hoisted}%w = stablehlo.while(%i = %x) : tensor<4xf32> cond {{
      {nested}stablehlo.return %c : tensor<i1>
    }} do {{
      stablehlo.return %i : tensor<4xf32>
    }}
    mpmd.return %w : tensor<4xf32>
  }} : (!A) -> !A"""
    constant = "%c = stablehlo.constant dense<false> : tensor<i1>\n    "
    head = '  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {'
    before = function(head + loop.format(hoisted="", nested=constant), "%0", "!A", visibility="private")
    after = function(head + loop.format(hoisted=constant, nested=""), "%0", "!A", visibility="private")
    check(before, "mpmd-absorb-inferred-fragments", after)


ABSORB = "mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}"


def test_transfers_move_again_for_every_use_of_a_root() -> None:
    """A consumer that uses the root twice is looked at twice: the second time its transfers are out of the way."""
    body = f"""  %0:2 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {{
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n, %x : tensor<4xf32>, tensor<4xf32>
  }} : (!A) -> (!A, !A)
  %1 = mpmd.transfer %0#1 : (!A) -> !B
  %2 = mpmd.transfer %q : (!A) -> !A
  %3 = mpmd.transfer %2 : (!A) -> !A
  %4 = {frag("beta", "", "%1")}
  %5 = mpmd.fragment<mesh="alpha", origin=[]> (%3, %0#0, %2, %0#1) {{call_counter = 0 : ui32}} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>, %w: tensor<4xf32>) {{
    %s = stablehlo.add %x, %y : tensor<4xf32>
    %t = stablehlo.add %z, %w : tensor<4xf32>
    %u = stablehlo.add %s, %t : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  }} : (!A, !A, !A, !A) -> !A"""
    text = str(run(function(body, "%5", "!A", args="%p: !A, %q: !A"), ABSORB))
    assert text.count("mpmd.fragment") == 1
    assert "call_counter" not in text, "the first fragment is the root"


def test_merged_fragments_of_an_unused_loop_go_with_it() -> None:
    """The ops in a loop are visited before the loop, which is then found to be dead."""
    body = f"""  %l = mpmd.for (%p) {{iterations = 2 : ui32, unroll_factor = 2 : ui32}} (%a: !A, %i: tensor<ui32>) {{
    %0 = {frag("alpha", "", "%a")}
    %1 = {frag("alpha", '"f"', "%0", "abs")}
    mpmd.return %1 : !A
  }} : !A
  %2 = {frag("alpha", "", "%p")}
  %3 = {frag("alpha", '"f"', "%2", "abs")}"""
    text = str(run(function(body, "%3", "!A"), ABSORB))
    assert text.count("mpmd.fragment") == 1 and "mpmd.for" not in text


def two(origin: str, first: str, second: str) -> str:
    return (
        f'mpmd.fragment<mesh="alpha", origin=[{origin}]> ({first}, {second}) (%x: tensor<4xf32>, %y: tensor<4xf32>) {{\n'
        "    %s = stablehlo.add %x, %y : tensor<4xf32>\n    mpmd.return %s : tensor<4xf32>\n  } : (!A, !A) -> !A"
    )


def test_result_attributes_of_the_root_reach_every_transfer() -> None:
    """The root's `res_attrs` stay as they are, but for entries that the transfers of new results need."""
    entry = '{mhlo.layout_mode = "default"}'
    body = f"""  %0 = {frag("alpha", "", "%p")}
  %1 = {frag("alpha", '"f"', "%0", attrs=f"{{res_attrs = [{entry}]}}")}
  %2 = mpmd.transfer %1 : (!A) -> !B"""
    kept = run(function(body, "%0, %2", "!A, !B"), ABSORB)
    assert f"res_attrs = [{entry}, {{}}]" in str(kept)
    alone = run(function(body, "%2", "!B"), ABSORB)
    assert f"res_attrs = [{entry}]}}" in str(alone)
