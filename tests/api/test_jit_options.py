"""`jit`, `filter_jit` and `nnx.jit` take the same options, and say which they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

import mpmd_trace

OF_JAX = ("in_shardings", "out_shardings", "donate_argnums", "donate_argnames", "static_argnums", "static_argnames")


FUNCTIONS: list[Callable[..., Any]] = [mpmd_trace.jit, mpmd_trace.filter_jit, mpmd_trace.nnx.jit]
CONFIG = mpmd_trace.make_config({"m": AbstractMesh((1,), ("x",))}, {})


def test_the_options_are_those_of_jax_and_are_listed() -> None:
    ours, filtered, nnx = (inspect.signature(one).parameters for one in FUNCTIONS)
    assert set(OF_JAX) <= set(inspect.signature(jax.jit).parameters) & set(ours)
    assert list(ours) == list(nnx) and {*ours, "donate"} == set(filtered)
    assert all(one.kind is one.KEYWORD_ONLY for name, one in ours.items() if name not in ("fn", "config"))


@pytest.mark.parametrize("as_decorator", [False, True])
def test_other_options_are_refused_by_the_name_of_the_function(as_decorator: bool) -> None:
    for one in FUNCTIONS:
        with pytest.raises(TypeError, match=rf"{one.__name__}\(\) got an unexpected keyword argument 'inline'"):
            one(config=CONFIG, inline=True) if as_decorator else one(lambda x: x, CONFIG, inline=True)


def test_options_reach_the_program() -> None:
    for one in FUNCTIONS:
        jitted = one(lambda x, n: x * n, CONFIG, donate_argnums=0, keep_unused=True, engine="cpp")
        settings = jitted.settings
        assert settings.donation.positions(2) == (0,) and settings.keep_unused and settings.engine == "cpp"
        assert one(config=CONFIG)(lambda x: x).settings.engine == "python"


def test_options_are_where_they_were_with_a_warning() -> None:
    given = {"static_argnums": (1,), "static_argnames": ("n",), "keep_unused": True, "engine": "cpp"}
    given |= {"in_shardings": (None,), "out_shardings": None, "compiler_options": {}}
    jitted = mpmd_trace.jit(lambda x, n: x * n, CONFIG, **given)  # type: ignore[call-overload]
    lowered = jitted.lower_lazily(1.0, 2)
    on_both = ("keep_unused", "engine", "compiler_options")
    for stage, names in ((jitted, given), (lowered, on_both)):
        for name in names:
            with pytest.warns(DeprecationWarning, match=rf"\.{name} is \.settings\.{name}") as warned:
                value = getattr(stage, name)
            assert [one.filename for one in warned] == [__file__]
            assert value == ({"m": {}} if name == "compiler_options" else given[name])
