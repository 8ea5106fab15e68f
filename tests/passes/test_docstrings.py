"""The programs in the docstrings of passes: each becomes what stands behind it, or is refused in these words."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import NamedTuple

import pytest

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager
from mpmd_trace.passes.pass_table import PASSES
from mpmd_trace.passes.registry import pass_class
from util import check

#: As docs/rewriting.md says.
PRELUDE = """
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>
"""
_BLOCK = r"\n\n((?: {4}.*\n|\n)+)"
_WITH = r"(?:, with (\{[\s\S]*?\}))?"
_REWRITTEN = re.compile(rf"^Before{_WITH}:{_BLOCK}After:{_BLOCK}", re.M)
_REFUSED = re.compile(rf"^Refused{_WITH}:{_BLOCK}Says: ((?:.+\n)+)", re.M)


class Example(NamedTuple):
    options: str
    before: str
    after: str


def whole(text: str) -> str:
    """The module of an example, which may be the body of a function."""
    text = textwrap.dedent(text)
    if "func.func" in text:
        return text
    returned = re.search(r"^return .* : (.*)$", text, re.M)
    assert returned is not None, text
    signature = f"(%p: !a, %q: !b, %x: !t) -> ({returned.group(1)}) attributes {{topology = #meshes}}"
    return f"func.func public @main{signature} {{\n{text}\n}}"


def docstring(name: str) -> str:
    cls = pass_class(name)
    assert cls is not None
    return (inspect.getdoc(cls) or "") + "\n"


def examples(pattern: re.Pattern[str], name: str) -> list[Example]:
    # A long list of options is on several lines.
    return [Example(re.sub(r"\n *", "", m[1] or ""), m[2], m[3]) for m in pattern.finditer(docstring(name))]


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_shows_what_it_does(name: str) -> None:
    assert examples(_REWRITTEN, name) or examples(_REFUSED, name)


@pytest.mark.parametrize("name", [name for name in PASSES if examples(_REWRITTEN, name)])
def test_rewritten(name: str) -> None:
    for example in examples(_REWRITTEN, name):
        check(whole(example.before), name + example.options, whole(example.after), PRELUDE)


@pytest.mark.parametrize("name", [name for name in PASSES if examples(_REFUSED, name)])
def test_refused(name: str) -> None:
    for example in examples(_REFUSED, name):
        manager = PassManager(name + example.options, error_is_failure=False)
        try:
            manager.run(parse(PRELUDE + whole(example.before)))
            said = [d.message for d in manager.diagnostics]
        except MpmdError as error:
            said = [d.message for d in error.diagnostics]
        wanted = re.escape(" ".join(example.after.split())).replace(r"\.\.\.", ".*")
        assert any(re.fullmatch(wanted, " ".join(message.split())) for message in said), said
