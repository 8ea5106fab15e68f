"""Processes that nothing but variables of JAX make one job."""

import socket

from example import PROCESSES, each, environment, verify

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    job = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(PROCESSES)}
    verify(
        "plain", each([environment(**job, JAX_PROCESS_ID=str(n)) for n in range(PROCESSES)]), of_killed=[-9, 1, 1, 1]
    )
