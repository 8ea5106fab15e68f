"""Curves as SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from mpmd_trace.diagnostics.messages import MpmdError


def curves_svg(curves: Mapping[str, Sequence[float]], *, title: str) -> str:
    """One line per curve of losses over steps; the first is drawn wide, so that equal curves are both visible.

    Raises:
        MpmdError: without Matplotlib.
    """
    try:
        import matplotlib  # takes long to load, and is not always there
    except ImportError:
        raise MpmdError("curves need Matplotlib; install it with: pip install 'mpmd_trace[plots]'") from None

    matplotlib.use("Agg")
    from matplotlib import pyplot  # as above

    with pyplot.rc_context({"svg.hashsalt": "mpmd_trace", "font.size": 11}):
        figure, axes = pyplot.subplots(figsize=(7.2, 4.2))
        styles = [
            {"linewidth": 6, "alpha": 0.35, "color": "#4477aa"},
            {"linewidth": 1.6, "color": "#222222"},
            {"linewidth": 1.6, "linestyle": "--", "color": "#aa3377"},
        ]
        for (name, values), style in zip(curves.items(), styles, strict=False):
            axes.plot(range(1, len(values) + 1), values, label=name, **style)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.set_title(title)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return buffer.getvalue()
