"""Pass pipelines as text: `builtin.module(mpmd-call-inline,func.func(mpmd-foo{a=true b=x,y}))`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from typing import Any

from mpmd_trace.diagnostics.messages import MpmdError, did_you_mean
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.option_text import closing, split_outside, unwrap


def convert(text: str | None, annotation: Any, default: Any, where: str) -> Any:
    """Return the value of an option from its text (None: only the name was given).  Raises `MpmdError`."""
    if isinstance(annotation, types.UnionType):  # with None, which has no text
        (annotation,) = [one for one in typing.get_args(annotation) if one is not types.NoneType]
    if annotation is bool:
        if text in (None, "true", "True", "TRUE", "1"):
            return True
        if text in ("false", "False", "FALSE", "0"):
            return False
        raise MpmdError(f"{where} is a flag: write true or false, not '{text}'")
    if text is None:
        raise MpmdError(f"{where} needs a value: write {where.split()[-1]}=VALUE")
    text = unwrap(text)
    if annotation is int:
        try:
            return int(text, 0) if text.lstrip("+-")[:2].lower() in ("0x", "0b", "0o") else int(text)
        except ValueError:
            raise MpmdError(f"{where} is a whole number, not '{text}'") from None
    if annotation is float:
        try:
            return float(text)
        except ValueError:
            raise MpmdError(f"{where} is a number, not '{text}'") from None
    if annotation is str:
        return text
    if typing.get_origin(annotation) is typing.Literal:
        known = typing.get_args(annotation)
        if text not in known:
            raise MpmdError(f"{where} is {', '.join(known[:-1])} or {known[-1]}, not '{text}'")
        return text
    if typing.get_origin(annotation) is tuple:
        element = typing.get_args(annotation)[0]
        return tuple(convert(p, element, None, where) for p in split_outside(text, ","))
    if hasattr(annotation, "parse"):
        return annotation.parse(text)
    raise TypeError(f"{where}: options of type {annotation} are not supported")


#: Between the values of an option that is written several times: lists grow, otherwise the last one counts.
REPEATED = "\0"


def parse_options(text: str) -> dict[str, str | None]:
    """`a=1 b={x y} flag` as a dictionary; None where no value is written."""
    options: dict[str, str | None] = {}
    for part in split_outside(unwrap(text.strip()), " \n\t"):
        name, sep, value = part.partition("=")
        before = options.get(name)
        options[name] = (value if before is None else before + REPEATED + value) if sep else None
    return options


def make_pass(cls: type[Pass], options: dict[str, str | None]) -> Pass:
    """Return the pass with options given as text.  Raises `MpmdError` for unknown options and wrong types."""
    fields = dict(cls.options())
    hints = typing.get_type_hints(cls)
    values = {}
    for name, text in options.items():
        field = fields.get(name)
        if field is None:
            known = f"; it has {', '.join(fields)}" if fields else "; it has none"
            raise MpmdError(f"{cls.name} has no option '{name}'{did_you_mean(name, fields) or known}")
        if text is not None and REPEATED in text:
            several = typing.get_origin(hints[field.name]) is tuple
            text = ",".join(text.split(REPEATED)) if several else text.rpartition(REPEATED)[2]
        values[field.name] = convert(text, hints[field.name], field.default, f"option {cls.name} {name}")
    return dataclasses.replace(cls(), **values)


_ITEM = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*")


def parse_pipeline(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the passes of a textual pipeline in order, as (name, options); `builtin.module(..)` and `func.func(..)`
    anchors are flattened, since our passes know what they work on.  Raises `MpmdError` on bad syntax.
    """
    passes: list[tuple[str, dict[str, str | None]]] = []
    for item in split_outside(text, ","):
        match = _ITEM.match(item)
        if match is None:
            raise MpmdError(f"expected a pass name in the pipeline, found '{item}'")
        name, rest = match.group(1), item[match.end() :].strip()
        inner = ""
        if rest.startswith(("(", "{")):
            kind, closed_by = ("parenthesis", ")") if rest.startswith("(") else ("brace", "}")
            end = closing(rest)
            if end is None or rest[end] != closed_by:
                raise MpmdError(f"unbalanced {kind} behind '{name}' in the pipeline")
            if behind := rest[end + 1 :].strip():
                raise MpmdError(f"unexpected '{behind}' behind '{name}{rest[: end + 1]}' in the pipeline")
            inner = rest[1:end]
        if rest.startswith("("):
            if name not in ("builtin.module", "func.func", "any"):
                raise MpmdError(f"passes can be nested in builtin.module and func.func, not in '{name}'")
            passes += parse_pipeline(inner)
        elif rest.startswith("{"):
            passes.append((name, parse_options(inner)))
        elif rest:
            raise MpmdError(f"unexpected '{rest}' behind '{name}' in the pipeline")
        else:
            passes.append((name, {}))
    return passes
