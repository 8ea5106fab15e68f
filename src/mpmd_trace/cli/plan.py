"""`mpmd-trace plan`: the best stages, microbatches and schedule for a program, beside the alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ir.diagnostics import MpmdError
from .talk import data, progress, say

if TYPE_CHECKING:
    from ..report.planning import Option, Study

__all__ = ["plan_program"]

#: Steps that are measured, after one that is not.
MEASURED_STEPS = 3


def plan_program(
    file: str,
    settings: Sequence[str] = (),
    *,
    measure: bool = False,
    microbatches: str = "",
    memory_limit: float | None = None,
    tflops: float | None = None,
    gbytes: float | None = None,
    rows: int = 12,
    as_json: bool = False,
) -> None:
    """Compile the program once, take the costs of its parts, and print what suits it best.

    `memory_limit` is in MiB of a device, `tflops` and `gbytes` are a device's speed per second.  Raises
    `MpmdError`.
    """
    from ..program import load_program

    counts = _numbers(microbatches)
    for what, value in (("memory-limit", memory_limit), ("tflops", tflops), ("gbytes", gbytes)):
        if value is not None and value <= 0:
            raise MpmdError(f"--{what} is {value:g}; it must be above 0")
    program = load_program(file, settings)
    from ..report.planning import options_of, study
    from ..report.timeline import FragmentActions

    with progress() as shown:
        task = shown.add_task("trace and passes", total=1, info=program.name)
        actions = FragmentActions()
        lowered = program.jitted().lower(*program.args, hooks=[actions])
        _ = lowered.partitioned
        shown.update(task, completed=1)
        task = shown.add_task("XLA", total=None, info="")

        def compiled_one(done: int, total: int, name: str) -> None:
            shown.update(task, total=total, completed=done, info=name[:40])

        compiled = lowered.compile(compiled_one)
        timelines = []
        if measure:
            task = shown.add_task("measure", total=MEASURED_STEPS, info="")
            _measured(program, compiled)
            for i in range(MEASURED_STEPS):
                timelines.append(_measured(program, compiled))
                shown.update(task, completed=i + 1)
        found = study(
            compiled,
            actions,
            measured=timelines,
            flops_per_second=None if tflops is None else 1e12 * tflops,
            bytes_per_second=None if gbytes is None else 1e9 * gbytes,
        )
        task = shown.add_task("simulate", total=None, info="")
        options = options_of(
            found,
            microbatches=counts,
            memory_limit=None if memory_limit is None else memory_limit * 2**20,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )
    if not any(o.fits and o.choice.in_order for o in options):
        raise MpmdError(_nothing(found, options, memory_limit))
    now = next(
        (
            o
            for o in options
            if o.assignment == "as assigned"
            and o.choice.schedule.name == _own_name(lowered)
            and o.microbatches == found.stages.microbatches
        ),
        None,
    )
    if as_json:
        data(_as_data(program.name, found, options, now))
        return
    data(_text(found, options, now, rows))
    if found.unit != "ms":
        say("costs are counted operations; --measure, or --tflops and --gbytes, give times")


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [0]
    if any(n < 1 for n in found):
        raise MpmdError(f"--microbatches is '{text}'; write numbers above 0 with commas, as in 4,8,16")
    return found


def _own_name(lowered: Any) -> str:
    """The library's name of the program's own schedule."""
    from ..schedules import ScheduleError, find_entry

    try:
        return find_entry(lowered.schedule.name).name
    except ScheduleError:
        return str(lowered.schedule.name)


def _measured(program: Any, compiled: Any) -> Any:
    import jax

    # Copies, because the step may give its arguments away.
    args = jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, program.args)
    dynamic = [a for i, a in enumerate(args) if i not in program.static_argnums]
    result, timeline = compiled.measure(*dynamic)
    jax.block_until_ready(result)
    return timeline


def _nothing(study: Study, options: Sequence[Option], limit: float | None) -> str:
    usable = [o for o in options if o.choice.in_order]
    if usable and limit is not None:
        lowest = min(usable, key=lambda o: max(o.peak_bytes))
        return (
            f"nothing fits in {limit:g} MiB per device; {lowest.choice.schedule.name} with "
            f"{len(lowest.mesh_of)} stages and {lowest.microbatches} microbatches comes closest with "
            f"{_mib(max(lowest.peak_bytes))} MiB. Use more meshes, more and smaller microbatches "
            "(--microbatches), or recompute activations (mpmd_fragment_remat)."
        )
    return (
        f"no schedule of the library suits {len(study.meshes)} meshes and {study.stages.microbatches} "
        "microbatches; try others with --microbatches"
    )


def _as_data(name: str, study: Study, options: Sequence[Option], now: Option | None) -> dict[str, Any]:
    rows = [o.as_dict(study.meshes) for o in options]
    return {
        "program": name,
        "unit": study.unit,
        "meshes": list(study.meshes),
        "stages": [
            {
                "names": list(study.names[s]),
                "mesh": study.meshes[study.stages.mesh_of[s]],
                "forward": study.stages.forward[s],
                "input_grad": study.stages.input_grad[s],
                "weight_grad": study.stages.weight_grad[s],
                "activation_bytes": study.activations[s],
                "static_bytes": study.static[s],
            }
            for s in range(len(study.names))
        ],
        "layers": [dataclasses.asdict(layer) for layer in study.layers],
        "once": dict(zip(study.meshes, study.once, strict=True)),
        "now": None if now is None else now.as_dict(study.meshes),
        "best": rows[0],
        "alternatives": rows[1:],
    }


def _mib(value: float) -> str:
    return f"{value / 2**20:.1f}" if value < 10 * 2**20 else f"{value / 2**20:.0f}"


def _text(study: Study, options: Sequence[Option], now: Option | None, rows: int) -> str:
    best = options[0]
    head = ["stage", "mesh", f"forward {study.unit}", "input grad", "weight grad", "activations KiB", "names"]
    stages = [
        [
            str(s),
            study.meshes[study.stages.mesh_of[s]],
            f"{study.stages.forward[s]:.4g}",
            f"{study.stages.input_grad[s]:.4g}",
            f"{study.stages.weight_grad[s]:.4g}",
            f"{study.activations[s] / 1024:.1f}",
            ", ".join(names),
        ]
        for s, names in enumerate(study.names)
    ]
    parts = ["One microbatch, as the program is now:", *_table(head, stages), ""]
    # One row for each schedule on each division into stages; the program's own even if it is further down.
    shown: list[Option] = []
    for option in options:
        known = {(o.choice.schedule.name, o.assignment, o.mesh_of, o.microbatches) for o in shown}
        key = (option.choice.schedule.name, option.assignment, option.mesh_of, option.microbatches)
        if key not in known and len(shown) < rows:
            shown.append(option)
    if now is not None and now not in shown:
        shown.append(now)
    head = ["schedule", "stages", "assignment", "M", f"step {study.unit}", "bubble", "of span"]
    head += ["peak M", "MiB per device", ""]
    lines = [
        [
            option.choice.schedule.name,
            str(len(option.mesh_of)),
            option.assignment,
            str(option.microbatches),
            f"{option.step:.4g}",
            f"{option.choice.result.bubble_rate_makespan:.1%}",
            f"{option.choice.result.bubble_rate_span:.1%}",
            "/".join(f"{p:g}" for p in option.choice.result.peak_activations)
            if len(study.meshes) <= 4
            else f"{option.choice.peak:g}",
            _mib(max(option.peak_bytes)),
            _notes(option, best, now),
        ]
        for option in shown
    ]
    parts += _table(head, lines)
    if best.assignment == "balanced":
        parts += ["", "A better assignment:", "name_to_mesh_assignment = {"]
        parts += [f"    {n!r}: {m!r}," for n, m in best.name_to_mesh(study.meshes).items()]
        parts += ["}"]
    return "\n".join(line.rstrip() for line in parts)


def _notes(option: Option, best: Option, now: Option | None) -> str:
    notes = []
    if option is best:
        notes.append("best")
    if option is now:
        notes.append("now")
    if not option.fits:
        notes.append("does not fit")
    if not option.choice.in_order:
        notes.append("needs gradients added from the last microbatch")
    return ", ".join(notes)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    numbers = [all(r[i][:1].isdigit() for r in rows) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, numbers, strict=True)
        return "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in cells)

    return [line(row) for row in [head, *rows]]
