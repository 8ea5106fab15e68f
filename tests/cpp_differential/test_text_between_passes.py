"""All that passes hand on is in the text: printing and reading a program between two of them changes nothing."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import ClassVar

import pytest
from generated_programs import IGNORED, Program
from hypothesis import given
from hypothesis import strategies as st
from test_generated import examples, programs

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import parse_sharding_body
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.text import read_module
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import Pass, Pipeline
from mpmd_trace.passes.manager import PassManager
from mpmd_trace.passes.pipelines import passes_of
from mpmd_trace.passes.request import PartitionRequest

PROPAGATION = "mpmd-shardy-propagation"


@dataclasses.dataclass(frozen=True)
class ShardArguments(Pass):
    """Arguments have these shardings of their first dimensions, as a user might have given them."""

    name: ClassVar[str] = "shard-arguments"
    summary: ClassVar[str] = "give arguments shardings"

    dimensions: tuple[str | None, ...] = ()

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        main = module.main
        for arg, first in zip(main.args, self.dimensions, strict=False):
            if first is not None and isinstance(arg.type, MeshTensorType) and arg.type.tensor.rank:
                dims = ", ".join([first, *["{}"] * (arg.type.tensor.rank - 1)])
                main.set_arg_attr(arg.index, "sdy.sharding", parse_sharding_body(f"<@mesh, [{dims}]>"))
        return True


def steps(passes: Iterable[Pass]) -> Iterator[Pass]:
    for one in passes:
        if isinstance(one, Pipeline):
            yield from steps(one.passes())
        else:
            yield one


def run(module: Module, one: Pass) -> str:
    PassManager([one], error_is_failure=False).run(module)
    return module.to_generic()


@pytest.mark.filterwarnings("ignore:.* it degenerates:UserWarning")  # programs have few microbatches
@examples(10)
@given(
    program=programs(),
    dimensions=st.lists(st.sampled_from([None, '{"x"}', "{}", "{?}", '{"x", ?}']), max_size=6),
    propagate=st.booleans(),
    ours=st.sets(st.sampled_from(IGNORED), max_size=3),
    data=st.data(),
)
def test_a_pass_can_read_what_the_one_before_printed(
    program: Program, dimensions: list[str | None], propagate: bool, ours: set[str], data: st.DataObject
) -> None:
    options = program.arguments["partitioning_options"] | dict.fromkeys(ours, True)
    request = PartitionRequest.of(**program.arguments | {"partitioning_options": options})
    importing, optimizing, sharding, exporting = passes_of(request)
    sharding = [one for one in sharding if propagate or one.name != PROPAGATION]
    passes = list(steps([*importing, *optimizing, ShardArguments(tuple(dimensions)), *sharding, *exporting]))
    try:
        module = read_module(program.text)
    except MpmdError:  # not every generated program is one
        return
    module.main.attrs["topology"] = request.topology
    texts = [module.to_generic()]
    for one in passes:
        # A copy and what is read have the uses of a value in one order, which MLIR's text does not tell either.
        copy, again = module.clone(), parse_generic(texts[-1])
        assert again.to_generic() == texts[-1]
        try:
            texts.append(run(module, one))
        except MpmdError:  # the program is refused: so far it must be the same
            break
        assert_same(run(again, one), run(copy, one), one.name)
    prefix = data.draw(st.integers(0, len(texts) - 1))
    again, rest = parse_generic(texts[prefix]), passes[prefix : len(texts) - 1]
    for one in rest:
        run(again, one)
    assert_same(again.to_generic(), texts[-1], f"what follows the first {prefix} passes")


def assert_same(found: str, wanted: str, what: str) -> None:
    lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "straight", "from text", lineterm="", n=1)
    assert found == wanted, f"{what} gives something else:\n" + "\n".join(list(lines)[:40])
