"""Names and layouts of arrays in checkpoints of other libraries."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mpmd_trace.api.checkpoints.entries import is_here, rows_here
from mpmd_trace.diagnostics.messages import MpmdError, listed, raise_errors

_T = TypeVar("_T")

#: How many arrays a message lists.
_LISTED = 8


@dataclasses.dataclass(frozen=True)
class StoredAs:
    r"""The form in which an array, or each layer of it, is stored in a checkpoint of another library.

        StoredAs(r"model.layers.{}.self_attn.q_proj.weight", transpose=True)  # layers in one array here
        StoredAs("blocks.w", row=r"\1")  # layers in one array there

    Attributes:
        name: the name there; `\1` is what the first group of the pattern matched, and `{}` the number of the layer,
            where an array of stacked layers is stored layer by layer.
        transpose: whether the axes are in reverse order there; or the order of the axes there that gives that here.
        merge: the first and the last axis of the array that are one axis there, such as heads and their width.
        row: the layer, where that of one layer is part of an array of stacked layers there; a number or a group.
        axis: the axis of the layers, for `{}` here and for `row` there.
    """

    name: str
    transpose: bool | Sequence[int] = False
    merge: tuple[int, int] | None = None
    row: int | str | None = None
    axis: int = 0


#: For patterns of names (regular expressions) of arrays, how those are stored.
Names = Mapping[str, "str | StoredAs"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A `StoredAs` for one array, with the names of its layers there, or of the whole."""

    names: tuple[str, ...]
    axes: tuple[int, ...] | None
    merge: tuple[int, int] | None
    row: int | None
    #: The axis of the layers; None where neither here nor there are any.
    axis: int | None
    is_stacked: bool

    @property
    def is_plain(self) -> bool:
        """True if the array is stored as it is."""
        return not self.is_stacked and self.axes is None and self.merge is None and self.row is None

    def read(self, stored: Mapping[str, Any], shape: tuple[int, ...], index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Return the part at `index` of the array, which has this shape; nothing else is looked at."""
        if not self.is_stacked:
            return np.asarray(self._of(stored[self.names[0]], shape)[index])
        at = self.axis or 0
        own, inner = shape[:at] + shape[at + 1 :], index[:at] + index[at + 1 :]
        return np.stack([np.asarray(self._of(stored[name], own)[inner]) for name in self.names[index[at]]], at)

    def names_here(self, spec: Any) -> tuple[str, ...]:
        """Return what this process reads for an array like `spec`: of stacked layers those on its devices."""
        if not self.is_stacked:
            return self.names if is_here(spec) else ()
        layers = {layer for first, last in rows_here(spec, self.axis or 0) for layer in range(first, last)}
        return tuple(name for i, name in enumerate(self.names) if i in layers)

    def problems(
        self, stored: Mapping[str, Any], names: Iterable[str], spec: Any, shown: Callable[[str], str], *, cast: bool
    ) -> list[str]:
        """Return what is wrong with what is stored under `names` for an array like `spec`; no data is read.

        shown: what a message calls what has this name.
        """
        shape, at = tuple(spec.shape), self.axis or 0
        own = shape[:at] + shape[at + 1 :] if self.is_stacked else shape
        result = []
        for name in names:
            x = stored[name]
            there = f"{shown(name) or 'the value'} is stored as {x.dtype}{list(x.shape)}"
            try:
                actual = self._of(x, own)
            except (IndexError, ValueError):
                result.append(f"{there}, which does not fit {self}")
                continue
            if tuple(actual.shape) != own:
                how = "" if actual is x else f", which gives {list(actual.shape)} here"
                result.append(f"{there}{how}, and {spec.dtype}{list(own)} is wanted")
            elif x.dtype != spec.dtype and not cast and not _is_number(x, spec):
                result.append(f"{there}, and {spec.dtype}{list(own)} is wanted; restore(..., cast=True) converts it")
        return result

    def _of(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return the array or layer of this shape that is stored as `x`."""
        if self.row is not None:
            x = x[(*[slice(None)] * (self.axis or 0), self.row)]
        if self.axes is not None:
            x = x.transpose(self.axes)
        if self.merge is not None:
            first, last = self.merge
            x = x.reshape(*x.shape[:first], *shape[first : last + 1], *x.shape[first + 1 :])
        return x

    def stored(self, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return what is stored of an array, by name; of what is one layer there, that layer."""
        layers = list(np.moveaxis(x, self.axis or 0, 0)) if self.is_stacked else [x]
        return [self._stored(layer) for layer in layers]

    def _stored(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.merge is not None:
            first, last = self.merge
            x = x.reshape(*x.shape[:first], -1, *x.shape[last + 1 :])
        return x if self.axes is None else np.transpose(x, np.argsort(self.axes))


def _is_number(x: Any, spec: Any) -> bool:
    """Return whether `x` or `spec` is a Python number as NumPy has it, such as a count of steps, and both fit."""
    wide = (np.int64, np.float64, np.complex128)
    return not x.shape and (x.dtype in wide or spec.dtype in wide) and x.dtype.kind == np.dtype(spec.dtype).kind


def converted(x: np.ndarray[Any, Any], dtype: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a number in another dtype.  Raises `MpmdError` if it is not the same there, but for rounding."""
    with np.errstate(all="ignore"):
        result = np.asarray(x.real if np.iscomplexobj(x) and not x.imag else x).astype(dtype)
        if jnp.issubdtype(dtype, jnp.inexact):
            is_same = bool(np.isfinite(result.astype(np.complex128)) or not np.isfinite(x))
        else:
            is_same = bool(result == x)
    if not is_same:
        raise MpmdError(
            f"{name or 'the value'} is stored as {x.item()}, which is no {np.dtype(dtype).name}; "
            "restore(..., cast=True) converts it"
        )
    return result


def dotted(path: Sequence[Any]) -> str:
    """Return the name of an array: `layers.0.weight`."""
    name: str = jax.tree_util.keystr(tuple(path), simple=True, separator=".")
    return name


def by_name(named: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Return what there is by its name.  Raises `MpmdError` for two with one name."""
    result: dict[str, _T] = {}
    for name, x in named:
        if name in result:
            raise MpmdError(
                f"two arrays are called {name}: 'a.b' and 'b' of 'a' are one name; give one of them another key"
            )
        result[name] = x
    return result


def resolved(arrays: Mapping[str, Any], names: Names | None) -> dict[str, Rule]:
    """Return how each of these arrays is stored.  Raises `MpmdError` for names that do not fit."""
    patterns = []
    for text, stored in (names or {}).items():
        try:
            patterns.append((re.compile(text), text, stored))
        except re.error as error:
            raise MpmdError(
                f"names has {text!r}, which is not a regular expression: {error}; re.escape gives that of a plain name"
            ) from None
    unused = {pattern for _, pattern, _ in patterns}
    result: dict[str, Rule] = {}
    problems: list[str] = []
    for name, array in arrays.items():
        match, of, pattern = next(
            ((m, rule, text) for p, text, rule in patterns if (m := p.fullmatch(name)) is not None), (None, name, "")
        )
        unused.discard(pattern)
        try:
            result[name] = _rule(of if isinstance(of, StoredAs) else StoredAs(of), match, array)
        except (re.error, ValueError, IndexError) as error:
            problems.append(f"names[{pattern!r}] does not fit {name} of shape {list(array.shape)}: {error}")
    known = ", ".join(itertools.islice(arrays, _LISTED)) + (" ..." if len(arrays) > _LISTED else "")
    problems += [f"names has {p!r}, which matches no array; they are called {known}" for p in sorted(unused)]
    raise_errors(problems)
    return result


def _rule(of: StoredAs, match: re.Match[str] | None, array: Any) -> Rule:
    rank = len(array.shape)
    name = of.name if match is None else match.expand(of.name.replace("{}", "\0")).replace("\0", "{}")
    is_stacked = match is not None and "{}" in name
    row = None if of.row is None else int(match.expand(of.row) if match and isinstance(of.row, str) else of.row)
    if is_stacked and row is not None:
        raise ValueError("{} is for layers that are one array here, and row for those that are one array there")
    if is_stacked and not 0 <= of.axis < rank:
        raise ValueError(f"there is no axis {of.axis} for the layers")
    rank -= is_stacked
    if of.merge is not None and not 0 <= of.merge[0] < of.merge[1] < rank:
        raise ValueError(f"merge={of.merge} is not the first and the last of several axes of a layer, of {rank} axes")
    rank -= 0 if of.merge is None else of.merge[1] - of.merge[0]
    axes = None
    if of.transpose is not False:
        axes = tuple(reversed(range(rank))) if of.transpose is True else tuple(of.transpose)
        if sorted(axes) != list(range(rank)):
            raise ValueError(f"transpose={of.transpose} does not list each of the {rank} axes once")
    layers = [name.replace("{}", str(i)) for i in range(array.shape[of.axis])] if is_stacked else [name]
    return Rule(tuple(layers), axes, of.merge, row, of.axis if is_stacked or row is not None else None, is_stacked)


def missing(wanted: Sequence[str], known: Iterable[str], path: str, *, named: bool) -> list[str]:
    """Return the messages that a checkpoint lacks arrays that are wanted.

    known: the names of those that it has.
    named: whether the user has said how they are called there.
    """
    known = dict.fromkeys(known)
    absent = [name for name in dict.fromkeys(wanted) if name not in known]
    if not absent:
        return []
    end = f".{absent[0]}"
    above = [n.removesuffix(end) for n in known if n.endswith(end)] if absent[0] and not named else []
    above = [one for one in above if all(f"{one}.{name}" in known for name in wanted)]
    if above:
        where = min(above, key=len)
        others = ", ".join(one for one in above if one != where)
        also = f" (and others of these names below {others})" if others else ""
        how = rf'restore(..., names={{r"(.*)": r"{where}.\1"}})'
        return [f"{path} has the arrays that are wanted below {where}{also}: {how} reads them from there"]
    if not named and all(name.startswith("0.") and name[2:] in known for name in wanted):
        how = "pass like=x instead of (x,), or argnums=N instead of (N,)"
        return [f"{path} has all arrays that are wanted, but it was not saved as a tuple with one element: {how}"]
    lines = []
    for name in absent[:_LISTED]:
        near = difflib.get_close_matches(name, known, 3, 0.6) or sorted(known)
        lines.append(f"{path} has no {name or 'value'}" + (f"; it has {listed(near, 3)}" if near else ""))
    if len(absent) > _LISTED:
        more = len(absent) - _LISTED
        lines.append(f"{path} lacks {more} more array{' that is' if more == 1 else 's that are'} wanted")
    return lines
