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
