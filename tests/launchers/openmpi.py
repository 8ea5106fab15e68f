"""Open MPI: `mpirun -n 4 python script.py`."""

import os
import shutil
import sys

from example import PROCESSES, environment, run, skip, verify

if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        skip("mpirun is not installed (Debian: openmpi-bin)")
    command = ["mpirun", *["--allow-run-as-root"] * (os.geteuid() == 0), "--oversubscribe", "-n", str(PROCESSES)]
    # mpirun ends with the status of the first that failed.
    verify("openmpi", lambda given: run([*command, sys.executable, *given], environment()), of_killed=[137])
