"""`mpmd-merge-inferred-fragments`."""

from __future__ import annotations

from fragment_texts import frag, function

from util import check, refusal, run


def counters(first: str, second: str, origins: tuple[str, str] = ('"f"', "")) -> str:
    attrs = [f"{{call_counter = {c} : ui32}}" if c else "" for c in (first, second)]
    body = (
        "  %0 = "
        + frag("alpha", origins[0], "%p", attrs=attrs[0])
        + "\n  %1 = "
        + frag("alpha", origins[1], "%0", "abs", attrs=attrs[1])
    )
    return str(run(function(body, "%1", "!A"), "mpmd-merge-inferred-fragments"))


def test_call_counters() -> None:
    """One, both equal, the user's, none."""
    assert "call_counter = 3" in counters("3", "")
    assert "call_counter = 3" in counters("", "3")
    assert "call_counter = 3" in counters("3", "3")
    assert "call_counter = 3" in counters("3", "4")
    assert "call_counter = 4" in counters("3", "4", ("", '"f"'))
    assert "call_counter" not in counters("3", "4", ("", ""))


def test_reasons_are_joined_or_dropped() -> None:
    """`mpmd.inferred_by` survives only when both fragments are inferred."""
    for origin, kept in (('"f"', False), ("", True)):
        body = (
            "  %0 = "
            + frag("alpha", "", "%p", attrs='{mpmd.inferred_by = ["a", "b"]}')
            + "\n  %1 = "
            + frag("alpha", origin, "%0", attrs='{mpmd.inferred_by = ["b", "c"]}')
        )
        text = str(run(function(body, "%1", "!A"), "mpmd-merge-inferred-fragments"))
        assert ('mpmd.inferred_by = ["a", "b", "c"]' in text) == kept
        assert ("inferred_by" in text) == kept


def test_only_the_closest_consumer_is_tried() -> None:
    """A producer with two user consumers is merged with the first; its result stays for the second."""
    body = (
        "  %0 = "
        + frag("alpha", "", "%p")
        + "\n  %1 = "
        + frag("alpha", '"f"', "%0", "abs")
        + "\n  %2 = "
        + frag("alpha", '"g"', "%0", "sine")
    )
    text = str(run(function(body, "%1, %2", "!A, !A"), "mpmd-merge-inferred-fragments"))
    assert text.count("mpmd.fragment") == 2
    assert '%0:2 = mpmd.fragment<mesh="alpha", origin=["f"]>' in text


def test_a_transfer_round_trip_prevents_merging() -> None:
    """The consumer needs a value that goes through another mesh and back: no place fits."""
    body = f"""  %0 = {frag("alpha", '"f"', "%p")}
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = {frag("beta", '"g"', "%1", "abs")}
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=[]> (%0, %3) (%x: tensor<4xf32>, %y: tensor<4xf32>) {{
    %s = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  }} : (!A, !A) -> !A"""
    text = function(body, "%4", "!A")
    for option in ("", "{merge-any-consumer=true}", "{merge-sideways=true}"):
        check(text, f"mpmd-merge-inferred-fragments{option}", text)


def test_halves_of_a_split_stay_apart() -> None:
    """The first half is not merged with the second, even if one is inferred."""
    body = (
        "  %0 = "
        + frag("alpha", "", "%p", attrs="{split_keep_transferred}")
        + "\n  %1 = "
        + frag("alpha", '"f"(1)', "%0", attrs="{split_drop_transferred}")
    )
    text = function(body, "%1", "!A")
    check(text, "mpmd-merge-inferred-fragments", text)


def test_unused_pure_fragments_go_and_others_stay() -> None:
    """A custom call is not pure: the fragment that holds it stays; transfers stay even when dead."""
    body = (
        "  %0 = "
        + frag("alpha", '"f"', "%p")
        + "\n  %t = mpmd.transfer %p : (!A) -> !B\n  %1 = "
        + frag("alpha", '"f"', "%p").replace(
            "stablehlo.negate %x : tensor<4xf32>", "stablehlo.custom_call @e(%x) : (tensor<4xf32>) -> tensor<4xf32>"
        )
    )
    text = str(run(function(body, "%p", "!A"), "mpmd-merge-inferred-fragments"))
    assert text.count("mpmd.fragment") == 1 and "custom_call" in text and "mpmd.transfer" in text


def test_both_options_are_refused() -> None:
    """One run can look for candidates in one way only."""
    body = "  %0 = " + frag("alpha", "", "%p")
    message = refusal(
        function(body, "%0", "!A"), "mpmd-merge-inferred-fragments{merge-any-consumer=true merge-sideways=true}"
    )
    assert "cannot be used together" in message
