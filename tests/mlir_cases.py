"""The cases in `passes/cases/**/*.mlir`; `passes/test_cases.py` says how they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "passes" / "cases"
PASSES = re.compile(r"^// passes: (.*)\n", re.M)
ALIAS = re.compile(r"^[!#].*\n", re.M)


class Case(NamedTuple):
    """A program, what its aliases stand for, and what pipelines make of it."""

    title: str
    pipelines: list[str]
    aliases: str
    before: str
    #: The program afterwards, or nothing where it stays as it is.
    after: str
    #: All of the text, for what else it says.
    text: str


def cases() -> Iterator[Case]:
    for path in sorted(FOLDER.rglob("*.mlir")):
        head, *blocks = path.read_text().split("// ----- ")
        for block in blocks:
            title, text = block.split("\n", 1)
            before, _, after = ALIAS.sub("", text).partition("// =>\n")
            aliases = head + "".join(ALIAS.findall(text))
            pipelines = PASSES.findall(text) or PASSES.findall(head)
            yield Case(f"{path.stem}: {title}", pipelines, aliases, before, after, text)
