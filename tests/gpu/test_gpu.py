"""What `make gpu` checks on a GPU, one by one; without a GPU its rehearsal, and that it says why it is skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu  # noqa: E402

REASON = gpu.no_gpu()


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    flags = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")}
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=flags, timeout=900)


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("part", gpu.CHECKS)
def test_a_check_on_a_gpu(part: str, tmp_path: Path) -> None:
    done = ran("--only", part, "--out", str(tmp_path))
    assert done.returncode == 0, (tmp_path / "results.md").read_text()


@pytest.mark.skipif(REASON is None, reason="there is a GPU")
def test_without_a_gpu_the_reason_is_said_and_nothing_fails(tmp_path: Path) -> None:
    done = ran("--out", str(tmp_path / "out"))
    assert done.returncode == 0 and done.stdout.startswith("skipped: "), done.stderr
    assert str(REASON) in done.stdout and not (tmp_path / "out").exists()


def test_an_unknown_part_is_refused() -> None:
    done = ran("--only", "kernel")
    assert done.returncode == 2 and "no such part: kernel; there are kernels" in done.stderr


def test_a_part_that_fails_is_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "CHECKS", ["absent"])  # which gpu_parts.py does not have
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse", "--only", "absent", "--out", str(tmp_path)])
    assert gpu.main() == 1
    part = json.loads((tmp_path / "results.json").read_text())["parts"]["absent"]
    assert part["failed"] == "status 1" and "ValueError" in part["output"]
    assert "absent: FAILED (status 1)" in (tmp_path / "results.md").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("part", [*gpu.CHECKS, *gpu.MEASURED])
def test_a_part_is_rehearsed_on_the_cpu(part: str, tmp_path: Path) -> None:
    done = ran("--rehearse", "--only", part, "--out", str(tmp_path))
    assert done.returncode == 0, (tmp_path / "results.md").read_text()
