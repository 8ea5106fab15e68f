"""Checks of the arrays that a program is called with: quick when they fit, clear when they do not."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.backend.plan import Plan
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, listed, used_after_donation
from mpmd_trace.jax_compat.layouts import full_format, layout_of, put, same_layout
from mpmd_trace.jax_compat.runtime import ArrayImpl
from mpmd_trace.jax_compat.tracing import is_key

#: Host arrays are warned of when they come so often in a row, and are at least so many bytes together.
_OFTEN, _COSTLY = 3, 2**20


#: By id, the sharding objects of the arguments and results of every program of the process.  An array that has one is
#: where a program left it, or where `place` or `restore` put it for one, and other programs take it from there.
_PLACED: dict[int, Any] = {}
#: The shardings of the results of every program of the process.  What is computed from results, outside of programs,
#: has equal shardings, but other objects.
_RESULTS: set[Any] = set()


class WrongSharding(MpmdError):
    """Every array is on its mesh, but some have another sharding there than the program was compiled for."""


class TracedArgument(MpmdError):
    """An argument is a tracer of another transformation."""


class ArgumentChecker:
    """Turns what the caller passes into the arrays that the plan expects."""

    def __init__(self, plan: Plan, specs: Sequence[jax.ShapeDtypeStruct], keep_unused: bool = False) -> None:
        self.plan = plan
        self.specs = list(specs)
        self._wanted = {id(spec.sharding): spec.sharding for spec in specs}
        _PLACED.update(self._wanted)
        self.array_class: Any = ArrayImpl
        #: For each argument type, sharding and layout, as JAX's own objects, of the last array that was fit.  No
        #: layout: there is only one for arrays of this type.
        self._fit: list[tuple[Any, Any, Any]] = [(None, None, None)] * len(self.specs)
        self._layouts = [full_format(spec).layout for spec in self.specs]
        self.donated = sorted(plan.donated)
        #: The arguments that need not be anywhere.
        self.unused = frozenset[int]() if keep_unused else plan.unused.difference(self.donated)
        #: Arrays of one class may be copies of each other, that is, the same buffer.
        meshes = [plan.slots[i].mesh for i in range(len(self.specs))]
        self._classes = [
            (s.shape, s.dtype, plan.shared.get(mesh, mesh)) for s, mesh in zip(self.specs, meshes, strict=True)
        ]
        #: The arrays of the caller in the last call.
        self._seen: list[weakref.ref[Any] | None] = [None] * len(self.specs)
        self._used = [i for i in range(len(self.specs)) if i not in self.unused]
        #: By id, the sharding objects of results that the caller got.  Arrays with one of them, or one that is equal,
        #: are not where the caller put them but where a step left them, and may be passed back from any mesh.
        self.ours: dict[int, Any] = {}
        #: Whether they may also be passed back with another sharding or layout on the mesh where they are wanted.
        self.moves_ours_within_mesh = True
        #: Moves an array between the devices of several processes.
        self.move: Callable[[jax.Array, jax.ShapeDtypeStruct], jax.Array] = put
        #: For each argument that was copied to its mesh: the array that it was copied from, the copy when that array
        #: came twice (it stays as long as the array), and how often it came in a row.
        self._kept: dict[int, tuple[weakref.ref[Any], jax.Array | None, int]] = {}
        #: Called once when host arrays that come again and again are copied in every call, and once when arrays that
        #: another program left elsewhere are moved.
        self.warn: Callable[[str], None] | None = None
        self._warned: set[str] = set()
        #: How the caller can move argument `{index}`.
        self.remedy = "move it with jax.device_put(x, program.input_shardings[{index}])"

    def __call__(self, args: Sequence[Any]) -> list[jax.Array]:
        """Return the arrays.  Raises `MpmdError` that names every argument that does not fit."""
        if len(args) != len(self.specs):
            raise MpmdError(
                f"the program takes {len(self.specs)} arrays (the leaves of its arguments), not {len(args)}"
            )
        result = list(args)
        problems: list[str] = []
        only_sharding, traced = True, False
        moved: list[int] = []
        gone: list[str] = []
        cls = self.array_class
        for i, (x, (aval, sharding, layout)) in enumerate(zip(args, self._fit, strict=True)):
            if (
                x.__class__ is cls
                and x.aval is aval
                and x.sharding is sharding
                and not x.is_deleted()
                and (layout is None or x._pjrt_layout == layout)
            ):
                continue
            try:
                result[i] = placed = self._place(i, x)
                if placed is x and x.__class__ is cls:
                    self._fit[i] = x.aval, x.sharding, None if self._has_one_layout(i) else layout_of(x)
                elif x.__class__ is cls and x.committed and x.sharding.device_set != placed.sharding.device_set:
                    moved.append(i)
            except _Gone:
                gone.append(self.name(i))
            except _Misfit as misfit:
                problems.append(f"{self.name(i)} {misfit}")
                only_sharding &= isinstance(misfit, _OtherSharding)
                traced |= isinstance(misfit, _Traced)
        if gone:
            problems.append(used_after_donation(gone))
            only_sharding = False
        if problems and only_sharding:
            raise WrongSharding([Diagnostic("error", p) for p in problems])
        if not problems and self.donated:
            self._check_donated_twice(args, result, problems)
        if problems:
            raise (TracedArgument if traced else MpmdError)([Diagnostic("error", p) for p in problems])
        if moved:  # of those of this program, compiling warns
            self._warn_once(
                [i for i in moved if id(args[i].sharding) not in self.ours],
                "arguments are on other meshes than those where the program takes them, and are moved",
                "move",
            )
        return result

    def know(self, results: Sequence[jax.Array]) -> None:
        """Know results of the program again by their sharding objects, which are the same after every call."""
        shardings = {id(x.sharding): x.sharding for x in results}
        if not shardings.keys() <= self.ours.keys():
            _PLACED.update(shardings)
            _RESULTS.update(shardings.values())
            self.ours.update(shardings)

    def name(self, index: int) -> str:
        """Return `argument params['w']`, or `argument 3` where it has no name."""
        return f"argument {self.plan.slots[index].name or index}"

    def _moves(self, index: int, x: jax.Array, elsewhere: bool) -> bool:
        """Return whether a committed array that does not fit is moved: a step returned it, or something where it is."""
        if elsewhere:
            is_of_other = id(x.sharding) in _PLACED and id(x.sharding) not in self._wanted
            return is_of_other or x.sharding in _RESULTS
        if index in self.plan.movable:
            return True
        return self.moves_ours_within_mesh and x.sharding in self.ours.values()

    def _has_one_layout(self, index: int) -> bool:
        return len(self.specs[index].shape) < 2 and not self._layouts[index].tiling

    def _place(self, index: int, x: Any) -> jax.Array:
        spec = self.specs[index]
        mesh = self.plan.slots[index].mesh
        if isinstance(x, jax.core.Tracer):
            raise _Traced("is a tracer")
        if isinstance(x, jax.Array):
            if x.shape != spec.shape or x.dtype != spec.dtype:
                if is_key(x):
                    raise _Misfit(
                        f"is a typed PRNG key {x.dtype}, and the program wants its data, {_shown(spec)}; "
                        "pass jax.random.key_data(key)"
                    )
                raise _Misfit(f"must be {_shown(spec)}, not {_shown(x)}")
            if (copy := self._copy_of(index, x)) is not None:
                return copy
            if x.is_deleted():
                raise _Gone
            if index in self.unused:
                return x
            assert spec.sharding is not None
            if x.sharding == spec.sharding or (
                x.sharding.is_equivalent_to(spec.sharding, x.ndim)
                and x.sharding.memory_kind == spec.sharding.memory_kind
            ):
                if self._has_one_layout(index) or same_layout(self._layouts[index], layout_of(x)):
                    return x
                if x.committed and not self._moves(index, x, elsewhere=False):
                    raise _OtherSharding(
                        f"has the layout {_order(x.format.layout)} in memory, and the program wants "
                        f"{_order(self._layouts[index])}; " + self.remedy.format(index=index)
                    )
            elsewhere = x.sharding.device_set != spec.sharding.device_set
            if x.committed and not self._moves(index, x, elsewhere):
                if elsewhere:
                    here, there = _numbers(x.sharding.device_set), _numbers(spec.sharding.device_set)
                    raise _Misfit(
                        f"is on device{here}, and the program wants it on mesh '{mesh}' (device{there}); "
                        + self.remedy.format(index=index)
                    )
                raise _OtherSharding(
                    f"has sharding {x.sharding}, and the program wants {spec.sharding} on mesh '{mesh}'; "
                    + self.remedy.format(index=index)
                )
            # What the program may reuse must not share its buffer with an array that lives on.
            if x.committed and not (x.is_fully_addressable and spec.sharding.is_fully_addressable):
                return self.move(x, spec)
            placed = put(x, spec, may_alias=False if index in self.plan.donated else None)
            self._remember(index, x, placed)
        else:
            placed = self._from_host(spec, x, index in self.unused)
            if isinstance(x, np.ndarray):
                self._remember(index, x, None)
        if isinstance(placed, jax.core.Tracer):  # inside of jax.jit even constants are traced
            raise _Traced("would become a tracer where it is called")
        return placed

    def _copy_of(self, index: int, x: Any) -> jax.Array | None:
        """Return the copy of an array on its mesh that an earlier call has made, if there is one."""
        last = self._kept.get(index)
        if last is None or x.is_deleted() or last[0]() is not x:
            return None
        copy = last[1]
        return copy if copy is not None and not copy.is_deleted() else None

    def _remember(self, index: int, x: Any, placed: jax.Array | None) -> None:
        """Keep the copy of an array that is copied for the second time, and warn of host arrays, which may change."""
        if index in self.plan.donated:
            return
        kept = self._kept
        last = kept.get(index)
        if last is not None and last[0]() is x:
            kept[index] = last[0], placed, last[2] + 1
            if placed is None and last[2] + 1 == _OFTEN:
                self._warn_of_copies()
            return

        def forget(gone: weakref.ref[Any]) -> None:
            if index in kept and kept[index][0] is gone:
                del kept[index]

        kept[index] = weakref.ref(x, forget), None, 1

    def _warn_of_copies(self) -> None:
        kept = self._kept.copy()  # an array that goes meanwhile takes its entry along
        host = [i for i, (ref, copy, _) in kept.items() if copy is None and isinstance(ref(), np.ndarray)]
        self._warn_once(
            [i for i in host if kept[i][2] >= _OFTEN - 1],
            "host arrays come again in every call, and are copied to their meshes each time",
            "place",
        )

    def _warn_once(self, indices: Sequence[int], what: str, remedy: str) -> None:
        """Warn that `what` happens to these arguments, if they are large and no call has warned of it."""
        bytes_ = sum(self.plan.slots[i].bytes for i in indices)
        if bytes_ < _COSTLY or self.warn is None or what in self._warned:
            return
        self._warned.add(what)
        names = listed([self.name(i) for i in indices], 3)
        self.warn(
            f"{bytes_:,} bytes of {what}: {names}. If they do not change, {remedy} them once and pass what that "
            "returns: compiled.place(*args), or mpmd_trace.place(compiled, ...) for the leading arguments"
        )

    def _from_host(self, spec: jax.ShapeDtypeStruct, x: Any, unused: bool) -> Any:
        if isinstance(x, jax.ShapeDtypeStruct):
            raise _Misfit(f"must be an array {_shown(spec)}, not a ShapeDtypeStruct, which only lower and trace take")
        try:
            value = np.asarray(x)
            dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        except (TypeError, ValueError):
            raise _Misfit(f"must be an array {_shown(spec)}, not a {type(x).__name__}") from None
        if value.dtype.kind in "OSUVMm" and not isinstance(x, np.ndarray):
            raise _Misfit(f"must be an array {_shown(spec)}, not a {type(x).__name__}")
        if value.shape != spec.shape or spec.dtype not in (value.dtype, dtype):
            raise _Misfit(f"must be {_shown(spec)}, not {_shown(value)}")
        if unused:
            return x
        with jax.enable_x64(True):
            # The caller may change or keep its memory: never share it.
            return put(value.astype(spec.dtype, copy=False), spec, may_alias=False)

    def check_given_twice(self, given: Sequence[Any]) -> None:
        """Raise `MpmdError` for arrays that are given twice and donated; only these are placed, to compare buffers."""
        places: dict[int, list[int]] = {}
        for i in self._used:
            x = given[i]
            if isinstance(x, jax.Array) and x.is_fully_addressable and not is_key(x):
                places.setdefault(id(x), []).append(i)
        placed: list[tuple[int, jax.Array]] = []
        for same in places.values():
            if len(same) > 1 and not self.plan.donated.isdisjoint(same):
                with contextlib.suppress(_Misfit, _Gone):  # of which a call tells
                    placed += [(i, self._place(i, given[i])) for i in same]
        if pairs := _given_twice(_buffers(placed), self.plan.donated):
            raise MpmdError([Diagnostic("error", self._told_twice(given, pairs))])

    def _told_twice(self, given: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> str:
        """Return what to say of arrays that are given twice, as two arguments; a whole model has many, all alike."""
        first, i = pairs[0]
        what = "is the same array as" if given[i] is given[first] else "shares its buffer with"
        gone = self.name(i if i in self.plan.donated else first)
        more = "s are" if len(pairs) > 2 else " is"
        more = f", and {len(pairs) - 1} more array{more} given twice" if len(pairs) > 1 else ""
        return (
            f"{self.name(i)} {what} {self.name(first)}, and {gone} is donated{more}; pass a copy (jnp.copy) or do not "
            "donate it"
        )

    def _check_donated_twice(self, given: Sequence[Any], args: Sequence[Any], problems: list[str]) -> None:
        """Add a problem for each donated array that is passed twice: its buffer is reused while the program runs.

        `given`: what the caller passed, of which `args` were made.
        """
        ids = [id(args[i]) for i in self._used]
        is_each_once = len(set(ids)) == len(ids)
        keys = self._shared_buffers(given, args) if is_each_once else dict(zip(self._used, ids, strict=True))
        if pairs := _given_twice(keys.items(), self.plan.donated):
            problems.append(self._told_twice(given, pairs))
            self._seen = [None] * len(self.specs)

    def _shared_buffers(self, given: Sequence[Any], args: Sequence[Any]) -> dict[int, int]:
        """Return the addresses of arrays that may share a buffer, as `jax.device_put` to the same place makes them.

        Only arrays of the caller are looked at that were not here before: results of ours share no buffer with each
        other, nor with what is older than they are, and neither do copies that were made to place an argument.
        """
        ours, seen = self.ours, self._seen
        new = [
            i
            for i in self._used
            if (x := args[i]) is given[i]
            and id(x.sharding) not in ours
            and ((last := seen[i]) is None or last() is not x)
        ]
        for i in new:
            seen[i] = weakref.ref(args[i])
        classes = self._classes
        wanted = {classes[i] for i in new}
        result = {
            i: args[i].addressable_data(0).unsafe_buffer_pointer()
            for i in (self._used if wanted else ())
            if classes[i] in wanted and args[i].size and args[i].is_fully_addressable
        }
        # Placed on several devices, an array keeps its buffer where it was, whatever `may_alias` says.
        moved = [i for i in self._used if args[i] is not given[i] and given[i].__class__ is self.array_class]
        if len({id(given[i]) for i in moved}) < len(moved):
            for i in moved:
                for shard in args[i].addressable_shards:
                    if shard.device in given[i].sharding.device_set:
                        result[i] = shard.data.unsafe_buffer_pointer()
        return result


def put_apart(arrays: Sequence[Any], specs: Sequence[jax.ShapeDtypeStruct], donated: Container[int]) -> list[jax.Array]:
    """Return the arrays where `specs` want them; one that is given twice and `donated` has a buffer of its own."""
    placed = [put(x, spec) for x, spec in zip(arrays, specs, strict=True)]
    own = [(i, jax.random.key_data(x) if is_key(x) else x) for i, x in enumerate(placed) if x.is_fully_addressable]
    for _, i in _given_twice(_buffers(own), donated):
        placed[i] = put(jax.numpy.copy(placed[i]), specs[i])
    return placed


def _given_twice(buffers: Iterable[tuple[int, Hashable]], donated: Container[int]) -> list[tuple[int, int]]:
    """Return the pairs of arguments that share a buffer, of which one is donated."""
    firsts: dict[Hashable, int] = {}
    pairs: dict[int, int] = {}
    for i, buffer in buffers:
        first = firsts.setdefault(buffer, i)
        if first != i and (i in donated or first in donated):
            pairs.setdefault(i, first)
    return [(first, i) for i, first in pairs.items()]


def _buffers(arrays: Iterable[tuple[int, jax.Array]]) -> Iterator[tuple[int, Hashable]]:
    """Yield the buffers of numbered arrays: addresses on devices, which may have a memory each."""
    for i, array in arrays:
        for shard in array.addressable_shards:
            if shard.data.size:
                yield i, (shard.device, shard.data.unsafe_buffer_pointer())


def _numbers(devices: Iterable[jax.Device]) -> str:
    """Return `s 0, 1` of two devices and ` 0` of one."""
    ids = sorted(d.id for d in devices)
    return f"{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def _order(layout: Any) -> str:
    tiles = f" in tiles {layout.tiling}" if layout.tiling else ""
    return f"{layout.major_to_minor} (major to minor){tiles}"


def _shown(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"


class _Misfit(Exception):
    """An argument does not fit; the text says why, without its name."""


class _Gone(Exception):
    """Its buffer was donated or deleted."""


class _Traced(_Misfit):
    """It is part of another transformation, or would be."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a program over several meshes cannot be part of another jax transformation; "
            "call it outside of jax.jit, grad and vmap"
        )


class _OtherSharding(_Misfit):
    """It is on the right devices."""
