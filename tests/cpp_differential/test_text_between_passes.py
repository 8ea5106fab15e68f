"""All that passes hand on is in the text: printing and reading a program between two of them changes nothing."""

from __future__ import annotations

import dataclasses
import difflib
import random
from collections.abc import Iterable, Iterator
from typing import ClassVar

import pytest

from fuzz.programs import HONORED, SWITCHES
from fuzz.traced import traced_programs
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
from util import nightly

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


SHARDINGS = (None, '{"data"}', "{}", "{?}", '{"data", ?}')


@pytest.mark.filterwarnings("ignore:.* it degenerates:UserWarning")  # programs have few microbatches
@pytest.mark.parametrize("seed", [200, 201, *map(nightly, (202, 203))])
def test_a_pass_can_read_what_the_one_before_printed(seed: int) -> None:
    rng = random.Random(seed)
    for program in traced_programs([seed]):
        ours = [name for name in SWITCHES if name not in HONORED]
        request = program.request.with_options(**dict.fromkeys(rng.sample(ours, rng.randint(0, 3)), True))
        importing, optimizing, sharding, exporting = passes_of(request)
        sharding = [one for one in sharding if rng.random() < 0.5 or one.name != PROPAGATION]
        shard = ShardArguments(tuple(rng.choice(SHARDINGS) for _ in range(6)))
        check(program.text, request, list(steps([*importing, *optimizing, shard, *sharding, *exporting])), rng)


def check(text: str, request: PartitionRequest, passes: list[Pass], rng: random.Random) -> None:
    module = read_module(text)
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
    prefix = rng.randrange(len(texts))
    again, rest = parse_generic(texts[prefix]), passes[prefix : len(texts) - 1]
    for one in rest:
        run(again, one)
    assert_same(again.to_generic(), texts[-1], f"what follows the first {prefix} passes")


def assert_same(found: str, wanted: str, what: str) -> None:
    lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "straight", "from text", lineterm="", n=1)
    assert found == wanted, f"{what} gives something else:\n" + "\n".join(list(lines)[:40])
