"""Pages of the docs site that are generated from the package: the API, every option, command and pass; and notebooks.

A hook of mkdocs; `pages()` has the text of the first, which a test holds against what the package offers.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import notebooks

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

#: The names of `mpmd_trace` by subject; those that are not listed come last.
SUBJECTS = {
    "Configuring and running": ["make_config", "MeshOfInput", "jit", "filter_jit", "Program", "load"],
    "Naming parts of a program": ["named_computation", "named_tensor", "reduce", "broadcast"],
    "Microbatches": ["value_and_grad", "pad_rows", "enumerated_for", "fori_loop", "call"],
    "Models and states": ["place", "create", "abstract", "save", "restore"],
    "Several processes": ["initialize", "fetch", "shutdown"],
    "Errors and diagnostics": ["MpmdError", "MpmdWarning"],
}


def pages() -> dict[str, str]:
    """The text of each page that is made here, by its path in the docs."""
    return {
        "reference/api.md": _api(),
        "reference/equinox.md": _module("mpmd_trace.equinox", "Equinox models"),
        "reference/linen.md": _module("mpmd_trace.linen", "Flax Linen models"),
        "reference/nnx.md": _module("mpmd_trace.nnx", "Flax NNX models"),
        "reference/checkpoint.md": _module("mpmd_trace.checkpoint", "Checkpoints of other libraries"),
        "reference/compiler.md": _module("mpmd_trace.compiler", "Running the compiler directly"),
        "reference/config.md": _module("mpmd_trace.config", "Configurations"),
        "reference/errors.md": _module("mpmd_trace.errors", "Errors and warnings"),
        "reference/gradients.md": _module("mpmd_trace.gradients", "Gradients of a batch in microbatches"),
        "reference/scheduling.md": _module("mpmd_trace.scheduling", "Choosing a schedule, and costs of transfers"),
        "reference/schedules.md": _module("mpmd_trace.schedules", "Pipeline schedules as data"),
        "reference/rules.md": _module("mpmd_trace.rules", "Scheduling and merging rules"),
        "reference/stages.md": _module("mpmd_trace.stages", "What jit returns"),
        "reference/options.md": _options(),
        "reference/cli.md": _commands(),
        "reference/all_passes.md": _passes(),
    }


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that are written by hand."""
    from mkdocs.structure.files import File

    run = {f"notebooks/{name}.md": page for name, page in notebooks.pages(NOTEBOOKS).items()}
    for path, text in (pages() | run).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with links in the place of names of other pages; some are files of the repository."""
    whole = re.sub(r'^--8<-- "(.*)"$', lambda found: (ROOT / found[1]).read_text(), markdown, flags=re.M)
    return with_links(whole, page.file.src_uri)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The page with plain defaults: `_default("cut")` is how the code tells that an argument was not given."""
    # Only now are references between pages resolved, which names in signatures are, too.
    output = re.sub(r'<span title="[^"]*">_default</span>\((.*?)\)(?=</code>)', r"\1", output)
    marked = r'<span class="n">_default</span><span class="p">\(</span>(.*?)<span class="p">\),</span>'
    return re.sub(marked, r'\1<span class="p">,</span>', output)


def with_links(markdown: str, path: str) -> str:
    """The text of the page at `path`, in which "`docs/steps.md`" is a link."""
    up = "../" * path.count("/")
    return re.sub(r"(?<!\[)`docs/(\w+\.md)`", rf"[`docs/\1`]({up}\1)", markdown.replace("](docs/", f"]({up}"))


def _api() -> str:
    import mpmd_trace

    known = {name for names in SUBJECTS.values() for name in names}
    others = [n for n in mpmd_trace.__all__ if n not in known and not n.startswith("_") and not _is_module(n)]
    subjects = {**SUBJECTS, "Others": others} if others else SUBJECTS
    parts = ["# mpmd_trace\n"]
    for subject, names in subjects.items():
        parts.append(f"## {subject}\n")
        parts += [_of(getattr(mpmd_trace, name)) + example_of(name) for name in names]
    return "\n".join(parts)


#: The files of examples: those of the names of `mpmd_trace`, and those of its modules, as `module.name`.
EXAMPLES = ("api_examples.py", "module_examples.py")


def examples() -> dict[str, str]:
    """The code of the example of each public name."""
    found = {}
    for file in EXAMPLES:
        _, *parts = re.split(r"^# == (.*)\n", (Path(__file__).parent / file).read_text(), flags=re.M)
        for names, code in zip(parts[::2], parts[1::2], strict=True):
            found.update(dict.fromkeys(names.split(", "), code.strip()))
    return found


def example_of(name: str) -> str:
    return f"\n**Example**\n\n```python\n{examples()[name]}\n```\n"


def _is_module(name: str) -> bool:
    import mpmd_trace

    return inspect.ismodule(getattr(mpmd_trace, name))


def _module(path: str, title: str) -> str:
    short = path.removeprefix("mpmd_trace.")
    parts = [_of(value) + example_of(f"{short}.{name}") for name, value in public(path).items()]
    for name, value in constants(path).items():
        text = repr(value).replace("mpmd_trace.schedules._actions.", "")
        parts.append(
            f"## {name}\n\n`{text if len(text) < 100 else text[:100] + '...'}`\n" + example_of(f"{short}.{name}")
        )
    return f"# {path}\n\n{title}.\n\n" + "\n".join(parts)


def public(path: str) -> dict[str, Any]:
    """The functions and classes of a module that are for users: those of its `__all__`, or all without an underscore."""
    module = importlib.import_module(path)
    names = getattr(module, "__all__", vars(module))
    return {name: value for name in names if not name.startswith("_") and _is_api(value := getattr(module, name))}


def constants(path: str) -> dict[str, Any]:
    """The other public names of a module: constants, and types for annotations."""
    module, known = importlib.import_module(path), public(path)
    names = getattr(module, "__all__", vars(module))
    others = {name: getattr(module, name) for name in names if not name.startswith("_") and name not in known}
    return {name: value for name, value in others.items() if not inspect.ismodule(value)}


def _of(value: Any) -> str:
    """What mkdocstrings is asked for: a function or class, where it is written."""
    return f"::: {value.__module__}.{value.__qualname__}\n"


def _is_api(value: Any) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__.startswith("mpmd_trace")


def _options() -> str:
    from mpmd_trace.passes.compile_options import CompileOptions

    rows = ["# Options\n", "The options of `make_config(partitioning_options={...})` and `partition`.\n"]
    rows += ["| option | default | |", "|---|---|---|"]
    for field in dataclasses.fields(CompileOptions):
        rows.append(f"| `{field.name}` | `{field.default}` | {_cell(str(field.metadata.get('help', '')))} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _commands() -> str:
    import typer

    from mpmd_trace_cli.main import app

    parts = [
        "# Command line\n",
        "`mpmd-trace`, or `python -m mpmd_trace`.  Results go to stdout, diagnostics to stderr.\n",
        "| exit status | |\n|---|---|\n| 0 | fine |\n"
        "| 1 | found something: the program cannot be compiled, numbers differ, a schedule or plan has a deadlock |\n"
        "| 2 | wrong call: an option, a file that is missing or cannot be written |\n"
        "| 3 | the program raised an exception; `mpmd-trace --traceback COMMAND` prints its traceback |\n"
        "| 130 | Ctrl-C |\n\n`launch` has the status of the process that failed first.\n",
    ]
    parts += _command(typer.main.get_command(app), "mpmd-trace")
    return "\n".join(parts)


def _command(command: Any, name: str) -> Iterator[str]:
    """The command with its options, and the commands in it."""
    yield f"## {name}\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    title, *lines = (command.epilog or "").split("\n\n")
    yield "\n".join(["```bash", *lines, "```\n"]) if lines else f"{title}\n"
    rows = [(_flags(p), _cell(str(getattr(p, "help", None) or ""))) for p in command.params if p.name != "help"]
    if rows:
        yield "| | |\n|---|---|"
        yield from (f"| {flags} | {text} |" for flags, text in rows)
        yield ""
    for sub in getattr(command, "commands", {}).values():
        yield from _command(sub, f"{name} {sub.name}")


def _flags(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return " ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])


def _passes() -> str:
    from mpmd_trace.passes.registry import PASSES, PIPELINES, pass_class, pipeline_class
    from mpmd_trace_cli.inspect import list_passes

    parts = [
        "# Passes\n",
        "Every pass and pipeline of `mpmd-trace opt` and `mpmd_trace.compiler.run_passes`, by name.\n",
    ]
    for entry in list_passes(None):
        name = entry["name"]
        cls = pass_class(name) if name in PASSES else pipeline_class(name)
        assert name in PASSES or name in PIPELINES
        parts.append(f"## {name}\n")
        parts.append((inspect.getdoc(cls) or f"{entry['summary']}.") + "\n")
        if entry["options"]:
            parts.append("| option | default | |\n|---|---|---|")
            parts += [f"| `{o['name']}` | `{o['default']}` | {_cell(o['help'])} |" for o in entry["options"]]
            parts.append("")
    return "\n".join(parts)
