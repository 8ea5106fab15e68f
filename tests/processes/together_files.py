"""Checkpoints and files of several processes: more of what `together.py` checks."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from comparing import ACROSS, SECOND_ALONE, STAGES, UNEQUAL, Places, batch, check, close, same, topology, train, weights
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.api.checkpoints import safetensors_format


@check
def saved_and_restored() -> None:
    """A run that goes on from its checkpoint is the one that was not interrupted, bit for bit; also elsewhere."""

    def compiled(places: Places) -> mt.stages.Compiled:
        made = mt.make_config(topology(places, False), {"f0": "m0", "f1": "m1"})
        return mt.jit(train, made).lower(weights(2), batch()).compile()

    program = compiled(STAGES)
    (state,) = mt.place(program, weights(2))
    folder = os.environ["FOLDER"]
    for number in range(3):
        if number == 1:
            mt.save(os.path.join(folder, "saved"), {"weights": state, "key": jax.random.key(3), "count": 5})
        state, value = program(state, batch())
    last = mt.fetch((state, value))
    manager = ocp.CheckpointManager(os.path.join(folder, "managed"), item_handlers=mt.checkpoint.checkpoint_handler())
    manager.save(7, args=ocp.args.PyTreeSave(state))
    manager.wait_until_finished()
    for places in (STAGES, UNEQUAL, ACROSS):
        other = program if places is STAGES else compiled(places)
        like = {"weights": mt.abstract(other), "key": jax.random.key(0), "count": 0}
        found = mt.restore(os.path.join(folder, "saved"), like)
        assert jax.random.key_data(found["key"])[1] == 3 and found["count"] == 5
        state = found["weights"]
        for _ in range(2):
            state, value = other(state, batch())
        (same if places is STAGES else close)(mt.fetch((state, value)), last)
    wanted = mt.abstract(compiled(UNEQUAL))
    arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
    assert manager.latest_step() == 7
    reads: list[Any] = []
    restore = ocp.Checkpointer.restore
    ocp.Checkpointer.restore = lambda *args, **given: reads.append(given["item"]) or restore(*args, **given)
    for places in (UNEQUAL, SECOND_ALONE):
        like = mt.abstract(compiled(places))
        same(mt.fetch(mt.restore(os.path.join(folder, "managed"), like)), last[0])
        is_read = [one is not ocp.PLACEHOLDER for one in jax.tree.leaves(reads.pop())]
        assert is_read == [bool(one.sharding.addressable_devices) for one in like]
    ocp.Checkpointer.restore = restore
    restored = manager.restore(7, args=ocp.args.PyTreeRestore(wanted, restore_args=arguments))
    same(mt.fetch(restored), last[0])
    manager.close()
    try:
        mt.save(os.path.join(folder, "saved"), state)
    except mt.MpmdError as error:
        assert "exists" in str(error)
    else:
        raise AssertionError("a checkpoint is overwritten")
    mt.save(os.path.join(folder, "saved"), state, overwrite=True)
    assert sorted(os.listdir(folder)) == ["managed", "saved"]
    same(mt.fetch(mt.restore(os.path.join(folder, "saved"), state)), mt.fetch(state))


def scanned(ws: Any, x: Any) -> Any:
    y, _ = mt.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws, name="blocks")
    return 0.5 * ws, jnp.sum(y)


@check
def safetensors_of_several_processes() -> None:
    """Each process writes the tensors that it has, and opens the files with those that it wants."""

    def like(places: Places) -> Any:
        made = mt.make_config(topology(places, False), {"f0": "m0", "f1": "m1"})
        return mt.abstract(mt.jit(train, made).lower(weights(2), batch()).compile())

    def spread(x: Any, sharding: Any) -> Any:
        return jax.make_array_from_callback(x.shape, sharding, lambda i: x[i], dtype=x.dtype)

    folder = os.environ["FOLDER"] + ".safetensors"
    state = [spread(x, spec.sharding) for x, spec in zip(weights(2), like(STAGES), strict=True)]
    names = {r"(\d)": mt.checkpoint.StoredAs(r"model.layers.\1.weight", transpose=True)}
    write_file = safetensors_format._write_file

    def late(*given: Any) -> None:  # process 0 puts the files in their places, which must wait for the others
        time.sleep(0.5 * jax.process_index())
        write_file(*given)

    safetensors_format._write_file = late
    mt.checkpoint.save_safetensors(folder, state, names=names)
    safetensors_format._write_file = write_file
    own = f"model-0000{jax.process_index() + 1}-of-00002.safetensors"
    mine = f"{folder}.of.{jax.process_index()}"
    os.mkdir(mine)
    for name in (own, "model.safetensors.index.json"):
        shutil.copy(os.path.join(folder, name), mine)
    same(mt.fetch(mt.restore(mine, like(STAGES), names=names)), weights(2))  # the files of the other are not opened
    cut = mt.make_config(topology(STAGES, False), {"blocks": ["m0", "m1"]}, placement="cut")
    stacked = mt.jit(scanned, cut).lower(np.stack(weights(2)), batch()[0]).compile()
    rows = {"": mt.checkpoint.StoredAs("model.layers.{}.weight", transpose=True)}
    same(mt.fetch(mt.restore(mine, mt.abstract(stacked), names=rows)), np.stack(weights(2)))
    for places in (UNEQUAL, ACROSS, SECOND_ALONE):
        same(mt.fetch(mt.restore(folder, like(places), names=names)), weights(2))
    mt.checkpoint.save_safetensors(
        folder, [x + 1 for x in weights(2)], names=names, overwrite=True
    )  # by the first alone
    same(mt.fetch(mt.restore(folder, like(STAGES), names=names)), [x + 1 for x in weights(2)])
    assert os.listdir(folder) == ["model.safetensors"]
    mt.checkpoint.save_safetensors(folder, state, names=names, overwrite=True)
    same(mt.fetch(mt.restore(folder, like(STAGES), names=names)), weights(2))
    rows = NamedSharding(topology(ACROSS, False)["m0"], PartitionSpec("x"))
    across = [spread(x, rows) for x in weights(2)]
    try:
        mt.checkpoint.save_safetensors(folder, across, overwrite=True)
    except mt.MpmdError as error:
        assert "0 is in parts on several processes, of which none has all" in str(error)
    else:
        raise AssertionError("nobody has all of it")
