"""A traced program and its partitioned form: all that is known of it without XLA."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax

from mpmd_trace.api import annotate_io
from mpmd_trace.api.estimates import EstimatedProgram
from mpmd_trace.api.request import ConfiguredProgram
from mpmd_trace.backend.cost_analysis import MemoryReport
from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.placement_report import placement_report
from mpmd_trace.backend.placement_tables import PlacementReport
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.backend.serialization import Stored, stored_form
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, Note
from mpmd_trace.diagnostics.progress import LOG, stage
from mpmd_trace.frontend.errors import at_users_place, problem, recorded_warnings, users_place, warn
from mpmd_trace.frontend.memory_kinds import HOST
from mpmd_trace.ir.ops import FragmentOp, Module, TransferOp
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.jax_compat.mlir import prettify
from mpmd_trace.passes.common.verify_stage_merging import VerifyStageMerging
from mpmd_trace.passes.compile_options import Overlap
from mpmd_trace.passes.cpp_engine import partition_with_cpp
from mpmd_trace.passes.fission.split_divided import UNDIVIDED
from mpmd_trace.passes.manager import After, Hook
from mpmd_trace.passes.memory.fit_memory import SLOW_COPIES
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.passes.microbatches.follow_schedule import INEXACT, FollowSchedule
from mpmd_trace.passes.microbatches.repeat_calls import RepeatCalls
from mpmd_trace.passes.microbatches.rule_orders import UserRules
from mpmd_trace.passes.partition import Partitioned, partition_as
from mpmd_trace.passes.placement.single_mesh_loops import WHOLE
from mpmd_trace.passes.programs.merge_blocks import APART
from mpmd_trace.passes.programs.overlap_microbatches import NO_PAIRS
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.passes.variants import VerifyStagesOfLoops
from mpmd_trace.schedules import ScheduleWarning, meshes_over
from mpmd_trace.scheduling.auto_schedule import AutoSchedule, over_limit, program_costs, rank_schedules
from mpmd_trace.scheduling.fragments import Fragments, fragments_of
from mpmd_trace.scheduling.resolve_schedule import PROGRAM_ORDER, ScheduleChoice, resolve_schedule, settle
from mpmd_trace.scheduling.stage_costs import held_microbatches, may_run_again
from mpmd_trace.scheduling.user_rules import (
    MERGE,
    SCHEDULE,
    MergeNeighbours,
    has_rules,
    literal_rules,
    rules_of_program,
)

Dialect = Literal["jaxpr", "stablehlo", "mpmd", "plan"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PartitionedProgram(ConfiguredProgram):
    """A traced program and its partitioned form."""

    hooks: Sequence[Hook] = ()
    #: What was found of it in the persistent compilation cache, or in a file.
    stored: Stored | None = None
    #: What was warned of until it was compiled.
    warned: list[tuple[str, str | None]] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def request(self) -> PartitionRequest:
        """The request to the partitioner, without rules.  Raises `MpmdError`."""
        return self.request_for("reference" if self.settings.engine == "cpp" else self.config.options.placement)

    @property
    def request_with_rules(self) -> PartitionRequest:
        """The request to an engine that has the reference's placement, with the rules made for this program.

        Raises `MpmdError`.
        """
        rules = literal_rules(self.config, self.fragments)
        if any(isinstance(rule, MergeNeighbours) for rule in rules[MERGE]):
            raise MpmdError("the C++ partitioner has no merge_neighbours; use engine='python', or leave it out")
        if rules[SCHEDULE]:
            warn("the C++ partitioner takes fragment_schedule_rules and ignores them", self.config.where)
        known = ("optimizer_sharding", "remat", "offload", "overlap")
        ours = [name for name in known if getattr(self.config.options, name)]
        if ours:
            warn(f"the C++ partitioner has no {' and no '.join(ours)}, which want engine='python'", self.config.where)
        request = self.request_for("reference").with_options(
            mpmd_equal_microbatches=bool(self.config.options.mpmd_equal_microbatches),
            hoist_invariants=False,
            gradient_reduction="microbatch",
            optimizer_sharding=(),
            remat=None,
            offload=None,
            overlap=None,
        )
        return dataclasses.replace(request, merge_rules=rules[MERGE], schedule_rules=rules[SCHEDULE])

    def fragments(self) -> Fragments:
        """Return the named fragments as they will be scheduled, with their costs, for building rules.

        Raises `MpmdError`.
        """
        return fragments_of(self._import(self.request))

    @functools.cached_property
    def partitioned(self) -> Partitioned:
        """The exported module and what each pass did.  Raises `MpmdError`."""
        if self.stored is not None:
            return Partitioned(parse_generic(self.stored.module), ())
        with recorded_warnings(self.warned), stage("passes", self.traced.name, loud=loud()):
            result = self._partition()
            self._tell(result.diagnostics)
        traced, main = self.traced, result.module.main
        main.device_owners = self.request.device_owners
        kinds = dict(enumerate(traced.out_memories))
        assigned = self.config.output_meshes(traced.out_tree)
        kinds.update((i, a.memory_kind or kinds[i] or "device") for i, a in assigned.items())
        constants = len(traced.constants)
        functions = {f.sym_name: f for f in result.module.functions}
        for index in sorted({*traced.on_host, *self.on_host}):
            returned = [o for o, i in traced.returned.items() if i == index]
            annotate_io.put_on_host(
                main,
                functions,
                constants + index,
                moved=index in self.on_host,
                returned={o: kinds[o] in (None, HOST) for o in returned},
            )
        annotate_io.keep_memory_kinds(main, kinds)
        annotate_io.set_layouts(main, [*[None] * constants, *traced.in_shardings], traced.out_shardings)
        with recorded_warnings(self.warned):
            self._tell_of_detours(result)
        return result

    def _tell_of_detours(self, partitioned: Partitioned) -> None:
        """Warn of named values that were to be on the host, where a mesh keeps nothing at all on it."""
        moved = {t.target_type for t in partitioned.module.main.body if isinstance(t, TransferOp)}
        held = {t.mesh for t in moved if isinstance(t, MeshTensorType) and t.memory_kind == HOST}
        held |= {
            spec.mesh for spec in (*partitioned.input_specs, *partitioned.output_specs) if spec.memory_kind == HOST
        }
        wanted = {n: a.mesh for n, a in self.config.assignments.items() if a.memory_kind == HOST}
        for name in sorted(n for n, mesh in wanted.items() if mesh not in held and n in self.traced.names):
            warn(
                f"{name!r} is assigned to {wanted[name]}#{HOST} and stays on the devices of that mesh, which alone "
                "want it: what comes straight back is not sent to the host. make_config(offload='auto') keeps there "
                "what a step has no room for (docs/memory.md)",
                self.config.where,
            )

    def _tell(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Warnings of scheduler and placement; others speak of functions and ops that users do not know."""
        for one in diagnostics:
            if one.severity != "warning":
                continue
            if one.message.startswith(INEXACT):
                warn(f"{one.message}. {self._way_out()}", self.config.where)
            elif one.message.startswith(SLOW_COPIES):
                warn(one.message, self.config.where)
            elif one.message.startswith(APART):
                more = "Parts of such a block run apart; leave it out of the schedule to simulate what runs"
                warn(f"{one.message}. {more}", self.config.where)
            elif one.message.startswith(NO_PAIRS):
                warn(f"overlap='pairs' has no effect: {one.message}", self.config.where)
            elif one.message.startswith((WHOLE, UNDIVIDED)):
                place = users_place(one.location).file
                warn(one.message, self.config.where if place is None else f"{place[0]}:{place[1]}")

    def _partition(self) -> Partitioned:
        if self.settings.engine == "cpp":
            return partition_with_cpp(self.traced.mlir_text(), self.request_with_rules)
        rules = self._rules if has_rules(self.config, self.schedule) else None
        more: dict[str, Any] = {"user_rules": rules, "imported": self._check_schedule}
        try:
            if self.hooks:  # they see all iterations
                result = partition_as(self.traced.module, self.request, hooks=self.hooks, **more)
                names = {run.name for run in result.runs}
                for name in [h.name for h in self.hooks if isinstance(h, After) and h.name not in names]:
                    warn(f"{self.traced.name} is compiled without {name}: the passes after it did not run")
                return result
            return self._partition_short(self.request, **more)
        except MpmdError as error:
            raise at_users_place(self._explained(error), self.config.where) from None

    def _partition_short(self, request: PartitionRequest, **more: Any) -> Partitioned:
        """Partition with one call for many alike iterations of a loop, if passes leave them alike."""
        is_cut = request.options.placement == "cut" and request.step is not None
        try:
            return partition_as(self.traced.short_module if is_cut else self.traced.module, request, **more)
        except MpmdError as error:
            if error.pass_name != RepeatCalls.name:
                raise
        return partition_as(self.traced.module, request, **more)

    def _way_out(self) -> str:
        """Return what to write in place of a schedule that the program does not allow."""
        return way_out(self.config, self.imported, self.is_followed, overlap=self._overlap)

    def is_followed(self, config: Config, schedule: ScheduleChoice) -> bool:
        """Return whether the program allows a schedule.  Raises `MpmdError`."""
        return self._ordered(config, schedule) is not None

    def _ordered(self, config: Config, schedule: ScheduleChoice) -> Module | None:
        """Return the program in the order of a schedule, if it allows that one.  Raises `MpmdError`."""
        request = dataclasses.replace(self, config=config, schedule=schedule).request_for(config.options.placement)
        rules = (lambda module: rules_of_program(config, schedule, module)) if has_rules(config, schedule) else None
        tried = self._partition_short(request, user_rules=rules, phases="optimize")
        return None if any(one.message.startswith(INEXACT) for one in tried.diagnostics) else tried.module

    def _check_schedule(self, module: Module) -> None:
        """Warn of a schedule that was asked for and has nothing to order, and tell where meshes wait without one."""
        waiting = self.schedule.name == PROGRAM_ORDER and jax.process_index() == 0
        if waiting and (meshes := waiting_meshes(module)):
            tell_once(
                f"{self.traced.name}: without a pipeline_schedule the microbatches run one after the other, in the "
                f"order of the program, and of {meshes} meshes one works at a time. "
                "make_config(pipeline_schedule='1F1B') has all of them work at once, 'auto' chooses a schedule "
                "(docs/schedules.md)"
            )
        asked = self.config.pipeline_schedule is not None and self.schedule.name.lower() not in ("none", "gpipe")
        text = without_microbatches(module, self.schedule.name) if asked else None
        if text is not None:
            warn(text, self.config.where)

    def _explained(self, error: MpmdError) -> MpmdError:
        """Return the error with a schedule to use instead, or with its reason where that is a checkpoint."""
        place = self.traced.rewritten.recomputed
        repeats = error.pass_name in (VerifyStageMerging.name, VerifyStagesOfLoops.name)
        # Stages that nobody gave are those of the schedule, and another one may have none.
        if error.pass_name == FollowSchedule.name or (
            repeats and place is None and not self.config.name_to_stage_assignment
        ):
            first, *rest = error.diagnostics
            message = f"{first.message}. {self._way_out()}"
            return MpmdError([dataclasses.replace(first, message=message), *rest], pass_name=error.pass_name)
        if place is None or not repeats:
            return error
        text = (
            "jax.checkpoint around several stages recomputes them here, for the backward of a loop or call whose "
            "forward pass is another one. Take the gradient inside of the body of the loop, or checkpoint each stage"
        )
        note = Note(text, problem("", place).location)
        first, *rest = error.diagnostics
        return MpmdError([dataclasses.replace(first, notes=(*first.notes, note)), *rest], pass_name=error.pass_name)

    def imported(self, stages: str | None = None) -> Module:
        """Return the program after the import phase, its backwards split: what schedules are chosen by.

        `stages`: how they are numbered, by default as for its schedule.
        """
        schedule = self.schedule if stages is None else dataclasses.replace(self.schedule, stages=stages)
        config = self.config.with_options(mpmd_split_bwd_fragments=True)
        changed = dataclasses.replace(self, config=config, schedule=schedule)
        return self._import(changed.request_for(config.options.placement))

    def settled(self) -> ScheduleChoice:
        """Return the schedule that "auto" stands for, or "forward".  Raises `MpmdError`.

        Costs do not tell whether several loops over microbatches, or groups of meshes with schedules of their own, can
        follow the best one, so it is tried.
        """
        importing = functools.cache(self.imported)
        best = settle(self.schedule, importing, self.config, overlap=self._overlap)
        groups = bool(self.schedule.parts)
        if self.schedule.auto is None or not (groups or may_run_again(importing("no"))):
            return best
        with contextlib.suppress(MpmdError):
            if self.is_followed(self.config, best):
                return best
        topology = importing("no").main.topology
        limit = None if topology is None else self.schedule.limit_of(schedulable_meshes(topology))
        peaks: dict[str, float] = {}

        def suits(config: Config, schedule: ScheduleChoice) -> bool:
            module = None
            with contextlib.suppress(MpmdError):
                module = self._ordered(config, schedule)
            if module is None or limit is None:
                return module is not None
            held = held_microbatches(module)
            peaks[schedule.name] = max(held)
            return not meshes_over(held, limit)

        choice: ScheduleChoice | None
        if groups:
            choice = next((one for one in self.schedule.simpler() if suits(self.config, one)), None)
        else:
            tried = followed_schedules(self.config, importing, suits, [], overlap=self._overlap)
            choice = next((choice for _, choice in tried), None)
        if choice is None and limit is not None and peaks:
            raise MpmdError(over_limit("that the program can follow", limit, peaks))
        return choice or best

    @property
    def _overlap(self) -> Overlap | None:
        """The way in which fragments of several microbatches become one program, None if they do not, as with C++."""
        return self.request.overlap if self.settings.engine != "cpp" else None

    def _rules(self, module: Module) -> UserRules:
        return rules_of_program(self.config, self.schedule, module)

    def _import(self, request: PartitionRequest) -> Module:
        """Return the program after the import phase."""
        try:
            return self._partition_short(request, phases="import").module
        except MpmdError as error:
            raise at_users_place(error, self.config.where) from None

    @functools.cached_property
    def estimated(self) -> EstimatedProgram:
        """The program with estimates in the place of what XLA says: without devices, too.  Raises `MpmdError`."""
        return EstimatedProgram(self.partitioned.module)

    def cost_analysis(self) -> dict[str, Any]:
        """Estimate `Compiled.cost_analysis`, for abstract meshes, too.  Raises `MpmdError`."""
        return self.estimated.cost_analysis()

    def memory_analysis(self) -> MemoryReport:
        """Estimate `Compiled.memory_analysis`, for abstract meshes, too.  Raises `MpmdError`."""
        return self.estimated.memory_analysis()

    def placement_report(self) -> PlacementReport:
        """Return what each mesh holds and what moves between meshes, as far as that is known before XLA compiles."""
        return placement_report(make_plan(self.partitioned.module))

    def residence(self) -> PlacementReport:
        """Return `placement_report()`; the name of before, for one release."""
        warnings.warn("residence() is called placement_report()", DeprecationWarning, stacklevel=2)
        return self.placement_report()

    def compiler_ir(self, dialect: Literal["stablehlo", "mpmd"] = "mpmd") -> Module:
        """Return the program as a module: "stablehlo" with named ops as traced, "mpmd" as exported; not to be changed.

        XLA has no module of the whole; `Compiled.executables` has the parts.  Raises `MpmdError`, and `ValueError` for
        another dialect.
        """
        if dialect == "stablehlo":
            return parse(self.traced.mlir_text())
        if dialect == "mpmd":
            return self.partitioned.module
        raise ValueError(f"compiler_ir has 'stablehlo' and 'mpmd', not {dialect!r}")

    def as_text(self, dialect: Dialect = "mpmd", *, debug_info: bool = False) -> str:
        """Return the program as text: "jaxpr" as traced, "stablehlo" with named ops, "mpmd" as exported.

        `debug_info`: of modules, with places in source files.
        """
        if dialect == "jaxpr":
            if self.traced.jaxpr is None:
                _ = self.traced.rewritten  # says that it was loaded from a file
            return str(self.traced.jaxpr)
        if dialect == "stablehlo":
            return self.traced.mlir_text(debug_info)
        if dialect == "mpmd":
            module = self.partitioned.module
            return prettify(module.to_generic(debug_info=True), debug_info=True) if debug_info else str(module)
        if dialect == "plan":
            return str(make_plan(self.partitioned.module))
        raise ValueError(f"dialect is 'jaxpr', 'stablehlo', 'mpmd' or 'plan', not {dialect!r}")

    def stored_form(self, program: LoadedProgram) -> Stored:
        """Return what is kept of it and of what XLA made of it."""
        text = self.partitioned.module.to_generic(debug_info=True)
        return stored_form(program, text, self.traced.name, self.schedule.name, tuple(self.warned))


@functools.cache
def tell_once(text: str) -> None:
    """Write a line to the log, the first time that there is this text."""
    LOG.warning("%s", text)


def loud() -> bool:
    """Return whether `jax_log_compiles` asks for log lines without any setting of a logger."""
    return bool(jax.config.jax_log_compiles)


# What a pipeline schedule would order in a step: microbatches, if it has some.


def waiting_meshes(module: Module) -> int:
    """Return how many meshes of a training step with microbatches wait for each other in program order; 0 for none.

    The module is that after the import phase.  Meshes that share devices are one.
    """
    counted = [op for op in module.main.body if isinstance(op, FragmentOp) and op.is_user and op.call_counter]
    owners = module.main.device_owners
    meshes = len({owners[op.mesh] for op in counted})
    trains = any(origin.transpose_count for op in counted for origin in op.origin)
    return meshes if trains and meshes > 1 else 0


def without_microbatches(module: Module, schedule: str) -> str | None:
    """Return what to say of a training step over several meshes, after the import phase, without two microbatches."""
    named, counted = [], set[int]()
    for op in module.main.body:
        if isinstance(op, FragmentOp) and op.is_user:
            named.append(op)
            counted.update(() if op.call_counter is None else (op.call_counter,))
            if len(counted) > 1:
                return None
    meshes = len({op.mesh for op in named})
    trains = any(origin.transpose_count for op in named for origin in op.origin)
    if not trains or meshes < 2:
        return None
    waiting = (
        f"one mesh works at a time while the others wait, {(meshes - 1) / meshes:.0%} of a step each if all have as "
        f"much to do (with 8 microbatches and 1F1B {(meshes - 1) / (meshes + 7):.0%})"
    )
    if counted:
        return (
            f"the schedule '{schedule}' has one microbatch to order, so {waiting}. Use more microbatches: "
            "mpmd_trace.value_and_grad(loss, microbatches=...), or more calls in the loop"
        )
    runs = collections.Counter(origin.name for op in named for origin in op.origin if origin.transpose_count == 0)
    most = max(runs, key=lambda name: runs[name], default=None)
    if most is not None and runs[most] > 1:
        return (
            f"the schedule '{schedule}' orders microbatches, but nothing says which computation is of which one: "
            f"'{most}' runs {runs[most]} times in the step. If these are microbatches, write "
            "mpmd_trace.call(fn, i)(...) in the loop instead of fn(...), or use mpmd_trace.enumerated_for; else leave "
            "pipeline_schedule out"
        )
    return (
        f"the schedule '{schedule}' orders microbatches, but the step has none: {waiting}. Take the gradients "
        "with mpmd_trace.value_and_grad(loss, microbatches=...), or in "
        "mpmd_trace.enumerated_for, or leave pipeline_schedule out"
    )


#: So many schedules that suit are tried besides "auto" and the last one; each takes as long as compiling the program.
_TRIED = 3
#: Those that are tried where none can be ranked, as of programs in which not every microbatch runs through all stages.
_UNRANKED = ("1F1B", "zb-h1")
#: With two stages on each mesh, in a loop and in a V.
_ZERO_BUBBLE = ("interleaved-zero-bubble", "zb-v")
#: What the most programs can follow.
_LAST = ("1F1B", "GPipe")


def way_out(
    config: Config,
    importing: Callable[[str], Module],
    is_followed: Callable[[Config, ScheduleChoice], bool],
    *,
    overlap: Overlap | None,
) -> str:
    """Return a sentence with the schedule that the program follows; with the parameters of `followed_schedules`."""
    tried: list[str] = []
    for name, choice in followed_schedules(config, importing, is_followed, tried, overlap=overlap):
        if choice.parts:
            return f"pipeline_schedule with {name} would be followed exactly, as {choice.name}"
        chosen = f" (it chooses '{choice.name}')" if name == "auto" else ""
        return f'pipeline_schedule="{name}" would be followed exactly{chosen}'
    none = f"None of the schedules tried ({', '.join(tried)}) would be followed exactly"
    try:
        unscheduled = dataclasses.replace(config, pipeline_schedule=None)
        is_followed(unscheduled, resolve_schedule(unscheduled))
    except MpmdError as error:
        return f"{none}, and without pipeline_schedule: {error.diagnostics[0].message}"
    return f"{none}: leave pipeline_schedule out, and one mesh works at a time"


def followed_schedules(
    config: Config,
    importing: Callable[[str], Module],
    is_followed: Callable[[Config, ScheduleChoice], bool],
    tried: list[str],
    *,
    overlap: Overlap | None,
) -> Iterator[tuple[str, ScheduleChoice]]:
    """Yield the schedules that the program follows, by name, best first, after adding those before them to `tried`.

    Where groups of meshes have schedules, these are changed one by one, before a schedule for all meshes is tried.

    `importing` gives the program after the import phase, its stages numbered as said; `is_followed` says whether it
    allows a schedule, `overlap` how it makes one program of fragments of several microbatches, if it does.
    """
    for name, wanted in _candidates(config, importing):
        tried.append(name if isinstance(wanted, Mapping) else repr(name))
        other = dataclasses.replace(config, pipeline_schedule=wanted)
        with warnings.catch_warnings(), contextlib.suppress(MpmdError):
            warnings.simplefilter("ignore", ScheduleWarning)
            choice = resolve_schedule(other)
            if choice.auto is not None:
                choice = settle(choice, importing, other, overlap=overlap)
            if is_followed(other, choice):
                yield name, choice


def _candidates(config: Config, importing: Callable[[str], Module]) -> Iterator[tuple[str, Any]]:
    """Yield "auto", and the schedules that have the stages of the program, those of the other order first.

    Where weight gradients were to run apart, those that do so with several stages on a mesh come before.  First of all,
    if groups of meshes have schedules, come these with that of one group changed.
    """
    asked = config.pipeline_schedule
    for name in ("auto", *_LAST) if isinstance(asked, Mapping) else ():
        for key, one in asked.items():
            if not (isinstance(one, str) and one.lower() == name.lower()):
                group = key if isinstance(key, str) else ", ".join(key)
                yield f'"{name}" for {group}', {**asked, key: name}
    for name in _names_for_all(config, importing):
        yield name, name


def _names_for_all(config: Config, importing: Callable[[str], Module]) -> Iterator[str]:
    asked = config.pipeline_schedule
    same = asked.lower() if isinstance(asked, str) else getattr(asked, "name", None)
    if resolve_schedule(config).splits_backward:
        yield from (name for name in _ZERO_BUBBLE if name != same)
    if not isinstance(asked, AutoSchedule) and asked != "auto":
        yield "auto"
    try:
        costs = program_costs(importing("loop"), AutoSchedule())
        ranked = [] if costs is None or costs.forward_only else rank_schedules(costs)
    except MpmdError:  # the program may be followed all the same
        ranked = []
    suiting = dict.fromkeys(c.schedule.name for c in sorted(ranked, key=lambda c: c.in_order))
    names = [name for name in suiting or _UNRANKED if name.lower() != same][:_TRIED]
    # Each loop over microbatches may follow these by itself, whatever suits the step as a whole.
    yield from (name for name in dict.fromkeys((*names, *_LAST)) if name.lower() != same)
