"""The result of `mpmd-trace plan`, as text and as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from mpmd_trace.report.plan_copies import WORDS, cost_of
from mpmd_trace.report.plan_costs import Study
from mpmd_trace.report.plan_groups import GroupPlan, Names
from mpmd_trace.report.plan_search import Option
from mpmd_trace.scheduling.transfers import Link


def as_data(name: str, study: Study, options: Sequence[Option], now: Option | None) -> dict[str, Any]:
    """Return what a program would read: everything in `study.unit` and bytes."""
    rows = [o.as_dict(study.meshes) for o in options]
    return {
        "program": name,
        "unit": study.unit,
        "meshes": list(study.meshes),
        "stages": [
            {
                "names": list(study.names[s]),
                "mesh": study.meshes[study.mesh_of[s]],
                "forward": study.stages.forward[s],
                "input_grad": study.stages.input_grad[s],
                "weight_grad": study.stages.weight_grad[s],
                "activation_bytes": study.activations[s],
                "static_bytes": max(study.static[s]),
            }
            for s in range(len(study.names))
        ],
        "layers": [dataclasses.asdict(layer) for layer in study.layers],
        "sends": [
            {"from": p, "to": s, "bytes": size, "time": _time_between(study, p, s, size)}
            for (p, s), size in study.stages.sends.items()
        ],
        "once": dict(zip(study.meshes, study.once, strict=True)),
        "besides": {
            when: [{"from": a, "to": b, "values": t.count, "bytes": t.bytes} for (a, b), t in kind.items()]
            for when, kind in (("before", study.before), ("rest", study.rest))
        },
        "links": None
        if study.links is None
        else {
            "transfers": study.links.transfers,
            "default": dataclasses.asdict(study.links.default),
            "single": [{"from": a, "to": b, **dataclasses.asdict(link)} for (a, b), link in study.links.single.items()],
        },
        "gather": [dataclasses.asdict(cost_of(word, options[0].choice.schedule, options[0].copies)) for word in WORDS]
        if any(one.bytes for one in study.copies)
        else None,
        "measured_step": study.measured_step,
        "why_no_other_stages": study.layer_values if isinstance(study.layer_values, str) else None,
        "now": None if now is None else now.as_dict(study.meshes),
        "best": rows[0],
        "alternatives": rows[1:],
    }


def mib(value: float) -> str:
    """Bytes in MiB, as many digits as tell something."""
    amount = value / 2**20
    return f"{amount:.2g}" if amount < 0.1 else f"{amount:.1f}" if amount < 10 else f"{amount:.0f}"


def as_text(study: Study, options: Sequence[Option], now: Option | None, rows: int, saved: str | None = None) -> str:
    """Return the stages of the program, what they send, and the best of the options in `rows` rows."""
    parts = [*_tables(study, options, options[0], now, rows), "", *_use(study, options[0], options[0] is now, saved)]
    return "\n".join(line.rstrip() for line in parts)


def groups_as_text(plans: Sequence[GroupPlan], chosen: Names, now: Names, rows: int) -> str:
    """Return the same for each group of meshes, and the schedules that the program can follow together."""
    parts = []
    for plan in plans:
        best, own = (plan.named(names.get(plan.meshes, "")) for names in (chosen, now))
        assert best is not None
        tables = _tables(plan.study, plan.options, best, own, rows, "chosen")
        parts += [f"On {', '.join(plan.meshes)}, as a pipeline of its own:", *tables, ""]
    parts += ["To have the best of these that the program can follow together:", "pipeline_schedule = {"]
    parts += [f"    {group!r}: {name!r}," for group, name in chosen.items()]
    return "\n".join(line.rstrip() for line in [*parts, "}"])


def groups_as_data(name: str, plans: Sequence[GroupPlan], chosen: Names, now: Names) -> dict[str, Any]:
    """Return the same as plain data: of each group what `as_data` has of a program."""
    groups = [as_data(name, plan.study, plan.options, plan.named(now.get(plan.meshes, ""))) for plan in plans]
    best = [{"meshes": list(group), "schedule": schedule} for group, schedule in chosen.items()]
    return {"program": name, "groups": groups, "pipeline_schedule": best}


def _tables(
    study: Study, options: Sequence[Option], best: Option, now: Option | None, rows: int, word: str = "best"
) -> list[str]:
    head = ["stage", "mesh", f"forward {study.unit}", "input grad", "weight grad", "activations KiB", "names"]
    stages = [
        [
            str(s),
            study.meshes[study.mesh_of[s]],
            f"{study.stages.forward[s]:.4g}",
            f"{study.stages.input_grad[s]:.4g}",
            f"{study.stages.weight_grad[s]:.4g}",
            f"{study.activations[s] / 1024:.1f}",
            ", ".join(names) or "nothing",
        ]
        for s, names in enumerate(study.names)
    ]
    parts = ["One microbatch, as the program is now:", *_table(head, stages), ""]
    sent = list(_transfers(study))
    parts += [*sent, ""] if sent else []
    # One row for each schedule on each division into stages; the best of each number of microbatches and the program's
    # own even if they are further down.
    first: dict[tuple[Any, ...], Option] = {}
    for option in options:
        first.setdefault((option.choice.schedule.name, option.names, option.mesh_of, option.microbatches), option)
    shown = list(first.values())[:rows]
    of_count: dict[int, Option] = {}
    for option in first.values():
        of_count.setdefault(option.microbatches, option)
    shown += [one for one in (*of_count.values(), best, now) if one is not None and one not in shown]
    head = ["schedule", "stages", "assignment", "M", f"step {study.unit}", "bubble", "of span"]
    gathers = any(one.bytes for one in study.copies)
    head += [*(["gather"] if gathers else []), "peak M", "MiB per device", ""]
    lines = [
        [
            option.choice.schedule.name,
            str(len(option.mesh_of)),
            option.assignment,
            str(option.microbatches),
            f"{option.step:.4g}",
            _percent(option.choice.result.bubble_rate_makespan),
            _percent(option.choice.result.bubble_rate_span),
            *([option.gather] if gathers else []),
            "/".join(f"{p:.3g}" for p in option.choice.result.peak_activations)
            if len(study.meshes) <= 4
            else f"{option.choice.peak:.3g}",
            mib(max(option.peak_bytes)),
            _notes(option, best, now, word),
        ]
        for option in shown
    ]
    parts += _table(head, lines)
    if gathers:
        parts += ["", *_gathers(study, best)]
    if study.measured_step is not None:
        predicted = f", {now.step:.4g} ms predicted" if now is not None else ""
        parts += ["", f"A step as the program is now: {study.measured_step:.4g} ms measured{predicted}."]
    return parts


def _gathers(study: Study, best: Option) -> Iterator[str]:
    """Both costs of each word."""
    yield "Gathered and cast copies of weights, with the schedule of the best, on the mesh with most of them:"
    head = ["gather", "MiB per device", "MiB made in a step", study.unit]
    costs = (cost_of(word, best.choice.schedule, best.copies) for word in WORDS)
    yield from _table(head, [[c.gather, mib(c.bytes), mib(c.made_bytes), f"{c.time:.4g}"] for c in costs])


def _transfers(study: Study) -> Iterator[str]:
    """Yield what one microbatch sends, what moves besides, and what was said or measured about links."""
    timed = study.links is not None
    meshes, mesh_of = study.meshes, study.mesh_of
    lines = [
        [f"{p} to {s}", f"{meshes[mesh_of[p]]} to {meshes[mesh_of[s]]}", f"{size / 1024:.1f}"]
        + ([f"{_time_between(study, p, s, size):.4g}"] if timed else [])
        for (p, s), size in study.stages.sends.items()
    ]
    if lines:
        yield "What it sends from stage to stage:"
        yield from _table(["stages", "meshes", "KiB per device", *(["ms"] if timed else [])], lines)
    for what, kind in (("arguments", study.before), ("sums and the like", study.rest)):
        if kind:
            count, size = sum(t.count for t in kind.values()), sum(t.bytes for t in kind.values()) / 1024
            yield f"Once in a step, values of {what}: {count:.0f} ({size:.1f} KiB per device)."
    if study.links is not None:
        single = study.links.single
        same = set(single.values()) <= {study.links.default}
        usual = "every link" if same else "other links"
        if not same:
            for (a, b), link in single.items():
                yield f"Link from {a} to {b}: {_link(link)}."
        yield f"Transfers are {study.links.transfers}; {usual}: {_link(study.links.default)}."


def _link(link: Link) -> str:
    width = "no limit of bandwidth" if link.bandwidth is None else f"{link.bandwidth / 1e9:.4g} GB/s"
    return f"{link.latency * 1e6:.4g} us, {width}"


def _time_between(study: Study, source: int, target: int, size: float) -> float | None:
    if study.links is None:
        return None
    a, b = (study.meshes[study.mesh_of[s]] for s in (source, target))
    return 1e3 * study.links.between(a, b).seconds(size)


def _use(study: Study, best: Option, is_now: bool, saved: str | None) -> Iterator[str]:
    """Yield what to write in `make_config` to get the best option."""
    if is_now and saved is None and best.gather == "step":
        yield "The program has the best of these already."
        return
    name = best.choice.schedule.name
    text = repr(name)
    if saved is not None:
        text = f"mpmd_trace.schedules.load_csv({saved!r})"
    elif name == "zb-auto":
        text += "  # made for these costs: write it to a file with --save"
    elif best.checked:
        text += "  # as far as the program's data flow allows"
    yield "To have the best of these:"
    if best.microbatches != study.microbatches:
        yield f"# {best.microbatches} microbatches instead of {study.microbatches}"
    yield f"pipeline_schedule = {text}"
    if best.gather != "step":
        yield f"gather = {best.gather!r}"
    if best.assignment == "balanced":
        yield "name_to_mesh_assignment = {"
        yield from (f"    {n!r}: {m!r}," for n, m in best.name_to_mesh(study.meshes).items())
        yield "}"


def _percent(value: float) -> str:
    return f"{max(value, 0.0):.1%}"


def _notes(option: Option, best: Option, now: Option | None, word: str) -> str:
    notes = []
    if option is best:
        notes.append(word)
    if option is now:
        notes.append("now")
    if not option.fits:
        notes.append("does not fit")
    if option.checked is not None:
        notes.append(option.checked or "checked")
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
