"""mpmd-infer-mesh-pipeline and mpmd-import-pipeline.  `examples/*.mlir` hold a program before and after."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from import_programs import PRELUDE, TOPOLOGY, T, check

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.ops import FragmentOp, TransferOp
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.import_.assignments import NameAssignment, SameMesh
from mpmd_trace.passes.import_.clean_up import CleanUp
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.pipelines import reference_pipeline
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.passes.text_pipelines import ImportPipeline, InferMeshPipeline
from oracle import assert_same_meaning
from util import check as check_with
from util import diagnostics


def named(name: str, mesh: str, stage: int | None = None) -> NameAssignment:
    return NameAssignment(name, Assignment(mesh, stage))


def example(name: str) -> tuple[str, str]:
    text = Path(__file__).with_name("examples").joinpath(f"{name}.mlir").read_text()
    before, _, after = text.partition("// =>\n")
    return before, after


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("after_a_fragment", ""),
        ("callee_on_two_meshes", ""),
        ("reduction_over_meshes", "{infer-transfers=true}"),
        ("reduction_over_meshes", "{infer-cross-mesh-reductions=true infer-transfers=true}"),
    ],
)
def test_infer_mesh_examples(name: str, options: str) -> None:
    before, after = example(name)
    check(before, f"mpmd-infer-mesh-pipeline{options}", after)


def test_import_example() -> None:
    before, after = example("whole_import")
    spec = "mpmd-import-pipeline{name-to-mesh-assignment=first@m1,second@m2}"
    check_with(before, spec, after, "")


def names(pipeline: Pass) -> list[str]:
    passes: list[Pass] = pipeline.passes()  # type: ignore[attr-defined]
    return [p.name for p in passes]


def test_the_steps_of_inference() -> None:
    steps = names(InferMeshPipeline())
    assert steps == [
        "mpmd-infer-mesh-populate-use-set",
        "mpmd-infer-mesh-populate-src-set",
        "mpmd-infer-mesh-convert-reduce-ops",
        "mpmd-infer-mesh-validate-src-set-not-empty",
        "mpmd-infer-mesh-assign-mesh-func-leaves",
        "mpmd-infer-mesh-populate-use-set",
        "mpmd-infer-mesh-validate-no-additional-transfers-needed",
        "mpmd-infer-mesh-rewrite-using-analysis",
        "mpmd-infer-mesh-finalize",
    ]
    inferred = names(InferMeshPipeline(infer_transfers=True))
    assert [s for s in steps if "validate" not in s] == inferred


def test_transfers_imply_reductions() -> None:
    (convert,) = (
        p for p in InferMeshPipeline(infer_transfers=True).passes() if p.name == "mpmd-infer-mesh-convert-reduce-ops"
    )
    assert convert.spec == (
        "mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true keep-initial-value=true}"
    )


def imported(*, same_mesh: tuple[SameMesh, ...] = (), **options: Any) -> list[Pass]:
    """The passes of the first phase."""
    chosen = CompileOptions(placement="reference", **options)
    return next(reference_pipeline(PartitionRequest("f", TopologyAttr.get({}), options=chosen, same_mesh=same_mesh)))


def test_the_constraints_of_inference() -> None:
    specs = [p.spec for p in imported(same_mesh=(SameMesh(0, 1), SameMesh(1, 0)))]
    assert "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:1,1:0}" in specs


def test_the_steps_of_import() -> None:
    steps = names(ImportPipeline())
    inference = names(InferMeshPipeline())
    assert steps == [
        "mpmd-clean-up",
        "mpmd-copy-topology-from-main",
        "mpmd-unroll-for-loops",
        "mpmd-canonicalize-unrolled",
        "stablehlo-target-independent-optimization",
        "mpmd-from-unroll-to-call-counter",
        "mpmd-sink-negligible-ops-into-call-op",
        "mpmd-insert-nameless-clone-of-negligible-ops",
        "mpmd-simplify-named-computations",
        "mpmd-map-input-output-to-mesh",
        "mpmd-inline-nested-user-exposed-ops",
        "mpmd-validate-named-ops-in-mpmd-func",
        "mpmd-map-named-ops-to-mpmd-ops",
        "mpmd-introduce-transfers",
        "mpmd-erase-unused-callee-block-arguments",
        *inference,
        "mpmd-absorb-inferred-fragments",
        "mpmd-merge-inferred-fragments",
        "mpmd-merge-inferred-fragments",
        "mpmd-enforce-input-output-equisharding",
        "mpmd-fragment-dedup",
        "mpmd-fragment-dce",
        "mpmd-remove-transfer-cycles",
        "mpmd-call-inline",
        "mpmd-symbol-dce",
        "mpmd-merge-inferred-fragments",
        "mpmd-move-transfers-to-producer",
        "mpmd-merge-user-fragments-into-scheduling-units",
    ]
    heterogeneous = names(ImportPipeline(enable_heterogeneous_meshes=True))
    assert heterogeneous[2] == "mpmd-generate-sdy-meshes-from-topology"
    late = names(ImportPipeline(merge_after_scheduling=True))
    assert not [s for s in late if "inferred-fragments" in s]
    split = [p.name for p in imported(mpmd_split_bwd_fragments=True)]
    assert split[-3:] == ["mpmd-split-bwd-fragments", "mpmd-canonicalize", "mpmd-fragment-dce"]


def test_wrong_options_are_noticed_when_the_pipeline_is_made() -> None:
    with pytest.raises(MpmdError, match="NAME@MESH"):
        run_passes(parse(""), "mpmd-import-pipeline{name-to-mesh-assignment=f}")
    with pytest.raises(MpmdError, match="INPUT:OUTPUT"):
        run_passes(parse(""), "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0}")


def test_a_pipeline_is_a_pass() -> None:
    before, after = example("whole_import")
    module = run_passes(parse(before), [ImportPipeline((named("first", "m1"), named("second", "m2")))])
    assert str(module) == str(parse(after))


def test_the_first_steps_of_a_program_with_calls_and_chlo() -> None:
    check_with(
        """
        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
          %0 = func.call @inner(%a) : (tensor<4xf32>) -> tensor<4xf32>
          %1 = chlo.square %0 : tensor<4xf32> -> tensor<4xf32>
          %2 = chlo.square %0 : tensor<4xf32> -> tensor<4xf32>
          %3 = stablehlo.add %1, %2 : tensor<4xf32>
          return %3 : tensor<4xf32>
        }
        func.func private @inner(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.negate %a : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        """,
        [CleanUp()],
        """
        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
          %0 = stablehlo.negate %a : tensor<4xf32>
          %1 = stablehlo.multiply %0, %0 : tensor<4xf32>
          %3 = stablehlo.add %1, %1 : tensor<4xf32>
          return %3 : tensor<4xf32>
        }
        """,
    )


def test_unassigned_names_stop_the_import() -> None:
    before, _ = example("whole_import")
    ok, found = diagnostics(before, "mpmd-import-pipeline{name-to-mesh-assignment=first@m1}", "")
    assert not ok
    assert "named computation 'second' is not assigned to a mesh" in found[0].message


def program(seed: int) -> str:
    """A program of named computations, calls and ops between them."""
    rng = random.Random(seed)
    counter = iter(range(10_000))
    lines: list[str] = []

    def emit(text: str, indent: str = "  ") -> str:
        name = f"%v{next(counter)}"
        lines.append(f"{indent}{name} = {text}")
        return name

    def leaf(values: list[str], indent: str = "  ") -> None:
        kind = rng.random()
        if kind < 0.2:
            values.append(emit(f"stablehlo.constant dense<{rng.randint(0, 2)}.0> : {T}", indent))
        elif kind < 0.7:
            op = rng.choice(["add", "add", "multiply", "maximum"])
            left, right = rng.choice(values[-5:]), rng.choice(values[-5:])
            values.append(emit(f"stablehlo.{op} {left}, {right} : {T}", indent))
        else:
            values.append(emit(f"stablehlo.tanh {rng.choice(values[-5:])} : {T}", indent))

    def computation(values: list[str]) -> None:
        operands = [rng.choice(values[-6:]) for _ in range(rng.randint(1, 3))]
        args = [f"%x{next(counter)}" for _ in operands]
        count = rng.randint(1, 2)
        name, types = f"%n{next(counter)}", ", ".join([T] * count)
        header = ", ".join(f"{a}: {T}" for a in args)
        lines.append(
            f'  {name}:{count} = mpmd.named_computation<"{rng.choice("fg")}"> ({", ".join(operands)}) ({header}) {{'
        )
        inside = list(args)
        for _ in range(rng.randint(0, 4)):
            leaf(inside, "    ")
        returned = ", ".join(rng.choice(inside) for _ in range(count))
        lines.append(f"    mpmd.return {returned} : {types}")
        results = T if count == 1 else f"({types})"
        lines.append(f"  }} : ({', '.join([T] * len(args))}) -> {results}")
        values += [f"{name}#{i}" for i in range(count)]

    def body(values: list[str], steps: int) -> None:
        for _ in range(steps):
            (computation if rng.random() < 0.6 else leaf)(values)

    values = ["%a", "%b"]
    body(values, rng.randint(1, 4))
    calls = []
    for i in range(rng.randint(1, 3)):
        call = f"mpmd.call @c({rng.choice(values[-4:])}, %b) {{call_counter = {i} : ui32}}"
        calls.append(emit(f"{call} : ({T}, {T}) -> {T}"))
        values.append(calls[-1])
    body(values, rng.randint(1, 4))
    for call in calls:
        values.append(emit(f"stablehlo.add {values[-1]}, {call} : {T}"))
    main = lines[:]
    lines.clear()
    inner = ["%a", "%b"]
    body(inner, rng.randint(1, 4))
    return "\n".join(
        [
            f"func.func @main(%a: {T}, %b: {T}) -> ({T}, {T}) attributes {{topology = {TOPOLOGY}}} {{",
            *main,
            f"  return {values[-1]}, {values[-2]} : {T}, {T}",
            "}",
            f"func.func private @c(%a: {T}, %b: {T}) -> {T} {{",
            *lines,
            f"  return {inner[-1]} : {T}",
            "}",
        ]
    )


@pytest.mark.parametrize("seed", range(20))
def test_meaning(seed: int) -> None:
    before = parse(PRELUDE + program(seed))
    request = PartitionRequest(
        "f",
        TopologyAttr.get({}),
        dict((named("f", "p0"), named("g", "p1")) if seed % 2 else (named("f", "p0", 0), named("g", "p1", 1))),
        (None, Assignment("p1")) if seed % 3 == 0 else (),
        (Assignment("p2"),) if seed % 4 == 0 else (),
        options=CompileOptions(
            mpmd_merge_inferred_after_scheduling=seed % 5 == 0,
            mpmd_infer_transfers=True,
            mpmd_absorb_inferred_fragments_on_entry_point_function=seed % 7 == 0,
            mpmd_split_bwd_fragments=seed % 2 == 0,
            placement="reference",
        ),
        same_mesh=(SameMesh(0, 0),) if seed % 3 == 1 else (),
    )
    after = run_passes(before.clone(), next(reference_pipeline(request)))
    assert_same_meaning(before, after, rtol=1e-6)
    assert len(after.functions) == 1
    assert all(isinstance(op, FragmentOp | TransferOp) for op in after.main.body.ops[:-1])
    types = [*after.main.type.inputs, *after.main.type.results]
    assert all(isinstance(t, MeshTensorType) for t in types)
    if seed % 3 == 1:
        assert after.main.type.inputs[0] is after.main.type.results[0]
