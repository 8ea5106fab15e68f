"""Generated steps: our partitioner gives the module of the C++ one, op for op, at each phase.

Some hundred programs run with the suite, the same ones every time.  For thousands of new ones:

    make fuzz FUZZ_ARGS="--oracles cpp"
"""

from __future__ import annotations

import dataclasses
import random
import re

import jax
import pytest
from comparison import PHASES, difference, ours

from fuzz.programs import HONORED, SWITCHES
from fuzz.traced import Traced, traced_programs
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.cpp_engine import CppPartitioner, available
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule
from mpmd_trace.passes.partition import partition
from mpmd_trace.passes.request import PartitionRequest
from test_against_cpp import refused_by_cpp, step_arguments, step_text

needs_cpp = pytest.mark.skipif(
    not available() or jax.__version_info__ < (0, 12),
    reason="the reference is the C++ partitioner inside jaxlib 0.12 or newer; older ones simplify otherwise",
)


@needs_cpp
@pytest.mark.parametrize("part", range(4))
def test_generated_programs(cpp: CppPartitioner, part: int) -> None:
    for number, program in enumerate(traced_programs(range(part, 32, 4))):
        if number % 6 == 5:  # what is on two meshes is an error
            request = program.request.with_options(mpmd_infer_transfers=False)
            program = dataclasses.replace(program, request=request)
        found = difference(cpp, program)
        assert found is None, f"{found}\n\n{program.source}"


@needs_cpp
def test_generated_merge_rules(cpp: CppPartitioner) -> None:
    applied = 0
    for number, program in enumerate(traced_programs(range(100, 106))):
        infos = _fragments(program)
        if not infos:
            continue
        rng = random.Random(number)
        a = rng.choice(infos)
        b = rng.choice([i for i in infos if i.mesh_name == a.mesh_name])
        target = FragmentInfo((("merged", 0),), None, a.call_counter, None, a.mesh_name) if number % 2 else a
        rules = (MergeRule((a, b), target),)
        program = dataclasses.replace(program, request=dataclasses.replace(program.request, merge_rules=rules))
        found = difference(cpp, program)
        assert found is None, f"{found}\n\n{rules}\n\n{program.source}"
        applied += a != b
    assert applied > 3


def _fragments(program: Traced) -> list[FragmentInfo]:
    """What each user fragment of the imported program is; empty when the program is refused."""
    text = ours(program).texts.get("import")
    if text is None:
        return []
    return list(
        dict.fromkeys(FragmentInfo.of(op) for op in parse(text).walk() if isinstance(op, FragmentOp) and op.origin)
    )


def test_every_option_is_generated() -> None:
    fields = [f for f in dataclasses.fields(CompileOptions) if f.name.startswith("mpmd_")]
    switches = {f.name for f in fields if "bool" in str(f.type)}
    assert switches == {"mpmd_infer_transfers", *SWITCHES}
    assert set(HONORED) < set(SWITCHES)


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
