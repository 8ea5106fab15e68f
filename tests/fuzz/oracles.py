"""What must hold for a generated program.

An oracle is a function of a `Subject` that raises `Finding`.  One more way of running programs (other placements,
several processes) is one more entry of `ORACLES`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.cpp_engine import CppPartitioner
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace_devtools.interpreter import interpret as evaluate

#: What we refuse on purpose although `jax.jit` takes it, and where that is documented.
REFUSALS = (
    # docs/schedules.md: a schedule has its own stages on each mesh, and asks for some number of microbatches.
    r"schedule '[\w-]+' (puts \d+ stages on mesh|has the stages|has stages on all)",
    r"pipeline_schedule='auto' finds no schedule for these stages",
    r"\(the program has \d+ meshes, \d+ microbatches, \d+ stages on mesh",
    r"; got \d+ meshes and \d+ microbatches\. Change the number of microbatches, or choose another pipeline_schedule",
    # docs/schedules.md: stages that the user numbered against the flow.
    r"is of stage \d+ and needs what '\w+' of stage \d+ computes; a stage follows those that it needs",
    # docs/steps.md: a sharding puts a result on its mesh; another one is asked for.
    r"is on mesh '\w+' in output_mesh_assignment, and its sharding is over the devices of mesh",
    # A whole array where layers on several meshes are wanted: the optimiser has a name for all of them.
    r"is whole, and the layers of [\w'\[\]]+, which it replaces, are on several meshes",
    # All names are in code whose results are not used, as in a derivative that is zero.
    r"none of the assigned names occurs in step, so all of it would run on one mesh\. .* \(Unused values are ignored:",
    # Stages in a cycle, and loops whose microbatches have the same numbers (the message says what to do).
    r"stage \d+ runs twice on mesh",
    r"have the same stage \d+, call counter \d+ and direction, so the [\w-]+ schedule cannot order them; give them",
    # The option asks for it.
    r"drop fail-on-backward-deps|is not before it in the pipeline; microbatches cannot overlap there",
    # It is for inference only.
    r"the schedule '[\w-]+' is for programs without backward passes",
    r"ParallelPipelinesWithWrapAround is for forward-only programs",
)


class Finding(AssertionError):
    """Something that must not happen with this program."""


class Refused(Exception):
    """The program is refused on purpose."""


@dataclasses.dataclass
class Subject:
    """A program that was executed as Python: its functions, its configuration, and how exact results are."""

    names: dict[str, Any]
    rtol: float
    #: What `jax.jit` returns, and what for the new parameters and state when there are any.
    expected: list[Any] = dataclasses.field(default_factory=list)
    traced: Any = None

    @property
    def updates(self) -> bool:
        """Whether the first results are new values of the first arguments."""
        return "update" in self.names

    def arguments(self) -> tuple[Any, ...]:
        """New arguments."""
        found: tuple[Any, ...] = self.names["arguments"]()
        return found

    def jitted(self) -> mt.stages.Jitted:
        """The step over its meshes."""
        return mt.jit(self.names["step"], self.names["CONFIG"], **self.names["OPTIONS"])

    @functools.cached_property
    def lowered(self) -> mt.stages.Lowered:
        """The step, traced but not partitioned yet."""
        jitted = self.jitted()
        if self.traced is None:
            self.traced = jitted.trace(*self.arguments()).traced
        jitted._trace = lambda *_, **__: self.traced  # type: ignore[method-assign]
        return jitted.lower_lazily(*self.arguments())

    def with_setup(self, text: str) -> Subject:
        """The same step with the `MESHES`, `CONFIG` and `OPTIONS` of this text; it is not traced again."""
        names = {**self.names, "NamedSharding": NamedSharding, "PartitionSpec": PartitionSpec}
        exec(text, names)
        return Subject(names, self.rtol, self.expected, self.traced)


def load(text: str, rtol: float) -> Subject:
    """The program of a source text."""
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, "<program>", "exec"), names)
    return Subject(names, rtol)


def plain_results(subject: Subject) -> list[Any]:
    """What one device computes, in one step or two."""
    plain = jax.jit(subject.names["step"])
    found = [plain(*subject.arguments())]
    if subject.updates:
        found.append(plain(*found[0][:2], *subject.arguments()[2:]))
    return found


def attempt(what: Callable[[], Any]) -> Any:
    """The value, or what an error of ours means."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return what()
    except MpmdError as error:
        if any(re.search(pattern, str(error)) for pattern in REFUSALS):
            raise Refused(str(error)) from None
        raise Finding(f"refused: {error}") from error
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error


def run(subject: Subject) -> None:
    """The results are those of `jax.jit`, also in the next step; arguments are taken only where donated."""
    jitted, given = subject.jitted(), subject.arguments()
    found = attempt(lambda: jitted(*given))
    compare(found, subject.expected[0], subject.rtol)
    donated = subject.names["OPTIONS"].get("donate_argnums", ())
    kept = [x for i, arg in enumerate(given) if i not in donated for x in jax.tree.leaves(arg)]
    if any(isinstance(x, jax.Array) and x.is_deleted() for x in kept):
        raise Finding("an argument was deleted that was not donated")
    if subject.updates:
        again = attempt(lambda: jitted(*found[:2], *subject.arguments()[2:]))
        compare(again, subject.expected[1], 2 * subject.rtol)


def over_processes(subject: Subject, alone: Subject) -> None:
    """Meshes over several processes compute, bit for bit, what they do in one; every process calls this."""

    def results(one: Subject, read: Callable[[Any], Any]) -> list[Any]:
        """What is read of the results of each step, before the next one, to which they may be donated."""
        jitted = one.jitted()
        found = jitted(*one.arguments())
        kept = [read(found)]
        if one.updates:
            kept.append(read(jitted(*found[:2], *one.arguments()[2:])))
        return kept

    found = attempt(lambda: results(subject, mt.fetch))
    here = attempt(lambda: results(alone, lambda tree: jax.tree.map(array, tree)))
    for step, (one, expected) in enumerate(zip(here, alone.expected, strict=True)):
        compare(one, jax.tree.map(array, expected), (1 + step) * subject.rtol)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(here), strict=True):
        if array(a).tobytes() != b.tobytes():
            where = jax.tree_util.keystr(path)
            raise Finding(f"bits: result{where} is\n{array(a)}\nand in one process\n{b}")


#: What programs are lowered for, besides the platform of the tests.
PLATFORMS = (None, "cuda", "tpu")


def text(subject: Subject) -> None:
    """The compiler says the same each time, and reads what it prints; for a platform that is not there, too."""
    first = attempt(lambda: subject.lowered.as_text("mpmd"))
    platform = PLATFORMS[len(first) % len(PLATFORMS)]
    if platform is not None:
        elsewhere = subject.jitted().trace(*subject.arguments())
        there = attempt(lambda: elsewhere.lower(lowering_platforms=(platform,)).as_text("mpmd"))
        if attempt(lambda: str(parse(there))) != there:
            raise Finding(f"another text when parsed and printed, for {platform}")
    if attempt(lambda: subject.jitted().lower(*subject.arguments()).as_text("mpmd")) != first:
        raise Finding("another text the second time")
    if attempt(lambda: str(parse(first))) != first:
        raise Finding("another text when parsed and printed")


def interpret(subject: Subject) -> None:
    """The partitioned module, op by op, computes what JAX's own module does, op by op."""
    module = attempt(lambda: subject.lowered.partitioned.module)
    arrays = [array(x) for x in (*subject.traced.constants, *jax.tree.leaves(subject.arguments()))]
    compare(attempt(lambda: evaluate(module, arrays)), subject.expected, subject.rtol)


def engines(subject: Subject) -> None:
    """What the C++ partitioner made runs as what our passes make does; both compute what `jax.jit` does."""
    results = []
    for engine in ("python", "cpp"):
        options = {**subject.names["OPTIONS"], "engine": engine}
        one = dataclasses.replace(subject, names={**subject.names, "OPTIONS": options})
        run(one)
        results.append(attempt(functools.partial(one.jitted(), *one.arguments())))
    compare(results[1], results[0], subject.rtol)


def plain_module(subject: Subject) -> list[Any]:
    """The results of the module that `jax.jit` makes of the step, op by op."""
    given = subject.arguments()
    lowered = jax.jit(subject.names["step"], keep_unused=True).lower(*given)
    return evaluate(parse(lowered.as_text()), [array(x) for x in jax.tree.leaves(given)])


def array(x: Any) -> Any:
    """An argument as the compiler takes it."""
    if jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x, x.dtype if isinstance(x, mt.stages.Pieces) else jax.typeof(x).dtype)


@functools.cache
def cpp_process() -> CppPartitioner:
    """The C++ partitioner."""
    return CppPartitioner()


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced program, and what is asked of the partitioner in exact mode."""

    source: str
    text: str
    request: PartitionRequest


def traced(subject: Subject, source: str = "") -> Traced:
    """Return the program as the C++ partitioner takes it, too."""
    text, asked = attempt(lambda: (subject.lowered.traced.mlir_text(), subject.lowered.request))
    return Traced(source, text, dataclasses.replace(asked.with_options(mpmd_equal_microbatches=False), step=None))


def cpp_text(subject: Subject) -> None:
    """In exact mode the module is that of the C++ partitioner, op for op."""
    from comparison import difference  # of tests/cpp_differential, which is not always at hand

    found = difference(cpp_process(), traced(subject))
    if found is not None:
        raise Finding(f"C++: {found}")


def compare(found: Any, expected: Any, rtol: float) -> None:
    """Raise `Finding` unless structure, types and values are the same."""
    if jax.tree.structure(found) != jax.tree.structure(expected):
        raise Finding(f"structure: {jax.tree.structure(found)} instead of {jax.tree.structure(expected)}")
    for a, (path, b) in zip(jax.tree.leaves(found), jax.tree_util.tree_leaves_with_path(expected), strict=True):
        where = jax.tree_util.keystr(path)
        types = [f"{x.dtype}{list(x.shape)}{' (weak)' * getattr(x, 'weak_type', False)}" for x in (a, b)]
        if types[0] != types[1]:
            raise Finding(f"type: result{where} is {types[0]} instead of {types[1]}")
        wide = np.asarray(array(a), np.float64), np.asarray(array(b), np.float64)
        scale = max(1e-2, float(np.max(np.abs(wide[1]), initial=0, where=np.isfinite(wide[1]))))
        if not np.allclose(*wide, rtol=rtol, atol=rtol * scale, equal_nan=True):
            raise Finding(f"values: result{where} is\n{wide[0]}\ninstead of\n{wide[1]}")


ORACLES: dict[str, Callable[[Subject], None]] = {
    "run": run,
    "text": text,
    "interpret": interpret,
    "cpp": cpp_text,
    "engines": engines,
}
