"""`mpmd-merge-inferred-fragments`."""

from __future__ import annotations

from fragment_texts import frag, function

from util import run


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
