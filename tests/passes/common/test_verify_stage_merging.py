"""`mpmd-verify-stage-merging`."""

from __future__ import annotations

from fragment_texts import frag, function

from util import diagnostics

Fragment = tuple[str, str, str]


def report(*fragments: Fragment) -> list[str]:
    """The errors for independent fragments given as (origin, attributes, stage)."""
    lines = [
        f"  %{i} = " + frag("alpha", origin, "%p", attrs=attrs, stage=stage)
        for i, (origin, attrs, stage) in enumerate(fragments)
    ]
    text = function("\n".join(lines), "%p", "!A")
    ok, found = diagnostics(text, "mpmd-verify-stage-merging")
    assert ok == (not found)
    return [d.message for d in found]


COUNTER = "{{call_counter = {} : ui32}}"
STAGE = ", stage=1"


def test_valid() -> None:
    """Anything that tells the fragments apart will do."""
    assert not report(('"f"', "", STAGE), ('"f"', "", ", stage=2"))
    assert not report(('"f"', "", STAGE), ('"f"', "", ""))
    assert not report(('"f"', "", STAGE), ('"f"(1)', "", STAGE))
    assert not report(('"f"', COUNTER.format(0), STAGE), ('"f"', COUNTER.format(1), STAGE))
    assert not report(('"f"', "", STAGE), ('"f"', "{remat}", STAGE))
    assert not report(('"f"(1)', "{split_keep_transferred}", STAGE), ('"f"(1)', "{split_drop_transferred}", STAGE))
    assert not report(('"f"', "", STAGE), ('"f", "f"(1)', "{remat}", STAGE))


def test_invalid() -> None:
    """Equal counters, both missing, one missing."""
    for first, second in ((0, 0), (None, None), (0, None), (None, 0)):
        attrs = ["" if c is None else COUNTER.format(c) for c in (first, second)]
        (message,) = report(('"f"', attrs[0], STAGE), ('"g", "f"', attrs[1], STAGE))
        counter = -1 if second is None else second
        assert (f"stage_id=1, transpose_count=0, call_counter={counter}, split_type=none, remat=no") in message
        assert 'the fragment of "g", "f"' in message


def test_all_are_reported_and_rejected_ones_are_not_recorded() -> None:
    """The second conflicts with the first; the third, of another microbatch, with neither."""
    found = report(
        ('"f"', COUNTER.format(0), STAGE),
        ('"f"', COUNTER.format(0), STAGE),
        ('"f"', COUNTER.format(1), STAGE),
        ('"f"', COUNTER.format(1), STAGE),
    )
    assert len(found) == 2


def test_a_stage_without_phase_is_refused() -> None:
    """Mixed phases without remat, or no origin at all."""
    assert "no phase" in report(('"f", "f"(1)', "", STAGE))[0]
    assert "no phase" in report(("", "", STAGE))[0]


def test_counter_of_the_wrong_type() -> None:
    """A call counter is a ui32."""
    assert "must be a ui32" in report(('"f"', "{call_counter = 0 : i64}", STAGE))[0]
