"""One snapshot of the module per pass that changed it, with an index.

    out/passes/000_traced.mlir
    out/passes/013_mpmd-map-named-ops-to-mpmd-ops.mlir
    out/passes/index.json

and, on request, of each function by itself, where a pass changed it:

    out/passes/tree/builtin_module_step/func_func_main/013_mpmd-map-named-ops-to-mpmd-ops.mlir

The index lists every pass: its spec, whether it changed the module, op counts, CPU milliseconds, the file and
a hash of its text.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from mpmd_trace.ir.core import Region
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.printer import print_op
from mpmd_trace.jax_compat.mlir import prettify
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.report.ir_diff import Outline, changes, outline


def count_ops(module: Module) -> dict[str, int]:
    """Return how often each op occurs, with shared bodies counted once for every op that refers to them; also
    `distinct bodies`, the number of different fragment bodies."""
    bodies: dict[Region, collections.Counter[str]] = {}

    def counts_of(region: Region) -> collections.Counter[str]:
        if region in bodies:
            return bodies[region]
        result: collections.Counter[str] = collections.Counter()
        for op in itertools.chain.from_iterable(region.blocks):
            result[op.name] += 1
            for nested in op.regions:
                result.update(counts_of(nested))
        if region.frozen:
            bodies[region] = result
        return result

    counts = counts_of(module.op.regions[0])
    counts[module.op.name] += 1
    return {**dict(sorted(counts.items())), "distinct bodies": len(bodies)}


@dataclasses.dataclass
class Snapshots:
    """A pass hook that keeps what changed.  `texts` maps file names to texts, `index` is `index.json`."""

    debug_info: bool = False
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Whether to tell what became of the things in the snapshot before; `changes` has it by the names of texts.
    keep_changes: bool = False
    changes: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Whether to keep the text of each function by itself, too.
    keep_tree: bool = False
    tree: dict[str, str] = dataclasses.field(default_factory=dict)
    _functions: dict[str, str] = dataclasses.field(default_factory=dict, repr=False)
    _last: Outline | None = dataclasses.field(default=None, repr=False)
    index: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def start(self, module: Module) -> None:
        """Record the module before the first pass."""
        self(PassRun(-1, "traced", True, 0.0), module)

    def __call__(self, run: PassRun, module: Module) -> None:
        entry: dict[str, Any] = {
            "index": run.index + 1,
            "pass": run.spec,
            "changed": run.changed,
            "milliseconds": round(1000 * run.seconds, 3),
        }
        self.index.append(entry)
        if not run.changed:
            return
        name = f"{run.index + 1:03d}_{run.name}.mlir"
        text = prettify(module.to_generic(debug_info=self.debug_info), debug_info=self.debug_info)
        self.texts[name] = text
        if self.keep_tree:
            self._keep_functions(name, module)
        if self.keep_changes:
            current = outline(module)
            if self._last is not None:
                self.changes[name] = changes(self._last, current).text()
            self._last = current
        entry |= {"ops": count_ops(module), "file": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}

    def _keep_functions(self, name: str, module: Module) -> None:
        """As `-mlir-print-ir-tree-dir`: a folder for each function, in it a file for each pass that changed it."""
        folder = f"tree/builtin_module_{module.name or 'no-symbol-name'}"
        for function in module.functions:
            text = print_op(function, debug_info=self.debug_info)
            if self._functions.get(function.sym_name) != text:
                self._functions[function.sym_name] = text
                pretty = prettify(text, debug_info=self.debug_info)
                self.tree[f"{folder}/func_func_{function.sym_name}/{name}"] = pretty

    def files(self, *, diffs: bool = False) -> Iterator[tuple[str, str]]:
        """File names with their contents: the snapshots, perhaps a `.diff` to the one before, `.changes`, the index."""
        before: tuple[str, str] | None = None
        for name, text in self.texts.items():
            yield name, text
            if diffs and before is not None:
                yield name.replace(".mlir", ".diff"), unified_diff(before[1], text, before[0], name)
            if name in self.changes:
                yield name.replace(".mlir", ".changes"), self.changes[name]
            before = (name, text)
        yield from self.tree.items()
        yield "index.json", json.dumps({"passes": self.index}, indent=1) + "\n"


def unified_diff(a: str, b: str, a_name: str, b_name: str) -> str:
    """Return what changed between two snapshots, in unified form with three lines around each change."""
    lines = difflib.unified_diff(a.splitlines(keepends=True), b.splitlines(keepends=True), a_name, b_name, n=3)
    return "".join(lines)


def read_index(folder: str) -> list[dict[str, Any]]:
    """Return the entries of `index.json` in a folder that `dump` or `run` wrote.  Raises `OSError`, `ValueError`."""
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
        result: list[dict[str, Any]] = json.load(file)["passes"]
    return result
