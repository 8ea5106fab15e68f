"""SLURM: `srun --ntasks 4 python script.py`, with a controller and a node on this machine."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from example import PROCESSES, environment, run, skip, verify

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
MpiDefault=none
SwitchType=switch/none
NodeName={host} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextlib.contextmanager
def cluster() -> Iterator[Path]:
    """The path of the configuration of a cluster of this machine."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for part in ("munge", "state", "spool"):
            (folder / part).mkdir()
        folder.chmod(0o755)
        (folder / "munge").chmod(0o755)
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
            ports = [one.getsockname()[1], other.getsockname()[1]]
        host = socket.gethostname().partition(".")[0]
        path = folder / "slurm.conf"
        path.write_text(CONFIGURATION.format(host=host, folder=folder, ports=ports, cores=os.cpu_count()))
        munge = [f"--{what}-file={folder}/munge/{what}" for what in ("key", "pid", "log", "seed")]
        try:
            subprocess.run(["munged", "--force", f"--socket={folder}/munge/socket", *munge], check=True)
            for daemon in ("slurmctld", "slurmd"):
                subprocess.run([daemon, "-f", path], check=True)
            for _ in range(120):
                env = {**os.environ, "SLURM_CONF": str(path)}
                done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, stdout=-1, check=False)
                if done.stdout.strip() == b"idle":
                    break
                time.sleep(0.5)
            else:
                sys.exit((folder / "slurmctld.log").read_text())
            yield path
        finally:
            for pid in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int((folder / pid).read_text()), signal.SIGTERM)
            time.sleep(2.0)  # they write to the folder


if __name__ == "__main__":
    missing = [name for name in ("srun", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)")
    if os.geteuid() != 0:
        skip("the daemons of SLURM need root")
    command = ["srun", "--ntasks", str(PROCESSES), "--overcommit"]
    with cluster() as path:
        # srun ends with the highest status.
        env = environment(SLURM_CONF=str(path))
        verify("slurm", lambda given: run([*command, sys.executable, *given], env), of_killed=[137])
