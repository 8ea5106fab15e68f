"""The examples at the end of each command's help page."""

from __future__ import annotations

#: Each command's examples: a command line, and what it is for.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("run examples/char_gpt.py", "train, compare with jax.jit, write out/"),
        ("run model.py:big --set steps=20 --trace steps.json", "another program of the file, for ui.perfetto.dev"),
        ("run examples/char_gpt.py --processes 4", "the same over four processes"),
    ),
    "compile": (("compile model.py -o model.mpmd", "mpmd_trace.load('model.mpmd') runs it"),),
    "launch": (
        ("launch -n 4 --devices 2 train.py --lr 0.1", "four processes with two CPU devices each; --lr is the script's"),
        ("launch -n 4 --restarts 2 --log-dir logs train.py", "go on without a process that dies"),
    ),
    "dump": (("dump model.py --out dump", "then: mpmd-trace diff dump 12 20"),),
    "explore": (
        ("explore model.py --out pages", "then open pages/index.html"),
        ("explore model.py --measure --serve", "with measured times, on a local server"),
    ),
    "bisect": (("bisect model.py", "the first pass that changes the numbers"),),
    "show": (("show model.py --stage plan", "the list of programs and transfers of a step"),),
    "compare": (("compare model.py", "needs jaxlib 0.12 or newer"),),
    "plan": (
        ("plan model.py", "stages, microbatches and schedule"),
        ("plan model.py --measure --memory-limit 4", "from measured times, with at most 4 microbatches in flight"),
    ),
    "check": (
        ("check model.py -n 4", "four processes that share the devices"),
        ("check model.py -n 4 --process 0", "what process 0 does in a step"),
    ),
    "diff": (("diff dump 12 20", "two snapshots of mpmd-trace dump"),),
    "reduce": (("reduce bad.mlir --check ./fails.sh -o small.mlir", "fails.sh exits with 0 while it fails"),),
    "explain": (
        ("explain model.py", "what each mesh holds, and what moves"),
        ('explain model.py --value "input 2"', "why the third array is where it is"),
    ),
    "passes": (("passes mpmd-call-inline", "the options of one pass"),),
}


def examples(command: str) -> str:
    """Return the end of the help page of a command, in which paragraphs become lines."""
    return "\n\n".join(["Examples:", *(f"mpmd-trace {line}  # {text}" for line, text in EXAMPLES[command])])
