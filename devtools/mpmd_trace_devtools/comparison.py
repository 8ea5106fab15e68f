"""Whether two modules compute the same, as a module before and after passes must.

before = parse(text)
after = before.clone(); run_passes(after, "mpmd-...")
assert_same_meaning(before, after)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpmd_trace.backend.dtypes import tensor_type
from mpmd_trace.ir.ops import Module
from mpmd_trace_devtools.interpreter import interpret, random_args
from mpmd_trace_devtools.single_device_program import entry_function

Array = np.ndarray[Any, np.dtype[Any]]


def _entry_names(module: Module) -> list[str]:
    """Return `main` if there is one, else every public function that no fragment call calls."""
    if module.lookup("main") is not None:
        return ["main"]
    return [
        f.sym_name
        for f in module.functions
        if f.visibility == "public" and not f.is_declaration and "mesh_shape" not in f.attrs
    ]


def assert_same_meaning(
    before: Module,
    after: Module,
    *,
    rtol: float | None = None,
    args: Sequence[int] | None = None,
    results: Sequence[int] | None = None,
    function: str | None = None,
    seed: int = 0,
) -> None:
    """Check that `before` and `after` compute the same from the same random inputs, function by function.

    Types may have changed between tensor and mesh tensor; control operands are ignored.

    Args:
        rtol: None compares bits (NaN equals NaN); a number allows that relative difference, for changes that
            reassociate sums or split batches.
        args: argument i of `after` is argument `args[i]` of `before`, for passes that change the signature.
        results: result i of `after` is result `results[i]` of `before`.
        function: compare only this function; by default `@main`, or every public one of `before`.
        seed: of the inputs.
    """
    names = [function] if function is not None else _entry_names(before)
    assert names, "the module has no function to compare"
    for name in names:
        old, new = entry_function(before, name), entry_function(after, name)
        arrays = random_args(before, seed, name)
        order = list(range(len(old.args))) if args is None else list(args)
        for i, arg in zip(order, new.args, strict=True):
            if not arg.type.is_token:
                assert tensor_type(arg.type) is tensor_type(old.args[i].type), f"type of argument {i}"
        expected = interpret(before, arrays, name)
        actual = interpret(after, [arrays[i] for i in order], name)
        chosen = list(range(len(expected))) if results is None else list(results)
        assert len(actual) == len(chosen), f"@{name}: {len(actual)} results, expected {len(chosen)}"
        for number, (i, value) in enumerate(zip(chosen, actual, strict=True)):
            _compare(f"@{name}: result {number}", expected[i], value, rtol)


def _compare(what: str, expected: Array, actual: Array, rtol: float | None) -> None:
    assert expected.shape == actual.shape and expected.dtype == actual.dtype, (
        f"{what}: {actual.dtype}{list(actual.shape)}, expected {expected.dtype}{list(expected.shape)}"
    )
    if rtol is None:
        same = expected == actual
        with np.errstate(invalid="ignore"):
            same |= (expected != expected) & (actual != actual)
        assert np.all(same), f"{what} differs:\n{actual}\nexpected\n{expected}"
    elif expected.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
    else:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        scale = float(np.max(np.abs(expected.astype(wide)), initial=0.0, where=np.isfinite(expected.astype(wide))))
        np.testing.assert_allclose(
            actual.astype(wide), expected.astype(wide), rtol=rtol, atol=rtol * scale, err_msg=what
        )
