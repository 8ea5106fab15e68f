"""stablehlo-target-independent-optimization

`stablehlo_cases/*.txt` hold programs and what StableHLO's own pass makes of them: the body of a function of
`ARGS` whose last line says the type of its result `%r` behind `# `; `=>` and the body afterwards when nothing
may grow; sometimes `=> 65536` and the body afterwards when constants of that many elements may be made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning
from shared_work import own_contexts
from util import check, run

PASS = "stablehlo-target-independent-optimization"
ARGS = "%arg0: tensor<4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<4xi32>, %arg3: tensor<4xi1>, %arg4: tensor<2x3xf32>"
NAMES = ARGS
for written, used in zip("abipm", range(5), strict=True):
    NAMES = NAMES.replace(f"%arg{used}", f"%{written}")


def cases() -> Iterator[Any]:
    for file in sorted(Path(__file__).with_name("stablehlo_cases").glob("*.txt")):
        for number, block in enumerate(file.read_text().split("\n\n")):
            before, after, *larger = block.strip().replace("=> 65536", "=>").split("\n=>\n")
            for limit, wanted in zip((0, 65536), (after, *(larger or [after])), strict=True):
                yield pytest.param(before, limit, wanted, id=f"{file.stem}-{number}-{limit}")


@pytest.mark.parametrize(("before", "limit", "after"), list(cases()))
def test_cases(before: str, limit: int, after: str) -> None:
    body, result = before.rsplit("# ", 1)
    check(
        f"func.func @main({NAMES}) -> ({result}) {{\n{body}\nreturn %r : {result}\n}}",
        f"{PASS}{{fold-op-element-limit={limit}}}",
        f"func.func @main({ARGS}) -> ({result}) {{\n{after}\n}}",
        "",
    )


@pytest.mark.parametrize(("before", "limit", "after"), [c for c in cases() if c.values[1]])
def test_meaning(before: str, limit: int, after: str) -> None:
    body, result = before.rsplit("# ", 1)
    if any(name in before for name in ("custom_call", "tuple", "complex", "dynamic_reshape")):
        pytest.skip("the interpreter of the tests does not have it")
    program = parse(f"func.func @main({NAMES}) -> ({result}) {{\n{body}\nreturn %r : {result}\n}}")
    assert_same_meaning(program, run_passes(program.clone(), PASS), rtol=1e-6)


FRAGMENTS = """
        func.func @main(%a: !A) -> (!A, !A) attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%a) (%x: tensor<4xf32>) {
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<4xf32>
            %1 = stablehlo.add %b, %x : tensor<4xf32>
            %c = stablehlo.constant dense<2.0> : tensor<4xf32>
            %2 = stablehlo.multiply %c, %1 : tensor<4xf32>
            mpmd.return %2 : tensor<4xf32>
          } : (!A) -> !A
          return %0, %0 : !A, !A
        }
        """


def test_a_shared_body_stays_shared() -> None:
    module = run(FRAGMENTS, "mpmd-copy-topology-from-main")
    first = next(op for op in module.main.body if isinstance(op, FragmentOp))
    second = first.clone()
    module.main.body.insert_after(first, second)
    module.main.body.terminator.set_operand(1, second.results[0])
    run_passes(module, PASS)
    assert len({op.body for op in module.main.body if isinstance(op, FragmentOp)}) == 1


def test_unusual_constants_are_left_alone() -> None:
    text = """
        func.func @main() -> tensor<2xf32> {
          %0 = stablehlo.constant dense_resource<blob> : tensor<2xf32>
          %1 = stablehlo.negate %0 : tensor<2xf32>
          return %1 : tensor<2xf32>
        }
        {-# dialect_resources: {builtin: {blob: "0x040000000000803F00000040"}} #-}
        """
    with own_contexts():
        check(text, PASS, text, "")


def test_large_constants() -> None:
    numbers = ", ".join(f"{i}.5" for i in range(200))
    doubled = ", ".join(f"{2 * i + 1}.0" for i in range(200))
    body = """
        func.func @main() -> tensor<200xf32> {
          %%0 = stablehlo.constant dense<[%s]> : tensor<200xf32>
          %s
          return %%1 : tensor<200xf32>
        }
        """
    check(
        body % (numbers, "%1 = stablehlo.add %0, %0 : tensor<200xf32>"),
        PASS,
        (body % (doubled, "")).replace("return %1", "return %0"),
        "",
    )
