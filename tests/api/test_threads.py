"""Several threads may call compiled steps whose programs run on several devices: each step is issued as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The watchdog ends a process that hangs, with the stacks of its threads; the lines below `work` are the test.
PROGRAM = """
import faulthandler, threading
faulthandler.dump_traceback_later(240, exit=True)
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from pipelines import accumulate, batch, config, topology, weights
import mpmd_trace
from mpmd_trace.api import partitioned as program

partition_as, partitioned = program.partition_as, []
program.partition_as = lambda *args, **kwargs: partitioned.append(1) or partition_as(*args, **kwargs)

def other(ws, xs):
    return accumulate([2 * w for w in ws], xs)

args = weights(), batch(2)
split = NamedSharding(topology()["m0"], PartitionSpec(None, "x"))  # the first mesh needs collectives
steps = [mpmd_trace.jit(f, config(), in_shardings=(None, split)) for f in (accumulate, other)]
wanted = [jax.device_get(jax.jit(f)(*args)) for f in (accumulate, other)]
failed = []

def work(number):
    try:
        for _ in range(20):
            found = steps[number % 2](*args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), found, wanted[number % 2])
    except BaseException as error:
        failed.append(error)
        raise

threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed
assert len(partitioned) == 2  # one for each step: no thread compiled what another had
"""


def test_threads_that_share_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
