"""Generated programs: our partitioner gives the module of the C++ one, op for op, at each phase.

Some hundred programs run with the suite, the same ones every time.  For thousands of new ones:

    CPP_DIFFERENTIAL_EXAMPLES=5000 python -m pytest tests/cpp_differential -k generated
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

import jax
import pytest
from comparison import PHASES, difference, ours
from generated_programs import HONOURED, IGNORED, SCHEDULES, Program, random_program
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.cpp_engine import CppPartitioner, available
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule, ScheduleRule
from mpmd_trace.passes.partition import partition
from mpmd_trace.passes.request import PartitionRequest
from oracle import assert_same_meaning
from test_against_cpp import refused_by_cpp, step_arguments, step_text

needs_cpp = pytest.mark.skipif(
    not available() or jax.__version_info__ < (0, 12),
    reason="the reference is the C++ partitioner inside jaxlib 0.12 or newer; older ones simplify otherwise",
)

MORE = int(os.environ.get("CPP_DIFFERENTIAL_EXAMPLES", "0"))


def examples(count: int) -> settings:
    """This many programs, always the same; or as many new ones as the environment asks for."""
    return settings(
        max_examples=MORE or count,
        derandomize=not MORE,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    return random_program(lambda least, most: draw(st.integers(least, most)))


@needs_cpp
@examples(120)
@given(program=programs())
def test_generated_programs(cpp: CppPartitioner, program: Program) -> None:
    found = difference(cpp, program)
    assert found is None, found


@needs_cpp
@examples(20)
@given(program=programs(), first=st.integers(0, 20), second=st.integers(0, 20), relabel=st.booleans())
def test_generated_merge_rules(cpp: CppPartitioner, program: Program, first: int, second: int, relabel: bool) -> None:
    infos = _fragments(program)
    if not infos:
        return
    a = infos[first % len(infos)]
    same_mesh = [i for i in infos if i.mesh_name == a.mesh_name]
    b = same_mesh[second % len(same_mesh)]
    target = FragmentInfo((("merged", 0),), None, a.call_counter, None, a.mesh_name) if relabel else a
    program.arguments["fragment_merge_rules"] = [MergeRule((a, b), target)]
    found = difference(cpp, program)
    assert found is None, found


@needs_cpp
@examples(10)
@given(
    layers=st.integers(1, 4),
    kind=st.sampled_from(["step", "tied", "forward"]),
    meshes=st.integers(1, 4),
    options=st.fixed_dictionaries({}, optional={name: st.just(True) for name in HONOURED}),
    schedule=st.sampled_from(SCHEDULES),
    donated=st.sets(st.integers(0, 1)),
)
def test_generated_traces(
    cpp: CppPartitioner, layers: int, kind: str, meshes: int, options: dict[str, Any], schedule: str, donated: set[int]
) -> None:
    text, inputs, outputs = step_text(layers, forward_only=kind == "forward", tied=kind == "tied")
    chosen = {"mpmd_infer_transfers": True, "mpmd_pipeline_schedule": schedule, **options}
    arguments: dict[str, Any] = {
        **step_arguments(inputs, outputs, layers, meshes),
        "donate_argnums": sorted(donated),
        "partitioning_options": chosen,
    }
    found = difference(cpp, Program(text, arguments))
    assert found is None, found


@pytest.mark.filterwarnings("ignore:.* it degenerates:UserWarning")  # programs have few microbatches
@examples(25)
@given(program=programs(), options=st.sets(st.sampled_from(IGNORED), min_size=1), order=st.randoms())
def test_what_the_reference_ignores_keeps_the_meaning(program: Program, options: set[str], order: Any) -> None:
    program.arguments["partitioning_options"].update(dict.fromkeys(options, True))
    infos = _fragments(program)
    order.shuffle(infos)
    if infos and order.random() < 0.5:
        chosen = tuple(i for i in infos if i.mesh_name == infos[0].mesh_name)
        program.arguments["fragment_schedule_rules"] = [ScheduleRule(chosen)]
    text = ours(program).texts.get("all")
    if text is not None:
        assert_same_meaning(parse(program.text), parse(text), rtol=1e-4)


def _fragments(program: Program) -> list[FragmentInfo]:
    """What each user fragment of the imported program is; empty when the program is refused."""
    text = ours(program).texts.get("import")
    if text is None:
        return []
    found = dict.fromkeys(FragmentInfo.of(op) for op in parse(text).walk() if isinstance(op, FragmentOp) and op.origin)
    return list(found)


def test_every_option_is_generated() -> None:
    fields = [f for f in dataclasses.fields(CompileOptions) if f.name.startswith("mpmd_")]
    switches = {f.name for f in fields if "bool" in str(f.type)}
    assert switches == {"mpmd_infer_transfers", *HONOURED, *IGNORED}


@needs_cpp
def test_an_abort_loses_one_program_only(cpp: CppPartitioner) -> None:
    text, inputs, outputs = step_text(1)
    arguments = step_arguments(inputs, outputs, layers=1, meshes=1)
    request = PartitionRequest.of(**arguments)
    bad = cpp.partition(text, refused_by_cpp(request))
    assert bad.stopped and bad.error is not None and re.search("status -6.*nonsense", bad.error)
    refused = cpp.partition(text.replace("stablehlo.tanh", "stablehlo.nothing"), request)
    assert not refused.stopped and refused.error is not None and "says" in refused.error
    good = cpp.partition(text, request, phases=PHASES)
    assert good.error is None and list(good.texts) == list(PHASES)
    whole = cpp.partition(text, request)
    assert whole.texts == {"all": good.texts["all"]}
    mine = partition(text, **arguments)
    assert (good.input_specs, good.output_specs) == (mine.input_specs, mine.output_specs)
