"""What XLA is asked for by name: custom calls, ops of CHLO, random bits, decompositions, collectives."""

from __future__ import annotations

import collections
import re

from mpmd_trace.ir.attributes import SymbolRefAttr
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.ops import CallOp, FragmentCallOp, Module

_NAMED = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("all_gather", "all_reduce", "all_to_all", "cholesky", "collective_permute", "custom_call", "fft"),
        *("reduce_scatter", "rng_bit_generator", "triangular_solve"),
    )
)
#: What MLIR writes out when it copies an op.
_DEFAULTS = {
    "api_version": "1 : i32",
    "called_computations": "[]",
    "has_side_effect": "false",
    "is_stable": "true",
    "output_operand_aliases": "[]",
}
#: Attributes that say where, or that other passes than those of the platform write.
_NOTES = ("sdy.", "mhlo.sharding", "mhlo.frontend_attributes")


def named_ops(module: Module, entries: list[str]) -> collections.Counter[str]:
    """Return each such op of functions and what they call, with its configuration, layouts, aliases and types."""
    functions = {f.sym_name: f for f in module.functions}
    known: dict[str, collections.Counter[str]] = {}

    def of(name: str) -> collections.Counter[str]:
        if name not in known:
            known[name] = collections.Counter()
            for op in functions[name].regions[0].walk():
                if op.name == "func.call":
                    callee = op.props["callee"]
                    assert isinstance(callee, SymbolRefAttr)
                    known[name] += of(callee.name)
                elif op.name.startswith("chlo.") or op.name in _NAMED:
                    known[name][spelled(op)] += 1
        return known[name]

    total: collections.Counter[str] = collections.Counter()
    for name in entries:
        total += of(name)
    return total


def entries(module: Module) -> list[str]:
    """Return the functions of a traced module that run by themselves: `@main`, and what it calls for microbatches."""
    return ["main", *dict.fromkeys(op.callee for op in module.walk() if isinstance(op, CallOp))]


def programs(module: Module) -> list[str]:
    """Return the distinct functions that an exported module calls."""
    return list(dict.fromkeys(op.callee for op in module.main.body if isinstance(op, FragmentCallOp)))


def spelled(op: Op) -> str:
    """Return what an op does, without the values that it reads."""
    held = {**op.props, **{k: v for k, v in op.attrs.items() if not k.startswith(_NOTES)}}
    attributes = ", ".join(f"{k} = {v.text}" for k, v in sorted(held.items()) if _DEFAULTS.get(k) != v.text)
    types = [", ".join(v.type.text for v in values) for values in (op.operands, op.results)]
    attributes = re.sub(r"\bmesh = @[\w.]+", "mesh", attributes)  # modules name their meshes in their own way
    return f"{op.name} {{{attributes}}} : ({types[0]}) -> ({types[1]})"


def without_kernels(ops: collections.Counter[str]) -> collections.Counter[str]:
    """Return the same without the code of kernels, which has the places where they were traced."""
    found: collections.Counter[str] = collections.Counter()
    for text, count in ops.items():
        found[re.sub(r'"(?:[^"\\]|\\.){500,}"|kernel_hash = "(?:[^"\\]|\\.)*"', "", text)] += count
    return found
