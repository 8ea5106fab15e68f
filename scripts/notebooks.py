"""Runs the notebooks of the docs site and writes them as pages, each cell with what it printed and what it is.

    python scripts/notebooks.py NOTEBOOK...     prints {name: page} as JSON

All run in one process, one after the other, as Python runs them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def pages(notebooks: Sequence[Path]) -> dict[str, str]:
    """The page of each notebook, by its name.  Raises `RuntimeError` with the cell that raised, and what."""
    done = subprocess.run([sys.executable, __file__, *map(str, notebooks)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"a notebook does not run:\n{done.stderr}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def page(path: Path) -> str:
    """The notebook as markdown, executed."""
    space: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        try:
            shown = run(source, space, f"{path.name}, cell {number}")
        except Exception as error:
            error.add_note(f"in cell {number} of {path}:\n{source}")
            raise
        parts += [f"```python\n{source}\n```", *shown]
    parts.append(f'<small markdown="span">As a notebook: [{path.name}]({path.name})</small>')
    return "\n\n".join(parts) + "\n"


def run(source: str, space: dict[str, Any], name: str) -> list[str]:
    """What a cell shows: its text, and its last expression, as a picture if it has one."""
    body = ast.parse(source, name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), name, "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
    shown = [_text(printed.getvalue())] if printed.getvalue() else []
    if hasattr(value, "_repr_svg_"):
        return [*shown, f'<div style="overflow-x: auto">\n{value._repr_svg_()}</div>']
    return shown if value is None else [*shown, _text(repr(value))]


def _text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


if __name__ == "__main__":
    print(json.dumps({Path(one).stem: page(Path(one)) for one in sys.argv[1:]}))
