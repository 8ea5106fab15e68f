"""Moves of single arrays between processes, outside of a plan."""

from __future__ import annotations

import jax
from jax.sharding import NamedSharding

from mpmd_trace.backend.distribution.job import Job
from mpmd_trace.backend.distribution.reshard_transfer import ReshardTransfer, owners_of, parts_of
from mpmd_trace.backend.distribution.transport import Log, here, tag_of
from mpmd_trace.diagnostics.messages import MpmdError


def reshard_across_processes(job: Job, array: jax.Array, to: jax.ShapeDtypeStruct) -> jax.Array:
    """Return the array with the sharding of `to`.  All processes of the job call this with the same array.

    Raises:
        MpmdError: for an array without a `NamedSharding`.
        PeerError: when another process is at fault.
    """
    source, target = array.sharding, to.sharding
    assert isinstance(target, NamedSharding)
    if not isinstance(source, NamedSharding):
        raise MpmdError(f"an array of {source} cannot go to another process; give it a jax.sharding.NamedSharding")
    me = job.process
    parts = parts_of(array.shape, source, target)
    messages = {pair: (at, pieces) for at, (pair, pieces) in enumerate(parts.items()) if pair[0] != pair[1]}
    sends = {q: message for (p, q), message in messages.items() if p == me}
    receives = {p: message for (p, q), message in messages.items() if q == me}
    reshard = ReshardTransfer(
        jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=target),
        source,
        sends={q: pieces for q, (_, pieces) in sends.items()},
        receives={p: pieces for p, (_, pieces) in receives.items()},
        own=parts.get((me, me), ()),
        arrives=me in owners_of(target.mesh),
    )
    if len({*owners_of(source.mesh), *owners_of(target.mesh)}) == 1:  # that one does without this function
        return reshard.nothing()
    number = job.next_move()
    tags = {("to", q): tag_of(0, number, at) for q, (at, _) in sends.items()}
    tags.update({("from", p): tag_of(0, number, at) for p, (at, _) in receives.items()})

    def what(way: str, process: int) -> str:
        ends = f"send to process {process}" if way == "to" else f"receive from process {process}"
        return f"{ends} {array.dtype}{list(array.shape)}, an argument (tag {tags[way, process]:#x})"

    moved = job.transport.transfer(tags, array, reshard, Log(what, (0, number)), lent=True, given=True)
    return reshard.nothing() if moved is None else here(moved)
