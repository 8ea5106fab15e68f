"""What a step costs besides its programs, counted: calls of JAX, checks of arguments, arrays kept."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from exported import PAIRS, PIPELINE

from mpmd_trace.backend.load import LoadedProgram, load
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat import runtime as compat
from mpmd_trace_devtools.interpreter import random_args
from util import only_new_objects

HEAD = """
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
!split = !mpmd.mesh_tensor<"b", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
#topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>
sdy.mesh @mesh = <["x"=2]>
"""


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays each call of a copying function gets."""
    found: list[int] = []
    original = compat.batched_copy

    def batched_copy(*arguments: Any, **options: Any) -> Any:
        copy = original(*arguments, **options)
        return lambda arrays: (found.append(len(arrays)), copy(arrays))[1]

    monkeypatch.setattr(compat, "batched_copy", batched_copy)
    return found


def moved(copied: list[int], signature: str, body: str) -> tuple[LoadedProgram, list[int]]:
    """The program on numbers of its own, run and measured, and the copies of the run."""
    text = f"{HEAD} func.func @main{signature} attributes {{topology = #topology}} {{ {body} }}"
    program = load(parse(text), PAIRS)
    values = [np.arange(4, dtype=np.float32) + 10 * i for i in range(len(program.input_specs))]
    args = [jax.device_put(v, s) for v, s in zip(values, program.input_shardings, strict=True)]
    copied.clear()
    results = program(*args)
    calls = list(copied)
    measured, timeline = program.measure(*args)
    assert len(timeline.entries) == len(program.plan.transfers)
    for found in (results, measured):
        for i, (value, sharding) in enumerate(zip(found, program.output_shardings, strict=True)):
            np.testing.assert_array_equal(value, values[i])
            assert value.sharding == sharding
    return program, calls


TWO = "%0 = mpmd.transfer %x : (!a) -> !b %1 = mpmd.transfer %y : (!b) -> !a\n"


@pytest.mark.parametrize(
    ("signature", "body", "transfers", "wanted"),
    [
        (
            "(%x: !a, %y: !b, %z: !a) -> (!b, !a, !b)",
            f"{TWO} %2 = mpmd.transfer %z : (!a) -> !b return %0, %1, %2 : !b, !a, !b",
            3,
            [3],
        ),
        ("(%x: !a, %y: !b) -> (!a, !a)", f"{TWO} %2 = mpmd.transfer %0 : (!b) -> !a return %2, %1 : !a, !a", 2, [1, 2]),
        (
            "(%x: !a, %y: !b) -> (!split, !a)",
            "%0 = mpmd.transfer %x : (!a) -> !split %1 = mpmd.transfer %y : (!b) -> !a return %0, %1 : !split, !a",
            2,
            [1, 1],
        ),
    ],
    ids=["in a row", "of what was just transferred", "that reshards"],
)
def test_transfers_in_a_row_are_one_call(
    signature: str, body: str, transfers: int, wanted: list[int], copied: list[int]
) -> None:
    """Whatever the meshes between which they go; the others are calls of their own."""
    program, calls = moved(copied, signature, body)
    assert (len(program.plan.transfers), calls) == (transfers, wanted)


def test_transfer_guards_take_transfers_for_explicit_ones(copied: list[int]) -> None:
    program, _ = moved(copied, "(%x: !a) -> !b", "%0 = mpmd.transfer %x : (!a) -> !b return %0 : !b")
    x = jax.device_put(np.arange(4, dtype=np.float32), program.input_shardings[0])
    with jax.transfer_guard_device_to_device("disallow"):
        (y,) = program(x)
    np.testing.assert_array_equal(y, x)
    jax.config.update("jax_transfer_guard_device_to_device", "disallow")  # in the threads that measure, too
    try:
        ((y,), _) = program.measure(x)
    finally:
        jax.config.update("jax_transfer_guard_device_to_device", None)
    np.testing.assert_array_equal(y, x)
    with (
        jax.transfer_guard_device_to_device("disallow_explicit"),
        pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed device-to-device") as error,
    ):
        program(x)
    assert "transfer of f32[4] from mesh 'a' to 'b'" in "".join(error.value.__notes__)


def test_an_error_in_a_batch_names_all_transfers_of_it(copied: list[int]) -> None:
    program, _ = moved(copied, "(%x: !a, %y: !b) -> (!b, !a)", f"{TWO} return %0, %1 : !b, !a")
    (step,) = program.runtime.steps

    def broken(_: object) -> list[jax.Array]:
        raise RuntimeError("link down")

    program.runtime.steps[0] = (broken, *step[1:])
    with pytest.raises(RuntimeError, match="link down") as error:
        program(*[jax.device_put(np.ones(4, np.float32), s) for s in program.input_shardings])
    assert [note.split(": ", 1)[1] for note in error.value.__notes__] == [
        "transfer of f32[4] from mesh 'a' to 'b'",
        "transfer of f32[4] from mesh 'b' to 'a'",
    ]


def test_what_only_the_program_holds_goes_with_its_last_use() -> None:
    """Host arrays are placed by the program: the copies are not kept for the whole step."""
    program = load(parse(PIPELINE), PAIRS)
    call, *rest = program.runtime.steps[2]  # g, after the last use of x
    alive: list[list[tuple[int, ...]]] = []

    def last(arrays: Sequence[Any]) -> Sequence[Any]:
        gc.collect()
        alive.append([a.shape for a in jax.live_arrays() if not a.is_deleted()])
        return call(arrays)

    program.runtime.steps[2] = (last, *rest)
    with only_new_objects():
        before = [a.shape for a in jax.live_arrays() if not a.is_deleted()]
        program(*random_args(parse(PIPELINE)))
    (shapes,) = alive
    # What was transferred, w and v; not x.
    assert sorted(shapes) == sorted([*before, (4, 8), (8, 8), (8, 8)])
