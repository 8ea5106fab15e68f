"""The files of the explorer: pages that open from disk, and their data in chunks.

Scripts may be loaded from disk by a page, other files may not: data are scripts that call `explorer.have(name, value)`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpmd_trace.api.compiled import Compiled
from mpmd_trace.backend.plan import Plan, Run, Transfer
from mpmd_trace.backend.timeline import Timeline
from mpmd_trace.report.explorer.data import Recorder
from mpmd_trace.report.timeline import FragmentActions, kind_and_microbatch, steps_by_place
from mpmd_trace.schedules import ScheduleError, get_schedule, schedule_names, simulate

_SCRIPTS = ("explorer", "picture", "languages", "program", "values", "time", "summary", "schedules")
_PAGES = ("index.html", "explorer.css", *(f"{name}.js" for name in _SCRIPTS))
#: The modules of d3, each behind those that it needs, and the highlighter of code.
_D3 = ("dispatch", "color", "interpolate", "timer", "ease", "selection", "drag", "transition", "zoom", "path", "shape")
LIBRARIES = (*(f"d3-{name}" for name in (*_D3, "array", "format", "scale", "axis")), "prism-core", "prism-python")
#: How many characters of bodies a file has at most, unless it has a single body.
CHUNK = 200_000
#: The sizes of pipelines for which the page has all schedules.
_SIZES = {"meshes": (2, 4, 8, 16), "microbatches": (4, 8, 16, 32)}


def explorer_files(
    title: str,
    recorder: Recorder,
    plan: Plan | None = None,
    actions: FragmentActions | None = None,
    more: Mapping[str, Any] | None = None,
    of_plan: Mapping[str, Any] | None = None,
    texts: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield the names and contents of all files.

    Args:
        title: the name of the program.
        recorder: the passes, with the views of those that changed something.
        plan: how a step is executed, if the program got so far.
        actions: what each run of the plan is.
        more: what else is known: `tolerance`, the `assignment` of names to meshes, whether there is a `why`.
        of_plan: what else is known of the plan: `costs` and `facts` (see `program_facts`) of each program, `measured`
            (see `measured_rows`).
        texts: long texts by name, each of which is read when it is wanted; `why` has one for each of the `ends`, and
            of unnamed code for its `places`.
    """
    for name in _PAGES:
        yield name, _ours(name)
    yield (
        "libraries.js",
        "var Prism = { manual: true };\n" + "".join(f"{_ours(f'libraries/{name}.min.js')}\n" for name in LIBRARIES),
    )
    for name in ("dagre.min.js", "LICENSES.txt"):
        yield name, _ours(f"libraries/{name}")
    # Many passes change what is in bodies, or attributes, alone.
    first: dict[str, int] = {}
    same: dict[int, int] = {}
    for number, view in recorder.views.items():
        text = _json(view)
        same[number] = first.setdefault(hashlib.sha256(text.encode()).hexdigest(), number)
        if same[number] == number:
            yield f"data/pass{number}.js", _script(f"pass{number}", text)
    ends, ends_at = in_files(list(recorder.ends.values()))
    chunks, places = in_files([body["text"] for body in recorder.bodies])
    index = {
        "title": title,
        "passes": recorder.passes,
        "types": list(recorder.types),
        "bodies": [
            {**{k: v for k, v in body.items() if k != "text"}, "in": place}
            for body, place in zip(recorder.bodies, places, strict=True)
        ],
        "lines": recorder.lines,
        "sizes": _SIZES,
        "same": same,
        "ends": [
            [name, chunk, at, rows[-1]["type"]]
            for (name, rows), (chunk, at) in zip(recorder.ends.items(), ends_at, strict=True)
        ],
        "planned": plan is not None,
        **(more or {}),
    }
    data: dict[str, Any] = {"index": index, **(texts or {})}
    if plan is not None:
        data["plan"] = {**_plan(plan, actions or FragmentActions()), **(of_plan or {})}
    data |= {f"ends{number}": some for number, some in enumerate(ends)}
    data |= {f"bodies{number}": some for number, some in enumerate(chunks)}
    for name, value in data.items():
        yield f"data/{name}.js", _script(name, _json(value))
    for meshes, microbatches in itertools.product(*_SIZES.values()):
        name = f"schedules{meshes}x{microbatches}"
        yield f"data/{name}.js", _script(name, _schedules(meshes, microbatches))


def _ours(name: str) -> str:
    """Return the text of a file of this package."""
    return (importlib.resources.files(__package__) / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    # A text may contain "</script>", and line separators that are none in Python.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _script(name: str, text: str) -> str:
    """Return a script that gives the page a value, written as JSON, under a name."""
    return f'explorer.have("{name}", {text});\n'


def in_files(texts: Sequence[Any], most: int = CHUNK) -> tuple[list[list[Any]], list[tuple[int, int]]]:
    """Distribute texts, or values that become JSON, to files of at most `most` characters, in order.

    Returns:
        The contents of each file, and for each text the number of its file and its index there.
    """
    files: list[list[Any]] = []
    places: list[tuple[int, int]] = []
    size = most
    for text in texts:
        length = len(text if isinstance(text, str) else _json(text))
        if size + length > most:
            files.append([])
            size = 0
        places.append((len(files) - 1, len(files[-1])))
        files[-1].append(text)
        size += length
    return files, places


def _plan(plan: Plan, actions: FragmentActions) -> dict[str, Any]:
    known = steps_by_place(plan, actions)
    rows: list[list[Any]] = []
    meshes = list(plan.meshes)
    for at, instruction in enumerate(plan.instructions):
        if isinstance(instruction, Run):
            what = ["R", meshes.index(instruction.mesh), instruction.program, instruction.label]
            what += kind_and_microbatch(known[at][1])
        elif isinstance(instruction, Transfer):
            size = sum(plan.slots[s].bytes for s in instruction.outputs)
            what = ["T", meshes.index(instruction.source), meshes.index(instruction.target), size, instruction.label]
        else:
            continue
        donated = [[instruction.inputs[k] for k in instruction.donated]] if isinstance(instruction, Run) else []
        rows.append([*what, list(instruction.inputs), list(instruction.outputs), *donated])
    return {
        "meshes": meshes,
        "instructions": rows,
        "slots": [[meshes.index(s.mesh), s.bytes, str(s), s.name] for s in plan.slots],
        "arguments": list(plan.arguments),
        "results": list(plan.results),
        "donated": sorted(plan.donated),
        "programs": [[p.callee, p.mesh] for p in plan.programs],
    }


def program_facts(compiled: Compiled) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return what XLA says of each program of the plan, and the optimized HLO of those that it compiled, by name."""
    facts: list[dict[str, Any]] = []
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for one in compiled.executables():
        if one.compiled_as not in names:
            names[one.compiled_as] = f"hlo{len(names)}"
            texts[names[one.compiled_as]] = one.as_text()
        cost, memory = one.cost_analysis(), one.memory_analysis()
        facts.append(
            {
                "name": one.name,
                "mesh": one.mesh,
                "runs": one.runs,
                "flops": cost.get("flops"),
                "accessed": cost.get("bytes accessed"),
                "arguments": getattr(memory, "argument_size_in_bytes", None),
                "results": getattr(memory, "output_size_in_bytes", None),
                "scratch": getattr(memory, "temp_size_in_bytes", None),
                "donated": len(one.donated),
                "hlo": names[one.compiled_as],
            }
        )
    return facts, texts


def measured_rows(measured: Sequence[Timeline]) -> list[list[list[Any]]]:
    """Return the runs and transfers of each measured step: number in the plan, start and end in milliseconds."""
    return [
        [[e.instruction, round(1000 * e.start, 4), round(1000 * e.end, 4)] for e in one.entries] for one in measured
    ]


@functools.cache
def _schedules(meshes: int, microbatches: int) -> str:
    """Return every schedule of the library that there is for a size, for the page to play with costs of its user."""
    pages: dict[str, Any] = {}
    for name in schedule_names():
        try:
            schedule = get_schedule(name, meshes, microbatches, guard=False)
        except ScheduleError:
            continue  # not for this size
        pages[name] = {
            "orders": [" ".join(row) for row in schedule.texts()],
            "needs": simulate(schedule).program.needs,
            "mesh": schedule.placement.mesh_of,
            "chunks": schedule.chunks_of,
        }
    return _json(pages)
