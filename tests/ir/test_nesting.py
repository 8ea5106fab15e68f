"""Text that is nested too deeply for parsers and printers is refused before they see it; locations may be deep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mpmd_trace as mt
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.mlir import MOST_BRACKETS, check_nesting
from mpmd_trace.passes.registry import get_pass
from mpmd_trace_cli.opt import process
from mpmd_trace_cli.opt_flags import parse_arguments


def lists(depth: int) -> str:
    return f"func.func private @f() attributes {{mpmd.x = {'[' * depth}{']' * depth}}}"


def dictionaries(depth: int) -> str:
    return f"func.func private @f() attributes {{mpmd.x = {'{a = ' * depth}1{'}' * depth}}}"


def conditionals(depth: int) -> str:
    text = "func.func @main(%a: tensor<f32>, %p: tensor<i1>) -> tensor<f32> {\n"
    text += "".join(f'%{i} = "stablehlo.if"(%p) ({{\n' for i in range(depth))
    for i in reversed(range(depth)):
        value = f"%{i + 1}" if i + 1 < depth else "%a"
        text += f'"stablehlo.return"({value}) : (tensor<f32>) -> () }}, {{\n'
        text += '"stablehlo.return"(%a) : (tensor<f32>) -> () }) : (tensor<i1>) -> tensor<f32>\n'
    return text + "return %0 : tensor<f32> }"


def modules(depth: int) -> str:
    return "module {" * depth + "}" * depth


@pytest.mark.parametrize(("text", "brackets"), [(lists, 1), (dictionaries, 1), (conditionals, 2), (modules, 1)])
@pytest.mark.parametrize("passes", [[], ["-canonicalize", "-mpmd-symbol-dce"]])
def test_deep_text_works_or_is_refused(text: Callable[[int], str], brackets: int, passes: list[str]) -> None:
    options = parse_arguments(["-", *passes])
    fits = (MOST_BRACKETS - 4) // brackets
    with_passes = [made for name, value in options.passes for made in get_pass(name, {})]
    shallow = process(text(fits), with_passes, options)
    assert shallow.output is not None
    for depth in (fits + 5, 10_000):
        outcome = process(text(depth), with_passes, options)
        assert outcome.output is None
        (error,) = outcome.diagnostics
        assert error.message == (
            f"nested too deeply: more than {MOST_BRACKETS} brackets of ops, attributes and types are open here"
        )
        assert error.location.file is not None and error.location.file[1] > 0


def test_what_strings_comments_and_arrows_spell_is_no_nesting() -> None:
    check_nesting('"' + "[" * 500 + '"\n//' + "{" * 500 + "\n" + "(a) -> (b) " * 500, "-")
    with pytest.raises(mt.MpmdError, match="nested too deeply"):
        check_nesting('"' + "]" * 500 + '"' + "->" * 500 + "[" * 201, "-")


@pytest.mark.parametrize("callers_first", [False, True])
def test_calls_may_be_600_deep_in_locations(callers_first: bool) -> None:
    location = '"f.py":1:1'
    for i in range(600):
        other = f'"f{i}.py":{i + 1}:1'
        location = f"callsite({other} at {location})" if callers_first else f"callsite({location} at {other})"
    text = f"func.func @f(%a: tensor<f32>) -> tensor<f32> {{ return %a : tensor<f32> loc({location}) }}"
    options = parse_arguments(["-", "--mlir-print-debuginfo"])
    outcome = process(text, [], options)
    assert outcome.output is not None and '"f599.py":600:1' in outcome.output
    module = parse(text)
    assert len(list(module.functions[0].body.terminator.loc.files)) == 601


@pytest.mark.parametrize("given", [None, b"module {}", 3])
def test_what_is_no_text(given: object) -> None:
    with pytest.raises(TypeError, match=f"parse takes MLIR text, a str, not {type(given).__name__}"):
        mt.compiler.parse(given)  # type: ignore[arg-type]
