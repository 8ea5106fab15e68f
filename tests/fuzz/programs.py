"""Fuzzed programs as data: a step (what is computed) and a setup (where and in which order).

Every value of these classes is a valid program; the defaults are the simplest ones.  `source.py` writes programs
as Python.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from fuzz.pieces import BETWEEN, LAYERS, LOOPS, OPTIMISERS, RESULTS
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES as REFERENCE_SCHEDULES
from mpmd_trace.schedules import ScheduleError, get_schedule, schedule_names

T = TypeVar("T")

MESHES = 4
PLACEMENTS = ("reference", "cut")
SHAPES = ((2, 3), (2, 3), (4, 4), (3, 5), (1, 1), (2, 1), (4, 2), (0, 3))
SWITCHES = (
    "mpmd_infer_cross_mesh_reductions",
    "mpmd_fragment_remat",
    "mpmd_merge_remat_fragments",
    "mpmd_split_bwd_fragments",
    "mpmd_assume_homogeneous_devices",
    "mpmd_absorb_inferred_fragments_on_entry_point_function",
    "mpmd_copy_constant_creation_from_producer_to_consumer",
    "mpmd_apply_merge_transfers_pass",
    "mpmd_merge_inferred_after_scheduling",
    "mpmd_fail_on_backward_deps",
    "mpmd_merge_forward_with_backward",
    "mpmd_merge_backward_with_forward",
    "mpmd_equal_microbatches",
)
#: Those that the reference's driver honors; it ignores the others, or does not have them.
HONORED = SWITCHES[:2] + SWITCHES[3:5]
#: Names of schedules; DualPipe wants every layer under two names, which no step here has.
SCHEDULES = (None, *REFERENCE_SCHEDULES, *(n for n in schedule_names() if n != "dualpipe"), "auto")
#: Loops whose microbatches are calls; elsewhere a stage would run several times for the same microbatch.
COUNTED = (
    *("none", "calls", "backwards", "enumerated_for", "fori_loop", "scan", "stacked", "last", "around"),
    "value_and_grad",
)
WORK = ("grad", "forward", "hidden", "hvp")
DTYPES = ("float32", "bfloat16", "float16")


def several(item: T, *default: T) -> Any:
    """A field for a tuple of things like `item`, which is the simplest one."""
    return dataclasses.field(default=default, metadata={"item": item})


@dataclasses.dataclass(frozen=True)
class Layer:
    """A named computation of a step, and the code without a name behind it."""

    kind: str = "dense"
    #: How many layers back the one is whose weight this layer has, too; likewise for the name.
    tied: int = 0
    same_name: int = 0
    behind: str = ""


@dataclasses.dataclass(frozen=True)
class Step:
    """What is computed, on which data."""

    layers: tuple[Layer, ...] = several(Layer(), Layer())
    work: str = "grad"
    named_loss: bool = False
    #: Whether the whole loss is inside of `jax.checkpoint`.
    checkpointed: bool = False
    weighted: bool = False
    loop: str = "none"
    microbatches: int = 1
    #: Whether the microbatches are a list of arrays instead of slices of one.
    listed: bool = False
    optimiser: str = ""
    shape: tuple[int, int] = (2, 3)
    dtype: str = "float32"
    #: How many layers are one scan over stacked weights, behind the others.
    stacked: int = 0
    results: tuple[str, ...] = several("")

    def weight(self, i: int) -> int:
        """The number of the weight of layer `i`."""
        return self.weight(i - self.layers[i].tied) if 0 < self.layers[i].tied <= i else i

    def name(self, i: int) -> str:
        """The name of layer `i`."""
        back = self.layers[i].same_name
        return self.name(i - back) if 0 < back <= i else f"f{i}"

    @property
    def parameters(self) -> list[str]:
        """The keys of the parameters."""
        found = [f"w{i}" for i in range(len(self.layers)) if self.weight(i) == i]
        scales = any(layer.behind == "scale" for layer in self.layers)
        return found + ["scale"] * scales + ["stack"] * (self.stacked > 0)

    @property
    def loops(self) -> bool:
        """Whether the batch has a microbatch axis."""
        return self.loop != "none"

    @property
    def names(self) -> list[str]:
        """What has to be placed, computations in the order in which they run."""
        found = list(dict.fromkeys(self.name(i) for i in range(len(self.layers))))
        if self.named_loss and self.work != "forward":
            found.append("loss")
        if any(layer.behind == "tensor" for layer in self.layers):
            found.append("tensor")
        if self.updates and self.optimiser == "named":
            found += [f"update_{k}" for k in self.parameters]
        return found

    @property
    def updates(self) -> bool:
        """Whether the step returns new parameters."""
        return bool(self.optimiser) and self.work in ("grad", "hidden")


@dataclasses.dataclass(frozen=True)
class Setup:
    """Where the names of a step live, and what is asked of the compiler."""

    #: The number of devices of each mesh.
    meshes: tuple[int, ...] = several(1, 1)
    #: Mesh and stage of each name, in their order (repeated as needed).
    places: tuple[tuple[int, int | None], ...] = several((0, None), (0, None))
    schedule: str | None = None
    options: tuple[str, ...] = several("")
    donated: tuple[int, ...] = several(0)
    #: What is sharded over the rows by `in_shardings` and `out_shardings`.
    shard_batch: bool = False
    shard_weights: bool = False
    shard_results: bool = False
    #: The mesh of the first parameter and of the first result, with a memory kind.
    input_mesh: str | None = None
    output_mesh: str | None = None
    tensor_memory: str = ""
    #: Whether new parameters and state are on the meshes of the old ones.
    in_place: bool = False
    placement: str = "reference"
    engine: str = "python"
    #: Whether what is on by default is off.
    unequal_microbatches: bool = False
    hoists_nothing: bool = False
    reduces_each: bool = False
    #: Whether the state of the optimiser is sharded.
    shard_optimizer: bool = False
    #: How long gathered copies are kept, the bytes of a device, and whether activations are recomputed to fit.
    gather: str = "auto"
    device_memory: int | None = None
    remat: bool = False
    #: Whether all meshes are of the same devices.
    shares_devices: bool = False
    #: The process of each device, in the order of the meshes (repeated as needed); none: this one.
    processes: tuple[int, ...] = several(0)


@dataclasses.dataclass(frozen=True)
class Program:
    """A step with a setup."""

    step: Step = Step()
    setup: Setup = Setup()


def random_program(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    step = random_step(rng)
    return Program(step, random_setup(rng, step))


def random_step(rng: random.Random, shapes: Sequence[tuple[int, int]] = SHAPES, most: int = 6) -> Step:
    """A step of at most so many layers, from a plain training loop to one in which much is odd."""
    odd = rng.choice((0.0, 0.1, 0.3))
    shape = rng.choice(shapes)
    work = "grad" if rng.random() > odd + 0.1 else rng.choice(WORK)
    kinds = [k for k in LAYERS if k != "sharded" or shape[0] % 2 == 0]
    between = [b for b in BETWEEN if b != "constraint" or shape[0] % 2 == 0]
    if work == "hvp":  # not differentiable twice
        kinds = [k for k in kinds if k not in ("custom", "branch")]
    layers = []
    for i in range(min(most, rng.choice((1, 2, 2, 3, 3, 4, 6)))):
        layers.append(
            Layer(
                kind=rng.choice(kinds) if rng.random() < 0.2 + 2 * odd else "dense",
                tied=rng.randint(1, i) if i and rng.random() < odd else 0,
                same_name=rng.randint(1, i) if i and rng.random() < odd / 2 else 0,
                behind=rng.choice(between) if rng.random() < 0.15 + odd else "",
            )
        )
    loops = [name for name in LOOPS if name != "around" or work == "grad"]
    loop = rng.choice(loops) if rng.random() < 0.4 else rng.choice(("calls", "enumerated_for"))
    count = min(most, rng.choice((1, 2, 2, 3, 4)))
    return Step(
        layers=tuple(layers),
        work=work,
        named_loss=rng.random() < 0.3,
        checkpointed=work == "grad" and rng.random() < odd,
        weighted=rng.random() < 0.2,
        loop=loop,
        microbatches=1 if loop == "none" else count,
        listed=loop in ("unrolled", "calls", "backwards", "last") and rng.random() < 0.4,
        optimiser=rng.choice(list(OPTIMISERS)) if rng.random() < 0.6 else "",
        shape=shape,
        dtype=rng.choice(DTYPES) if rng.random() < odd else "float32",
        results=_some(rng, list(RESULTS), odd / 2),
    )


def random_setup(rng: random.Random, step: Step, engine: str = "python") -> Setup:
    """A setup for the step: mostly the layers in a row over the meshes, or as a schedule wants them."""
    names = step.names
    count = rng.randint(1, min(MESHES, len(names) + 1))
    known = (None, *REFERENCE_SCHEDULES) if engine == "cpp" else SCHEDULES
    schedule = rng.choice(known) if rng.random() < 0.7 else None
    places = None
    if step.loop in COUNTED and rng.random() < 0.8:
        places = _places_of(schedule, len(names), step.microbatches)
    if places is not None:
        count = 1 + max(m for m, _ in places)
    else:
        if rng.random() < 0.7:
            meshes = [i * count // len(names) for i in range(len(names))]
        else:
            meshes = [rng.randrange(count) for _ in names]
        places = [(m, None) for m in meshes]
    switches = [n for n in SWITCHES if n != "mpmd_fail_on_backward_deps" or step.work == "forward"]
    if engine == "cpp":
        switches = list(HONORED)
    equal = rng.choice((1, 1, 2))
    sizes = tuple(rng.choice((1, 2)) if rng.random() < 0.05 else equal for _ in range(count))
    even = step.shape[0] % 2 == 0 and len(set(sizes)) == 1
    meshes_and_none = [None, *(f"s{i}{kind}" for i in range(count) for kind in ("", "", "#pinned_host"))]
    forced = rng.random() < 0.15
    return Setup(
        meshes=sizes,
        places=tuple(places),
        schedule=schedule,
        options=_some(rng, switches, rng.choice((0, 0, 0.1, 0.3))),
        donated=tuple(i for i in (0, 1) if rng.random() < 0.15),
        shard_batch=even and rng.random() < 0.2,
        shard_weights=even and step.shape[1] % 2 == 0 and rng.random() < 0.1,
        shard_results=even and rng.random() < 0.1,
        input_mesh=rng.choice(meshes_and_none) if forced else None,
        output_mesh=rng.choice(meshes_and_none) if forced else None,
        tensor_memory="#pinned_host" if rng.random() < 0.1 else "",
        in_place=step.updates and not forced and engine == "python" and rng.random() < 0.2,
        placement=rng.choice(PLACEMENTS) if engine == "python" else "reference",
        engine=engine,
    )


def later_step(step: Step, rng: random.Random) -> Step:
    """The step, perhaps with what came later: not of `random_step`, so that its seeds still mean the same programs."""
    if step.work == "grad" and step.loops and not step.listed and rng.random() < 0.15:
        step = dataclasses.replace(step, loop="value_and_grad")
    if step.work != "hvp" and step.shape[0] and rng.random() < 0.15:
        step = dataclasses.replace(step, stacked=rng.choice((2, 4, 4)))
    return step


def later_setup(setup: Setup, rng: random.Random) -> Setup:
    """Likewise for setups."""
    even = len(set(setup.meshes)) == 1 and setup.meshes[0] == 2
    return dataclasses.replace(
        setup,
        unequal_microbatches=rng.random() < 0.1,
        hoists_nothing=rng.random() < 0.1,
        reduces_each=rng.random() < 0.1,
        shard_optimizer=even and rng.random() < 0.1,
        gather=rng.choice(("phase", "microbatch", "step")) if rng.random() < 0.15 else "auto",
        device_memory=(memory := rng.choice((64, 256, 1024, 4096)) if rng.random() < 0.2 else None),
        remat=memory is not None and "mpmd_fragment_remat" not in setup.options and rng.random() < 0.5,
        shares_devices=len(set(setup.meshes)) == 1 and rng.random() < 0.1,
    )


def over_processes(setup: Setup, rng: random.Random, processes: int) -> Setup:
    """The setup with devices of several processes: meshes in turns, each in any process, or some over several."""
    kind = rng.random()
    if kind < 0.7:
        own = [i % processes if kind < 0.35 else rng.randrange(processes) for i in range(len(setup.meshes))]
        owners = [process for process, size in zip(own, setup.meshes, strict=True) for _ in range(size)]
    else:
        owners = [rng.randrange(processes) for _ in range(sum(setup.meshes))]
    return dataclasses.replace(setup, processes=tuple(owners))


def _places_of(schedule: str | None, names: int, microbatches: int) -> list[tuple[int, int | None]] | None:
    """The names as stages, in a row over the stages of the schedule for as many meshes as fit."""
    if schedule is None or schedule in REFERENCE_SCHEDULES or schedule == "auto":
        return None
    for meshes in range(min(MESHES, names), 0, -1):
        try:
            made = get_schedule(schedule, meshes, microbatches, guard=False)
        except ScheduleError:
            continue
        mesh_of = made.placement.mesh_of
        if len(mesh_of) <= names:
            stages = [i * len(mesh_of) // names for i in range(names)]
            return [(mesh_of[s], s) for s in stages]
    return None


def _some(rng: random.Random, options: Sequence[T], chance: float) -> tuple[T, ...]:
    return tuple(option for option in options if rng.random() < chance)


def simpler(value: Any) -> Iterator[Any]:
    """Programs like this one with one thing that is simpler, the greatest simplifications first."""
    plain = type(value)()
    for field in dataclasses.fields(value):
        now, default = getattr(value, field.name), getattr(plain, field.name)
        if now != default:
            for found in _simpler_field(now, default, field.metadata.get("item")):
                yield dataclasses.replace(value, **{field.name: found})


def _simpler_field(value: Any, default: Any, item: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value):
        yield from simpler(value)
        return
    yield default
    if item is not None:
        size = len(value) // 2
        while size:
            for start in range(0, len(value), size):
                if rest := value[:start] + value[start + size :]:
                    yield rest
            size //= 2
        for i, one in enumerate(value):
            if one != item and not isinstance(item, str):
                for found in simpler(one) if dataclasses.is_dataclass(one) else [item]:
                    yield (*value[:i], found, *value[i + 1 :])
    elif type(value) is int and type(default) is int and value > default + 1:
        yield value - 1


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The simplest program found that still fails."""
    while True:
        for found in simpler(program):
            if fails(found):
                program = found
                break
        else:
            return program
