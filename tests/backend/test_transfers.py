"""Arrays between the transfer servers of two processes, which are one here; `tests/processes` has real ones."""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from mpmd_trace.backend.distribution.in_flight import InFlight
from mpmd_trace.backend.distribution.transport import Pull
from mpmd_trace.diagnostics.messages import MpmdError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jaxlib has no transfer servers")


class Peers:
    """What a transport asks of the other processes, of which it sees one message each."""

    def __init__(self, process: int, messages: list[Any]) -> None:
        self.process, self._messages = process, messages

    def allgather(self, what: str, mine: Any) -> list[Any]:
        self._messages.append(mine)
        return list(self._messages)


def _spec(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(jax.devices()[1]))


@pytest.fixture
def ends() -> tuple[Pull, Pull]:
    """The sender is process 0, whose secret counts, and the receiver knows it."""
    messages: list[Any] = []
    host = "127.0.0.1"
    return (
        Pull(Peers(0, messages), InFlight(False), host),  # type: ignore[arg-type]
        Pull(Peers(1, messages), InFlight(False), host),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int4", "bool", "complex64"])
def test_what_arrives_is_what_was_sent(ends: tuple[Pull, Pull], dtype: str) -> None:
    sender, receiver = ends
    blocks = [jnp.arange(6).reshape(2, 3).astype(dtype), jnp.ones((), dtype)]
    tag = (1 << 63) + 7
    arrived = receiver._pull(0, tag, [_spec(block) for block in blocks])  # asked for before it is offered
    sender.offer(tag, blocks)
    for block, one in zip(blocks, arrived, strict=True):
        assert one.devices() == {jax.devices()[1]}
        np.testing.assert_array_equal(np.asarray(one), np.asarray(block))


def test_what_is_asked_for_first_does_not_hold_up_the_rest(ends: tuple[Pull, Pull]) -> None:
    sender, receiver = ends
    first, second = (receiver._pull(0, tag, [_spec(jnp.ones(3))])[0] for tag in (11, 12))
    sender.offer(12, [jnp.ones(3)])
    np.testing.assert_array_equal(np.asarray(second), np.ones(3))
    assert not first.is_ready()
    sender.offer(11, [jnp.zeros(3)])
    np.testing.assert_array_equal(np.asarray(first), np.zeros(3))


def test_who_does_not_know_the_secret_gets_nothing(ends: tuple[Pull, Pull]) -> None:
    sender, receiver = ends
    sender.offer(5, [jnp.ones(3)])
    receiver._secret ^= 1
    [array] = receiver._pull(0, 5, [_spec(jnp.ones(3))])
    time.sleep(0.3)
    assert not array.is_ready()
    receiver._secret ^= 1
    [array] = receiver._pull(0, 5, [_spec(jnp.ones(3))])
    np.testing.assert_array_equal(np.asarray(array), np.ones(3))


def test_a_platform_without_transfer_servers_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax.experimental.transfer", None)
    monkeypatch.delattr(jax.experimental, "transfer", raising=False)
    with pytest.raises(MpmdError, match="in jaxlib for Linux only; use one process"):
        Pull(Peers(0, []), InFlight(False), "127.0.0.1")  # type: ignore[arg-type]
