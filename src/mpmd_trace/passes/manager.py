"""Runs passes, with one hook between them: verify, snapshot, time, diff."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError, MpmdWarning
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics, PassFailed
from mpmd_trace.ir.garbage_collection import paused_collector
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.printer import print_region
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.base import Pass, said_by
from mpmd_trace.passes.registry import build
from mpmd_trace.passes.run_caches import caches_of_a_run


@dataclasses.dataclass(frozen=True)
class PassRun:
    """What happened when one pass ran: its spec, whether it changed the module, and its CPU time in seconds."""

    index: int
    spec: str
    changed: bool
    seconds: float

    @property
    def name(self) -> str:
        """The spec without its options."""
        return self.spec.partition("{")[0]


#: Called after each pass with the record and the module as it is then.
Hook = Callable[[PassRun, Module], None]


class PassManager:
    """A list of passes and the hooks that see every step.

    `run` works on the module in place.  It raises `MpmdError` with all diagnostics collected so far when a
    pass fails; `error_is_failure` makes an error diagnostic of a pass that did not fail raise at the end.
    `verify` checks the module after each pass that changed it; one that leaves an invalid module, or that found a
    way to change a frozen body, has failed.
    """

    def __init__(
        self,
        pipeline: str | Sequence[str | Pass],
        hooks: Sequence[Hook] = (),
        *,
        error_is_failure: bool = True,
        verify: bool = False,
        first_index: int = 0,
    ) -> None:
        self.passes = build(pipeline)
        self.hooks = list(hooks)
        self.error_is_failure = error_is_failure
        self.verify = verify
        self.first_index = first_index
        self.runs: list[PassRun] = []
        self.diagnostics = Diagnostics()

    @paused_collector()
    @caches_of_a_run()
    def run(self, module: Module) -> list[PassRun]:
        """Run all passes; returns their records."""
        module.own_bodies()
        bodies: dict[Region, str] = {}
        for one in self.passes:
            if self.verify:
                bodies = printed_bodies(module, bodies)
            started = time.process_time()
            try:
                changed = said_by(one, one.run(module, self.diagnostics))
            except PassFailed:
                self.diagnostics.fail()
                changed = True
            except MpmdError as error:
                self.diagnostics.found += error.diagnostics
                self.diagnostics.fail()
                changed = True
            record = PassRun(self.first_index + len(self.runs), one.spec, changed, time.process_time() - started)
            self.runs.append(record)
            if self.verify and not self.diagnostics.failed:
                check_bodies(one, bodies, self.diagnostics)
                if changed:
                    verify_after(one, module, self.diagnostics)
            if self.diagnostics.failed:
                if not self.diagnostics.errors:
                    self.diagnostics.error(None, f"{one.name} failed without saying why")
                raise MpmdError(list(self.diagnostics), pass_name=one.name)
            for hook in self.hooks:
                hook(record, module)
        if self.error_is_failure and self.diagnostics.errors:
            raise MpmdError(list(self.diagnostics))
        return self.runs


def verify_after(one: Pass, module: Module, diagnostics: Diagnostics) -> None:
    """Check the module that a pass left behind; the pass has failed when it is not valid."""
    problems = verify(module)
    if problems:
        diagnostics.found += [dataclasses.replace(p, message=f"{p.message} (after {one.name})") for p in problems]
        diagnostics.fail()


def printed_bodies(module: Module, known: Mapping[Region, str] = MappingProxyType({})) -> dict[Region, str]:
    """Return the text of each distinct body of the module; `known` are those that were printed before."""
    result: dict[Region, str] = {}
    for op in module.walk():
        for region in op.regions:
            if region.frozen and region not in result:
                result[region] = known.get(region) or print_region(region)
    return result


def check_bodies(one: Pass, before: Mapping[Region, str], diagnostics: Diagnostics) -> None:
    """Fail the pass if one of these bodies does not print as it did."""
    changed = sum(print_region(body) != text for body, text in before.items())
    if changed:
        diagnostics.error(
            None,
            f"{one.name} changed {changed} of the {len(before)} bodies that fragments and named computations share; "
            f"a body stays as it is, and a pass derives another one from it: see map_ops in mpmd_trace.ir.bodies",
        )
        diagnostics.fail()


@explains_internal_errors
def run_passes(module: Module, pipeline: str | Sequence[str | Pass], hooks: Sequence[Hook] = ()) -> Module:
    """Run a pipeline on the module in place and return it; `hooks` are called after each pass.

    Warnings of passes are shown as `MpmdWarning`.  Raises `MpmdError` with all problems.
    """
    _run(module, pipeline, hooks)
    return module


@dataclasses.dataclass(frozen=True)
class After:
    """A hook that runs passes after each pass of this name."""

    name: str
    passes: tuple[str | Pass, ...]

    def __call__(self, record: PassRun, module: Module) -> None:
        if record.name == self.name:
            _run(module, self.passes, ())


def after(name: str, *passes: str | Pass) -> After:
    """Return a hook that runs passes after each pass of this name; for `step.lower(..., hooks=[after(...)])`.

    Raises `MpmdError` for names that no pass has.
    """
    build(name)
    build(passes)
    return After(name, passes)


def _run(module: Module, pipeline: str | Sequence[str | Pass], hooks: Sequence[Hook]) -> None:
    manager = PassManager(pipeline, hooks)
    manager.run(module)
    for one in manager.diagnostics:
        if one.severity == "warning":
            warnings.warn(f"{one.location.prefix}{one.message}", MpmdWarning, stacklevel=4)
