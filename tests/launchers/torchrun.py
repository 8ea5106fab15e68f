"""Processes with the variables that torchrun sets, as other launchers do, too."""

import socket

from example import PROCESSES, each, environment, verify

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(PROCESSES)}
    verify("torchrun", each([environment(**job, RANK=str(n)) for n in range(PROCESSES)]), of_killed=[-9, 1, 1, 1])
