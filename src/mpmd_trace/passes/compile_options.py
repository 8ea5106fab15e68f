"""`CompileOptions`: all options of the compiler, as the user gave them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self, TypeAlias

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, did_you_mean, raise_errors
from mpmd_trace.passes.base import option
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Order

#: Whether fragments of several microbatches become one program: always, or where a step becomes shorter.
Overlap: TypeAlias = Literal["auto", "pairs"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """How to compile a program: made once of what the user wrote, checked, and passed to every step as it is.

    To add an option that `mpmd_trace.jit` knows, add a field here and read it where `pipelines.py` makes the pass;
    `make_config(partitioning_options={...})` takes it, its type is checked, and the page of options lists it.  An
    option that is None was not given: what stands for it depends on the program or on the pipeline.

    Raises `MpmdError` that lists every mistake.
    """

    mpmd_infer_transfers: bool | None = option(None, "add transfers where values are needed on other meshes")
    mpmd_infer_cross_mesh_reductions: bool = option(
        False, "turn reductions over values of several meshes into mpmd reductions"
    )
    mpmd_fragment_remat: bool = option(False, "recompute forward fragments before backward ones")
    mpmd_merge_remat_fragments: bool = option(False, "merge the recomputation into the backward fragment")
    mpmd_split_bwd_fragments: bool | None = option(
        None, "split backward fragments at the values that are transferred, for schedules with split backwards"
    )
    mpmd_pipeline_schedule: str | Order | None = option(
        None, f"one of {', '.join(SCHEDULES)}; the default of partition is the first"
    )
    mpmd_assume_homogeneous_devices: bool = option(False, "accepted as in the C++ partitioner, without effect")
    mpmd_absorb_inferred_fragments_on_entry_point_function: bool = option(
        False, "merge unnamed fragments into named ones in the main function, too"
    )
    mpmd_copy_constant_creation_from_producer_to_consumer: bool = option(
        False, "create constants where they are used instead of sending them"
    )
    mpmd_apply_merge_transfers_pass: bool = option(False, "send small values between the same meshes in one transfer")
    mpmd_merge_inferred_after_scheduling: bool = option(
        False, "merge unnamed fragments after scheduling instead of before"
    )
    mpmd_fail_on_backward_deps: bool = option(
        False, "reject programs that send a value to an earlier mesh in a forward pass"
    )
    mpmd_merge_forward_with_backward: bool | None = option(
        None,
        "one program for a forward and the backward that follows it on its mesh, as on the last mesh of 1F1B. "
        "If it is not given, mpmd_trace.jit does so only for code that no other stage runs. (The C++ partitioner has "
        "the pass, but not the option)",
    )
    mpmd_merge_backward_with_forward: bool = option(
        False,
        "one program for a backward and the next microbatch's forward that follows it on its mesh, as between the "
        "warm-up and the end of 1F1B (the C++ partitioner has no such pass)",
    )
    mpmd_equal_microbatches: bool | None = option(
        None,
        "one program for all microbatches of a stage: sums start from zeros that are passed in, and code before the "
        "first and after the last microbatch has programs of its own. mpmd_trace.jit does so if it is not given. (The "
        "C++ partitioner has no such option)",
    )
    enable_heterogeneous_meshes: bool | None = option(
        None, "whether meshes have different axes; by default, mpmd_trace.jit detects it"
    )
    placement: Literal["reference", "cut"] = option(
        "cut", "where to place unnamed code; make_config describes this option and those below"
    )
    hoist_invariants: bool = option(True, "compute values that are the same for all microbatches once per step")
    gather: Literal["auto", "step", "phase", "microbatch"] = option("auto", "how long gathered parameters are kept")
    gradient_reduction: Literal["step", "microbatch"] = option("step", "how often sums over devices are completed")
    device_memory: int | None = option(None, "the bytes of memory of a device that a step may use")
    optimizer_sharding: tuple[str, ...] = option((), "the axes over which to shard the optimizer state")
    remat: Literal["auto"] | None = option(None, "recompute activations that do not fit into memory")
    offload: Literal["auto"] | None = option(None, "keep activations that do not fit into memory on the host")
    overlap: Overlap | None = option(None, "make one program of a forward and a backward of neighboring microbatches")

    def __post_init__(self) -> None:
        problems = [problem for f in dataclasses.fields(self) for problem in self._problems_of(f.name)]
        if self.overlap is not None and self.mpmd_merge_backward_with_forward:
            problems.append(
                f"overlap={self.overlap!r} and the option mpmd_merge_backward_with_forward both merge microbatches. "
                "Leave one of them out."
            )
        if self.remat is not None and self.mpmd_fragment_remat:
            problems.append("remat='auto' and the option mpmd_fragment_remat both recompute. Leave one of them out.")
        raise_errors(problems)

    def _problems_of(self, name: str) -> Iterator[str]:
        value, kinds = getattr(self, name), _kinds()[name]
        if name == "mpmd_pipeline_schedule":
            if isinstance(value, str):
                try:
                    Order.parse(value)
                except MpmdError as error:
                    yield from (one.message for one in error.diagnostics)
        elif kinds == {int, type(None)}:
            if value is not None and (type(value) is not int or value <= 0):
                yield f"{name} is a whole number of bytes (an int), or None, not {value!r}."
        elif bool in kinds:
            if type(value) is not bool and not (value is None and type(None) in kinds):
                what = f"partitioning option '{name}'" if name in _OF_PARTITION else name
                yield f"{what} is True or False, not {value!r}."
        elif literal := [one for one in kinds if typing.get_origin(one) is Literal]:
            allowed = [*typing.get_args(literal[0]), *([None] if type(None) in kinds else [])]
            if not (value is None or isinstance(value, str)) or value not in allowed:
                yield f"{name} is {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}, not {value!r}."

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, known: Iterable[str] | None = None) -> Self:
        """Return the options by name, defaults for the others.  Raises `MpmdError` that lists every mistake.

        `known`: the names that may be given; by default all of them.
        """
        offered = [field.name for field in dataclasses.fields(cls)] if known is None else list(known)
        problems: list[Diagnostic] = []
        values: dict[str, Any] = {}
        for name, value in dict(given or {}).items():
            if name not in offered:
                text = f"there is no partitioning option '{name}'"
                text += did_you_mean(name, offered) or f"; known: {', '.join(offered)}"
                problems.append(Diagnostic("error", text))
            elif name == "mpmd_pipeline_schedule":
                values[name] = value if isinstance(value, Order) else "none" if value is None else str(value) or "none"
            else:
                values[name] = value
        try:
            options = cls(**values)
        except MpmdError as error:
            problems += error.diagnostics
        raise_errors(problems)
        return options

    @classmethod
    def of_partition(cls, given: Mapping[str, Any] | None) -> Self:
        """Return the options that `mpmd_trace.compiler.partition` takes, by the names of the reference."""
        return cls.of(given, _OF_PARTITION)

    @property
    def schedule(self) -> Order | None:
        """The schedule that is named, or None."""
        named = self.mpmd_pipeline_schedule
        return Order.parse(named) if isinstance(named, str) else named

    def changed(self) -> dict[str, Any]:
        """Return the options that were given and are not at their default."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default}


#: The options that `mpmd_trace.compiler.partition` has, too.
_OF_PARTITION = tuple(f.name for f in dataclasses.fields(CompileOptions) if f.name.startswith("mpmd_"))
#: Those that are no arguments of `make_config`.
PARTITIONING_OPTIONS = (*_OF_PARTITION, "enable_heterogeneous_meshes")
#: Options that change the program and that the reference's driver does not know.
OUR_OPTIONS = ("mpmd_merge_forward_with_backward", "mpmd_merge_backward_with_forward")


@functools.cache
def _kinds() -> dict[str, set[Any]]:
    """Return the types that each option may have."""
    hints = typing.get_type_hints(CompileOptions)
    return {name: set(typing.get_args(hint)) if _is_union(hint) else {hint} for name, hint in hints.items()}


def _is_union(hint: Any) -> bool:
    return len(typing.get_args(hint)) > 1 and type(None) in typing.get_args(hint)
