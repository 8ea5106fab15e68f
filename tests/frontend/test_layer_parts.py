"""Parts of stacked layers: what an error suggests is taken when it is tried."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.frontend import layer_scan


def names_of_parts(length: int, names: Sequence[str]) -> list[str]:
    """The names of the parts of so many layers when `names` are assigned."""
    with layer_scan.assigned_parts(names):
        traced = jax.make_jaxpr(lambda w: mt.scan(lambda x, w: (x * w, None), 1.0, w, name="w"))(jnp.ones(length))
    return re.findall(r"named_computation\[(w.*)\]$", str(traced), re.M)


def suggested(message: str) -> list[list[str]]:
    """The assignments that an error suggests, each as the names that are assigned."""
    ranges = re.findall(r'"(w\[\d+:\d+\])": \.\.\.', message)
    divides = re.search(r"a list of as many meshes as divide (\d+)", message)
    fewer = re.search(r"Assign (\d+) meshes or fewer", message)
    lists = [n for n in range(1, int(divides[1]) + 1) if int(divides[1]) % n == 0] if divides else []
    lists += [int(fewer[1])] if fewer else []
    return [*([ranges] if ranges else []), *(layer_scan.equal_parts("w", n) for n in lists)]


@pytest.mark.parametrize("length", range(1, 7))
def test_what_is_suggested_for_unequal_parts_works(length: int) -> None:
    for count in range(1, 9):
        names = layer_scan.equal_parts("w", count)
        if length % count == 0:
            assert names_of_parts(length, names) == names
            continue
        with pytest.raises(mt.MpmdError, match=f"cannot be cut into {count}") as raised:
            names_of_parts(length, names)
        ways = suggested(str(raised.value))
        assert ways
        for way in ways:
            assert names_of_parts(length, way) == way
