"""Merge and schedule rules: which fragments are meant, and their textual form.

FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="m"),...],target=FragmentInfo(...))
FragmentScheduleRule(ordered_fragments=[FragmentInfo(...)->FragmentInfo(...)])
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import UserOriginAttr
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.fragment_info import SplitType, call_counter, set_call_counter, set_split_type, split_type


@dataclasses.dataclass(frozen=True)
class FragmentInfo:
    """The identity of a fragment.  Two are equal iff all fields are.

    `origins` are the names of the computations in it, each with its transpose count (0 forward, 1 backward);
    `call_counter` is the number of the microbatch.  `of` reads it from a fragment (origins sorted), `write_to`
    makes a fragment be it.
    """

    origins: tuple[tuple[str, int], ...] = ()
    stage: int | None = None
    call_counter: int | None = None
    split_type: SplitType | None = None
    mesh_name: str = ""

    @staticmethod
    def of(fragment: FragmentOp) -> FragmentInfo:
        """Return the info of a fragment; its origins are sorted by name and transpose count."""
        origins = tuple((origin.name, origin.transpose_count) for origin in fragment.origin)
        info = FragmentInfo(origins, fragment.stage, call_counter(fragment), split_type(fragment), fragment.mesh)
        return info.canonical

    @property
    def canonical(self) -> FragmentInfo:
        """With sorted origins, as `of` has them."""
        origins = sorted(self.origins, key=lambda origin: (origin[0].encode(), origin[1]))
        return dataclasses.replace(self, origins=tuple(origins))

    def write_to(self, fragment: FragmentOp) -> None:
        """Overwrite origins, stage, microbatch, split part and mesh of the fragment."""
        fragment.origin = tuple(UserOriginAttr.get(name, count) for name, count in self.origins)
        fragment.stage = self.stage
        set_call_counter(fragment, self.call_counter)
        set_split_type(fragment, self.split_type)
        fragment.mesh = self.mesh_name

    def __str__(self) -> str:
        origins = ",".join(f'"{n}"({c})' if c > 0 else f'"{n}"' for n, c in self.origins)
        text = f"FragmentInfo(origins=[{origins}]"
        for name in ("stage", "call_counter", "split_type"):
            value = getattr(self, name)
            if value is not None:
                text += f",{name}={value}"
        return f'{text},mesh_name="{self.mesh_name}")'


@dataclasses.dataclass(frozen=True)
class MergeRule:
    """All fragments that are one of `sources` become one fragment labeled `target`."""

    sources: tuple[FragmentInfo, ...]
    target: FragmentInfo

    @classmethod
    def parse(cls, text: str) -> MergeRule:
        """Return the merge rule that `text` spells.  Raises `MpmdError` that shows where the text goes wrong."""
        reader = _Reader(text)
        reader.expect("FragmentMergeRule(sources=[")
        sources = reader.infos(",", "],target=")
        target = reader.info()
        reader.expect(")")
        return cls(sources, target)

    def __str__(self) -> str:
        return f"FragmentMergeRule(sources=[{_join(self.sources, ',')}],target={self.target})"


@dataclasses.dataclass(frozen=True)
class ScheduleRule:
    """Each fragment executes before the next one on the same mesh."""

    ordered_fragments: tuple[FragmentInfo, ...]

    @classmethod
    def parse(cls, text: str) -> ScheduleRule:
        """Return the schedule rule that `text` spells.  Raises `MpmdError` that shows where the text goes wrong."""
        reader = _Reader(text)
        reader.expect("FragmentScheduleRule(ordered_fragments=[")
        return cls(reader.infos("->", "])"))

    def __str__(self) -> str:
        return f"FragmentScheduleRule(ordered_fragments=[{_join(self.ordered_fragments, '->')}])"


def parse_rule(text: str) -> MergeRule | ScheduleRule:
    """Return the rule of either kind that `text` spells.  Raises `MpmdError` that shows where the text goes wrong."""
    return (ScheduleRule if text.lstrip().startswith("FragmentS") else MergeRule).parse(text)


def rule_problems(rules: Iterable[Any]) -> Iterator[str]:
    """Yield what is wrong with merge and schedule rules whatever the program is; other things are passed over."""
    taken: dict[FragmentInfo, MergeRule] = {}
    for rule in rules:
        if isinstance(rule, MergeRule):
            if len(set(rule.sources)) < 2:
                yield f"a merge rule names two fragments or more as its sources: {rule}"
            meshes = dict.fromkeys([*(info.mesh_name for info in rule.sources), rule.target.mesh_name])
            if len(meshes) > 1:
                yield f"a merge rule is about one mesh, also in its target; this one has {_listed(meshes)}: {rule}"
            for info in dict.fromkeys(i.canonical for i in rule.sources):
                if taken.setdefault(info, rule) is not rule:
                    yield f"{info} is a source of two merge rules; a fragment can be merged by one rule only"
        elif isinstance(rule, ScheduleRule):
            infos = [info.canonical for info in rule.ordered_fragments]
            if len(infos) < 2:
                yield f"a schedule rule names two fragments or more: {rule}"
            elif len(set(infos)) < len(infos):
                yield f"a schedule rule names the same fragment twice: {rule}"
            meshes = dict.fromkeys(info.mesh_name for info in infos)
            if len(meshes) > 1:
                yield (
                    f"a schedule rule orders fragments of one mesh; this one has {_listed(meshes)}, which wait for "
                    f"each other's values only: {rule}"
                )


def _listed(meshes: Iterable[str]) -> str:
    return " and ".join(f"'{mesh}'" if mesh else "no mesh" for mesh in meshes)


def _join(infos: Iterable[FragmentInfo], separator: str) -> str:
    return separator.join(map(str, infos))


_INTEGER = re.compile(r"-?[0-9]+")
_FIELD = re.compile(r"[A-Za-z_]+(?==)")
_SPLIT_TYPES: tuple[SplitType, ...] = get_args(SplitType)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self.position = 0

    def error(self, wanted: str) -> MpmdError:
        rest = self.text[self.position :]
        actual = f"found '{rest[:40]}{'...' if len(rest) > 40 else ''}'" if rest else "the text ends"
        return MpmdError(
            f"expected {wanted} at character {self.position} of the rule, but {actual}; rules contain no "
            f"blanks and look like FragmentMergeRule(sources=[INFO,INFO],target=INFO) or "
            f"FragmentScheduleRule(ordered_fragments=[INFO->INFO]) with infos like "
            f'FragmentInfo(origins=["f"(1)],stage=0,call_counter=2,mesh_name="m")\n  in: {self.text}'
        )

    def at(self, token: str) -> bool:
        return self.text.startswith(token, self.position)

    def take(self, token: str) -> bool:
        if not self.at(token):
            return False
        self.position += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise self.error(f"'{token}'")

    def integer(self, wanted: str, bits: int = 64) -> int:
        match = _INTEGER.match(self.text, self.position)
        if match is None or not -(2 ** (bits - 1)) <= int(match.group()) < 2 ** (bits - 1):
            raise self.error(wanted)
        self.position = match.end()
        return int(match.group())

    def until_quote(self) -> str:
        end = self.text.find('"', self.position)
        if end < 0:
            raise self.error("a closing '\"'")
        result = self.text[self.position : end]
        self.position = end + 1
        return result

    def origin(self) -> tuple[str, int]:
        self.take('"')
        name, count = self.until_quote(), 0
        if self.take("("):
            count = self.integer("a transpose count")
            self.expect(")")
        return name, count

    def infos(self, separator: str, end: str) -> tuple[FragmentInfo, ...]:
        """Return the infos up to `end`, which is read, too."""
        result: list[FragmentInfo] = []
        while not self.at("]"):
            result.append(self.info())
            if not self.take(separator) and not self.at(end):
                raise self.error(f"'{separator}' or '{end}'")
        self.expect(end)
        return tuple(result)

    def info(self) -> FragmentInfo:
        self.expect("FragmentInfo(origins=[")
        origins: list[tuple[str, int]] = []
        while not self.at("]"):
            origins.append(self.origin())
            if not self.take(",") and not self.at("]"):
                raise self.error("',' or ']'")
        self.expect("]")
        fields: dict[str, Any] = {}
        while self.take(","):
            self.field(fields)
        if not self.take(")"):
            raise self.error("',' or ')'")
        return FragmentInfo(tuple(origins), **fields)

    def field(self, fields: dict[str, Any]) -> None:
        match = _FIELD.match(self.text, self.position)
        name = match.group() if match else ""
        if name not in ("stage", "call_counter", "split_type", "mesh_name"):
            raise self.error("one of the fields stage=, call_counter=, split_type=, mesh_name=")
        if name in fields:
            raise MpmdError(f"'{name}' is specified more than once in the rule\n  in: {self.text}")
        self.position += len(name) + 1
        if name == "mesh_name":
            self.expect('"')
            fields[name] = self.until_quote()
        elif name == "split_type":
            fields[name] = next((kind for kind in _SPLIT_TYPES if self.take(kind)), None)
            if fields[name] is None:
                raise self.error("'kKeepTransferred' or 'kDropTransferred'")
        else:
            fields[name] = self.integer(f"an integer value for '{name}' (32 bits)", bits=32)
