"""Bugs of the package say that they are, and what to send; errors of the user and of JAX stay what they are."""

from __future__ import annotations

import linecache
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mpmd_trace as mt
from mpmd_trace.backend.runtime import Runtime
from mpmd_trace.diagnostics.internal import FrozenBodyError, in_words, internal_error
from mpmd_trace.ir.core import Block, Region, make_op
from mpmd_trace.ir.freezing import freeze
from pipelines import config

X = np.ones((4, 4), np.float32)


def step(x: Any) -> Any:
    for i in range(2):
        x = mt.named_computation(jnp.tanh, name=f"f{i}")(x)
    return x


def broken(source: str) -> types.FunctionType:
    """A function as if it were in a file of the package."""
    file = Runtime.__init__.__code__.co_filename
    names: dict[str, Any] = {}
    exec(compile("\n" * 5000 + source, file, "exec"), names)
    linecache.clearcache()
    found = names["broken"]
    assert isinstance(found, types.FunctionType)
    return found


ASSERTS = "def broken(*args, **kwargs):\n    assert not args"
ZIPS = "def broken(*args, **kwargs):\n    return list(zip([1], [], strict=True))"
#: What breaks down, where, and in which call.
PLACES = {
    "trace": ("mpmd_trace.api.jit.trace", lambda: mt.jit(step, config()).trace(X)),
    "lower": ("mpmd_trace.api.jit.check_names", lambda: mt.jit(step, config()).lower(X)),
    "compile": ("mpmd_trace.backend.load.compile_programs", lambda: mt.jit(step, config()).lower(X).compile()),
    "load": ("mpmd_trace.backend.runtime.make_steps", lambda: mt.jit(step, config())(X)),
    "call": ("mpmd_trace.backend.runtime.Runtime._issue", lambda: mt.jit(step, config())(X)),
    "place": ("mpmd_trace.api.placing.put_apart", lambda: mt.place(mt.jit(step, config()).lower(X).compile(), X)),
    "fetch": ("mpmd_trace.backend.distribution.allgather._gathered", lambda: mt.fetch(X)),
}


@pytest.mark.parametrize("source", [ASSERTS, ZIPS])
@pytest.mark.parametrize("place", PLACES)
def test_a_bug_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch, place: str, source: str) -> None:
    where, call = PLACES[place]
    monkeypatch.setattr(where, broken(source))
    with pytest.raises(mt.errors.InternalError) as caught:
        call()
    text = str(caught.value)
    kind = "AssertionError" if source is ASSERTS else r"ValueError: zip\(\) argument 2 is shorter than argument 1"
    assert re.match(rf"internal error: {kind} \(backend/runtime\.py:500\d, in broken\)\n", text)
    assert "This is a bug in mpmd_trace, not in your program. Please report it with\n" in text
    assert f"jax {jax.__version__}" in text
    assert "mpmd-trace show FILE --stage ir" in text
    assert isinstance(caught.value.__cause__, AssertionError | ValueError)
    assert not isinstance(caught.value, mt.MpmdError)  # who tries something else after a refusal must not hide it


def test_errors_of_the_user_stay_what_they_are() -> None:
    def asserts(x: Any) -> Any:
        assert x.ndim == 3
        return x

    def calls(x: Any) -> Any:
        return step(x) + {}["nothing"]

    def is_jaxs(x: Any) -> Any:
        return step(x) @ jnp.ones((3, 3))

    def misspells(x: Any) -> Any:
        return mt.named_computaton(jnp.tanh, name="f0")(x)

    in_notebook: dict[str, Any] = {}
    exec(compile("def cell(x):\n    assert x is None", "<ipython-input-1>", "exec"), in_notebook)
    for fn, kind in [
        (asserts, AssertionError),
        (in_notebook["cell"], AssertionError),
        (calls, KeyError),
        (is_jaxs, TypeError),
        (misspells, AttributeError),
        (lambda: None, TypeError),  # called with an argument
    ]:
        with pytest.raises(Exception) as caught:
            mt.jit(fn, config())(X)
        assert not isinstance(caught.value, mt.errors.InternalError), fn
        assert isinstance(caught.value, (kind, mt.MpmdError)), fn
    with pytest.raises(TypeError, match="compiled"):
        mt.place()  # type: ignore[call-arg]
    with pytest.raises(mt.MpmdError, match="phases is 'import'"):
        mt.compiler.partition(mt.compiler.parse("module {}"), "main", {}, {}, [], [], phases="some")  # type: ignore[arg-type]


def test_an_assertion_of_jax_under_our_code_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(compile("def inner(*args, **kwargs):\n    assert False, 'avals'", jax.jit.__code__.co_filename, "exec"), names)
    monkeypatch.setattr("mpmd_trace.api.jit.check_names", names["inner"])
    with pytest.raises(
        mt.errors.InternalError, match=r"internal error: AssertionError: avals \(api/jit\.py:\d+, in _lower\)"
    ):
        mt.jit(step, config()).lower(X)
    for error in (OSError("full"), MemoryError(), KeyboardInterrupt(), mt.MpmdError("no")):
        assert internal_error(error) is None
    assert in_words(OSError("full\nmore")) == "OSError: full"


def test_changing_a_frozen_body_is_a_bug_of_who_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    body = Region([Block()])
    freeze(body)
    function = broken("def broken(*args, **kwargs):\n    body.blocks.append(None)")
    function.__globals__["body"] = body
    monkeypatch.setattr("mpmd_trace.api.jit.check_names", function)
    with pytest.raises(mt.errors.InternalError, match=r"FrozenBodyError: .* \(backend/runtime\.py:5002, in broken\)"):
        mt.jit(step, config()).lower(X)

    def pass_of_a_user(*args: Any, **kwargs: Any) -> None:
        body.block.append(make_op("op"))

    monkeypatch.setattr("mpmd_trace.api.jit.check_names", pass_of_a_user)
    with pytest.raises(FrozenBodyError, match="frozen body"):
        mt.jit(step, config()).lower(X)
