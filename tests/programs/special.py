"""Variants of `tiny.py` that ask more of the command line."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import jax

import mpmd_trace

_spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
assert _spec is not None and _spec.loader is not None
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)


def _program(**fields: Any) -> mpmd_trace.Program:
    return dataclasses.replace(tiny.program(), **{"steps": 2, **fields})


def printing() -> mpmd_trace.Program:
    print("making the program")

    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        print("tracing")
        return tiny.step(ws, x)

    return _program(fn=step)


def donating() -> mpmd_trace.Program:
    program = _program(donate_argnums=0)
    return dataclasses.replace(program, args=jax.tree.map(jax.numpy.asarray, program.args))


def placed() -> mpmd_trace.Program:
    """The arguments are where the program wants them, and each other step gets them from there."""
    program = _program(donate_argnums=(0,))
    args, _ = program.jitted().lower(*program.args).compile().place(*program.args)
    return dataclasses.replace(program, args=tuple(args))


def static() -> mpmd_trace.Program:
    def step(ws: list[jax.Array], flags: tuple[str, ...], x: jax.Array, key: jax.Array) -> Any:
        key, used = jax.random.split(key)
        return *tiny.step(ws, x + 0.1 * jax.random.normal(used, x.shape)), key

    program = _program(static_argnums=-3, donate_argnums=(3,))
    ws, x = program.args
    return dataclasses.replace(
        program,
        fn=step,
        args=(ws, ("fast", "safe"), x, jax.random.key(7)),
        advance=lambda i, args, result: (result[0], args[1], args[2], result[3]),
    )


def infinite() -> mpmd_trace.Program:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        new, value, grads = tiny.step(ws, x)
        return new, value / 0.0, [g / 0.0 for g in grads]

    return _program(fn=step)


def no_gradients() -> mpmd_trace.Program:
    return _program(gradients=lambda result: None)


def key_gradients() -> mpmd_trace.Program:
    return _program(gradients=lambda result: [jax.random.key(0)])


def missing_data() -> mpmd_trace.Program:
    return _program(advance=lambda i, args, result: (open("no such data"), args[1]))
