"""Planning of schedules for groups of meshes, where the program has one for each."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.report.plan_costs import Study
from mpmd_trace.report.plan_search import Option, options_of
from mpmd_trace.scheduling.transfers import Traffic

T = TypeVar("T")
#: The name of the schedule of each group of meshes.
Names: TypeAlias = Mapping[tuple[str, ...], str]

#: So many of the best schedules of a group are tried together with those of the others, and these, which the most
#: programs can follow.
_BEST, _LAST = 2, ("1f1b", "gpipe")
#: How many combinations are tried.
_TRIED = 12
#: Schedules that their name does not give.
_MADE = ("zb-auto",)


@dataclasses.dataclass(frozen=True)
class GroupPlan:
    """The schedules of the library for the meshes of a group, as of a pipeline of its own; best first."""

    meshes: tuple[str, ...]
    study: Study
    options: tuple[Option, ...]

    def named(self, schedule: str) -> Option | None:
        """Return the first option with the schedule of a name, if there is one."""
        return next((one for one in self.options if one.choice.schedule.name == schedule), None)

    @property
    def candidates(self) -> list[Option]:
        """Those that are tried with schedules of other groups, best first."""
        by_name: dict[str, Option] = {}
        for option in self.options:
            if option.fits and option.choice.in_order and option.choice.schedule.name not in _MADE:
                by_name.setdefault(option.choice.schedule.name, option)
        return [one for i, (name, one) in enumerate(by_name.items()) if i < _BEST or name in _LAST]


def plans_of_groups(
    study: Study, groups: Sequence[tuple[str, ...]], memory_limit: float | None = None
) -> list[GroupPlan]:
    """Return the schedules of each group, on the stages that the program has."""
    parts = [(group, _part(study, group)) for group in groups]
    return [GroupPlan(group, own, tuple(options_of(own, memory_limit=memory_limit))) for group, own in parts]


def best_together(plans: Sequence[GroupPlan], is_followed: Callable[[Names], bool]) -> Names:
    """Return the best schedules that the program can follow together, by group.  Raises `MpmdError` if none can."""
    ranked = sorted(
        itertools.product(*(enumerate(plan.candidates) for plan in plans)),
        key=lambda chosen: sum(place for place, _ in chosen),
    )
    for chosen in ranked[:_TRIED]:
        names = {plan.meshes: one.choice.schedule.name for plan, (_, one) in zip(plans, chosen, strict=True)}
        with contextlib.suppress(MpmdError):
            if is_followed(names):
                return names
    names_of = {plan.meshes: [one.choice.schedule.name for one in plan.candidates] for plan in plans}
    tried = "; ".join(f"{', '.join(group)}: {', '.join(own) or 'none'}" for group, own in names_of.items())
    raise MpmdError(
        f"the program can follow no schedules of its groups of meshes that were tried together ({tried}). Put all "
        "meshes of a loop over microbatches into one group, or give all meshes one schedule"
    )


def _part(study: Study, group: Sequence[str]) -> Study:
    """Return what is known of the meshes of a group, as of a program of its own."""
    meshes = [i for i, mesh in enumerate(study.meshes) if mesh in group]
    stages = [stage for stage, mesh in enumerate(study.mesh_of) if mesh in meshes]

    def of_stages(values: Sequence[T]) -> tuple[T, ...]:
        return tuple(values[stage] for stage in stages) if values else ()

    def inside(traffic: Mapping[tuple[str, str], Traffic]) -> dict[tuple[str, str], Traffic]:
        return {link: one for link, one in traffic.items() if set(link) <= set(group)}

    return dataclasses.replace(
        study,
        meshes=tuple(study.meshes[mesh] for mesh in meshes),
        stages=study.stages.on_meshes(meshes),
        activations=of_stages(study.activations),
        static=of_stages(study.static),
        scratch=of_stages(study.scratch),
        names=of_stages(study.names),
        once=tuple(study.once[mesh] for mesh in meshes),
        before=inside(study.before),
        rest=inside(study.rest),
        layer_values="groups of meshes have schedules of their own",
        copies=of_stages(study.copies),
        measured_step=None,
        sharing=tuple(tuple(meshes.index(o) for o in study.sharing[mesh] if o in meshes) for mesh in meshes)
        if study.sharing
        else (),
    )
