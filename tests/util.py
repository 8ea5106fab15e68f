"""Helpers for tests, most of them of passes: text in, passes, text out."""

from __future__ import annotations

import ast
import difflib
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import equinox
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.ops import FragmentOp, Module, NamedComputationOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.manager import PassManager

#: Type and topology aliases that the examples use.
PRELUDE = """
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
!S = !mpmd.mesh_tensor<"alpha", tensor<f32>>
!T = !mpmd.mesh_tensor<"beta", tensor<f32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>
"""


def max_examples(count: int, **options: Any) -> hypothesis.settings:
    """Return settings for as many random examples in `make test`, and twice as many in `make nightly`."""
    return hypothesis.settings(max_examples=count * hypothesis.settings.default.max_examples // 100, **options)


def nightly(*values: Any) -> Any:
    """Return parameters of a test that `make nightly` runs, and `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def spelled(text: str) -> str:
    """Return `text` with `use=<..>` and `src=<..>` written out as the sets of meshes that they stand for."""
    for short in ("use", "src"):
        text = text.replace(f"{short}=<", f"mpmd.{short}_set = #mpmd.meshes_with_origins<")
    return text


def run(before: str, pipeline: str | Sequence[str | Pass], prelude: str = PRELUDE) -> Module:
    """The module after the passes."""
    module = parse(prelude + spelled(before))
    PassManager(pipeline).run(module)
    return module


def check(before: str, pipeline: str | Sequence[str | Pass], after: str, prelude: str = PRELUDE) -> Module:
    """Assert that the passes turn `before` into `after` (compared as MLIR prints them); gives the module."""
    module = run(before, pipeline, prelude)
    wanted, found = str(parse(prelude + spelled(after))), str(module)
    if wanted != found:
        lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "wanted", "found", lineterm="")
        pytest.fail("\n".join(lines))
    return module


def diagnostics(
    before: str, pipeline: str | Sequence[str | Pass], prelude: str = PRELUDE
) -> tuple[bool, list[Diagnostic]]:
    """Whether the passes succeed, and everything they report."""
    manager = PassManager(pipeline, error_is_failure=False)
    try:
        manager.run(parse(prelude + spelled(before)))
    except MpmdError as error:
        return False, error.diagnostics
    return True, list(manager.diagnostics)


def refusal(before: str, pipeline: str | Sequence[str | Pass], prelude: str = PRELUDE) -> str:
    """The first message of the errors that the passes end with."""
    succeeded, found = diagnostics(before, pipeline, prelude)
    assert not succeeded
    return found[0].message


def normal(seed: int, *shape: int) -> jax.Array:
    """Random numbers that take no program to be compiled, so that a module can have them as constants."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def filled(make: Callable[..., Any], *args: Any) -> Any:
    """Return what `make` does, a model for example, with random numbers of NumPy instead of those that it draws."""
    random = np.random.default_rng(0)

    def fill(x: Any) -> Any:
        return jnp.asarray(0.3 * random.normal(size=x.shape), x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x

    return jax.tree.map(fill, equinox.filter_eval_shape(make, *args))


@contextmanager
def only_new_objects() -> Iterator[None]:
    """Let collections look at what is made inside, not at all that other tests have left, which takes a second."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def names_of_events(*ends: str) -> Iterator[list[str]]:
    """The names of the functions that JAX traces or compiles meanwhile, by what the names of the events end with."""
    found: list[str] = []

    def listen(event: str, _seconds: float, **more: Any) -> None:
        if event.endswith(ends):
            found.append(str(more.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def distinct_bodies(module: Module) -> int:
    """The number of different frozen bodies that the module's fragments and named computations share."""
    ops = module.walk()
    return len({id(op.body) for op in ops if isinstance(op, FragmentOp | NamedComputationOp)})


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Each statement below a node, without looking into expressions, which take several times as long."""
    left = [tree]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            if isinstance(node, ast.stmt):
                yield node
            if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                left.append(node)
