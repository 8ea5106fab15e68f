"""A handler of orbax for arrays on the devices of one process of several."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from mpmd_trace.backend.distribution.job import current
from mpmd_trace.diagnostics.internal import in_words
from mpmd_trace.diagnostics.messages import MpmdError, raise_errors
from mpmd_trace.jax_compat.layouts import elsewhere


def orbax() -> Any:
    """Return the module `orbax.checkpoint`.  Raises `MpmdError` where it is not installed."""
    try:
        import orbax.checkpoint as ocp  # optional
    except ImportError as error:
        raise MpmdError("saving and restoring need orbax; install it with: pip install 'mpmd_trace[train]'") from error
    return ocp


@contextlib.contextmanager
def working(doing: str, hint: str = "", *, together: bool = False) -> Iterator[None]:
    """While another library does something; its errors, tensorstore's and the system's become `MpmdError`.

    hint: what else to say of them.
    together: whether the processes of a job wait for each other in it, so that an error of one is one of all.
    """
    job = current() if together else None
    try:
        with job.peers.telling(f"to {doing}") if job is not None else contextlib.nullcontext():
            yield
    except MpmdError:
        raise
    except Exception as error:
        raise MpmdError(f"cannot {doing}{hint}: {in_words(error)}") from error


def check_storable(arrays: Mapping[str, Any]) -> None:
    """Raise `MpmdError` for arrays of dtypes that orbax cannot write."""
    import tensorstore  # comes with orbax

    problems = []
    for name, x in arrays.items():
        try:
            tensorstore.dtype(np.dtype(x.dtype).name)
        except ValueError:
            problems.append(
                f"{name} is {np.dtype(x.dtype).name}, a dtype that Orbax cannot write: convert it before it is saved "
                "(uint4 to uint8, for example), and back after it is restored"
            )
    raise_errors(problems)


def checkpointer_of_job() -> Any:
    """Return a checkpointer of orbax, which knows the arrays of a job of several processes if this is one."""
    ocp = orbax()
    return ocp.PyTreeCheckpointer() if current() is None else ocp.Checkpointer(checkpoint_handler())


class _Whole:
    """An array of all processes, as orbax's handler of arrays sees it.

    Orbax refuses arrays that one process has whole, for they may be another one in each process; those of a mesh are
    not.  A process that has nothing of the array has one part here, which no process writes.
    """

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)

    @property
    def addressable_shards(self) -> Sequence[Any]:
        result: Sequence[Any] = self._array.addressable_shards
        if result:
            return result
        data = SimpleNamespace(shape=self._array.sharding.shard_shape(self._array.shape))
        return [SimpleNamespace(data=data, replica_id=-1, index=None)]


def checkpoint_handler() -> Any:
    """Return a `PyTreeCheckpointHandler` of Orbax, for `ocp.CheckpointManager` and `ocp.Checkpointer`.

        manager = ocp.CheckpointManager(folder, item_handlers=mpmd_trace.checkpoint.checkpoint_handler())
        manager.save(step, args=ocp.args.PyTreeSave(state))

    It writes and reads the same format as Orbax's own, also in a job of several processes: each process writes what is
    on its devices, and reads what is wanted there.  All processes must call the same methods of the manager.

    Raises:
        MpmdError: when orbax is missing.
    """
    ocp = orbax()
    handlers = ocp.type_handlers

    class ArrayHandler(handlers.ArrayHandler):  # type: ignore[misc, name-defined]
        """Arrays on meshes of any processes."""

        async def serialize(self, values: Sequence[Any], infos: Any, args: Any = None) -> Any:
            return await super().serialize([_Whole(v) for v in values], infos, args)

        async def deserialize(self, infos: Sequence[Any], args: Any = None) -> list[Any]:
            wanted = args or [None] * len(infos)
            places = [getattr(a, "sharding", None) for a in wanted]
            mine = [i for i, place in enumerate(places) if place is None or place.addressable_devices]
            result: list[Any] = [None] * len(infos)
            if mine:
                read = await super().deserialize([infos[i] for i in mine], [wanted[i] for i in mine])
                for i, array in zip(mine, read, strict=True):
                    result[i] = array
            for i in set(range(len(infos))).difference(mine):
                shape = wanted[i].global_shape
                result[i] = elsewhere(jax.ShapeDtypeStruct(shape, wanted[i].dtype, sharding=places[i]))
            return result

    registry = handlers.create_type_handler_registry(
        (jax.Array, ArrayHandler(use_replica_parallel=False)),
        (np.ndarray, handlers.NumpyHandler()),
        (int, handlers.ScalarHandler()),
        (float, handlers.ScalarHandler()),
        (str, handlers.StringHandler()),
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
