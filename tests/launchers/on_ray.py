"""A script in several actors of Ray: `python on_ray.py NUMBER SCRIPT [ARGUMENT ...]`.

Prints how each of them has ended; the exit status is that of the first that failed.
"""

import runpy
import socket
import sys

import ray


@ray.remote(num_cpus=0)  # with GPUs: num_gpus=1
class Worker:
    """One process of the job."""

    def address(self):
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, address, count, number, command):
        """Run the script; its exit status."""
        import mpmd_trace

        mpmd_trace.initialize(address, count, number)
        sys.argv[:] = command
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                return end.code
        mpmd_trace.shutdown()  # Ray ends its processes without
        return 0


def main(count, command):
    workers = [Worker.remote() for _ in range(count)]
    address = ray.get(workers[0].address.remote())
    results = [worker.run.remote(address, count, number, command) for number, worker in enumerate(workers)]
    first = 0
    for number, result in enumerate(results):
        try:
            status = ray.get(result)
            print(f"process {number} ended with status {status}\n", end="", flush=True)
        except ray.exceptions.RayError as error:
            status = 1
            print(f"process {number} failed: {type(error).__name__}\n", end="", flush=True)
        first = first or status
    return first


if __name__ == "__main__":
    ray.init(include_dashboard=False)
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
