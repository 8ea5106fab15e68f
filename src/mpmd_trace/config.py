"""Configurations, which say where the parts of a program run: topology, assignments, schedule."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh

from mpmd_trace.diagnostics.tables import Table, as_html
from mpmd_trace.frontend.errors import FrontendError, raise_problems
from mpmd_trace.frontend.flatten_arguments import Leaf, one_line, spread_prefix
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.passes.compile_options import PARTITIONING_OPTIONS, CompileOptions
from mpmd_trace.passes.mesh_order import device_meshes

if TYPE_CHECKING:
    from mpmd_trace.frontend.traced import Traced

__all__ = ["Config", "MeshOfInput"]

T = TypeVar("T")
#: Options that had a field of `Config` each.
_OLD_KEYWORDS = ("partitioning_options", *CompileOptions.__dataclass_fields__)


@dataclasses.dataclass(frozen=True, slots=True)
class MeshOfInput:
    """In `output_mesh_assignment`: put each array of a result on the mesh of the corresponding array of an argument.

    Use it for a state that is passed to the next step, so that no array of it is sent between steps.  The compiler
    chooses the mesh of each array, unless the argument has an assignment.
    """

    #: The position among the dynamic arguments, or the name of a keyword argument.
    argument: int | str

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.argument!r})"


def _with_old_keywords(cls: type[T]) -> type[T]:
    """Let options be keywords of their own, also for `dataclasses.replace`, as before; for one release."""
    made = cls.__init__

    @functools.wraps(made)
    def init(self: T, *args: Any, **kwargs: Any) -> None:
        old = {name: kwargs.pop(name) for name in [*kwargs] if name in _OLD_KEYWORDS}
        if old:
            instead = "config.with_options(name=value), or Config(options=CompileOptions(name=value))"
            warnings.warn(f"write {instead} for {', '.join(old)}", DeprecationWarning, stacklevel=_callers_level())
            options: CompileOptions = kwargs.get("options", CompileOptions())
            if "partitioning_options" in old:
                given = dict(old.pop("partitioning_options"))
                others = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
                kept = {name: value for name, value in others.items() if name not in PARTITIONING_OPTIONS}
                kwargs["options"] = CompileOptions.of(kept | given | old)
                kwargs["options_given"] = tuple(given)
            else:
                kwargs["options"] = dataclasses.replace(options, **old)
        made(self, *args, **kwargs)

    cls.__init__ = init  # type: ignore[assignment]
    return cls


def _callers_level() -> int:
    """Return the `stacklevel` of what calls the caller's caller, `dataclasses.replace` aside."""
    level, frame = 2, sys._getframe(2)
    while frame.f_code.co_filename == dataclasses.__file__ and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level


@_with_old_keywords
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Config:
    """A checked configuration; made by `mpmd_trace.make_config`, which says what each part of it does."""

    #: The meshes by name, in the order of the topology.
    topology: Mapping[str, Mesh | AbstractMesh]
    #: The assignment of each name.
    assignments: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    #: Pytree prefixes of the dynamic arguments and of the result, of `Assignment` (or `MeshOfInput`) or None.
    input_mesh_assignment: Any = ()
    output_mesh_assignment: Any = ()
    #: All options of the compiler.
    options: CompileOptions = dataclasses.field(default_factory=CompileOptions)
    #: The names of the options that were given as `partitioning_options`.
    options_given: tuple[str, ...] = ()
    #: A schedule, the name of one, or a comparator of two fragments.
    pipeline_schedule: Any = None
    #: Rules, and functions that make rules of the fragments of a program.
    fragment_merge_rules: tuple[Any, ...] = ()
    fragment_schedule_rules: tuple[Any, ...] = ()
    #: Whether names are still to be assigned, by their work in the program that is lowered.
    assigns_names: bool = False
    #: Then how many layers each stage is to have, where that was said, instead of by their work.
    layers_per_stage: tuple[int, ...] = ()
    #: And whether the stages go down the meshes and up again, as the schedule asks.
    stages_in_a_v: bool = False
    #: Where it was made (`file:line`), for messages.
    where: str | None = None

    def __repr__(self) -> str:
        """Return the arguments of `make_config`, as far as they have a short form."""
        meshes = ", ".join(f"{name}: {dict(mesh.shape)}" for name, mesh in self.topology.items())
        names: Any = self.name_to_mesh_assignment
        if self.assigns_names:
            names = list(self.layers_per_stage) or "'auto'"
        schedule = self._schedule
        options = "".join(f", {name}={value!r}" for name, value in self.options.changed().items())
        return f"Config({{{meshes}}}, {names}, pipeline_schedule={schedule!r}{options})"

    def __getattr__(self, name: str) -> Any:
        """Return an option that was a field of its own before; for one release."""
        if name == "partitioning_options":
            warnings.warn(f"config.{name} is config.options", DeprecationWarning, stacklevel=2)
            names = dict.fromkeys([*self.options_given, *self.options.changed()])
            return {name: getattr(self.options, name) for name in names if name in PARTITIONING_OPTIONS}
        if name in CompileOptions.__dataclass_fields__:
            warnings.warn(f"config.{name} is config.options.{name}", DeprecationWarning, stacklevel=2)
            return getattr(self.options, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def with_options(self, **changes: Any) -> Self:
        """Return the configuration with other options of the compiler."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **changes))

    @property
    def table(self) -> Table:
        """The meshes, and what is assigned to each."""
        rows = []
        for name, mesh in self.topology.items():
            names = [
                key if assigned.stage is None else f"{key} (stage {assigned.stage})"
                for key, assigned in self.assignments.items()
                if assigned.mesh == name
            ]
            devices = "abstract"
            if isinstance(mesh, Mesh):
                devices = ", ".join([str(device) for device in mesh.devices.flat][:8]) + " ..." * (mesh.size > 8)
            axes = ", ".join(f"{axis}={count}" for axis, count in mesh.shape.items())
            rows.append([name, axes, devices, self._still_to_assign(name) if self.assigns_names else ", ".join(names)])
        return Table("meshes", ["mesh", "axes", "devices", "names"], rows, words=4)

    def _still_to_assign(self, mesh: str) -> str:
        counts = [str(n) for n, at in zip(self.layers_per_stage, self.stage_meshes, strict=True) if at == mesh]
        return f"{' + '.join(counts)} layers" if counts else "by work"

    @property
    def assigned_meshes(self) -> set[str]:
        """The meshes that names are assigned to."""
        return {assignment.mesh for assignment in self.assignments.values()}

    @property
    def stage_meshes(self) -> tuple[str, ...]:
        """The mesh of each stage of `layers_per_stage`."""
        meshes = device_meshes(self.topology)
        rounds = len(self.layers_per_stage) // max(1, len(meshes))
        turns = [meshes[::-1] if self.stages_in_a_v and n % 2 else meshes for n in range(rounds)]
        return tuple(itertools.chain.from_iterable(turns))

    @property
    def _schedule(self) -> Any:
        """The schedule, those of the library by name."""
        given = self.pipeline_schedule
        if isinstance(given, Mapping):
            return {group: getattr(one, "name", one) for group, one in given.items()}
        return getattr(given, "name", given)

    def _repr_html_(self) -> str:
        options = [[name, one_line(value)] for name, value in self.options.changed().items()]
        return as_html(
            f"Config: schedule {self._schedule}", [self.table, Table("options", ["option", "value"], options, 2)]
        )

    @property
    def name_to_mesh_assignment(self) -> dict[str, str]:
        """The mesh of each name, with `#memory_kind` where there is one."""
        return {n: a.place for n, a in self.assignments.items()}

    @property
    def name_to_stage_assignment(self) -> dict[str, int]:
        """The stage of each name that has one."""
        return {n: a.stage for n, a in self.assignments.items() if a.stage is not None}

    @property
    def places_values(self) -> bool:
        """True if an argument or result is assigned to a mesh."""
        given = self.input_mesh_assignment, self.output_mesh_assignment
        return any(leaf is not None for leaf in jax.tree.leaves(given))

    @property
    def is_abstract(self) -> bool:
        """True if a mesh has no devices, so that programs can be compiled but not run."""
        return any(isinstance(mesh, AbstractMesh) for mesh in self.topology.values())

    @property
    def is_heterogeneous(self) -> bool:
        """True if the meshes may have different axes."""
        given = self.options.enable_heterogeneous_meshes
        return len({tuple(mesh.shape.items()) for mesh in self.topology.values()}) > 1 if given is None else given

    def place(self, name: str) -> tuple[str | None, int | None]:
        """Return the mesh and stage of a name."""
        assignment = self.assignments.get(name)
        return (None, None) if assignment is None else (assignment.mesh, assignment.stage)

    def input_meshes(self, in_tree: Any) -> dict[int, Assignment]:
        """Return the assigned inputs, by position among the leaves of `in_tree` (args, kwargs)."""
        leaves = jax.tree.unflatten(in_tree, range(in_tree.num_leaves))[0]
        return _per_leaf(self.input_mesh_assignment, leaves, "input_mesh_assignment")

    def output_meshes(self, out_tree: Any) -> dict[int, Assignment]:
        """Return the assigned outputs, by position among the leaves of `out_tree`."""
        per_output = self._per_output(out_tree)
        return {i: a for i, a in per_output.items() if isinstance(a, Assignment)}

    def same_mesh(self, traced: Traced) -> list[tuple[int, int]]:
        """Return the inputs and outputs that share a mesh, by position.

        Raises `FrontendError` where they do not fit.
        """
        pairs: list[tuple[int, int]] = []
        problems: list[str] = []
        wanted: dict[MeshOfInput, list[int]] = {}
        for output, assignment in self._per_output(traced.out_tree).items():
            if isinstance(assignment, MeshOfInput):
                wanted.setdefault(assignment, []).append(output)
        args, kwargs = jax.tree.unflatten(traced.in_tree, range(traced.in_tree.num_leaves))
        arguments = {**dict(enumerate(args)), **kwargs}
        for one, outputs in wanted.items():
            if one.argument not in arguments:
                known = ", ".join(map(repr, arguments)) or "none"
                text = f"output_mesh_assignment has {one}, but there is no such dynamic argument; there are: {known}."
                problems.append(text)
                continue
            inputs = jax.tree.leaves(arguments[one.argument])
            given = [traced.inputs[i] for i in inputs]
            made = [traced.outputs[o] for o in outputs]
            if [leaf.physical for leaf in given] == [leaf.physical for leaf in made]:
                pairs += zip(inputs, outputs, strict=True)
            else:
                problems.append(_unlike(one, given, made, _in_pieces(traced)))
        raise_problems(problems, self.where)
        return pairs

    def _per_output(self, out_tree: Any) -> dict[int, Any]:
        leaves = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
        return _per_leaf(self.output_mesh_assignment, leaves, "output_mesh_assignment")


def _in_pieces(traced: Traced) -> list[str]:
    """Return the names of the arguments whose layers are on several meshes."""
    if traced.stacks is None:
        return []
    leaves = zip(traced.stacks.signature.inputs, traced.stacks.inputs, strict=True)
    return [leaf.name for leaf, cut in leaves if cut is not None]


def _unlike(wanted: MeshOfInput, given: Sequence[Leaf], made: Sequence[Leaf], in_pieces: Sequence[str]) -> str:
    """Return why the results cannot be where the argument is."""
    text = f"output_mesh_assignment has {wanted} for {len(made)} results, but that argument has {len(given)} arrays"
    for a, b in zip(given, made, strict=False):
        if a.physical != b.physical:
            stack = next((name for name in in_pieces if a.name.startswith(f"{name}[")), None)
            if stack is not None:
                return (
                    f"output_mesh_assignment has {wanted}, but {b.name} is whole, and the layers of {stack}, which it "
                    "replaces, are on several meshes. Something needs all layers in one place, such as a named "
                    "computation of the whole array: compute it without a name, for each layer alone, or leave "
                    f"{wanted} out there"
                )
            types = [f"{x.name} ({x.struct.dtype.name}{list(x.struct.shape)})" for x in (b, a)]
            text = f"output_mesh_assignment has {wanted}, but {types[0]} is not of the type of {types[1]}"
            break
    return text + ". Give it to the results that replace the argument, in the same order and of the same types."


def _per_leaf(prefix: Any, full: Any, what: str) -> dict[int, Any]:
    """Return the assignment of each leaf (a position) of `full` that has one."""
    if prefix is None or (isinstance(prefix, tuple) and not prefix):
        return {}
    try:
        return spread_prefix(prefix, full, what)
    except ValueError as error:
        raise FrontendError(
            f"{what} is not a pytree prefix of the "
            f"{'dynamic arguments' if what.startswith('input') else 'result'}: " + one_line(error)
        ) from error
