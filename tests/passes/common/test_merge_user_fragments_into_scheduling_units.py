"""`mpmd-merge-user-fragments-into-scheduling-units`."""

from __future__ import annotations

import pytest
from fragment_texts import frag, function

from util import check


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (('"f"', "", ""), ('"f"(1)', "", "")),
        (('"f"', "{call_counter = 0 : ui32}", ""), ('"g"', "{call_counter = 1 : ui32}", "")),
        (('"f"', "", ", stage=0"), ('"g"', "", ", stage=1")),
        (('"f"', "", ""), ("", "", "")),
    ],
    ids=["phase", "microbatch", "stage", "inferred"],
)
def test_what_is_not_one_unit(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    """Different phases, microbatches or stages stay apart, and so do inferred fragments."""
    body = (
        "  %0 = "
        + frag("alpha", first[0], "%p", attrs=first[1], stage=first[2])
        + "\n  %1 = "
        + frag("alpha", second[0], "%0", "abs", attrs=second[1], stage=second[2])
    )
    text = function(body, "%1", "!A")
    check(text, "mpmd-merge-user-fragments-into-scheduling-units", text)
