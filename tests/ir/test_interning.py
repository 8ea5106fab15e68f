"""Equal types and attributes are one object, also for threads, and nobody else keeps them."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mpmd_trace.ir.attributes import ArrayAttr, DictAttr, IntegerAttr, StringAttr, TypeAttr, parse_attribute
from mpmd_trace.ir.interning import Interned
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.types import TensorType, function_type, mesh_tensor, parse_type, tensor

THREADS = 4


def _mesh_tensor(number: int) -> Interned:
    return mesh_tensor("m", tensor((number, 7), "f32"), memory_kind="pinned_host")


MAKERS: dict[str, Callable[[int], Interned]] = {
    "tensor": lambda n: tensor((n, 5), "f32"),
    "parsed tensor": lambda n: parse_type(f"tensor<{n}x3xf32>"),
    "parsed mesh tensor": lambda n: parse_type(f'!mpmd.mesh_tensor<"m", tensor<{n}xf32>, sharding=<@m, [{{"x"}}]>>'),
    "mesh tensor": _mesh_tensor,
    "function": lambda n: function_type((tensor((n,), "f64"),), ()),
    "opaque": lambda n: parse_type(f"!other.type<{n}>"),
    "string": lambda n: StringAttr.get(f"name {n}"),
    "list": lambda n: ArrayAttr.get([IntegerAttr.get(n), TypeAttr.get(tensor((n, 2), "i1"))]),
    "dictionary": lambda n: DictAttr.get({f"key{n}": IntegerAttr.get(n)}),
    "parsed attribute": lambda n: parse_attribute(f"[#other.attribute<{n}>, {{a = @f{n}}}]"),
}


pytestmark = pytest.mark.usefixtures("only_new_objects")


@contextmanager
def eager_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("kind", ["tensor", "parsed mesh tensor", "dictionary"])
def test_threads_get_one_object(kind: str) -> None:
    make, barrier = MAKERS[kind], threading.Barrier(THREADS)

    def work(_: int) -> list[Interned]:
        barrier.wait()
        return [make(number) for number in range(2000)]

    with eager_switches(), ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, range(THREADS)))
    for same in zip(*found, strict=True):
        assert all(one is same[0] for one in same)


@pytest.mark.parametrize("kind", MAKERS)
def test_what_nobody_uses_is_gone(kind: str) -> None:
    made = MAKERS[kind](123_456)
    text, gone = made.text, weakref.ref(made)
    assert MAKERS[kind](123_456) is made
    del made
    gc.collect()
    assert gone() is None
    assert MAKERS[kind](123_456).text == text


@pytest.mark.parametrize("kind", MAKERS)
def test_copies_are_the_same_object(kind: str) -> None:
    made = MAKERS[kind](4321)
    assert copy.copy(made) is copy.deepcopy(made) is pickle.loads(pickle.dumps(made)) is made
    data, text = pickle.dumps(made), made.text
    del made
    gc.collect()
    assert pickle.loads(data) is MAKERS[kind](4321) and MAKERS[kind](4321).text == text


def test_a_type_lives_as_long_as_what_is_made_of_it() -> None:
    placed = mesh_tensor("m", tensor((31, 37), "f32"))
    gc.collect()
    assert placed.tensor is tensor((31, 37), "f32") is parse_type(" tensor<31x37xf32>")
    assert isinstance(placed.tensor, TensorType) and placed is placed.with_mesh("n").with_mesh("m")


def test_constants_of_forgotten_modules_take_no_memory() -> None:
    def module(number: int) -> str:
        data = f"{number:02x}" * 200_000
        return (
            '"builtin.module"() ({\n'
            f'  %0 = "stablehlo.constant"() <{{value = dense<"0x{data}"> : tensor<50000xf32>}}> '
            ": () -> tensor<50000xf32>\n"
            "}) : () -> ()"
        )

    def parse_and_forget(number: int) -> None:
        assert len(parse_generic(module(number)).to_generic()) > 400_000

    parse_and_forget(0)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(6):
            parse_and_forget(number)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 200_000
