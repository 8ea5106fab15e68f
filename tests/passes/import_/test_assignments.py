"""Assignments and constraints as users write them."""

import pytest

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.passes.import_.assignments import (
    Target,
    parse_constraints,
    parse_index_assignment,
    parse_name_assignment,
)


def test_names_with_and_without_stage() -> None:
    assert parse_name_assignment(("f@m1", "g@m2/3", "h@m1/-1")) == {
        "f": Target("m1"),
        "g": Target("m2", 3),
        "h": Target("m1", -1),
    }


def test_text_may_have_blanks_and_a_trailing_comma() -> None:
    assert parse_name_assignment(" f@m1 , g@m2, ") == {"f": Target("m1"), "g": Target("m2")}


def test_later_duplicates_win() -> None:
    assert parse_name_assignment("f@m1,f@m2") == {"f": Target("m2")}


def test_memory_kind() -> None:
    target = parse_name_assignment("f@m1#pinned_host/2")["f"]
    assert (target.mesh_name, target.memory_kind, target.stage) == ("m1", "pinned_host", 2)
    assert target.mesh == "m1#pinned_host"


def test_host_meshes_have_a_slash_in_their_name() -> None:
    assert parse_name_assignment("f@m1/cpu,g@m1/cpu/2,h@m1/cpu#device") == {
        "f": Target("m1/cpu"),
        "g": Target("m1/cpu", 2),
        "h": Target("m1/cpu#device"),
    }


def test_names_may_contain_an_at_sign() -> None:
    assert parse_name_assignment("a@b@m1") == {"a@b": Target("m1")}


def test_spelling() -> None:
    assert [str(Target("m1")), str(Target("m1", 0))] == ["m1", "m1/0"]


@pytest.mark.parametrize("wrong", ["f", "f@m1/", "f@m1/x", "f@m1/1/2", "f@m1/+3"])
def test_wrong_names(wrong: str) -> None:
    with pytest.raises(MpmdError, match="NAME@MESH"):
        parse_name_assignment([wrong])


def test_indices() -> None:
    assert parse_index_assignment("0@m1,2@m2#device") == {0: Target("m1"), 2: Target("m2#device")}
    with pytest.raises(MpmdError, match="not the number"):
        parse_index_assignment("x@m1")


def test_constraints() -> None:
    assert parse_constraints("0:1,1:0") == ((0, 1), (1, 0))
    for wrong in ("0", "a:1", "0:"):
        with pytest.raises(MpmdError, match="INPUT:OUTPUT"):
            parse_constraints(wrong)
