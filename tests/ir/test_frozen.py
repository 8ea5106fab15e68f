"""No way to change a body that fragments share, and a pass that finds one is named."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import ClassVar

import pytest

from mpmd_trace.diagnostics.location import UNKNOWN
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir import bodies
from mpmd_trace.ir.attributes import UNIT, StringAttr
from mpmd_trace.ir.bodies import dce, fingerprint, map_ops
from mpmd_trace.ir.core import Block, Op, Region, Use, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.frozen import FrozenBodyError
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import parse_type
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.dedup_bodies import share_equal_bodies
from mpmd_trace.passes.manager import PassManager

FRAGMENT = """
  %{to} = mpmd.fragment<mesh="m", origin=["f"]> (%{of}) (%x: tensor<4xf32>) {{
    %c = stablehlo.constant {{note = "kept"}} dense<1.0> : tensor<4xf32>
    %i = stablehlo.constant dense<0> : tensor<i32>
    %t = "stablehlo.case"(%i) ({{
      %n = stablehlo.negate %x : tensor<4xf32>
      stablehlo.return %n : tensor<4xf32>
    }}) : (tensor<i32>) -> tensor<4xf32>
    %s = stablehlo.add %t, %c : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  }} : (!m) -> !m"""
PROGRAM = f"""
!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
func.func @main(%v0: !m) -> !m attributes {{topology = #mpmd.topology<<"m" : <["x"=2]>>>}} {{
{FRAGMENT.format(of="v0", to="v1")}
{FRAGMENT.format(of="v1", to="v2")}
  return %v2 : !m
}}"""

OTHER = parse_type("tensor<f64>")


class Parts:
    """The parts of a body that two fragments share."""

    def __init__(self) -> None:
        self.module = parse(PROGRAM)
        share_equal_bodies(self.module.functions)
        self.fragments = [op for op in self.module.main.body if isinstance(op, FragmentOp)]
        self.body = self.fragments[0].body
        assert self.body is self.fragments[1].body
        self.block = self.body.block
        self.constant, _, self.case, self.add, _ = self.block.ops
        self.arg = self.block.args[0]
        self.inner = self.case.regions[0].block
        self.use: Use = self.add.operand_uses[0]
        self.free = Block([parse_type("tensor<4xf32>")]).args[0]
        self.new = make_op("stablehlo.constant", [], [OTHER])


def _set(target: object, name: str, value: object) -> None:
    setattr(target, name, value)


WAYS: list[Callable[[Parts], object]] = [
    # Attributes, in every way a dictionary offers.
    lambda p: p.constant.attrs.__setitem__("new", UNIT),
    lambda p: p.add.attrs.__setitem__("new", UNIT),
    lambda p: p.constant.props.__setitem__("value", UNIT),
    lambda p: p.constant.attrs.pop("note"),
    lambda p: p.constant.attrs.__delitem__("note"),
    lambda p: p.constant.attrs.clear(),
    lambda p: p.constant.attrs.popitem(),
    lambda p: p.constant.attrs.update(new=UNIT),
    lambda p: p.constant.attrs.setdefault("new", UNIT),
    lambda p: _set(p.constant, "attrs", {}),
    lambda p: _set(p.constant, "props", {}),
    # The op itself.
    lambda p: _set(p.add, "name", "stablehlo.subtract"),
    lambda p: _set(p.add, "loc", UNKNOWN),
    lambda p: _set(p.add, "results", []),
    lambda p: _set(p.add, "regions", []),
    lambda p: p.add.results.pop(),
    lambda p: p.case.regions.clear(),
    lambda p: p.case.regions.__setitem__(0, Region([Block()])),
    lambda p: p.add.regions.append(Region()),
    lambda p: _set(p.add, "successors", (Block(),)),
    lambda p: p.add.erase(),
    lambda p: p.block.terminator.erase(),
    lambda p: p.add.drop_all_references(),
    lambda p: p.add.move_before(p.constant),
    lambda p: p.constant.move_after(p.add),
    # Operands and uses.
    lambda p: p.add.set_operand(0, p.free),
    lambda p: p.add.set_operands([p.free, p.free]),
    lambda p: p.add.append_operands([p.free]),
    lambda p: p.add.erase_operands([0]),
    lambda p: p.add.take_operand_uses([], 0),
    lambda p: p.use.set(p.free),
    lambda p: p.use.set(p.arg),
    lambda p: _set(p.use, "value", p.free),
    lambda p: _set(p.use, "index", 1),
    lambda p: p.case.result.replace_all_uses_with(p.free),
    lambda p: p.case.replace_all_uses_with([p.free]),
    lambda p: p.arg.replace_all_uses_with(p.free),
    lambda p: p.case.result.replace_uses_if(p.free, lambda use: True),
    lambda p: p.constant.result.reverse_uses(),
    lambda p: p.free.replace_all_uses_with(p.arg) if make_op("x", [p.free]) else None,
    lambda p: make_op("stablehlo.negate", [p.arg], [OTHER]),
    # Types and arguments.
    lambda p: _set(p.add.result, "type", OTHER),
    lambda p: _set(p.arg, "type", OTHER),
    lambda p: _set(p.arg, "loc", UNKNOWN),
    lambda p: p.block.add_arg(OTHER),
    lambda p: p.block.erase_args([]),
    lambda p: p.block.args.append(p.free),
    lambda p: _set(p.block, "args", []),
    # The lists of ops and blocks, also those of the regions inside.
    lambda p: p.block.append(p.new),
    lambda p: p.block.append_all([p.new]),
    lambda p: p.block.insert_front(p.new),
    lambda p: p.block.insert_before(p.add, p.new),
    lambda p: p.block.insert_after(p.add, p.new),
    lambda p: p.block.insert_all_before(p.add, [p.new]),
    lambda p: p.block.reorder(reversed(p.block.ops)),
    lambda p: p.inner.append(p.new),
    lambda p: p.inner.add_arg(OTHER),
    lambda p: p.inner.ops[0].erase(),
    lambda p: p.inner.ops[0].attrs.__setitem__("new", UNIT),
    lambda p: p.body.add_block(Block()),
    lambda p: p.body.blocks.append(Block()),
    lambda p: p.case.regions[0].add_block(Block()),
    lambda p: _set(p.body, "blocks", []),
    lambda p: _set(p.body, "frozen", False),
    lambda p: _set(p.block, "frozen", False),
    # Taking a part of it away.
    lambda p: Block().append(p.add),
    lambda p: Block().append_all([p.add]),
    lambda p: p.block.also([make_op("op")]).__enter__(),
    lambda p: Op("op", regions=p.case.regions),
]


@pytest.mark.parametrize("number", range(len(WAYS)))
def test_every_way_to_change_a_body_is_refused(number: int) -> None:
    parts = Parts()
    before = bodies.print_region(parts.body)
    uses = {value: value.uses for value in (parts.arg, parts.constant.result, parts.case.result)}
    with pytest.raises(FrozenBodyError, match="frozen body") as error:
        WAYS[number](parts)
    for helper in ("map_ops", "dce", "BodyBuilder"):  # what to do instead, by names that exist
        assert helper in str(error.value) and hasattr(bodies, helper)
    assert bodies.print_region(parts.body) == before == fingerprint(parts.body)
    assert uses == {value: value.uses for value in uses}
    assert not verify(parts.module)


def test_no_method_of_the_nodes_is_forgotten() -> None:
    tried = "".join(inspect.getsource(way) for way in WAYS)
    reading = {
        "clone",
        "walk",
        "freeze",
        "operand",
        "attr",
        "is_before",
        "ancestor_in",
        "is_only_used_by",
        "check_mutable",
    }
    for cls in (Op, Block, Region, Value, Use):
        for name, _ in inspect.getmembers(cls, inspect.isfunction):
            assert name.startswith("_") or name in reading or f".{name}(" in tried, f"{cls.__name__}.{name}"


def test_a_copy_can_change() -> None:
    parts = Parts()

    def negate(region: Region) -> bool:
        add = next(op for op in region.block if op.name == "stablehlo.add")
        constant = add.operand(1).defining_op
        assert constant is not None and type(constant) is Op
        del constant.attrs["note"]
        add.set_operand(0, region.block.args[0])
        add.name = "stablehlo.subtract"
        region.block.add_arg(OTHER)
        return True

    other = map_ops(parts.body, "test", negate)
    assert other is map_ops(parts.body, "test", negate) is not parts.body
    assert "subtract" in fingerprint(other) and "note" not in fingerprint(other)
    assert "subtract" not in fingerprint(parts.body) and "note" in fingerprint(parts.body)
    assert [op.name for op in dce(other).walk()] == ["stablehlo.constant", "stablehlo.subtract", "mpmd.return"]
    assert isinstance(parts.add, Op) and parts.constant.is_before(parts.add)
    seen: list[Region] = []
    assert map_ops(parts.body, "none", lambda copy: bool(seen.append(copy)), only=lambda op: False) is parts.body
    assert not seen
    map_ops(parts.body, "some", lambda copy: bool(seen.append(copy)), only=lambda op: op.name == "stablehlo.constant")
    assert len(seen) == 1


def test_what_refers_ahead_is_copied_without_touching_the_original() -> None:
    later = parse_type("tensor<4xf32>")
    block = Block()
    holder = make_op("graph.holder", [], [], regions=[Region([block])])
    producer = make_op("graph.producer", [], [later, later])
    user = make_op("graph.user", [producer.results[1], producer.results[0], producer.results[1]])
    block.append_all([user, producer])
    around = Block()
    around.append_all([holder, make_op("mpmd.return")])
    body = freeze(Region([around]))
    copy = body.clone()
    first, second = copy.block.ops[0].regions[0].block.ops
    assert first.operands == [second.results[1], second.results[0], second.results[1]]
    assert [use.owner for use in producer.results[1].uses] == [user, user]
    assert fingerprint(copy) == fingerprint(body)


@dataclasses.dataclass(frozen=True)
class _Cheats(Pass):
    """Changes the body that both fragments share behind the back of the guard."""

    name: ClassVar[str] = "cheats"
    summary: ClassVar[str] = "changes a frozen body"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        fragment = next(op for op in module.main.body if isinstance(op, FragmentOp))
        constant = next(op for op in fragment.body.walk() if "note" in op.attrs)
        dict.__setitem__(constant.attrs, "note", StringAttr.get("changed"))
        return False


def test_a_pass_that_cheats_is_named() -> None:
    PassManager([_Cheats()]).run(Parts().module)
    with pytest.raises(MpmdError, match=r"cheats changed 1 of the 1 bodies .*map_ops in mpmd_trace\.ir") as error:
        PassManager([_Cheats()], verify=True).run(Parts().module)
    assert error.value.pass_name == "cheats"
