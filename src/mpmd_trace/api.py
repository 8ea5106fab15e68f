"""`mpmd_trace.jit`: trace, partition, compile and run a step over several meshes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax

from .backend.load import LoadedProgram, MemoryAnalysis, load
from .backend.timeline import Timeline
from .config import Assignment, Config
from .frontend.trace import Traced, check_names, trace
from .ir.diagnostics import MpmdError
from .partition import IoSpec, Partitioned, partition
from .passes.manager import Hook
from .schedule_bridge import ScheduleChoice, choose_schedule
from .text import parse

__all__ = ["Compiled", "Jitted", "Lowered", "jit"]

Stage = Literal["jaxpr", "stablehlo", "mpmd", "plan"]


def _type_key(leaf: Any) -> Any:
    """What a program is compiled for: shape, dtype and weak type."""
    aval = getattr(leaf, "aval", None)
    if aval is not None:
        return aval.shape, aval.dtype, aval.weak_type
    if isinstance(leaf, bool | int | float | complex):
        return type(leaf)
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", None), type(leaf)


class InOut(NamedTuple):
    """Something for the arguments, as a pytree `(args, kwargs)`, and the same for the result."""

    inputs: Any
    outputs: Any


def named_meshes(config: Config) -> list[tuple[str, list[tuple[str, int]]]]:
    """The topology as the partitioner takes it: (mesh name, [(axis name, size), ...])."""
    return [(name, [(str(a), n) for a, n in mesh.shape.items()]) for name, mesh in config.topology.items()]


def _mesh_text(assignment: Assignment) -> str:
    kind = assignment.memory_kind
    return assignment.mesh if kind is None else f"{assignment.mesh}#{kind}"


def _per_argument(found: Mapping[int, Assignment], count: int, offset: int = 0) -> list[str | None]:
    meshes: list[str | None] = [None] * (offset + count)
    for index, assignment in found.items():
        meshes[offset + index] = _mesh_text(assignment)
    return meshes


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A traced program and, once asked for, its partitioned form."""

    traced: Traced
    config: Config
    schedule: ScheduleChoice
    hooks: Sequence[Hook] = ()
    engine: str = "python"

    @functools.cached_property
    def partitioned(self) -> Partitioned:
        """The exported module and what each pass did.  Raises `MpmdError`."""
        config, traced = self.config, self.traced
        constants = len(traced.constants)
        assignment = {
            name: (_mesh_text(a) if a.stage is None else (_mesh_text(a), a.stage))
            for name, a in config.assignments.items()
        }
        arguments: dict[str, Any] = {
            "func_name": traced.name,
            "named_meshes": named_meshes(config),
            "assignment": assignment,
            "input_meshes": _per_argument(
                config.input_meshes(traced.in_tree), len(traced.inputs), constants
            ),
            "output_meshes": _per_argument(config.output_meshes(traced.out_tree), len(traced.outputs)),
            "donate_argnums": [constants + i for i in traced.donated],
            "partitioning_options": {**config.partitioning_options, **self.schedule.options},
            "fragment_merge_rules": config.fragment_merge_rules,
            "fragment_schedule_rules": config.fragment_schedule_rules,
        }
        if self.engine == "cpp":
            from .cpp_engine import partition_with_cpp

            return partition_with_cpp(traced.mlir_text(), **arguments)
        return partition(
            parse(traced.mlir_text()),
            **arguments,
            predicate=self.schedule.predicate,
            constraints=self.schedule.constraints,
            hooks=self.hooks,
        )

    def as_text(self, stage: Stage = "mpmd") -> str:
        """The program as text: "jaxpr" as traced, "stablehlo" with named ops, "mpmd" as exported."""
        if stage == "jaxpr":
            return str(self.traced.jaxpr)
        if stage == "stablehlo":
            return self.traced.mlir_text(debug_info=False)
        if stage == "mpmd":
            return self.partitioned.as_text()
        if stage == "plan":
            return str(self.compile().program.plan)
        raise ValueError(f"stage is 'jaxpr', 'stablehlo', 'mpmd' or 'plan', not {stage!r}")

    def compile(self, progress: Callable[[int, int, str], None] | None = None) -> Compiled:
        """XLA executables for every distinct program, ready to be called.

        `progress(done, total, name)` is called as executables become ready.  Raises `MpmdError`, also
        when a mesh of the topology has no devices.
        """
        if self.config.is_abstract:
            raise MpmdError(
                "the topology has abstract meshes, which have no devices to run on; make it of "
                "jax.sharding.Mesh to compile, or use lower(...).as_text() to look at the program"
            )
        program = load(
            self.partitioned.module,
            dict(self.config.topology),
            progress=progress,
        )
        return Compiled(self, program)


class Compiled:
    """A compiled program.  Call it with arguments of the types it was lowered for.

    Arguments that are not where the program wants them are placed there first; `place` does that ahead of
    time.
    """

    def __init__(self, lowered: Lowered, program: LoadedProgram) -> None:
        self.lowered = lowered
        self.program = program
        traced = lowered.traced
        self._in_tree = traced.in_tree
        self._out_tree = traced.out_tree
        self._keys_in = [(i, leaf.key_impl) for i, leaf in enumerate(traced.inputs) if leaf.key_impl]
        self._keys_out = [(i, leaf.key_impl) for i, leaf in enumerate(traced.outputs) if leaf.key_impl]
        count = len(traced.constants)
        self._constants = [
            jax.device_put(c, s) for c, s in zip(traced.constants, program.input_shardings, strict=False)
        ]
        self._in_shardings = list(program.input_shardings[count:])

    # Calling.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call_flat(self._flatten(args, kwargs))

    def call_flat(self, flat: list[Any]) -> Any:
        """The result for the leaves of the arguments (static ones left out)."""
        if self._keys_in:
            self._unwrap_keys(flat)
        results = self.program(*self._constants, *flat)
        for i, impl in self._keys_out:
            results[i] = jax.random.wrap_key_data(results[i], impl=impl)
        return jax.tree_util.tree_unflatten(self._out_tree, results)

    def measure(self, *args: Any, **kwargs: Any) -> tuple[Any, Timeline]:
        """The result, and when each program and transfer of the step ran on each mesh."""
        flat = self._flatten(args, kwargs)
        self._unwrap_keys(flat)
        results, timeline = self.program.measure(*self._constants, *flat)
        for i, impl in self._keys_out:
            results[i] = jax.random.wrap_key_data(results[i], impl=impl)
        return jax.tree_util.tree_unflatten(self._out_tree, results), timeline

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        flat, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self._in_tree:
            raise TypeError(
                f"{self.lowered.traced.name} was compiled for arguments of the structure\n  {self._in_tree}\n"
                f"but is called with\n  {tree}"
            )
        return flat

    def _unwrap_keys(self, flat: list[Any]) -> None:
        for i, impl in self._keys_in:
            found = getattr(flat[i], "dtype", None)
            if found is None or not jax.dtypes.issubdtype(found, jax.dtypes.prng_key):
                name = self.lowered.traced.inputs[i].name
                raise TypeError(f"argument {name} must be a typed PRNG key ({impl}), as it was when compiled")
            flat[i] = jax.random.key_data(flat[i])

    def place(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as `(args, kwargs)`, each array moved to the mesh and sharding the program wants."""
        flat = self._flatten(args, kwargs)
        self._unwrap_keys(flat)
        placed = [jax.device_put(v, s) for v, s in zip(flat, self._in_shardings, strict=True)]
        for i, impl in self._keys_in:
            placed[i] = jax.random.wrap_key_data(placed[i], impl=impl)
        found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree_util.tree_unflatten(self._in_tree, placed)
        return found

    # What is known about it.

    @property
    def function_named_shardings(self) -> InOut:
        """The `NamedSharding` of each argument and result."""
        count = len(self.lowered.traced.constants)
        return InOut(
            jax.tree_util.tree_unflatten(self._in_tree, list(self.program.input_shardings)[count:]),
            jax.tree_util.tree_unflatten(self._out_tree, list(self.program.output_shardings)),
        )

    @property
    def function_mesh_assignment(self) -> InOut:
        """The mesh name of each argument and result."""
        count = len(self.lowered.traced.constants)
        inputs: list[IoSpec] = self.lowered.partitioned.input_specs[count:]
        outputs: list[IoSpec] = self.lowered.partitioned.output_specs
        return InOut(
            jax.tree_util.tree_unflatten(self._in_tree, [s.mesh for s in inputs]),
            jax.tree_util.tree_unflatten(self._out_tree, [s.mesh for s in outputs]),
        )

    def cost_analysis(self) -> dict[str, Any]:
        """Floating point operations and bytes per mesh and in all, as XLA counts them, and bytes moved."""
        return self.program.cost_analysis()

    def memory_analysis(self) -> dict[str, MemoryAnalysis]:
        """For each mesh the bytes of one device: the peak from the schedule, arguments, results, scratch."""
        return self.program.memory_analysis()

    def as_text(self, stage: Stage = "mpmd") -> str:
        """See `Lowered.as_text`."""
        return str(self.program.plan) if stage == "plan" else self.lowered.as_text(stage)


class Jitted:
    """What `jit` returns: a function that compiles itself on the first call with new types."""

    def __init__(
        self,
        fn: Callable[..., Any],
        config: Config,
        *,
        in_shardings: Any = None,
        out_shardings: Any = None,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
        engine: str = "python",
    ) -> None:
        functools.update_wrapper(self, fn)
        if engine not in ("python", "cpp"):
            raise ValueError(f"engine is 'python' or 'cpp', not {engine!r}")
        self.fn = fn
        self.config = config
        self.in_shardings = in_shardings
        self.out_shardings = out_shardings
        self.donate_argnums = donate_argnums
        self.static_argnums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        self.engine = engine
        self._compiled: dict[Any, Compiled] = {}

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace the function on arrays or `jax.ShapeDtypeStruct`s and check its names."""
        traced = trace(
            self.fn,
            *args,
            static_argnums=self.static_argnums,
            donate_argnums=self.donate_argnums,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            **kwargs,
        )
        check_names(traced, self.config)
        return traced

    def lower(self, *args: Any, hooks: Sequence[Hook] = (), **kwargs: Any) -> Lowered:
        """Trace on arrays or `jax.ShapeDtypeStruct`s; `hooks` see every pass.  Raises `MpmdError`."""
        return Lowered(
            self.trace(*args, **kwargs), self.config, choose_schedule(self.config), hooks, self.engine
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dynamic, statics = self._split(args)
        flat, tree = jax.tree_util.tree_flatten((dynamic, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in flat):
            return self.fn(*args, **kwargs)  # inside another transformation names mean nothing
        key = (tree, statics, tuple([_type_key(leaf) for leaf in flat]))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self.lower(*args, **kwargs).compile()
        return compiled.call_flat(flat)

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        if not self.static_argnums:
            return args, ()
        numbers = {n % len(args) for n in self.static_argnums}
        dynamic = tuple(a for i, a in enumerate(args) if i not in numbers)
        return dynamic, tuple(args[i] for i in sorted(numbers))

    def clear_cache(self) -> None:
        """Forget everything that was compiled."""
        self._compiled.clear()


def jit(
    fn: Callable[..., Any],
    config: Config,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    engine: str = "python",
) -> Jitted:
    """`fn` as a pipeline over the meshes of `config`.

    The result is called like `fn`: it places its arguments, compiles for each new structure, shapes, dtypes
    and static values, and returns what `fn` returns.  `.lower(*args)` and `.compile()` take the steps one by one.

    Args:
        fn: a function of pytrees of arrays, written for one device; parts of it carry names.
        config: which name lives on which mesh; see `make_config`.
        in_shardings: a pytree prefix of the arguments, of `NamedSharding` or None (chosen by the compiler).
        out_shardings: likewise for the result.
        donate_argnums: positions of arguments whose buffers may be reused.
        static_argnums: positions of arguments that are part of the program; they must be hashable.
        engine: "python" (this package's passes) or "cpp" (the partitioner inside jaxlib >= 0.12).

    Raises:
        MpmdError: when traced or compiled, with every problem found.
    """
    return Jitted(
        fn,
        config,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        engine=engine,
    )
