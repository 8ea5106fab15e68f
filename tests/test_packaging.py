"""What has to be installed for what, and what is said where it is not."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from util import statements

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: The files that may import what an extra brings.
EXTRAS = {
    "equinox": ("src/mpmd_trace/equinox/",),
    "flax": ("src/mpmd_trace/linen/", "src/mpmd_trace/nnx/", "src/mpmd_trace/api/checkpoints/formats.py"),
    "typer": ("cli/",),
    "rich": ("cli/", "src/mpmd_trace/diagnostics/progress.py"),
    "matplotlib": ("src/mpmd_trace/schedules/_picture.py",),
    "orbax": ("src/mpmd_trace/api/checkpoints/saving.py", "src/mpmd_trace/api/checkpoints/orbax_handler.py"),
}
#: What comes with a dependency: with jaxlib, with Matplotlib, with Orbax.
BROUGHT = {"ml_dtypes", "PIL", "tensorstore"}


def _names(requirements: list[str]) -> set[str]:
    return {r.split(">")[0].split("[")[0] for r in requirements}


def test_extras_bring_what_is_imported() -> None:
    wanted = _names(PROJECT["dependencies"])
    assert wanted == {"jax", "jaxlib", "numpy", "scipy"}
    found: dict[str, set[str]] = {}
    for folder in ("src", "cli", "devtools"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in statements(ast.parse(file.read_text())):
                modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    modules = [node.module]
                for module in modules:
                    found.setdefault(module.split(".")[0], set()).add(str(file.relative_to(ROOT)))
    others = found.keys() - sys.stdlib_module_names - {"mpmd_trace", "mpmd_trace_cli", "mpmd_trace_devtools"} - BROUGHT
    assert others == wanted | EXTRAS.keys(), "every dependency is imported, and everything imported is one"
    for library, places in EXTRAS.items():
        assert all(file.startswith(places) for file in found[library]), library
    extras = PROJECT["optional-dependencies"]
    names = ("equinox", "flax", "cli", "plots", "train")
    listed = {library: name for name in names for library in _names(extras[name])}
    assert {n: listed[n] for n in ("equinox", "flax", "typer", "rich", "matplotlib", "orbax-checkpoint", "optax")} == {
        "equinox": "equinox",
        "flax": "flax",
        "typer": "cli",
        "rich": "cli",
        "matplotlib": "plots",
        "orbax-checkpoint": "train",
        "optax": "train",
    }


def test_the_demo_gets_all_it_needs_and_nothing_else() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*map(Requirement, [*PROJECT["dependencies"], *extras["cli"], *extras["equinox"]]), Requirement("optax")]
    needed: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name not in needed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            needed.add(name)
            wanted += map(Requirement, importlib.metadata.requires(name) or [])
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    marked = {canonicalize_name(line.split("==")[0]) for line in lines if line.endswith((" demo 1", " demo 2"))}
    assert marked == needed


def test_a_checkout_is_linked_as_it_would_be_installed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    subprocess.run([tmp_path / "bin/python", ROOT / "scripts/link_checkout.py"], check=True)
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [tmp_path / "bin/mpmd-trace", "run"], env=environment, capture_output=True, text=True, check=False
    )
    assert "mpmd-trace needs typer for all commands" in done.stderr and done.returncode == 2


def without(libraries: set[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a Python in which these libraries are not installed."""
    blocker = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(libraries)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
    command = [sys.executable, "-c", blocker + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_a_wheel_has(tmp_path: Path) -> None:
    """Its description has links that work elsewhere, and the explorer's libraries and their licenses are in it."""
    tree = tmp_path / "tree"
    for part in ("src/mpmd_trace/report", "cli", "devtools"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("README.md", "LICENSE", "setup.py", "src/mpmd_trace/__init__.py"):
        shutil.copy(ROOT / file, tree / file)
    urls = '[project.urls]\nSource = "https://code.example/mpmd_trace/"\n\n[project.scripts]'
    text = (ROOT / "pyproject.toml").read_text()
    assert "\n[project.scripts]" in text
    (tree / "pyproject.toml").write_text(text.replace("[project.scripts]", urls))
    build = "import sys, setuptools.build_meta as build; print(build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        [metadata] = [files.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    head, _, description = metadata.partition("\n\n")
    assert "Project-URL: Source, https://code.example/mpmd_trace/" in head
    assert "Description-Content-Type: text/markdown" in head
    assert "License-Expression: Apache-2.0 AND ISC AND BSD-3-Clause AND MIT" in head
    links = re.findall(r"(?<!!)\[([^]]*)\]\(([^)]*)\)", description)
    assert len(links) > 20
    for text, link in links:
        assert text and link.startswith("https://code.example/mpmd_trace/blob/HEAD/docs/")
        assert (ROOT / link.removeprefix("https://code.example/mpmd_trace/blob/HEAD/")).is_file()
    assert re.findall(r"!\[.+\]\((.*)\)", description) == ["https://code.example/mpmd_trace/raw/HEAD/docs/pipeline.svg"]
    libraries = {p.name for p in (ROOT / "src/mpmd_trace/report/explorer/libraries").iterdir()}
    packed = {Path(name).name for name in names if "mpmd_trace/report/explorer/libraries/" in name}
    assert libraries == packed and "LICENSES.txt" in libraries and len(libraries) > 15
    # Without an address there are neither links nor pictures, and nothing else changes.
    linked = runpy.run_path(str(ROOT / "setup.py"))["linked"]
    readme = (ROOT / "README.md").read_text()
    plain = linked(readme, {})
    assert "](" not in plain and plain == re.sub(
        r"\[([^]]*)\]\([^)]*\)", r"\1", "".join(re.split(r"!\[.*\)\n\n", readme))
    )
    back = (
        linked(readme, {"Source": "https://a"}).replace("https://a/raw/HEAD/", "").replace("https://a/blob/HEAD/", "")
    )
    assert back == readme


OPTIONAL = {"equinox", "flax", "jaxtyping", "typer", "rich", "click", "matplotlib", "optax", "orbax", "pydantic"}
COMMAND = "from mpmd_trace_cli.entry import main; main()"


def test_the_library_works_on_its_dependencies_alone_and_says_what_is_missing() -> None:
    readme = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = """
print(len(new_weights))
import mpmd_trace
from mpmd_trace import schedules
trees = (lambda: mpmd_trace.equinox, lambda: mpmd_trace.linen, lambda: mpmd_trace.nnx)
for missing in (*trees, lambda: mpmd_trace.save("a", {}), lambda: schedules.save_pdf(None, "a.pdf")):
    try:
        missing()
    except (ImportError, mpmd_trace.MpmdError, schedules.ScheduleError) as error:
        print(error)
"""
    done = without(OPTIONAL, readme + code)
    assert done.stdout.splitlines() == [
        "4",
        "mpmd_trace.equinox needs Equinox; install it with: pip install 'mpmd_trace[equinox]'",
        "mpmd_trace.linen needs Flax; install it with: pip install 'mpmd_trace[flax]'",
        "mpmd_trace.nnx needs Flax; install it with: pip install 'mpmd_trace[flax]'",
        "error: saving and restoring need orbax; install it with: pip install 'mpmd_trace[train]'",
        "PDF pictures need Matplotlib; install it with: pip install 'mpmd_trace[plots]', or write SVG, "
        "which needs nothing",
    ], done.stderr


@pytest.mark.parametrize(
    "arguments", [("passes",), ("passes", "--json"), ("opt", "--help"), ("opt", "-", "-canonicalize")]
)
def test_opt_and_passes_need_no_extra(arguments: tuple[str, ...]) -> None:
    code = "import io; sys.stdin = io.StringIO('module {}')\n" + COMMAND
    done = without(OPTIONAL, code, *arguments)
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize("library", ["typer", "rich"])
@pytest.mark.parametrize("arguments", [("run", "a.py"), ("--help",), (), ("schedule", "list"), ("passes", "--help")])
def test_commands_without_their_extra(library: str, arguments: tuple[str, ...]) -> None:
    done = without({library}, COMMAND, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines() == [
        f"mpmd-trace needs {library} for all commands but opt and passes; install it with: "
        "pip install 'mpmd_trace[cli]'"
    ]
