"""Shardings pass through the ops of CHLO."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.attributes import TensorShardingAttr
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.variants import PropagateWithChlo

DOT = '"chlo.ragged_dot"({}) <{{ragged_dot_dimension_numbers = #chlo.ragged_dot<{}>}}>'
#: lhs, rhs and sizes of groups of rows: two batch dimensions of 2, 8 rows, 4 columns, 3 groups, 6 features.
ROWS = DOT.format(
    "%0, %1, %2",
    "lhs_batching_dimensions = [0], rhs_batching_dimensions = [1], lhs_contracting_dimensions = [2], "
    "rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [1], rhs_group_dimensions = [0]",
)
COLUMNS = DOT.format(
    "%0, %1, %2", "lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]"
)
BATCH = DOT.format(
    "%0, %1, %2",
    "lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], "
    "rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0]",
)


def propagated(op: str, types: list[str], results: list[str], given: dict[int, str]) -> list[str]:
    """Return the shardings of arguments and results of a fragment of this op, if its arguments get some."""
    arguments = [f'!mpmd.mesh_tensor<"m", tensor<{t}>>' for t in types]
    made = [f'!mpmd.mesh_tensor<"m", tensor<{t}>>' for t in results]
    declared = ", ".join(
        f"%a{i}: {t}" + (f" {{sdy.sharding = #sdy.sharding<@mesh, {given[i]}>}}" if i in given else "")
        for i, t in enumerate(arguments)
    )
    returned = ", ".join(f"%9#{i}" if len(made) > 1 else "%9" for i in range(len(made)))
    inner = ", ".join(f"tensor<{t}>" for t in results)
    text = f"""
        sdy.mesh @mesh = <["x"=2, "y"=2]>
        func.func public @main({declared}) -> ({", ".join(made)}) attributes
            {{topology = #mpmd.topology<<"m" : <["x"=2, "y"=2]>>>}} {{
          %8{f":{len(made)}" if len(made) > 1 else ""} = mpmd.fragment<mesh="m", origin=["f"]>
              ({", ".join(f"%a{i}" for i in range(len(types)))})
              ({", ".join(f"%{i}: tensor<{t}>" for i, t in enumerate(types))}) {{
            %9{f":{len(made)}" if len(made) > 1 else ""} = {op} :
                ({", ".join(f"tensor<{t}>" for t in types)}) -> ({inner})
            mpmd.return {returned} : {inner}
          }} : ({", ".join(arguments)}) -> ({", ".join(made)})
          return {returned.replace("%9", "%8")} : {", ".join(made)}
        }}"""
    module = run_passes(parse(text), [PropagateWithChlo()])
    assert "sharding_rule" not in str(module)
    main = module.main
    found = [attrs.entries.get("sdy.sharding") for attrs in (*main.arg_attrs, *main.res_attrs)]
    return [
        "|".join("".join(a.name for a in s.dim_axes(i)) for i in range(len(s.dims)))
        if isinstance(s, TensorShardingAttr)
        else ""
        for s in found
    ]


@pytest.mark.parametrize(
    ("op", "types", "results", "given", "expected"),
    [
        ('"chlo.erf"(%0)', ["8x4xf32"], ["8x4xf32"], {0: '[{"x"}, {"y"}]'}, ["x|y", "x|y"]),
        (
            '"chlo.top_k"(%0) <{k = 2 : i64}>',
            ["8x4xf32"],
            ["8x2xf32", "8x2xi32"],
            {0: '[{"x"}, {?}]'},
            ["x|", "x|", "x|"],
        ),
        (
            ROWS,
            ["2x8x4xf32", "3x2x4x6xf32", "3xi32"],
            ["2x8x6xf32"],
            {0: '[{?}, {"x"}, {?}]', 1: '[{?}, {?}, {?}, {"y"}]'},
            ["|x|", "|||y", "", "|x|y"],
        ),
        (
            ROWS,
            ["2x8x4xf32", "3x2x4x6xf32", "3xi32"],
            ["2x8x6xf32"],
            {0: '[{"x"}, {?}, {"y"}]', 1: "[{?}, {?}, {?}, {?}]"},
            ["x||y", "|x|y|", "", "x||"],
        ),
        (
            COLUMNS,
            ["8x4xf32", "8x6xf32", "3xi32"],
            ["3x4x6xf32"],
            {0: '[{?}, {"x"}]', 1: '[{?}, {"y"}]'},
            ["|x", "|y", "", "|x|y"],
        ),
        (
            BATCH,
            ["4x8x4xf32", "4x4x6xf32", "3xi32"],
            ["4x8x6xf32"],
            {0: '[{"x"}, {"y"}, {?}]', 1: "[{?}, {?}, {?}]"},
            ["x|y|", "x||", "", "x|y|"],
        ),
    ],
)
def test_shardings_pass(
    op: str, types: list[str], results: list[str], given: dict[int, str], expected: list[str]
) -> None:
    assert propagated(op, types, results, given) == expected
