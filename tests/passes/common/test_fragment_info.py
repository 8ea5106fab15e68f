"""What a fragment stands for."""

from __future__ import annotations

from fragment_texts import frag, function
from mpmd_trace.ir.attributes import TopologyAttr, parse_attribute
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.fragment_info import (
    fragment_transpose_count,
    is_backward,
    is_executed_immediately_after,
    is_forward,
    is_homogeneous,
    is_scheduling_unit,
    max_transpose_count,
    origin_union,
    split_type,
)
from mpmd_trace.passes.fragment_rules import FragmentInfo
from util import run


def fragments(*specs: tuple[str, str]) -> list[FragmentOp]:
    lines = [f"  %{i} = " + frag("alpha", o, "%p", attrs=a) for i, (o, a) in enumerate(specs)]
    module = run(function("\n".join(lines), "%p", "!A"), [])
    return [op for op in module.main.body if isinstance(op, FragmentOp)]


def test_phases() -> None:
    """Forward and backward need a single transpose count; remat takes the greatest."""
    forward, backward, mixed, remat, inferred = fragments(
        ('"f", "g"', ""), ('"f"(1)', ""), ('"f", "f"(1)', ""), ('"f", "f"(1)', "{remat}"), ("", "")
    )
    assert [is_forward(f) for f in (forward, backward, mixed, inferred)] == [True, False, False, False]
    assert [is_backward(f) for f in (forward, backward, mixed, inferred)] == [False, True, False, False]
    assert [fragment_transpose_count(f) for f in (forward, mixed, remat, inferred)] == [0, None, 1, None]
    assert max_transpose_count(inferred) is None


def test_scheduling_units() -> None:
    """A user fragment with a counter and one phase, which is forward or backward."""
    counter = "{call_counter = 0 : ui32}"
    found = fragments(('"f"', counter), ('"f"', ""), ("", counter), ('"f"(2)', counter))
    assert [is_scheduling_unit(f) for f in found] == [True, False, False, False]


def test_origin_union_and_order() -> None:
    """Origins of the second that the first lacks; repetitions inside one list stay."""
    first, second = fragments(('"f", "f"', ""), ('"g"(1), "f", "g"(1)', ""))
    assert [o.short for o in origin_union(first, second).elements] == ['"f"', '"f"', '"g"(1)', '"g"(1)']
    assert is_executed_immediately_after(first, second)
    assert not is_executed_immediately_after(second, first)


def test_info_round_trip() -> None:
    """Reading sorts the origins; writing overwrites everything, in the order given."""
    (fragment,) = fragments(('"g", "f"(1), "f"', "{split_drop_transferred, call_counter = 1 : ui32}"))
    info = FragmentInfo.of(fragment)
    assert info.origins == (("f", 0), ("f", 1), ("g", 0))
    assert (info.call_counter, info.split_type, info.stage) == (1, "kDropTransferred", None)
    FragmentInfo((("z", 0), ("a", 1)), 4, None, "kKeepTransferred", "beta").write_to(fragment)
    assert [o.short for o in fragment.origin] == ['"z"', '"a"(1)']
    assert (fragment.stage, fragment.call_counter, fragment.mesh) == (4, None, "beta")
    assert split_type(fragment) == "kKeepTransferred" and len(fragment.attrs) == 1


def test_homogeneous_topologies() -> None:
    """Axes of size 1 do not count."""

    def topology(text: str) -> TopologyAttr:
        found = parse_attribute(f"#mpmd.topology<{text}>")
        assert isinstance(found, TopologyAttr)
        return found

    assert is_homogeneous(topology('<"a" : <["x"=2]>>, <"b" : <["y"=1, "x"=2]>>'))
    assert not is_homogeneous(topology('<"a" : <["x"=2]>>, <"b" : <["x"=4]>>'))
