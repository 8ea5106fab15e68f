"""`cases/**/*.mlir`: what passes make of programs.

A file begins with the passes that run and the aliases of its programs.  Each case is

    // ----- what is shown
    // passes: others than those of the file
    the program
    // =>
    the program afterwards, as MLIR prints it; without `// =>`, nothing changes

or ends with `// error: ` and words of the only error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from util import check, diagnostics

FOLDER = Path(__file__).with_name("cases")
PASSES = re.compile(r"^// passes: (.*)\n", re.M)
ALIAS = re.compile(r"^[!#].*\n", re.M)
ERROR = re.compile(r"^// error: (.*)\n", re.M)


def cases() -> Iterator[Any]:
    for path in sorted(FOLDER.rglob("*.mlir")):
        head, *blocks = path.read_text().split("// ----- ")
        for block in blocks:
            title, text = block.split("\n", 1)
            yield pytest.param(head, text, id=f"{path.stem}: {title}")


@pytest.mark.parametrize(("head", "text"), list(cases()))
def test_what_passes_do(head: str, text: str) -> None:
    passes = PASSES.search(text) or PASSES.search(head)
    assert passes is not None
    aliases = head + "".join(ALIAS.findall(text))
    before, arrow, after = ALIAS.sub("", text).partition("// =>\n")
    if error := ERROR.search(text):
        ok, found = diagnostics(before, passes[1], aliases)
        assert not ok and [error[1] in d.message for d in found] == [True], found
    else:
        check(before, passes[1], after if arrow else before, aliases)
