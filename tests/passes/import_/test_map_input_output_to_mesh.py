"""mpmd-map-input-output-to-mesh"""

import pytest
from import_programs import PRELUDE, diagnostics, run

from mpmd_trace.diagnostics.messages import MpmdError

PASS = "mpmd-map-input-output-to-mesh"


def test_unknown_meshes_are_reported_where_the_value_is_and_for_every_entry_point() -> None:
    one = """
        func.func @main(%a: !T,
                        %b: !T) -> (!T, !T {jax.result_info = "loss"}) attributes {topology = #topo} {
          %0 = stablehlo.add %a, %b : !T
          return %a, %0 : !T, !T
        }
        """
    both = one + one.replace("@main", "@other")
    for options, marker in (
        ("input-assignment=1@nowhere", "%b: !T) ->"),
        ("output-assignment=0@nowhere", "%a: !T,"),
        ("output-assignment=1@nowhere", '"loss"'),
        ("input-assignment=1@nowhere output-assignment=0@neither", "%b: !T) ->"),
    ):
        lines = [n for n, line in enumerate((PRELUDE + both).splitlines(), 1) if marker in line]
        ok, found = diagnostics(both, f"{PASS}{{{options}}}")
        assert not ok
        if marker == '"loss"':  # a result that has a name is reported under it
            assert [str(d.location) for d in found] == ['"loss"', '"loss"']
        else:
            assert [d.location.file[1] for d in found if d.location.file is not None] == lines


def test_options_are_checked_when_the_pass_is_made() -> None:
    with pytest.raises(MpmdError, match="INDEX@MESH"):
        run("module {}", PASS + "{input-assignment=0}")
