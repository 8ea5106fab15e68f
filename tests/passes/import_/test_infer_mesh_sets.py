"""Mesh sets: `mpmd.use_set`, `mpmd.src_set` and what is computed with them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_programs import PRELUDE

from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.import_.mesh_sets import (
    EMPTY,
    MeshSet,
    MeshSets,
    insert,
    intersect,
    is_subset,
    names,
    pick,
    relabeled,
    same_meshes,
    union,
)


def a_set(text: str) -> MeshSet:
    found = parse_attribute(f"#mpmd.meshes_with_origins<{text}>")
    assert isinstance(found, MeshSet)
    return found


def test_insert_appends_meshes_and_new_labels() -> None:
    found = insert(insert(insert(EMPTY, "m2", "a"), "m1"), "m2", "b")
    assert found is a_set('"m2"["a", "b"], "m1"')
    assert insert(found, "m2", "a") is found
    assert insert(EMPTY, "m") is a_set('"m"')


@pytest.mark.parametrize(
    ("a", "b", "joined", "common"),
    [
        ('"x"["1"], "y"', '"z", "x"["2", "1"]', '"x"["1", "2"], "y", "z"', '"x"["1", "2"]'),
        ("", '"x"', '"x"', ""),
        ('"x"', "", '"x"', ""),
        ('"x", "y"', '"y", "x"', '"x", "y"', '"x", "y"'),
        # The wildcard comes last; it keeps what only the other set has.
        ('"x"["1"]', '"*"["w"]', '"x"["1"], "*"["w"]', '"x"["1", "w"]'),
        ('"*"["w"], "x"', '"y"["1"]', '"x", "y"["1"], "*"["w"]', '"y"["1", "w"]'),
        ('"*"["w"]', '"*"["v"]', '"*"["w", "v"]', '"*"["w", "v"]'),
    ],
)
def test_union_and_intersection(a: str, b: str, joined: str, common: str) -> None:
    assert union(a_set(a), a_set(b)) is a_set(joined)
    assert intersect(a_set(a), a_set(b)) is a_set(common)


def test_unspecified_does_not_constrain() -> None:
    x = a_set('"x"')
    assert intersect(None, x) is x
    assert intersect(x, None) is x
    assert intersect(None, None) is None


@pytest.mark.parametrize(
    ("found", "preferred", "mesh"),
    [
        ("", "", None),
        ("", '"x"', None),
        ('"m2", "m10"', "", "m10"),
        ('"m2", "m10"', '"m2", "z"', "m2"),
        ('"m2", "m10"', '"z"', "m10"),
        ('"a"["broadcast_in"], "b"["s"]', "", "b"),
        ('"a"["broadcast_in"], "b"["s"]', '"a"', "a"),
        ('"a"["s", "broadcast_in"]', "", "a"),
        ('"*"["w"], "b"', '"z"', "z"),
    ],
)
def test_pick(found: str, preferred: str, mesh: str | None) -> None:
    assert pick(a_set(found), a_set(preferred)) == mesh


def test_comparisons_ignore_order_and_labels() -> None:
    assert same_meshes(a_set('"x"["1"], "y"'), a_set('"y", "x"'))
    assert not same_meshes(a_set('"x"'), a_set('"x", "y"'))
    assert is_subset(a_set('"y"'), a_set('"x", "y"["1"]'))
    assert not is_subset(a_set('"y", "z"'), a_set('"x", "y"'))
    assert is_subset(EMPTY, EMPTY)


def test_relabeled() -> None:
    assert relabeled(a_set('"x"["1", "2"], "y"'), "l") is a_set('"x"["l"], "y"["l"]')


sets = st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from("12"), unique=True), max_size=4).map(
    MeshSet.get
)


@given(sets, sets, sets)
def test_laws(a: MeshSet, b: MeshSet, c: MeshSet) -> None:
    both = intersect(a, b)
    assert both is not None
    assert set(names(union(a, b))) == set(names(a)) | set(names(b))
    assert set(names(both)) == set(names(a)) & set(names(b))
    assert union(a, a) is a
    assert intersect(a, a) is a
    assert union(union(a, b), c) is union(a, union(b, c))
    assert intersect(both, c) is intersect(a, intersect(b, c))
    assert union(union(a, b), b) is union(a, b)


def test_values_have_the_sets_of_what_they_stand_for() -> None:
    module = parse(
        PRELUDE
        + """
        func.func @main(%a: !T {mpmd.src_set = #mpmd.meshes_with_origins<"p2">}) -> !T
            attributes {topology = #topo} {
          %0:2 = mpmd.call @f(%a) : (!T) -> (!T, !T)
          %1 = mpmd.for (%0#1) {iterations = 2 : ui32} (%x: !T, %i: tensor<ui32>) {
            mpmd.return %x : !T
          } : !T
          %2 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"p0">} %1 : (!T) -> !P0
          return %1 : !T
        }
        func.func private @f(%b: !T {mpmd.src_set = #mpmd.meshes_with_origins<"p1">}) -> (!T, !T)
            attributes {topology = #topo} {
          %0 = stablehlo.abs %b {mpmd.src_set = #mpmd.meshes_with_origins<>} : !T
          return %b, %0 : !T, !T
        }
        """
    )
    found = MeshSets(module)
    call, loop, assign, _ = module.main.body.ops
    assert found.src_of(module.main.body.args[0]) is a_set('"p2"')
    assert found.src_of(call.results[0]) is a_set('"p1"')
    assert found.src_of(call.results[1]) is EMPTY
    assert found.src_of(loop.results[0]) is None
    assert found.src_of(assign.results[0]) is None
