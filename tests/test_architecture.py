"""Which part of the package may import which, read from the sources."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpmd_trace
import mpmd_trace_cli

ROOT = Path(mpmd_trace.__file__).parent
COMMAND_LINE = Path(mpmd_trace_cli.__file__).parent
PACKAGE = "mpmd_trace"

#: From bottom to top: a part imports from its own and from lower layers.
LAYERS = [
    {"diagnostics"},
    {"jax_compat"},
    {"ir"},
    {"schedules"},
    {"frontend", "passes"},
    {"scheduling"},
    {"backend"},
    {"api"},
    {"equinox", "report"},
    {"cli", "__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
#: Arrows that the layers would allow and the design forbids.
FORBIDDEN = {
    ("frontend", "passes"),
    ("passes", "frontend"),
    ("backend", "frontend"),
    ("backend", "schedules"),
    ("backend", "scheduling"),
}
#: The only part that knows JAX's internals.
INTERNAL = ("jax._src", "jax.interpreters", "jax.extend", "jaxlib")


def _modules() -> Iterator[tuple[str, str, Path]]:
    """(part, dotted name, file) of every module of the package and of the command line."""
    for root, name in ((ROOT, PACKAGE), (COMMAND_LINE, "mpmd_trace_cli")):
        for file in sorted(root.rglob("*.py")):
            names = [name, *file.relative_to(root).with_suffix("").parts]
            if names[-1] == "__init__":
                names.pop()
            part = "cli" if root is COMMAND_LINE else names[1] if len(names) > 1 else None
            if part is not None:
                yield part, ".".join(names), file


@functools.cache
def _imports(name: str, file: Path) -> tuple[tuple[str, int, bool], ...]:
    """(imported module, line, only for types) for each import in a file, also inside of functions."""
    return tuple(_found_imports(name, file))


def _found_imports(name: str, file: Path) -> Iterator[tuple[str, int, bool]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for_types: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_types.update(inner for child in node.body for inner in ast.walk(child))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, node in for_types
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno, node in for_types


def _part_of(imported: str) -> str | None:
    names = imported.split(".")
    if names[0] == "mpmd_trace_cli":
        return "cli"
    return names[1] if names[0] == PACKAGE and len(names) > 1 and names[1] in LEVEL else None


def test_every_part_has_a_layer() -> None:
    assert {part for part, _, _ in _modules()} <= LEVEL.keys()


def test_imports_point_down() -> None:
    wrong = []
    for part, name, file in _modules():
        for imported, line, only_types in _imports(name, file):
            target = _part_of(imported)
            if target is None or only_types:
                continue
            if LEVEL[target] > LEVEL[part] or (part, target) in FORBIDDEN:
                wrong.append(f"{name}:{line}: {part} imports {target} ({imported})")
    assert not wrong, "\n".join(wrong)


def test_schedules_stand_alone() -> None:
    wrong = []
    for part, name, file in _modules():
        for imported, line, _ in _imports(name, file) if part == "schedules" else ():
            top = imported.split(".")[0]
            if top in ("jax", "jaxlib", "equinox") or _part_of(imported) not in (None, "schedules"):
                wrong.append(f"{name}:{line}: {imported}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("internal", INTERNAL)
def test_only_jax_compat_touches_internals(internal: str) -> None:
    wrong = [
        f"{name}:{line}: {imported}"
        for part, name, file in _modules()
        if part != "jax_compat"
        for imported, line, _ in _imports(name, file)
        if f"{imported}.".startswith(f"{internal}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_public_name_is_that_of_a_submodule() -> None:
    # Importing a submodule sets the package's attribute of its name, and would hide the function.
    submodules = {path.stem for path in ROOT.iterdir()}
    public = set(mpmd_trace.__all__) - {"equinox", "schedules"}
    assert not public & submodules
