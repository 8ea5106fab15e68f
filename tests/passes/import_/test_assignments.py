"""Assignments and constraints as users write them."""

import pytest

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.passes.import_.assignments import IndexAssignment, NameAssignment, SameMesh
from mpmd_trace.passes.import_.map_input_output_to_mesh import MapInputOutputToMesh
from mpmd_trace.passes.import_.map_named_ops_to_mpmd_ops import MapNamedOpsToMpmdOps
from mpmd_trace.passes.parse_pipeline import make_pass


def assigned(text: str) -> dict[str, Assignment]:
    """What an option of this text assigns."""
    found = make_pass(MapNamedOpsToMpmdOps, {"assignment": text})
    assert isinstance(found, MapNamedOpsToMpmdOps)
    return dict(found.assignment)


def test_names_with_and_without_stage() -> None:
    assert assigned("f@m1,g@m2/3,h@m1/-1") == {
        "f": Assignment("m1"),
        "g": Assignment("m2", 3),
        "h": Assignment("m1", -1),
    }


def test_text_may_have_blanks_and_a_trailing_comma() -> None:
    assert assigned(" f@m1 , g@m2, ") == {"f": Assignment("m1"), "g": Assignment("m2")}


def test_later_duplicates_win() -> None:
    assert assigned("f@m1,f@m2") == {"f": Assignment("m2")}


def test_memory_kind() -> None:
    found = NameAssignment.parse("f@m1#pinned_host/2").assignment
    assert found == Assignment("m1", 2, "pinned_host")
    assert found.place == "m1#pinned_host"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("m1", Assignment("m1")),
        ("m1#pinned_host", Assignment("m1", None, "pinned_host")),
        ("m1#a#b", Assignment("m1", None, "a#b")),
        ("m1#", Assignment("m1#")),
    ],
)
def test_memory_kinds(written: str, found: Assignment) -> None:
    assert Assignment.parse(written) == Assignment.on_mesh(written) == found


def test_host_meshes_have_a_slash_in_their_name() -> None:
    assert assigned("f@m1/cpu,g@m1/cpu/2,h@m1/cpu#device") == {
        "f": Assignment("m1/cpu"),
        "g": Assignment("m1/cpu", 2),
        "h": Assignment("m1/cpu", None, "device"),
    }


def test_names_may_contain_an_at_sign() -> None:
    assert assigned("a@b@m1") == {"a@b": Assignment("m1")}


@pytest.mark.parametrize("text", ["m1", "m1/0", "m1#pinned_host/2", "m1/cpu", "m1/cpu#device/-1"])
def test_spelling(text: str) -> None:
    assert str(Assignment.parse(text)) == text
    entry = NameAssignment.parse(f"f@{text}")
    assert str(entry) == f"f@{text}"
    one = MapNamedOpsToMpmdOps((entry, entry))
    assert one.spec == f"mpmd-map-named-ops-to-mpmd-ops{{assignment=f@{text},f@{text}}}"


@pytest.mark.parametrize("wrong", ["f", "f@m1/", "f@m1/x", "f@m1/1/2", "f@m1/+3", "f@m1/cpux"])
def test_wrong_names(wrong: str) -> None:
    with pytest.raises(MpmdError, match="NAME@MESH"):
        NameAssignment.parse(wrong)


def test_wrong_options_are_noticed_when_the_pass_is_made() -> None:
    with pytest.raises(MpmdError, match=r"the stage in 'f@m1/x' is 'x'.*f@m1/0"):
        make_pass(MapNamedOpsToMpmdOps, {"assignment": "f@m1/x"})


def test_indices() -> None:
    found = make_pass(MapInputOutputToMesh, {"input-assignment": "0@m1,2@m2#device"})
    assert isinstance(found, MapInputOutputToMesh)
    assert dict(found.input_assignment) == {0: Assignment("m1"), 2: Assignment("m2", None, "device")}
    assert found.spec == "mpmd-map-input-output-to-mesh{input-assignment=0@m1,2@m2#device}"
    with pytest.raises(MpmdError, match="not the number"):
        IndexAssignment.parse("x@m1")


def test_constraints() -> None:
    assert SameMesh.parse("0:1") == (0, 1)
    for wrong in ("0", "a:1", "0:"):
        with pytest.raises(MpmdError, match="INPUT:OUTPUT"):
            SameMesh.parse(wrong)
