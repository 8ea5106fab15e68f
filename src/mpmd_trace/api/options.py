"""Options of `jit` and `filter_jit` in the forms that the rest works with, and how arguments become arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypedDict

import jax
from jax.experimental import checkify
from jax.sharding import Mesh

from mpmd_trace.backend.executables import CompilerOptions, accepted
from mpmd_trace.config import Config
from mpmd_trace.frontend.errors import callers_place, mistake, raise_problems
from mpmd_trace.frontend.flatten_arguments import listed_positions
from mpmd_trace.frontend.functions import parameters_of, positional_names
from mpmd_trace.frontend.name_checks import nearest
from mpmd_trace.frontend.tags import listed, static_names
from mpmd_trace.jax_compat.targets import process_of

#: What `filter_jit` may donate, as `equinox.filter_jit` has it.
Donate = Literal["all", "all-except-first", "warn", "warn-except-first", "none"]
DONATE: tuple[Donate, ...] = ("all", "all-except-first", "warn", "warn-except-first", "none")


class JitOptions(TypedDict, total=False):
    """The options of `jit`; see there."""

    in_shardings: Any
    out_shardings: Any
    donate_argnums: int | Sequence[int]
    donate_argnames: str | Sequence[str]
    static_argnums: int | Sequence[int]
    static_argnames: str | Sequence[str]
    keep_unused: bool
    compiler_options: Mapping[str, Any] | None
    engine: str


class FilterJitOptions(JitOptions, total=False):
    """The options of `filter_jit`; see there."""

    donate: Donate


DEFAULTS: dict[str, Any] = {
    "in_shardings": None,
    "out_shardings": None,
    "donate_argnums": (),
    "donate_argnames": (),
    "static_argnums": (),
    "static_argnames": (),
    "keep_unused": False,
    "compiler_options": None,
    "engine": "python",
}


@dataclasses.dataclass(frozen=True)
class Donation:
    """The arguments of a call that are donated."""

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    #: All are given away but those at these positions; None: those listed above.
    all_but: tuple[int, ...] | None = None
    #: Whether to warn of arrays whose memory nothing reuses.
    warns: bool = False

    @staticmethod
    def of(numbers: object, names: object) -> Donation:
        """Return the donation of arguments at positions and by names.  Raises `FrontendError`."""
        wanted = "donate_argnames are names of arguments, one or several"
        return Donation(listed_positions(numbers, "donate_argnums"), listed(names, str, wanted))

    def positions(self, count: int) -> tuple[int, ...]:
        """Return those among `count` positional arguments."""
        return self.numbers if self.all_but is None else tuple(i for i in range(count) if i not in self.all_but)

    def behind_first(self) -> Donation:
        """Return the same arguments when another one comes before them."""
        if self.all_but is not None:
            return dataclasses.replace(self, all_but=tuple(n + 1 for n in self.all_but))
        return dataclasses.replace(self, numbers=tuple(n + 1 if n >= 0 else n for n in self.numbers))

    def keywords(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Return those that may be given by keyword."""
        return self.names if self.all_but is None else tuple(given)


class Adapter:
    """Turn the caller's pytrees into pytrees of arrays alone, and back; this one leaves them as they are."""

    def wrap(self, tree: Any) -> Any:
        """Return `tree` with everything but arrays made part of its structure."""
        return tree

    def unwrap(self, tree: Any) -> Any:
        """Return what `wrap` was given, also with facts about arrays in their places."""
        return tree

    def placed(self, tree: Any) -> Any:
        """Return what `wrap` was given, with these arrays, which have been moved to their places."""
        return self.unwrap(tree)

    def structure(self, wrapped: Any) -> Any:
        """Return the structure of what `wrap` was given, as messages show it, for that of what it returned."""
        return wrapped

    def unwrap_result(self, tree: Any) -> Any:
        """Return what the function returned, when a call ends."""
        return tree

    def together(self, tree: Any) -> Iterable[Iterable[int]]:
        """Return groups of results that are better on one mesh each; `tree` is the result with their numbers.

        The numbers of an error of `checkify`, whose `get` compares the codes of all kinds of errors, are one.
        """
        nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, checkify.Error))
        return [jax.tree.leaves(node) for node in nodes if isinstance(node, checkify.Error)]

    def calling(self) -> AbstractContextManager[Any]:
        """Return the time from `wrap` to `unwrap_result`."""
        return contextlib.nullcontext()


PLAIN = Adapter()


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of `jit`, checked, and how arguments become arrays."""

    in_shardings: Any = None
    out_shardings: Any = None
    donation: Donation = Donation()
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    keep_unused: bool = False
    #: XLA's options for each mesh.
    compiler_options: CompilerOptions = dataclasses.field(default_factory=dict)
    engine: str = "python"
    adapter: Adapter = PLAIN

    @staticmethod
    def of(fn: Callable[..., Any], config: Config, options: Mapping[str, Any]) -> Settings:
        """Return the settings for a function of options of `jit`.  Raises `FrontendError`."""
        if options["engine"] not in ("python", "cpp"):
            raise ValueError(f"engine is 'python' or 'cpp', not {options['engine']!r}")
        numbers, names = statics(fn, options["static_argnums"], options["static_argnames"])
        return Settings(
            options["in_shardings"],
            options["out_shardings"],
            Donation.of(options["donate_argnums"], options["donate_argnames"]),
            numbers,
            names,
            options["keep_unused"],
            compiler_options(options["compiler_options"], config, callers_place()),
            options["engine"],
        )

    def behind_first(self) -> Settings:
        """Return the settings for the same arguments when another one comes before them."""
        return dataclasses.replace(
            self,
            in_shardings=None if self.in_shardings is None else (None, *self.in_shardings),
            donation=self.donation.behind_first(),
            static_argnums=tuple(n + 1 if n >= 0 else n for n in self.static_argnums),
        )


def former_option(name: str) -> Any:
    """Return a property for an option of `jit` that was an attribute of its own before; for one release."""

    def get(self: Any) -> Any:
        warnings.warn(f".{name} is .settings.{name}", DeprecationWarning, stacklevel=2)
        return getattr(self.settings, name)

    return property(get)


def statics(
    fn: Callable[..., Any], argnums: int | Sequence[int], argnames: str | Sequence[str]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the static positions and names: a parameter given either way is static however it is passed.

    Raises:
        FrontendError: for positions and names that `fn` does not have.
    """
    numbers = listed_positions(argnums, "static_argnums")
    names = static_names(argnames, "jit")
    if not numbers and not names:
        return (), ()
    parameters = parameters_of(fn)
    if parameters is None:
        return numbers, names
    positional = positional_names(parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes_many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    unknown = [n for n in names if n not in {p.name for p in parameters} and not takes_any]
    if unknown:
        raise mistake(
            f"static_argnames {unknown} are not arguments of {getattr(fn, '__name__', fn)}, which takes "
            f"{[p.name for p in parameters]}"
        )
    beyond = [n for n in numbers if not -len(positional) <= n < len(positional) and not takes_many]
    if beyond:
        raise mistake(
            f"static_argnums {beyond} are out of range: {getattr(fn, '__name__', fn)} takes "
            f"{len(positional)} positional arguments, {positional}"
        )
    more_names = [positional[n] for n in numbers if -len(positional) <= n < len(positional)]
    more_numbers = [positional.index(n) for n in names if n in positional]
    return (tuple(dict.fromkeys([*numbers, *more_numbers])), tuple(dict.fromkeys([*names, *more_names])))


#: Options with which XLA hides collectives where it does not by itself, by platform and kind of device: otherwise an
#: all-to-all waits, and products of one half of a pair are not spread over the collectives of the other.  XLA for v5e
#: puts all-reduces behind products, each by itself: larger ones of the two halves must not be combined.  That for v6e
#: gives collectives to SparseCores, if a mesh has all devices of a slice.
_HIDING: dict[str, dict[str, bool | int | str]] = {
    "tpu": {"xla_tpu_enable_async_all_to_all": True, "xla_tpu_use_aggressive_scheduling": True},
    "TPU v5 lite": {
        "xla_enable_async_all_reduce": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
        "xla_jf_crs_combiner_threshold_in_bytes": 1 << 19,
    },
    "TPU v6 lite": {
        f"xla_tpu_enable_sparse_core_collective_offload_{kind}": True
        for kind in ("all_gather", "all_reduce", "reduce_scatter")
    },
}


def options_of_overlap(config: Config) -> CompilerOptions:
    """Return the options for each mesh with which its XLA overlaps what `overlap` makes one program, if it has them."""
    if config.options.overlap is None or config.is_abstract:
        return {}
    devices = {name: mesh.devices.flat for name, mesh in config.topology.items() if isinstance(mesh, Mesh)}
    taken: dict[str, Mapping[str, Any]] = {}
    for device in itertools.chain.from_iterable(devices.values()):
        # All processes have the same version of XLA, which each asks for a device of its own.
        if device.device_kind not in taken and process_of(device) == jax.process_index():
            wanted = {**_HIDING.get(device.platform, {}), **_HIDING.get(device.device_kind, {})}
            taken[device.device_kind] = accepted(device, wanted)
    return {name: taken.get(those[0].device_kind, {}) for name, those in devices.items()}


def compiler_options(given: Mapping[str, Any] | None, config: Config, where: str | None) -> CompilerOptions:
    """XLA's options for each mesh: `given` has them for all meshes, or maps names of meshes to theirs.

    Raises:
        FrontendError: with everything that cannot be an option; XLA itself knows which options it has.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise mistake(f"compiler_options map names of XLA's options to values, not {given!r}")
    is_per_mesh = bool(given) and all(isinstance(value, Mapping) for value in given.values())
    problems = []
    if is_per_mesh:
        for mesh in given:
            if mesh not in config.topology:
                text = f"compiler_options are given for {mesh!r}, which is not a mesh of the topology."
                problems.append(f"{text} {nearest(str(mesh), config.topology)}")
    per_mesh = given if is_per_mesh else dict.fromkeys(config.topology, given)
    options = {name: value for chosen in per_mesh.values() for name, value in chosen.items()}
    for name, value in options.items():
        if isinstance(value, Mapping):
            text = "compiler_options are options for all meshes, or a mapping from each mesh to its options, not both"
            problems.append(f"{text}: {name!r} has options of its own")
        elif not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            text = "an option of XLA is a name with a bool, a number or a text"
            problems.append(f"compiler_options have {name!r}: {value!r}; {text}")
    raise_problems(problems, where)
    return {mesh: dict(chosen) for mesh, chosen in per_mesh.items()}
