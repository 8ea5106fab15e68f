"""`mpmd-scheduling-units-verifier`."""

from __future__ import annotations

from fragment_texts import frag, function

from util import PRELUDE, diagnostics


def warnings(*fragments: tuple[str, str, int | None]) -> list[str]:
    """The warnings for fragments given as (mesh, origin, call counter)."""
    lines = []
    for i, (mesh, origin, counter) in enumerate(fragments):
        attrs = "" if counter is None else f"{{call_counter = {counter} : ui32}}"
        lines.append(f"  %{i} = " + frag(mesh, origin, {"alpha": "%p", "beta": "%q"}[mesh], attrs=attrs))
    text = function("\n".join(lines), "%p", "!A")
    ok, found = diagnostics(text, "mpmd-scheduling-units-verifier")
    assert ok and all(d.severity == "warning" for d in found)
    return [d.message.partition(". A pipeline")[0] for d in found]


def both(mesh: str, counter: int) -> list[tuple[str, str, int | None]]:
    return [(mesh, '"f"', counter), (mesh, '"f"(1)', counter)]


def expected(mesh: str, phase: str, microbatches: int, found: int) -> str:
    return (
        f"Number of {phase} scheduling units in mesh {mesh} does not match expected number for "
        f"{microbatches} microbatches. Got {found}"
    )


def test_complete_program() -> None:
    """One forward and one backward unit per mesh and microbatch."""
    assert not warnings(*both("alpha", 0), *both("alpha", 1), *both("beta", 0), *both("beta", 1))


def test_no_microbatches() -> None:
    """Without counters there is nothing to verify."""
    assert not warnings(("alpha", '"f"', None))


def test_unused_mesh() -> None:
    """Both phases are reported, forward first."""
    assert warnings(*both("alpha", 0)) == [expected("beta", "forward", 1, 0), expected("beta", "backward", 1, 0)]


def test_inferred_fragments_do_not_count_and_too_many_do() -> None:
    """The inferred one is no unit; a second forward unit is one too many."""
    found = warnings(*both("beta", 0), ("beta", '"g"', 0), ("alpha", "", 0), ("alpha", '"f"(1)', 0))
    assert found == [expected("alpha", "forward", 1, 0), expected("beta", "forward", 1, 2)]


def test_counters_that_start_at_one() -> None:
    """The number of microbatches is the greatest counter, plus one if some counter is 0."""
    assert not warnings(*both("alpha", 1), *both("beta", 1))


def test_cpu_meshes_are_skipped() -> None:
    """A host mesh is no pipeline stage."""
    text = function("  %0 = " + frag("alpha", '"f"', "%p", attrs="{call_counter = 0 : ui32}"), "%p", "!A")
    ok, found = diagnostics(text, "mpmd-scheduling-units-verifier", PRELUDE.replace('"beta"', '"alpha/cpu"'))
    assert ok and [d.message.partition(". A")[0] for d in found] == [expected("alpha", "backward", 1, 0)]
