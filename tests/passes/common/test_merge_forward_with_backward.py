"""`mpmd-merge-forward-with-backward`."""

from __future__ import annotations

from fragment_texts import frag, function

from util import check, run


def test_something_between_prevents_merging() -> None:
    """Another fragment on the mesh between the two, even one that is independent of both."""
    body = (
        "  %0 = "
        + frag("alpha", '"f"', "%p")
        + "\n  %1 = "
        + frag("alpha", '"g"', "%p", "abs")
        + "\n  %2 = "
        + frag("alpha", '"f"(1)', "%0", "sine")
    )
    text = function(body, "%1, %2", "!A, !A")
    check(text, "mpmd-merge-forward-with-backward", text)


def test_mixed_fragment_merges_no_further() -> None:
    """What was merged is neither forward nor backward."""
    body = (
        "  %0 = "
        + frag("alpha", '"f"', "%p", attrs="{call_counter = 0 : ui32}")
        + "\n  %1 = "
        + frag("alpha", '"f"(1)', "%0", "abs", attrs="{call_counter = 1 : ui32}")
        + "\n  %2 = "
        + frag("alpha", '"g"(1)', "%1", "sine")
    )
    text = str(run(function(body, "%2", "!A"), "mpmd-merge-forward-with-backward"))
    assert text.count("mpmd.fragment") == 2
    assert 'origin=["f", "f"(1)]' in text and 'origin=["g"(1)]' in text
    assert "call_counter" not in text
