"""Which part of the package may import which, read from the sources."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import mpmd_trace
import mpmd_trace_cli
import mpmd_trace_devtools
from util import statements

ROOT = Path(mpmd_trace.__file__).parent
PACKAGE = "mpmd_trace"
#: Packages beside it, which are a part each.
BESIDE = {"mpmd_trace_cli": "cli", "mpmd_trace_devtools": "devtools"}


def _table() -> dict[str, frozenset[str]]:
    """Which parts each part may import, as the table of docs/architecture.md says."""
    text = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    found: dict[str, frozenset[str]] = {}
    for rooms, below in re.findall(r"^\| (`.*?) \| .* \| (.*) \|$", text, re.M):
        named = re.findall(r"`(\w+)`", below)
        if below.endswith("and below"):
            may = frozenset(named).union(*(found[part] for part in named))
        else:
            may = {"nothing of the package": frozenset(), "all above": frozenset(found)}[below]
        parts = re.findall(r"`(?:\.\./)*(\w+)(?:/|\.py)`", rooms)
        found |= {part: may | set(parts) for part in parts}
    return found


MAY_IMPORT = _table()
#: The only part that knows JAX's internals.
INTERNAL = ("jax._src", "jax.interpreters", "jax.extend", "jaxlib")


def _modules() -> Iterator[tuple[str, str, Path]]:
    """(part, dotted name, file) of every module of the package and of those beside it."""
    for package in (mpmd_trace, mpmd_trace_cli, mpmd_trace_devtools):
        root, name = Path(package.__file__ or "").parent, package.__name__
        for file in sorted(root.rglob("*.py")):
            names = [name, *file.relative_to(root).with_suffix("").parts]
            if names[-1] == "__init__":
                names.pop()
            part = BESIDE.get(name, names[1] if len(names) > 1 else None)
            if part is not None:
                yield part, ".".join(names), file


@functools.cache
def _imports(name: str, file: Path) -> tuple[tuple[str, int], ...]:
    """(imported module, line) for each import in a file, also inside of functions or for types only."""
    return tuple(_found_imports(name, file))


@functools.cache
def _nodes(file: Path) -> tuple[ast.stmt, ...]:
    return tuple(statements(ast.parse(file.read_text(encoding="utf-8"))))


def _found_imports(name: str, file: Path) -> Iterator[tuple[str, int]]:
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno


def _part_of(imported: str) -> str | None:
    names = imported.split(".")
    if names[0] in BESIDE:
        return BESIDE[names[0]]
    return names[1] if names[0] == PACKAGE and len(names) > 1 and names[1] in MAY_IMPORT else None


def test_the_table_names_every_part() -> None:
    assert {part for part, _, _ in _modules()} == MAY_IMPORT.keys()


def test_imports_are_those_of_the_table() -> None:
    wrong = []
    for part, name, file in _modules():
        for imported, line in _imports(name, file):
            target = _part_of(imported)
            if target is not None and target not in MAY_IMPORT[part]:
                wrong.append(f"{name}:{line}: {part} imports {target} ({imported})")
    assert not wrong, "\n".join(wrong)


#: Where passes of the reference are, and what it does not have.
REFERENCE = ("import_", "common", "optimize", "sharding", "export")
OURS = (
    "placement",
    "fission",
    "microbatches",
    "programs",
    "propagation",
    "hoisting",
    "memory",
    "variants",
    "pipelines",
)


def test_passes_of_the_reference_import_nothing_of_ours() -> None:
    wrong = []
    for _, name, file in _modules():
        for imported, line in _imports(name, file) if name.startswith(f"{PACKAGE}.passes.") else ():
            if name.split(".")[2] in REFERENCE and imported.removeprefix(f"{PACKAGE}.passes.").split(".")[0] in OURS:
                wrong.append(f"{name}:{line}: {imported}")
    assert not wrong, "\n".join(wrong)


def test_schedules_stand_alone() -> None:
    wrong = []
    for part, name, file in _modules():
        for imported, line in _imports(name, file) if part == "schedules" else ():
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
        for imported, line in _imports(name, file)
        if f"{imported}.".startswith(f"{internal}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circles() -> None:
    """No module needs itself, through whatever others, also not for its types."""
    files = {name: file for _, name, file in _modules()}
    needs = {
        name: {_module_of(imported, files) for imported, _ in _imports(name, file)} - {None, name}
        for name, file in files.items()
    }
    circles: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circles.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for needed in sorted(n for n in needs[name] if n is not None):
                visit(needed, [*path, name])
            done.add(name)

    for name in sorted(needs):
        visit(name, [])
    assert not circles, "\n".join(circles)


def _module_of(imported: str, modules: Mapping[str, Path]) -> str | None:
    """The module of ours that an import of this name reads: the module itself, or the one that has the name."""
    while imported and imported not in modules:
        imported = imported.rpartition(".")[0]
    return imported or None


def test_imports_inside_of_functions_say_why() -> None:
    """A reason is that a command starts faster (jaxlib, SciPy, Matplotlib load late) or that a library is optional."""
    silent = [f"{name}:{line}" for _, name, file in _modules() for line in _unexplained(file)]
    assert not silent, "\n".join(silent)


def _unexplained(file: Path) -> Iterator[int]:
    """The lines of imports inside of functions without a comment on them, above them or at the import above."""
    lines = file.read_text(encoding="utf-8").splitlines()
    for function in _nodes(file):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        explained = 0  # the line below the last import with a reason
        for node in statements(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                here = "#" in lines[node.lineno - 1] or lines[node.lineno - 2].lstrip().startswith("#")
                if here or node.lineno == explained:
                    explained = (node.end_lineno or node.lineno) + 1
                else:
                    yield node.lineno


def test_no_public_name_is_that_of_a_submodule() -> None:
    # Importing a submodule sets the package's attribute of its name, and would hide the function.
    submodules = {path.stem for path in ROOT.iterdir()}
    public = set(mpmd_trace.__all__) - {*mpmd_trace._MODULES}
    assert not public & submodules


def test_the_lazy_names_are_those_that_type_checkers_see() -> None:
    """The imports under TYPE_CHECKING and the table of lazy imports name the same objects in the same modules."""
    [guarded] = [
        node
        for node in ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    seen = {
        alias.asname: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    lazy = {name: f"{PACKAGE}.{module}" for name, module in mpmd_trace._WHERE.items()}
    assert seen == lazy | dict.fromkeys(mpmd_trace._MODULES, PACKAGE)
