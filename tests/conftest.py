"""Eight virtual CPU devices for every test, also in the worker processes of pytest-xdist.

JAX fixes the number of devices when it first looks at them, not when it is imported, so this also works
when a plugin imported it already.  Processes that tests start inherit the settings.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from mpmd_trace.passes.cpp_engine import CppPartitioner

DEVICES = 8

#: On programs this small XLA takes longer to optimize than for everything else, and what is tested (what moves, where,
#: and how much of it) is decided before.  The fusion emitters of JAX 0.10, which later ones always use, are as slow.
#: Flags that are set already come later and win.
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
    *["--xla_cpu_use_fusion_emitters=false"] * importlib.metadata.version("jaxlib").startswith("0.10."),
)
_FORCED = "--xla_force_host_platform_device_count"  # JAX refuses two ways of saying it
_given = [f for f in os.environ.get("XLA_FLAGS", "").split() if f not in QUICK and not f.startswith(_FORCED)]
os.environ["XLA_FLAGS"] = " ".join([*QUICK, *_given])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = str(DEVICES)
sys.path.insert(0, str(Path(__file__).parent))  # for helpers such as `util`
# The same random examples each time, or twice as many that are new (--hypothesis-profile=nightly).  A machine that does
# much else may take any time for one.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("nightly", deadline=None, derandomize=False, max_examples=200, print_blob=True)
hypothesis.settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Make JAX see the devices, or stop with the reason."""
    import jax

    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", DEVICES)
    except RuntimeError as error:
        if len(jax.devices()) < DEVICES:
            raise pytest.UsageError(
                f"these tests need {DEVICES} CPU devices, but JAX was started with {len(jax.devices())} "
                f"before the tests could say so ({error}); run pytest without plugins that use JAX"
            ) from None
    import shared_work

    shared_work.compile_equal_programs_once()
    shared_work.share_contexts()
    shared_work.keep_the_cpp_partitioner()
    shared_work.make_commands_once()
    # Each full collection looks at the millions of objects that JAX and earlier tests keep.
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def cpp() -> CppPartitioner:
    """The C++ partitioner, in a process for all tests."""
    from mpmd_trace.passes import cpp_engine

    return cpp_engine.CppPartitioner()


@pytest.fixture(scope="module", name="only_new_objects")
def _only_new_objects() -> Iterator[None]:
    """As `util.only_new_objects`, for modules that compile nothing: how many are frozen is counted there each time."""
    from util import only_new_objects

    with only_new_objects():
        yield
