"""MLIR's own passes on parts of a module: on distinct frozen bodies, or on single functions.

`MlirPass` prints the whole module, every copy of a body included, and reads it back with one body per op.
Here every distinct body is printed once, and its result is remembered.  Plain bodies, which most are, are not
printed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mpmd_trace.ir.attributes import StringAttr
from mpmd_trace.ir.bodies import bodies_in, fingerprint
from mpmd_trace.ir.core import Block, Op, Region, make_op
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.functions import make_function
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.printer import print_op
from mpmd_trace.jax_compat.mlir import run_pipeline
from mpmd_trace.passes.dedup_bodies import share_equal_bodies
from mpmd_trace.passes.trivially_canonical import is_plain

_CARRIER = "mpmd_trace_body_"


def run_in_parts(
    module: Module,
    pipeline: str,
    is_native: Callable[[FuncOp], bool],
    on_body: Callable[[Region], Region],
    on_function: Callable[[FuncOp], bool],
) -> bool:
    """Do what a pipeline does to a module; return whether anything changed.

    Native functions and their bodies go through `on_function` and `on_body` (see `run_on_bodies`), others through MLIR.
    """
    functions = [f for f in module.functions if not f.is_declaration]
    native = [f for f in functions if is_native(f)]
    foreign = [f for f in functions if f not in native]
    changed = run_on_bodies(frozen_bodies(native), pipeline, module, on_body)
    for function in native:
        changed = on_function(function) or changed
    return run_on_functions(foreign, pipeline, module) or changed


def frozen_bodies(functions: Iterable[FuncOp]) -> list[Region]:
    """Return the distinct frozen bodies of the functions, in order of first appearance."""
    regions = (region for function in functions for region in function.regions)
    return list(dict.fromkeys(body for region in regions for _, _, body in bodies_in(region)))


def run_on_bodies(bodies: Sequence[Region], pipeline: str, module: Module, native: Callable[[Region], Region]) -> bool:
    """Run a pipeline such as `cse` on each body once; afterwards `result_of(body, pipeline)` is the new body.

    `native` does what the pipeline does to a plain body, without printing and reading it; the others go
    through MLIR together.  `module` is where symbols that the bodies mention are found.  Says whether any
    body changed.
    """
    todo: list[Region] = []
    for body in bodies:
        if ("mlir", pipeline) not in body.memo:
            if is_plain(body):
                body.memo["mlir", pipeline] = native(body)
            else:
                todo.append(body)
    if todo:
        carriers = [make_function(f"{_CARRIER}{i}", body, visibility="private") for i, body in enumerate(todo)]
        done = _run(carriers, pipeline, module, rename=('"mpmd.return"(', '"func.return"('))
        for i, body in enumerate(todo):
            region = done[f"{_CARRIER}{i}"].regions[0]
            region.block.terminator.name = "mpmd.return"
            new = freeze(region)
            same = fingerprint(new) == fingerprint(body)
            body.memo["mlir", pipeline] = body if same else new
    return any(result_of(body, pipeline) is not body for body in bodies)


def result_of(body: Region, pipeline: str) -> Region:
    """Return what `run_on_bodies` made of the body."""
    result = body.memo["mlir", pipeline]
    assert isinstance(result, Region)
    return result


def run_on_functions(functions: Sequence[FuncOp], pipeline: str, module: Module) -> bool:
    """Run a pipeline on these functions, in place.  Says whether anything changed."""
    if not functions:
        return False
    before = [print_op(function) for function in functions]
    done = _run([function.clone() for function in functions], pipeline, module)
    changed = False
    for function, text in zip(functions, before, strict=True):
        new = done[function.sym_name]
        if print_op(new) == text:
            continue
        changed = True
        function.drop_all_references()
        function.props, function.attrs = new.props, new.attrs
        function.regions = new.regions
        for region in function.regions:
            region.parent = function
    if changed:
        share_equal_bodies(functions)
    return changed


def _run(
    functions: Sequence[Op], pipeline: str, module: Module, rename: tuple[str, str] | None = None
) -> dict[str, FuncOp]:
    """Return the functions after the pipeline, by name; the rest of `module` is there as declarations."""
    block = Block()
    own = {op.sym_name for op in functions if isinstance(op, FuncOp)}
    for op in module.body:
        if not isinstance(op, FuncOp):
            block.append(op.clone())
        # Fragment calls look into their callee, which bodies do not contain; other calls need its type only.
        elif op.sym_name not in own and "mesh_shape" not in op.attrs:
            block.append(_declaration(op))
    block.append_all(functions)
    carrier = Module(Op("builtin.module", regions=[Region([block])]), module.resources)
    text = carrier.to_generic(debug_info=True)
    if rename is not None:
        text = text.replace(*rename)
    after, _ = run_pipeline(text, f"builtin.module({pipeline})", allow_unregistered=True)
    return {f.sym_name: f for f in parse_generic(after).functions}


def _declaration(function: FuncOp) -> Op:
    props = {k: v for k, v in function.props.items() if k in ("sym_name", "function_type")}
    props["sym_visibility"] = StringAttr.get("private")
    return make_op("func.func", props=props, attrs=function.attrs, regions=[Region()])
