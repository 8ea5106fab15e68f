"""Checks and measurements on a machine with a GPU, in less than seven minutes; `make gpu`.

    python benchmarks/gpu.py [--out out/gpu] [--only PART,PART] [--rehearse]

All meshes share the first GPU. Parts that check numbers run at the same time, those that measure one after the other;
each is a process with a limit. Results are written after each part: `results.json`, and `results.md` for people.
Without a GPU nothing runs, and the reason is printed; `--rehearse` runs every part on the CPU, at tiny sizes. Exits
with 1 if a part fails.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: No part begins later than so many seconds after the start.
DEADLINE = 330
#: Parts that check numbers, and the limit of each in seconds.
CHECKS = ["kernels", "equal-2", "equal-4", "saved", "memory", "mixed", "processes", "processes-direct", "program"]
CHECK_LIMIT = 110
GRAPHS_OFF = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
#: Parts that measure, with the variables they run under.
MEASURED: dict[str, dict[str, str]] = {
    "small-jit": {},
    "small-1": {},
    "small-4": {},
    "small-4-without-graphs": GRAPHS_OFF,
    "big-jit": {},
    "big-4": {},
    "big-1": {},
    "dispatch": {},
}
LIMIT = 45
REHEARSAL_LIMIT = 600
MARK = "RESULT "


def no_gpu() -> str | None:
    """Return why nothing can run on a GPU, or None."""
    if not glob.glob("/dev/nvidia[0-9]*") and not glob.glob("/dev/kfd"):
        return "this machine has no GPU: there is no /dev/nvidia0"
    code = "import jax; print(jax.default_backend())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.stdout.split()[-1:] != ["gpu"]:
        return "JAX finds no GPU: pip install 'jax[cuda13]' (or cuda12), with a driver for it"
    return None


def environment(more: dict[str, str], rehearse: bool) -> dict[str, str]:
    result = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if rehearse:
        result |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    else:
        result.pop("JAX_PLATFORMS", None)
        flags = [*result.get("XLA_FLAGS", "").split(), *more.get("XLA_FLAGS", "").split()]
        result |= {"XLA_FLAGS": " ".join(flags), "JAX_NUM_CPU_DEVICES": "2"}
    return result


class Run:
    """A part in a process of its own, whose last line that begins with `MARK` is its result."""

    def __init__(self, name: str, limit: float, rehearse: bool, shares: bool, out: Path) -> None:
        self.name, self.limit, self.begin = name, limit, time.monotonic()
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (read when the part is over)
        more = environment(MEASURED.get(name, {}), rehearse)
        if shares:
            more["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        command, own = [str(Path(__file__).with_name("gpu_parts.py")), name], ["-m", "mpmd_trace_cli.entry"]
        if name.startswith("processes"):
            command = [*own, "launch", "-n", "2", "--timeout", "60", *command]
        elif name == "program":
            model = Path(__file__).with_name("gpu_model.py")
            command = [*own, "run", f"{model}:program", "--out", str(out / "program")]
        self.process = subprocess.Popen([sys.executable, *command], stdout=self.log, stderr=subprocess.STDOUT, env=more)

    def result(self) -> dict[str, Any]:
        try:
            status = self.process.wait(max(0.0, self.limit - (time.monotonic() - self.begin)))
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
            status = None
        with self.log as log:
            log.seek(0)
            text = log.read()
        said = [line.partition(MARK)[2] for line in text.splitlines() if MARK in line]
        result = {"seconds": round(time.monotonic() - self.begin, 1), **(json.loads(said[-1]) if said else {})}
        if status != 0:
            result["failed"] = "took too long" if status is None else f"status {status}"
            result["output"] = text[-2000:]
        return result


def as_text(results: dict[str, Any]) -> str:
    """Return the results for people."""
    lines = [f"# Results on {results['device']}", "", f"{results['versions']}, {results['seconds']} s in all", ""]
    for name, part in results["parts"].items():
        said = {k: v for k, v in part.items() if k not in ("failed", "output")}
        state = f"FAILED ({part['failed']})" if "failed" in part else "ok"
        lines.append(f"- {name}: {state}; " + ", ".join(f"{k} {v}" for k, v in said.items()))
        if "output" in part:
            lines += ["", "```", part["output"].strip(), "```", ""]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/gpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--rehearse", action="store_true")
    asked = parser.parse_args()
    wanted = asked.only.split(",") if asked.only else [*CHECKS, *MEASURED]
    unknown = [name for name in wanted if name not in CHECKS and name not in MEASURED]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join([*CHECKS, *MEASURED])}")
    reason = None if asked.rehearse else no_gpu()
    if reason is not None:
        print(f"skipped: {reason}; --rehearse runs every part on the CPU")
        return 0
    out, begin = Path(asked.out), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "device": "CPU (a rehearsal)" if asked.rehearse else "a GPU",
        "versions": "",
        "parts": {},
    }

    def keep(name: str, result: dict[str, Any]) -> None:
        for key in ("device", "versions"):
            results[key] = result.pop(key, results[key])
        results["parts"][name] = result
        results["seconds"] = round(time.monotonic() - begin)
        (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (out / "results.md").write_text(as_text(results), encoding="utf-8")
        print(f"{name}: {result.get('failed', 'ok')} after {results['seconds']} s", flush=True)

    checks = [name for name in CHECKS if name in wanted]
    if asked.rehearse:  # a few cores: one after the other
        for name in checks:
            keep(name, Run(name, REHEARSAL_LIMIT, True, False, out).result())
    else:
        running = [Run(name, CHECK_LIMIT, False, True, out) for name in checks]
        for run in running:
            keep(run.name, run.result())
    for name in MEASURED:
        if name not in wanted:
            continue
        if not asked.rehearse and time.monotonic() - begin > DEADLINE:
            keep(name, {"failed": "not begun: no time was left"})
        else:
            keep(name, Run(name, REHEARSAL_LIMIT if asked.rehearse else LIMIT, asked.rehearse, False, out).result())
    print(f"wrote {out}/results.json and results.md")
    return int(any("failed" in part for part in results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
