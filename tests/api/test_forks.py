"""A forked child says that it cannot use the devices of its parent, where it would hang."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from util import nightly

SCRIPT = """
import os, signal, sys
import jax, jax.numpy as jnp, numpy as np
import mpmd_trace as mt
from jax.sharding import Mesh

def config():
    meshes = {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i in range(2)}
    return mt.make_config(meshes, {"f0": "m0", "f1": "m1"}, placement="cut")

def step(x):
    for i in range(2):
        x = mt.named_computation(jnp.tanh, name=f"f{i}")(x)
    return x

X = np.ones((4, 4), np.float32)
if "early" not in sys.argv:
    jitted = mt.jit(step, config())
    compiled = jitted.lower(X).compile()
    jitted(X)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        if "early" in sys.argv:
            jitted = mt.jit(step, config())
            compiled = jitted.lower(X).compile()
        other = mt.jit(lambda x: step(x) + 1, config())
        for call in (lambda: jitted(X), lambda: compiled(X), lambda: compiled.measure(X), lambda: other(X)):
            try:
                call()
                print("ran", flush=True)
            except mt.MpmdError as error:
                print(error, flush=True)
    finally:
        os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.parametrize("when", ["late", nightly("early")])
def test_a_forked_child_does_not_hang(when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT), when],
        capture_output=True,
        text=True,
        timeout=300,
    )
    *said, status = done.stdout.splitlines()
    assert status == "0", done.stderr
    assert len(said) == 4
    if when == "early":  # the devices are its own
        assert said == ["ran"] * 4
    else:
        assert all("this process was forked from one that had used its devices" in text for text in said)
