"""`cases/**/*.mlir`: what passes make of programs.

A file begins with the passes that run and the aliases of its programs.  Each case is

    // ----- what is shown
    // passes: others than those of the file; several such lines are several pipelines that do the same
    the program
    // =>
    the program afterwards, as MLIR prints it; without `// =>`, nothing changes

or ends with what else holds, in any order:

    // error: words of an error ... further words of it
    // error, but no failure: the same of an error with which the passes succeed
    // warning: the same of a warning; a line for each message, in their order
    // fine; there is no message
    // CHECK: part of the program afterwards
    // CHECK-NOT: what is no part of it
    // CHECK-COUNT-2: what is part of it as often
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from util import check, diagnostics, run

FOLDER = Path(__file__).with_name("cases")
PASSES = re.compile(r"^// passes: (.*)\n", re.M)
ALIAS = re.compile(r"^[!#].*\n", re.M)
MESSAGE = re.compile(r"^// (error|warning)(, but no failure)?: (.*)\n", re.M)
FINE = re.compile(r"^// fine\n", re.M)
CHECK = re.compile(r"^// CHECK(-NOT|-COUNT-(\d+))?: (.*)\n", re.M)


def cases() -> Iterator[Any]:
    for path in sorted(FOLDER.rglob("*.mlir")):
        head, *blocks = path.read_text().split("// ----- ")
        for block in blocks:
            title, text = block.split("\n", 1)
            for passes in PASSES.findall(text) or PASSES.findall(head):
                aliases = head + "".join(ALIAS.findall(text))
                yield pytest.param(passes, aliases, ALIAS.sub("", text), id=f"{path.stem}: {title}")


@pytest.mark.parametrize(("passes", "aliases", "text"), list(cases()))
def test_what_passes_do(passes: str, aliases: str, text: str) -> None:
    before, arrow, after = text.partition("// =>\n")
    if messages := MESSAGE.findall(text):
        ok, said = diagnostics(before, passes, aliases)
        assert [d.severity for d in said] == [severity for severity, _, _ in messages], said
        assert ok == all(harmless or severity == "warning" for severity, harmless, _ in messages)
        for (_, _, words), diagnostic in zip(messages, said, strict=True):
            assert re.search(".*".join(map(re.escape, words.split(" ... "))), diagnostic.message, re.DOTALL), diagnostic
    elif FINE.search(text):
        assert diagnostics(before, passes, aliases) == (True, [])
    elif parts := CHECK.findall(text):
        printed = str(run(before, passes, aliases))
        for kind, count, part in parts:
            found = printed.count(part)
            assert found == int(count) if count else bool(found) == (not kind), f"{part!r} is there {found} times"
    else:
        check(before, passes, after if arrow else before, aliases)
