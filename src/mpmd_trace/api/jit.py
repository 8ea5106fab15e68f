"""`mpmd_trace.jit`: trace, partition, compile and run a step over several meshes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Unpack, overload

import jax
import numpy as np

from mpmd_trace.api import compilation_cache
from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.lowered import Lowered
from mpmd_trace.api.options import DEFAULTS, PLAIN, JitOptions, Settings, former_option
from mpmd_trace.api.refs import Outcome, Refs, has_refs, on_arrays, with_refs_first
from mpmd_trace.api.stage_info import StageInfo
from mpmd_trace.backend.arguments import TracedArgument, WrongSharding
from mpmd_trace.backend.executables import Known
from mpmd_trace.backend.stacked import Pieces
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.diagnostics.progress import compiling, stage
from mpmd_trace.frontend.errors import at_users_place, mistake, recorded_warnings, warn, without_warnings
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.layer_scan import is_assigning
from mpmd_trace.frontend.statics import is_hashable
from mpmd_trace.frontend.trace import check_names, trace
from mpmd_trace.frontend.traced import Traced as TracedFunction
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.forks import check_not_forked
from mpmd_trace.jax_compat.tracing import trace_settings
from mpmd_trace.passes.manager import Hook
from mpmd_trace.scheduling.balance import balanced, by_counts
from mpmd_trace.scheduling.resolve_schedule import ScheduleChoice, refusal, resolve_schedule

#: One program is compiled at a time, so that threads which want the same one compile it once.
_COMPILING = threading.RLock()


def _type_key(leaf: Any) -> Any:
    """Return what a program is compiled for: shape, dtype and weak type."""
    aval = getattr(leaf, "aval", None)
    if aval is not None:
        return aval.shape, aval.dtype, aval.weak_type
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        try:
            aval = jax.typeof(leaf)
        except (TypeError, ValueError, OverflowError):  # not a type of JAX; tracing says so
            return type(leaf)
        return aval.shape, aval.dtype, aval.weak_type
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", None), type(leaf)


def _without_pieces(leaf: Any) -> Any:
    """Return `leaf`, or its type if it is in pieces."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, Pieces) else leaf


class _Kind(NamedTuple):
    """A kind of call: structure, static values and types of its arguments, JAX's settings, and its programs."""

    key: tuple[Any, tuple[Any, ...], Any, tuple[Any, ...]]
    types: list[Any]
    programs: list[Compiled]


class Jitted:
    """The result of `jit`: a function that is compiled on the first call with new types."""

    in_shardings, out_shardings = former_option("in_shardings"), former_option("out_shardings")
    static_argnums, static_argnames = former_option("static_argnums"), former_option("static_argnames")
    keep_unused, compiler_options = former_option("keep_unused"), former_option("compiler_options")
    engine = former_option("engine")

    def __init__(self, fn: Callable[..., Any], config: Config, settings: Settings) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.config = config
        self.settings = settings
        self.adapter = settings.adapter
        #: The executables of these programs that are alive, which programs for other arguments are bound to.
        self._known: Known = weakref.WeakValueDictionary()
        #: For each kind of call the programs compiled for it, which differ in the shardings they want.
        self._compiled: dict[Any, list[Compiled]] = {}
        self._last: _Kind | None = None
        #: What marks an array as a result of one of them, which may be passed back from whichever mesh it is on.
        self._ours: dict[int, Any] = {}

    @explains_internal_errors
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace the function on arrays or `jax.ShapeDtypeStruct`s and check its names; `lower` of the result
        partitions it.

        Without `in_shardings`, arguments that the caller has put on a mesh of the topology keep their sharding, as
        under `jax.jit`.
        """

        def lower(hooks: Sequence[Hook], platform: str) -> Lowered:
            with self.adapter.calling():
                known = None if self.config.assigns_names else traced
                return self._lower(args, kwargs, hooks, known, platform)

        if self._takes_refs(args, kwargs):
            return self._of_refs.trace(*args, **kwargs)
        with self.adapter.calling():
            args, kwargs = self.adapter.wrap((args, kwargs))
            traced = self._trace(args, kwargs)
        return Traced(traced, self.settings, lower)

    @explains_internal_errors
    def lower(self, *args: Any, hooks: Sequence[Hook] = (), **kwargs: Any) -> Lowered:
        """Trace on arrays or `jax.ShapeDtypeStruct`s and partition; `hooks` are called after every pass.

        Raises `MpmdError` with all problems.
        """
        lowered = self.lower_lazily(*args, hooks=hooks, **kwargs)
        _ = lowered.partitioned
        return lowered

    @explains_internal_errors
    def lower_lazily(self, *args: Any, hooks: Sequence[Hook] = (), **kwargs: Any) -> Lowered:
        """Like `lower`, but partition only when the result is first needed; for tools."""
        if self._takes_refs(args, kwargs):
            return self._of_refs.lower_lazily(*args, hooks=hooks, **kwargs)
        with self.adapter.calling():
            args, kwargs = self.adapter.wrap((args, kwargs))
            return self._lower(args, kwargs, hooks)

    @explains_internal_errors
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the type of each result, as `jax.ShapeDtypeStruct`, without partitioning; see `jax.eval_shape`."""
        return self.lower_lazily(*args, **kwargs).out_info

    def __repr__(self) -> str:
        return f"<mpmd_trace.jit of {name_of(self.fn)} over {', '.join(self.config.topology)}>"

    def _takes_refs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self.adapter is PLAIN and has_refs((args, kwargs))

    @functools.cached_property
    def _of_refs(self) -> Jitted:
        """The same function for arguments of which some are Refs."""
        settings = self.settings.behind_first()
        settings = dataclasses.replace(
            settings,
            out_shardings=None if settings.out_shardings is None else Outcome(None, settings.out_shardings),
            donation=dataclasses.replace(settings.donation, numbers=(0, *settings.donation.numbers)),
            adapter=Refs(),
        )
        return Jitted(on_arrays(self.fn), with_refs_first(self.config), settings)

    def _trace(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], config: Config | None = None, rewrites: bool = True
    ) -> TracedFunction:
        """Return the traced function; with names still to be assigned, they are taken as they come.

        Without `rewrites` its names are neither known nor checked.
        """
        config, settings = config or self.config, self.settings
        args, kwargs = jax.tree.map(_without_pieces, (args, kwargs))
        fn, fixed = self.fn, {k: v for k, v in kwargs.items() if k in settings.static_argnames}
        if fixed:

            @functools.wraps(fn)
            def fn(*args: Any, **kwargs: Any) -> Any:
                return self.fn(*args, **kwargs, **fixed)

        traced = trace(
            fn,
            *args,
            static_argnums=tuple(i for i in settings.static_argnums if -len(args) <= i < len(args)),
            donate_argnums=settings.donation.positions(len(args)),
            donate_argnames=settings.donation.keywords(kwargs),
            in_shardings=settings.in_shardings,
            out_shardings=settings.out_shardings,
            meshes=tuple(config.topology.values()),
            place=config.place,
            assigned=config.assignments,
            parts=_parts(config),
            refusal=functools.partial(refusal, config),
            rewrites=rewrites,
            **{k: v for k, v in kwargs.items() if k not in fixed},
        )
        if rewrites and not config.assigns_names:
            check_names(traced, config.assignments, config.where, is_placed=config.places_values)
        return traced

    def _settled(self, args: tuple[Any, ...], kwargs: dict[str, Any], platform: str | None) -> Config:
        """Return the configuration with every name on a mesh, for a call with these arguments."""
        config = self.config
        if not config.assigns_names:
            return config
        try:
            with without_warnings():  # it is traced again when its names are assigned
                traced = self._trace(args, kwargs)
                traced = traced if platform is None else traced.on_platform(platform)
                module = parse(traced.mlir_text(debug_info=False))
            counts = config.layers_per_stage
            if counts:
                assignments = by_counts(module, counts, config.stage_meshes)
            else:
                assignments = balanced(module, list(config.topology))
        except MpmdError as error:
            raise at_users_place(error, config.where) from None
        return dataclasses.replace(config, assignments=MappingProxyType(assignments), assigns_names=False)

    def _lower(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        hooks: Sequence[Hook] = (),
        traced: TracedFunction | None = None,
        platform: str | None = None,
    ) -> Lowered:
        config = self._settled(args, kwargs, platform)
        settings = self.settings
        schedule = resolve_schedule(config, settings.engine)
        name = getattr(self.fn, "__name__", "function")
        with stage("trace", name, loud=bool(jax.config.jax_log_compiles)):
            traced = traced or self._trace(args, kwargs, config, rewrites=False)
            traced = traced if platform is None else traced.on_platform(platform)
        numbered = jax.tree.unflatten(traced.out_tree, range(traced.out_tree.num_leaves))
        together = tuple(map(tuple, self.adapter.together(numbered)))
        more = (settings.engine, settings.compiler_options, settings.keep_unused, settings.donation.warns, together)
        key = None if hooks else compilation_cache.key_of_program(traced, config, *more)
        stored = compilation_cache.find(key, config)
        lowered = Lowered(
            traced,
            config,
            schedule if stored is None else ScheduleChoice(stored.header["schedule"]),
            settings,
            together,
            hooks=hooks,
            stored=stored,
            key=key,
            known=self._known,
        )
        if stored is not None:
            return lowered
        with recorded_warnings(lowered.warned):
            _ = traced.rewritten
            check_names(traced, config.assignments, config.where, is_placed=config.places_values)
        if schedule.auto is None:
            return lowered
        try:
            return dataclasses.replace(lowered, schedule=lowered.settled())
        except MpmdError as error:
            raise at_users_place(error, config.where) from None

    @explains_internal_errors
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.adapter is PLAIN:  # a training loop calls this again and again
            return self._call(args, kwargs)
        with self.adapter.calling():
            return self._call(*self.adapter.wrap((args, kwargs)))

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_not_forked()
        dynamic, named, statics = (args, kwargs, ()) if not self._has_statics else self._split(args, kwargs)
        flat, tree = jax.tree_util.tree_flatten((dynamic, named))
        kind = self._kind(tree, statics, flat)
        candidates = tuple(kind.programs)
        for number, compiled in enumerate(candidates):
            try:
                result = compiled.call_flat(flat)
            except WrongSharding:
                continue
            except TracedArgument:
                return self._inline(args, kwargs)
            if number:  # likely to be wanted again
                kind.programs[:] = [compiled, *(c for c in kind.programs if c is not compiled)]
            return result
        if any(isinstance(leaf, jax.core.Tracer) for leaf in flat) or jax.config.jax_disable_jit:
            return self._inline(args, kwargs)
        if self._takes_refs(args, kwargs):
            return self._of_refs(*args, **kwargs)
        with _COMPILING:
            programs = self._compiled.get(kind.key, kind.programs)
            is_first = programs is kind.programs and len(programs) == len(candidates)
            made = self._compile(args, kwargs, kind, flat) if is_first else None
        if made is not None:
            try:
                return made.call_flat(flat)
            except WrongSharding:  # an assignment wants them in another memory than the one where a step left them
                made.program.accept_misplaced_results(self._ours, within_mesh=True)
                return made.call_flat(flat)
        self._last = None  # another thread has compiled it
        return self._call(args, kwargs)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: _Kind, flat: list[Any]) -> Compiled:
        """Return a program for these arguments, of which `flat` are the leaves, for none of its kind fits."""
        programs = kind.programs
        with compiling(getattr(self.fn, "__name__", "function")):
            lowered = self._lower(args, kwargs)
            if any(lowered.traced.in_shardings == c.lowered.traced.in_shardings for c in programs):
                # The wanted shardings are not for us to choose: results of ours are moved, the rest is an error.
                programs[0].program.accept_misplaced_results(self._ours, within_mesh=True)
                return programs[0]
            lowered.check_given_twice(flat)
            compiled = lowered.compile()  # nothing is kept when that fails
        compiled.program.accept_misplaced_results(self._ours, within_mesh=False)
        compiled.accept_stacked_results(self._ours)
        self._compiled[kind.key] = programs
        programs.insert(0, compiled)
        return compiled

    def _kind(self, tree: Any, statics: tuple[Any, ...], flat: list[Any]) -> _Kind:
        """Return what kind of call this is.

        A training loop passes the same types again and again, mostly as the same objects: comparing them with
        those of the last call is cheaper than looking them up.
        """
        types = [getattr(leaf, "aval", None) for leaf in flat]
        settings = trace_settings()
        last = self._last
        if last is not None and types == last.types and (tree, statics, settings) == last.key[:3]:
            return last
        key = (tree, statics, settings, tuple([_type_key(leaf) for leaf in flat]))
        kind = _Kind(key, types, self._compiled.get(key, []))
        if all(t is not None for t in types):
            self._last = kind
        return kind

    def _inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the function as part of another transformation, where names mean nothing."""
        if not is_assigning() and not jax.config.jax_disable_jit:
            warn(
                f"{name_of(self.fn)} is called within another transformation of JAX (jax.jit, jax.grad, "
                "jax.eval_shape ...). There it is the plain function, on the devices of that one and not on the meshes "
                "of its configuration: transform what mpmd_trace.jit is given instead of what it returns"
            )
        return self.adapter.unwrap_result(self.fn(*args, **kwargs))

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The positions of donated arguments, as passed to `jit`."""
        return self.settings.donation.numbers

    @property
    def _has_statics(self) -> bool:
        return bool(self.settings.static_argnums or self.settings.static_argnames)

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """Dynamic arguments, dynamic keyword arguments, and a hashable form of the static ones."""
        names = self.settings.static_argnames
        numbers = {n % len(args) for n in self.settings.static_argnums if -len(args) <= n < len(args)}
        dynamic = tuple(a for i, a in enumerate(args) if i not in numbers)
        named = {k: v for k, v in kwargs.items() if k not in names}
        statics: list[Any] = [(i, args[i]) for i in sorted(numbers)]
        statics += [(k, kwargs[k]) for k in sorted(kwargs) if k in names]
        for name, value in statics:
            if not is_hashable(value):
                label = f"at position {name}" if isinstance(name, int) else f"{name!r}"
                raise MpmdError(
                    f"the static argument {label} of {getattr(self.fn, '__name__', 'the function')} is a "
                    f"{type(value).__name__}, which cannot be hashed. Static arguments are part of the "
                    "program and compared by value: pass a tuple instead of a list, for example, or make the "
                    "argument dynamic."
                )
        # 1, 1.0 and True are equal, but not the same program.
        return dynamic, named, tuple((name, type(value), value) for name, value in statics)

    def clear_cache(self) -> None:
        """Drop all compiled programs."""
        self._compiled.clear()
        self._last = None


class Decorating(Protocol):
    """`jit` of a function and a configuration; without a function, a decorator."""

    @overload
    def __call__(self, fn: Callable[..., Any], config: Config, **options: Unpack[JitOptions]) -> Jitted: ...

    @overload
    def __call__(
        self, fn: Config | None = None, config: Config | None = None, **options: Unpack[JitOptions]
    ) -> Callable[[Callable[..., Any]], Jitted]: ...


def takes_options(function: Callable[..., Jitted]) -> Decorating:
    """Return a function such as `jit`; what is decorated gets a function, its configuration and all options."""
    result: Decorating = with_defaults(function, DEFAULTS)
    return result


def with_defaults(function: Callable[..., Jitted], defaults: Mapping[str, Any]) -> Any:
    """Return a function of another one, a configuration and options; without a function, it returns a decorator."""
    name = function.__name__

    @functools.wraps(function)
    def checked(fn: Any = None, config: Any = None, **given: Any) -> Any:
        for option in given:
            if option not in defaults:
                raise TypeError(f"{name}() got an unexpected keyword argument {option!r}")
        if isinstance(fn, Config) and config is None:
            fn, config = None, fn
        if not isinstance(config, Config):
            raise mistake(f"{name} takes a config of mpmd_trace.make_config, not a {type(config).__name__}")
        if fn is None:
            return functools.partial(checked, config=config, **given)
        if not callable(fn):
            raise mistake(f"{name} takes a function, not {fn!r} of type {type(fn).__name__}")
        return function(fn, config, **{**defaults, **given})

    options = [inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=v) for option, v in defaults.items()]
    first = [one.replace(default=None) for one in list(inspect.signature(function).parameters.values())[:2]]
    checked.__signature__ = inspect.Signature([*first, *options])  # type: ignore[attr-defined]
    return checked


@takes_options
def jit(fn: Callable[..., Any], config: Config, **options: Unpack[JitOptions]) -> Jitted:
    """Compile `fn` into a pipeline over the meshes of `config`.

    Call the result like `fn`: it moves its arguments to their meshes, and returns what `fn` returns.  It compiles a
    program for each new combination of structure, shapes, dtypes, shardings and static values.
    `.trace(*args)`, `.lower(*args)` and `.compile()`
    perform these steps one by one.  Without `fn`, this is a decorator: `@mpmd_trace.jit(config=config)`.

    Args:
        fn: a function of pytrees of arrays, written for one device, whose parts have names.
        config: the meshes, and which name is assigned to which mesh; see `make_config`.
        in_shardings: a pytree prefix of the arguments, of `NamedSharding`, `Format` (with a layout in memory) or None
            (chosen by the compiler).  A sharding over a mesh of the topology puts the argument there.
        out_shardings: the same for the result.
        donate_argnums: positions of arguments whose buffers may be reused.
        donate_argnames: names of such arguments; positions and names imply each other, as in `jax.jit`.
        static_argnums: positions of arguments that are part of the program; they must be hashable.
        static_argnames: names of such arguments.
        keep_unused: whether to copy arguments to a mesh even if the program does not use them.
        compiler_options: options of XLA, for the programs of all meshes, or a mapping from names of meshes to
            options, as `jax.jit` takes them.
        engine: "python" (this package's passes) or "cpp" (the partitioner inside jaxlib >= 0.12).

    Raises:
        MpmdError: when traced or compiled, with all problems.
    """

    return Jitted(fn, config, Settings.of(fn, config, options))


def _parts(config: Config) -> int:
    """Return into how many parts to cut stacked layers; 0 for one each, which are joined again stage by stage."""
    if not config.assigns_names:
        return 1
    return 0 if config.layers_per_stage else len(config.topology)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Traced(StageInfo):
    """A step after tracing, from `mpmd_trace.jit(...).trace(...)`, as `jax.stages.Traced`; `traced` has more of it."""

    traced: TracedFunction
    settings: Settings
    _lower: Callable[[Sequence[Hook], str], Lowered]

    @explains_internal_errors
    def lower(self, *, lowering_platforms: Sequence[str] | None = None, hooks: Sequence[Hook] = ()) -> Lowered:
        """Partition the program; `hooks` are called after every pass.  Raises `MpmdError` with all problems.

        `lowering_platforms`: the one platform to lower for ("cpu", "cuda", "rocm", "tpu"), by default that of the
        meshes.  A program that is lowered for another platform cannot be compiled here.
        """
        given = (lowering_platforms,) if isinstance(lowering_platforms, str) else tuple(lowering_platforms or ())
        if lowering_platforms is not None and len(given) != 1:
            raise mistake(
                f"lowering_platforms has one platform for mpmd_trace, not {list(given)}: programs differ between "
                "platforms; lower once for each"
            )
        lowered = self._lower(hooks, given[0] if given else self.traced.platform)
        _ = lowered.partitioned
        return lowered

    @property
    def jaxpr(self) -> Any:
        """The jaxpr of the step, with names as tagged jits; stacked layers that are cut are several arrays."""
        return self.traced.jaxpr

    @property
    def fun_name(self) -> str:
        """The name of the function."""
        return self.traced.name

    @property
    def out_avals(self) -> Any:
        """The types of the results, in their structure."""
        return jax.tree.map(lambda x: jax.core.ShapedArray(x.shape, x.dtype), self.out_info)

    @property
    def effects(self) -> Any:
        """The effects of the function, such as callbacks."""
        return self.traced.jaxpr.effects

    @property
    def names(self) -> dict[str, list[str]]:
        """Each name that occurs, with the places (`file:line`) where."""
        return self.traced.names

    def __repr__(self) -> str:
        return f"<mpmd_trace Traced: {self._summary()}>"
