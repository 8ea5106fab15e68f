"""What a pass is: a frozen dataclass whose fields are its options; one without options inherits that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from mpmd_trace.ir.diagnostics import Diagnostics, PassFailed
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.option_text import option_text


def option(default: Any, help: str, *, name: str | None = None) -> Any:
    """Return a dataclass field that is an option of a pass.

    `help` is the line that `mpmd-trace passes` shows.  The option's textual name is the field's with dashes
    for underscores, unless `name` is given.  Types: bool, int, float, str, a Literal of strings, classes that have a
    class method `parse(text)` and whose `str` gives that text back, and tuple[...] for comma separated lists of these.
    """
    return dataclasses.field(default=default, metadata={"help": help, "name": name})


@dataclasses.dataclass(frozen=True)
class Pass:
    """One step of the compiler.

    Subclasses set `name` (the one the reference uses) and `summary`, declare options as fields made with
    `option`, and implement `run`, which works on the module in place and says whether it changed anything.
    Problems go to `diagnostics`; a pass fails by `diagnostics.fail()` or by raising what
    `diagnostics.fatal(...)` returns.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    #: Things of which a program has one if there is anything to do (`contents` of passes/pipelines.py); if none is
    #: named, the pass always runs.
    only_with: ClassVar[tuple[str, ...]] = ()

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        raise NotImplementedError

    def always_verifies(self) -> bool:
        """Return whether a valid module is valid after the pass, whatever shardings and options users give."""
        return True

    @classmethod
    def options(cls) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
        """Yield the textual names of the options with their fields, in order."""
        for field in dataclasses.fields(cls):
            if "help" in field.metadata:
                yield field.metadata["name"] or field.name.replace("_", "-"), field

    @property
    def spec(self) -> str:
        """The pass as text, with the options that are not at their default: `name{a=true b=2}`."""
        values = [(name, getattr(self, field.name), field.default) for name, field in self.options()]
        parts = [f"{name}={option_text(value)}" for name, value, default in values if value != default]
        return self.name + (f"{{{' '.join(parts)}}}" if parts else "")


def said_by(one: Pass, changed: bool | None, method: str = "run") -> bool:
    """Return whether a pass said that it has changed anything.  Raises `TypeError` if it did not say, for snapshots."""
    if changed is None:
        raise TypeError(
            f"{type(one).__name__}.{method} returned None; it says whether it changed anything: True or False"
        )
    return changed


@dataclasses.dataclass(frozen=True)
class FunctionPass(Pass):
    """A pass that works on one function after the other.

    `distributed_only`: functions without `topology` and `mesh_shape` are left alone; `mpmd_only`: those
    without `topology`; `entry_only`: all but public distributed ones.
    """

    distributed_only: ClassVar[bool] = True
    mpmd_only: ClassVar[bool] = False
    entry_only: ClassVar[bool] = False

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for function in module.functions:
            if function.is_declaration:
                continue
            if self.distributed_only and not function.is_distributed:
                continue
            if self.mpmd_only and not function.is_mpmd:
                continue
            if self.entry_only and not function.is_entry_point:
                continue
            try:
                has_changed = self.run_on_function(function, module, diagnostics)
                changed = said_by(self, has_changed, "run_on_function") or changed
            except PassFailed:  # what is wrong with the other functions is worth knowing, too
                diagnostics.fail()
                changed = True
        return changed

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        raise NotImplementedError


class Pipeline(Pass):
    """A pass that is a list of passes; it stops at the first one that fails."""

    def passes(self) -> list[Pass]:
        """Return the steps, in order."""
        raise NotImplementedError

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for step in self.passes():
            changed = said_by(step, step.run(module, diagnostics)) or changed
            if diagnostics.failed:
                break
        return changed
