"""`mpmd-populate-unreduced-out-sharding`."""

from __future__ import annotations

from util import check

PASS = "mpmd-populate-unreduced-out-sharding"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>
sdy.mesh @mesh = <["d"=2, "e"=2]>
"""


def program(header: str, body: str, results: int = 1, mesh: str = "s0") -> str:
    kinds = ", ".join(["!s"] * results)
    returned = ", ".join(f"%f#{i}" for i in range(results)) if results > 1 else "%f"
    return f"""
module {{
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> ({kinds})
      attributes {{topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>}} {{
    %f{f":{results}" if results > 1 else ""} = mpmd.fragment<mesh="s0", origin=["f"]{header}> (%a)
        (%x: tensor<8x6xf32>) {{
      {body}
    }} : (!s) -> ({kinds})
    return {returned} : {kinds}
  }}
}}
"""


CONSTRAINT = '%c = sdy.sharding_constraint %x <@m2, [{}, {"e"}], unreduced={"d"}> : tensor<8x6xf32>\n'
TYPE = PRELUDE.splitlines()[1]


def test_dims_of_an_existing_list_are_kept() -> None:
    body = CONSTRAINT + "mpmd.return %c : tensor<8x6xf32>"
    check(
        program(', out_shardings=[<@m2, [{"e"}, {?}]>]', body),
        PASS,
        program(', out_shardings=[<@m2, [{"e"}, {?}], unreduced={"d"}>]', body),
        TYPE,
    )


def test_nothing_changes_without_unreduced_axes_or_when_they_are_there() -> None:
    for body, header in (
        (CONSTRAINT.replace(', unreduced={"d"}', ""), ""),
        (CONSTRAINT, ', out_shardings=[<@m2, [{}, {}], unreduced={"d"}>]'),
        (CONSTRAINT + "%c2 = stablehlo.sine %c : tensor<8x6xf32>\n", ""),
    ):
        returned = "%c2" if "%c2" in body else "%c"
        text = program(header, body + f"mpmd.return {returned} : tensor<8x6xf32>")
        check(text, PASS, text, TYPE)


def test_a_new_list_refers_to_the_mesh_of_the_constraint() -> None:
    body = CONSTRAINT + "mpmd.return %x, %c : tensor<8x6xf32>, tensor<8x6xf32>"
    header = ', out_shardings=[<@m2, [{}, {}]>, <@m2, [{}, {}], unreduced={"d"}>]'
    check(program("", body, 2), PASS, program(header, body, 2), TYPE)
