"""Names work where they were in the last release, with a warning."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import mpmd_trace
from mpmd_trace import config
from mpmd_trace.passes import compile_options
from mpmd_trace.scheduling import utilization
from mpmd_trace_devtools import interpreter

MOVED = [
    ("frontend.config", "Config", config.Config),
    ("frontend.config", "MeshOfInput", config.MeshOfInput),
    ("report.interpreter", "interpret", interpreter.interpret),
    ("report.utilization", "peak_flops", utilization.peak_flops),
    ("passes.request", "PartitioningOptions", compile_options.CompileOptions),
    ("passes.request", "OUR_OPTIONS", compile_options.OUR_OPTIONS),
]
AT_THE_TOP = mpmd_trace._MOVED


@pytest.mark.parametrize("module,name,now", MOVED)
def test_where_it_was(module: str, name: str, now: Any) -> None:
    old = importlib.import_module(f"mpmd_trace.{module}")
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} is mpmd_trace") as warned:
        assert getattr(old, name) is now
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize("module", dict.fromkeys(module for module, _, _ in MOVED))
def test_other_names_are_not_there(module: str) -> None:
    old = importlib.import_module(f"mpmd_trace.{module}")
    with pytest.raises(AttributeError, match="nothing"):
        _ = old.nothing


@pytest.mark.parametrize("name", AT_THE_TOP)
def test_what_was_at_the_top(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"mpmd_trace.{name} is mpmd_trace.{AT_THE_TOP[name]}.{name}") as warned:
        old = getattr(mpmd_trace, name)
    assert old is getattr(getattr(mpmd_trace, AT_THE_TOP[name]), name)
    assert [one.filename for one in warned] == [__file__]


def test_an_import_of_a_name_warns_once() -> None:
    with pytest.warns(DeprecationWarning, match=r"mpmd_trace\.trace is mpmd_trace\.compiler\.trace") as warned:
        from mpmd_trace import trace  # noqa: F401
    assert len(warned) == 1


def test_constraints_of_partition_are_predicates_now() -> None:
    with pytest.raises(
        mpmd_trace.MpmdError, match=r"takes no constraints any more: .* as predicate, .* as fragment_sch"
    ):
        mpmd_trace.compiler.partition("", "f", [], {}, [], [], constraints=lambda units: None)
