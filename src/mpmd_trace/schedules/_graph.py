"""The data flow between stages: a chain, or any directed graph without cycles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from mpmd_trace.schedules._errors import ScheduleError


@dataclass(frozen=True)
class StageGraph:
    """Data flow between stages: `feeds[s]` lists the stages whose outputs stage `s` reads.

    Gradients flow along the same edges, backwards. With `entry`, microbatch `m` enters at stage
    `entry[m]`, whose incoming edges do not count for it; the graph may then contain a cycle, as
    in an inference pipeline that wraps around.
    """

    feeds: tuple[tuple[int, ...], ...]
    entry: tuple[int, ...] | None = None

    @classmethod
    def chain(cls, stages: int) -> StageGraph:
        """Stage 0 feeds stage 1, which feeds stage 2, and so on."""
        return cls(tuple((s - 1,) if s else () for s in range(stages)))

    @classmethod
    def chains(cls, *lengths: int) -> StageGraph:
        """Several chains that do not touch, numbered one after the other."""
        feeds: list[tuple[int, ...]] = []
        for length in lengths:
            start = len(feeds)
            feeds += [(start + s - 1,) if s else () for s in range(length)]
        return cls(tuple(feeds))

    @classmethod
    def ring(cls, stages: int, entry: Sequence[int]) -> StageGraph:
        """Return a circle of stages, the last feeds the first; microbatch m enters at entry[m]."""
        return cls(tuple(((s - 1) % stages,) for s in range(stages)), tuple(entry))

    @classmethod
    def from_edges(cls, stages: int, edges: Iterable[tuple[int, int]]) -> StageGraph:
        """Return a graph of `(producer, consumer)` pairs, checked to have no cycle."""
        feeds: list[list[int]] = [[] for _ in range(stages)]
        for source, target in edges:
            for stage in (source, target):
                if not 0 <= stage < stages:
                    message = f"edge ({source}, {target}) names stage {stage}, but the stages are 0 to {stages - 1}"
                    raise ScheduleError.of("graph", message)
            if source not in feeds[target]:
                feeds[target].append(source)
        graph = cls(tuple(tuple(sorted(f)) for f in feeds))
        graph.order()
        return graph

    @classmethod
    def encoder_decoder(cls, encoder: int, decoder: int) -> StageGraph:
        """Return an encoder chain and a decoder chain; each decoder stage also reads the encoder's output.

        Stages 0 to encoder-1 are the encoder. Both chains have an input of their own.
        """
        edges = [(s, s + 1) for s in range(encoder - 1)]
        edges += [(encoder + s, encoder + s + 1) for s in range(decoder - 1)]
        edges += [(encoder - 1, encoder + s) for s in range(decoder)]
        return cls.from_edges(encoder + decoder, edges)

    def with_skips(self, *edges: tuple[int, int]) -> StageGraph:
        """Return the same graph with more `(producer, consumer)` edges."""
        old = [(p, s) for s, feeds in enumerate(self.feeds) for p in feeds]
        return StageGraph.from_edges(len(self.feeds), [*old, *edges])

    def __len__(self) -> int:
        return len(self.feeds)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the stages that read its output."""
        out: list[list[int]] = [[] for _ in self.feeds]
        for stage, feeds in enumerate(self.feeds):
            for producer in feeds:
                out[producer].append(stage)
        return tuple(tuple(o) for o in out)

    def inputs(self, stage: int, microbatch: int) -> tuple[int, ...]:
        """Return the stages whose outputs for `microbatch` stage `stage` reads."""
        if self.entry is not None and self.entry[microbatch] == stage:
            return ()
        return self.feeds[stage]

    def outputs(self, stage: int, microbatch: int) -> tuple[int, ...]:
        """Return the stages that read the output of `stage` for `microbatch`."""
        if self.entry is None:
            return self.readers[stage]
        return tuple(r for r in self.readers[stage] if self.entry[microbatch] != r)

    @property
    def is_chain(self) -> bool:
        """True if each stage `s` reads stage `s - 1` and nothing else."""
        return self.entry is None and self.feeds == StageGraph.chain(len(self.feeds)).feeds

    def order(self) -> tuple[int, ...]:
        """Return the stages, each after those it reads; ties by number. A cycle is a `ScheduleError`."""
        done = topological(self.readers)
        if len(done) < len(self.feeds):
            stuck = [s for s in range(len(self.feeds)) if s not in done]
            raise ScheduleError.of("graph", f"stages {', '.join(map(str, stuck))} wait for each other in a cycle")
        return tuple(done)


def topological(after: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of the lists, each before those in its list, low ones first, without those in cycles."""
    missing = Counter(later for row in after for later in row)
    ready = [n for n in range(len(after)) if not missing[n]]
    done: list[int] = []
    while ready:
        done.append(heappop(ready))
        for later in after[done[-1]]:
            missing[later] -= 1
            if not missing[later]:
                heappush(ready, later)
    return done
