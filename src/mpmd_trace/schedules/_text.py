"""A schedule as text: time runs to the right, one line per mesh."""

from __future__ import annotations

from mpmd_trace.schedules._actions import Step
from mpmd_trace.schedules._result import Simulation, Timeline, shortest_of

MAX_COLUMNS = 20_000


def grid(source: Simulation | Timeline, width: int | None = None) -> str:
    """Draw a schedule as a text grid to scale; idle time is dots.

    An action shows its kind and microbatch (and its stage in front, when a mesh has several), and
    dashes as far as it lasts. With `width`, the grid is cut into panels of that many characters.
    """
    timeline = source.timeline if isinstance(source, Simulation) else source
    events = [e for row in timeline.rows for e in row]
    if not events:
        return "(empty)\n"
    if not timeline.end:
        return "(no action takes any time)\n"
    several = any(len({p.stage for e in row for p in e.step.parts}) > 1 for row in timeline.rows)
    labels = {id(e): _label(e.step, several) for e in events}
    # Those of fused actions are cut off, where there are others.
    longest = max(map(len, [text for text in labels.values() if "&" not in text] or labels.values()))
    step = max(shortest_of(events) / (longest + 1), timeline.end / MAX_COLUMNS)
    columns = round(timeline.end / step) if step else 0
    head = f"{'mesh':<5}"
    lines = []
    for mesh, row in enumerate(timeline.rows):
        cells = ["."] * columns
        for e in row:
            begin, end = round(e.start / step), round(e.end / step)
            room = max(end - begin - 1, 0)
            cell = labels[id(e)][:room].ljust(room, "-") + " "
            cells[begin:end] = cell[: min(end, columns) - begin]
        lines.append((f"{mesh:<5}", "".join(cells)))
    ruler = _ruler(columns, step, longest)
    room = columns if width is None else max(width - len(head), longest + 1)
    room -= room % (longest + 1)
    out: list[str] = []
    for begin in range(0, columns, max(room, 1)):
        if begin:
            out.append("")
        out.append(head + ruler[begin : begin + room].rstrip())
        out += [(name + text[begin : begin + room]).rstrip() for name, text in lines]
    return "\n".join(out) + "\n"


def _label(step: Step, several: bool) -> str:
    texts = [str(p) if several else f"{p.kind}{p.microbatch if p.microbatch >= 0 else ''}" for p in step.parts]
    return "&".join(texts)


def _ruler(columns: int, step: float, longest: int) -> str:
    """Return a line of times, one about every twelve characters."""
    cells = [" "] * columns
    cell = longest + 1
    every = cell * max(1, -(-12 // cell))
    for at in range(0, columns, every):
        text = f"{at * step:g}" if at * step < 1e5 else f"{at * step:.4g}"
        if len(text) > every - 1:
            text = f"{at * step:.3g}"
        for n, char in enumerate(text[: every - 1]):
            if at + n < columns:
                cells[at + n] = char
    return "".join(cells)


def report(result: Simulation) -> str:
    """Return the measures of a simulation as a few lines, with both bubbles."""
    s = result.schedule
    peaks = result.peak_activations
    lines = [
        f"{s.title}, {len(s)} actions",
        f"makespan          {_number(result.makespan)}",
        f"span              {_number(result.span)}",
        f"bubble (makespan) {_number(result.bubble_makespan)}  = {100 * result.bubble_rate_makespan:.2f} %",
        f"bubble (span)     {_number(result.bubble_span)}  = {100 * result.bubble_rate_span:.2f} %",
        "idle per mesh     " + _row(result.idle),
        f"peak activations  {_row(peaks)}  (microbatches, w = {result.weight_fraction:g})",
    ]
    if any(result.static):
        lines.append("peak memory       " + _row(result.peak_memory))
    return "\n".join(lines) + "\n"


def path_report(result: Simulation, limit: int = 12) -> str:
    """Return the critical path: what it is made of, and its first and last steps."""
    path = result.critical_path
    shares: dict[str, float] = {}
    waiting = 0.0
    before = 0.0
    for e in path:
        kind = "+".join(p.kind for p in e.step.parts)
        shares[kind] = shares.get(kind, 0.0) + e.end - e.start
        waiting += e.start - before
        before = e.end
    parts = [f"{k} {_number(v)}" for k, v in shares.items()]
    if waiting > 1e-12:
        parts.append(f"transfers {_number(waiting)}")
    texts = [f"{e.step}@{e.mesh}" for e in path]
    if len(texts) > 2 * limit:
        texts = [*texts[:limit], "...", *texts[-limit:]]
    return f"critical path: {', '.join(parts)}\n  {' '.join(texts)}\n"


def _row(values: tuple[float, ...], limit: int = 16) -> str:
    if len(values) > limit:
        half = limit // 2
        return f"{_row(values[:half])} .. {_row(values[-half:])}"
    return " ".join(_number(v) for v in values)


def _number(value: float) -> str:
    return f"{round(value, 6) + 0.0:g}" if abs(value) < 1e6 else f"{value:.6g}"
