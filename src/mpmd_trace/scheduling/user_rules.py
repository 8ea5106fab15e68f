"""From the rules of a configuration to those of one program."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mpmd_trace.diagnostics.messages import MpmdError, shortened
from mpmd_trace.frontend.errors import place_of, raise_problems, warn
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule, ScheduleRule, rule_problems
from mpmd_trace.passes.microbatches.rule_orders import UserRules
from mpmd_trace.passes.optimize.reference_schedules import Comparator, Predicate, Unit
from mpmd_trace.scheduling.fragments import Fragment, Fragments, fragments_of, reader

if TYPE_CHECKING:
    from mpmd_trace.config import Config
    from mpmd_trace.scheduling.resolve_schedule import ScheduleChoice

MERGE, SCHEDULE = "fragment_merge_rules", "fragment_schedule_rules"


@dataclasses.dataclass(frozen=True)
class MergeNeighbours:
    """After scheduling, merges a fragment and the next one on its mesh if the function returns True."""

    may_merge: Callable[[Fragment, Fragment], bool]


def checked_rules(given: Any, what: str) -> tuple[tuple[Any, ...], list[str]]:
    """Return the rules of one kind in what a user gives (text is parsed), and what is wrong with the rest.

    They are rules, their text, `MergeNeighbours`, and functions that make rules of the fragments of a program, in
    lists that may be nested.
    """
    if given is None or isinstance(given, str):
        return (), [f"{what} is a list of rules, not {given!r}."]
    rules: list[Any] = []
    wrong: list[str] = []
    own, other = (MergeRule, ScheduleRule) if what == MERGE else (ScheduleRule, MergeRule)
    for one in _flat(given):
        if isinstance(one, str):
            try:
                rules.append(own.parse(one))
            except MpmdError as error:
                wrong.append(f"{what}: {error.diagnostics[0].message}")
        elif isinstance(one, own):
            strange = [info for info in _infos(one) if not isinstance(info, FragmentInfo)]
            if strange:
                wrong.append(
                    f"{what} has a rule about {strange[0]!r}, which is not a FragmentInfo; mpmd_trace.rules makes "
                    "rules of fragments"
                )
            else:
                rules.append(one)
        elif isinstance(one, MergeNeighbours) and own is MergeRule:
            rules.append(one)
        elif isinstance(one, other | MergeNeighbours):
            belongs = SCHEDULE if own is MergeRule else MERGE
            wrong.append(f"{what} has a {type(one).__name__}, which belongs to {belongs}")
        elif callable(one):
            try:
                inspect.signature(one).bind(None)
            except ValueError:
                pass  # its signature is unknown
            except TypeError as error:
                wrong.append(f"{what} has a function that cannot be called with the fragments of a program: {error}")
                continue
            rules.append(one)
        else:
            wrong.append(f"{what} has {one!r}, which is not a rule: make rules with mpmd_trace.rules")
    return tuple(rules), [*wrong, *rule_problems(rules)]


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, Iterable) and not isinstance(given, str):
        for one in given:
            yield from _flat(one)
    else:
        yield given


def _infos(rule: MergeRule | ScheduleRule) -> list[Any]:
    return [*rule.sources, rule.target] if isinstance(rule, MergeRule) else list(rule.ordered_fragments)


def has_rules(config: Config, choice: ScheduleChoice) -> bool:
    """Return whether a program has to be looked at for rules: there are some, or a comparator."""
    return bool(config.fragment_merge_rules or config.fragment_schedule_rules or _comparator(choice))


def _comparator(choice: ScheduleChoice) -> Comparator | None:
    schedule = choice.order
    return schedule if isinstance(schedule, Comparator) else None


def literal_rules(config: Config, fragments: Callable[[], Fragments]) -> dict[str, tuple[Any, ...]]:
    """Return the rules of a configuration, and those that functions make of the fragments, for `partition`."""
    result: dict[str, tuple[Any, ...]] = {}
    fragments = functools.cache(fragments)
    for what, given in ((MERGE, config.fragment_merge_rules), (SCHEDULE, config.fragment_schedule_rules)):
        rules: list[Any] = []
        for one in given:
            rules += [one] if _is_rule(one) else _made_by(one, fragments(), what, config)
        raise_problems(rule_problems(rules), config.where)
        result[what] = tuple(rules)
    return result


def _made_by(builder: Callable[[Fragments], Any], fragments: Fragments, what: str, config: Config) -> tuple[Any, ...]:
    name = getattr(builder, "__name__", repr(builder))
    made = builder(fragments)
    rules, wrong = checked_rules(made, what)
    wrong += [f"{what}: '{name}' returns a function" for rule in rules if not _is_rule(rule)]
    if made is None:
        wrong = [f"'{name}' returns None; a function among {what} returns rules, perhaps an empty list"]
    raise_problems(wrong, place_of(builder) or config.where)
    if not rules:
        warn(f"'{name}' among {what} makes no rule for this program", config.where)
    return rules


def _is_rule(one: Any) -> bool:
    return isinstance(one, MergeRule | ScheduleRule | MergeNeighbours)


def rules_of_program(config: Config, choice: ScheduleChoice, module: Module) -> UserRules:
    """Return what a configuration asks of a program after the import phase.

    Raises `MpmdError` for rules that no program can follow; warns of those that name fragments which are not there.
    """
    fragments = fragments_of(module)
    rules = literal_rules(config, lambda: fragments)
    merge = tuple(rule for rule in rules[MERGE] if isinstance(rule, MergeRule))
    order: tuple[ScheduleRule, ...] = rules[SCHEDULE]
    may = [rule.may_merge for rule in rules[MERGE] if isinstance(rule, MergeNeighbours)]
    _warn_of_strangers(merge, order, fragments, config.where)
    own = _comparator(choice)
    return UserRules(
        merge,
        order,
        _may_merge(may, module) if may else None,
        None if own is None else Comparator(own.name, _predicate(own.function, fragments)),
    )


def _predicate(before: Callable[[Any, Any], Any], fragments: Fragments) -> Predicate:
    """Return the user's comparator, which sees fragments instead of units."""
    at = {fragment.index: fragment for fragment in fragments}

    def predicate(a: Unit, b: Unit) -> bool:
        return bool(before(at[a.index], at[b.index]))

    return predicate


def _may_merge(
    functions: list[Callable[[Fragment, Fragment], bool]], module: Module
) -> Callable[[FragmentOp, FragmentOp], bool]:
    read = reader(module)

    def may_merge(first: FragmentOp, second: FragmentOp) -> bool:
        a, b = read(first, 0), read(second, 1)
        return any(function(a, b) for function in functions)

    return may_merge


def _warn_of_strangers(
    merge: Iterable[MergeRule], order: Iterable[ScheduleRule], fragments: Fragments, where: str | None
) -> None:
    """Warn of what the rules name and the program does not have."""
    known = {fragment.info for fragment in fragments}
    targets = {rule.target.canonical for rule in merge}  # may be sources of other rules
    named = {
        MERGE: [info.canonical for rule in merge for info in rule.sources if info.canonical not in targets],
        SCHEDULE: [info.canonical for rule in order for info in rule.ordered_fragments],
    }
    for what, infos in named.items():
        missing = list(dict.fromkeys(info for info in infos if info not in known))
        if missing:
            names = {name for info in missing for name, _ in info.origins}
            like = [fragment for fragment in fragments if names & set(fragment.names)] or list(fragments)
            text = [f"{what} name fragments that this program does not have, and have no effect:"]
            text += shortened([f"  {info}" for info in missing], 4)
            text += ["it has", *shortened([f"  {fragment.info}" for fragment in like], 4)]
            warn("\n".join(text), where)
