"""Ray: a script in four actors (`on_ray.py`).  RAY_PYTHON is an interpreter that has Ray, by default this one."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from example import PROCESSES, ROOT, environment, run, skip, verify

#: How `on_ray.py` says that a process has ended, with the statuses.
ENDS = {"ended with status 0": 0, "ended with status 1": 1, "failed: ActorDiedError": -9}

if __name__ == "__main__":
    python = os.environ.get("RAY_PYTHON") or sys.executable
    if subprocess.run([python, "-c", "import ray"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        skip("Ray is not installed (pip install ray), or RAY_PYTHON names no interpreter that has it")

    def start(arguments: Sequence[str]) -> tuple[list[int], str]:
        command = [python, "tests/launchers/on_ray.py", str(PROCESSES), *arguments]
        env = environment(PYTHONPATH=os.pathsep.join([str(ROOT / "src"), *sys.path[1:]]), RAY_DEDUP_LOGS="0")
        for _ in range(3):
            text = re.sub(r"\x1b\[\d*m", "", run(command, env)[1])
            if "timed out during startup" not in text:  # Ray waits for 30 s, too few for a busy machine
                break
        # What actors print may come in the middle of a line.
        of_each = re.findall(r"process \d (ended with status \d+|failed: \w+?Error)", text)
        statuses = [ENDS.get(one, 99) for one in of_each]
        return statuses + [99] * (PROCESSES - len(statuses)), text

    verify("ray", start, of_killed=[-9, 1, 1, 1])
