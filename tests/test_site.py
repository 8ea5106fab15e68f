"""The docs site: everything public is on a page of the reference, and the site builds without a warning."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

import mpmd_trace
import mpmd_trace.equinox
import mpmd_trace.linen
import mpmd_trace.nnx
import mpmd_trace.rules
import mpmd_trace.schedules
from mpmd_trace.passes import registry
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace_cli.main import app
from mpmd_trace_cli.schedule import app as schedule_app

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(site: ModuleType) -> dict[str, str]:
    found: dict[str, str] = site.pages()
    return found


def test_names_of_pages_are_links(site: ModuleType) -> None:
    assert site.with_links("see `docs/steps.md`.", "howto.md") == "see [`docs/steps.md`](steps.md)."
    assert site.with_links("`docs/steps.md`", "reference/cli.md") == "[`docs/steps.md`](../steps.md)"
    linked = "[`docs/steps.md`](steps.md)"
    assert site.with_links(linked, "howto.md") == linked


def test_every_public_name_has_a_place_of_its_own(pages: dict[str, str]) -> None:
    page = pages["reference/api.md"]
    for name in mpmd_trace.__all__:
        value = getattr(mpmd_trace, name)
        if not isinstance(value, ModuleType | str):
            assert f".{value.__qualname__}\n" in page, name


@pytest.mark.parametrize("module", [getattr(mpmd_trace, name) for name in mpmd_trace._MODULES], ids=mpmd_trace._MODULES)
def test_every_function_of_a_public_module_is_there(module: ModuleType, pages: dict[str, str]) -> None:
    page = pages[f"reference/{module.__name__.rsplit('.', 1)[1]}.md"]
    for name in getattr(module, "__all__", vars(module)):
        value = getattr(module, name)
        if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
            assert f".{value.__qualname__}\n" in page or not value.__module__.startswith("mpmd_trace"), name


def test_every_option_command_and_pass_is_there(pages: dict[str, str]) -> None:
    for field in dataclasses.fields(CompileOptions):
        assert f"| `{field.name}` |" in pages["reference/options.md"]
    sections = dict(re.findall(r"## mpmd-trace ([^\n]*)\n(.*?)(?=\n## |\Z)", pages["reference/cli.md"], re.S))
    for group, prefix in ((app, ""), (schedule_app, "schedule ")):
        command = typer.main.get_command(group)
        for name, one in command.commands.items():
            flags = [flag for p in one.params for flag in p.opts if flag.startswith("-") and flag != "--help"]
            assert all(f"`{flag}`" in sections[f"{prefix}{name}"] for flag in flags), name
    assert {"run", "explore", "bisect", "schedule show", "opt"} <= set(sections)
    passes = pages["reference/all_passes.md"]
    assert all(f"## {name}\n" in passes for name in [*registry.PASSES, *registry.PIPELINES])
    assert passes.count("\nBefore:") >= 60


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_what_notebooks_import_is_there(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), str(path), "exec"), {})


@pytest.mark.nightly
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    start = (tmp_path / "index.html").read_text()
    assert "value_and_grad" in start and "fonts.googleapis" not in start
    api = (tmp_path / "reference" / "api.html").read_text()
    assert "make_config" in api and "_default" not in api
    # The search works from disk: index and what runs it are files of the site.
    assert '"../assets/iframe-worker.js"' in api and "unpkg.com" not in api
    assert (tmp_path / "assets" / "iframe-worker.js").exists()
    index = (tmp_path / "search" / "search_index.js").read_text()
    for word in ("performance", "safetensors", "Hugging Face", "bfloat16", "OOM", "NCCL"):
        assert word in index, word
    assert 'href="processes.html"' in start and 'src="pipeline.svg"' in start and (tmp_path / "pipeline.svg").is_file()
    assert 'id="mpmd_trace.api.config.make_config"' in (tmp_path / "reference" / "api.html").read_text()
