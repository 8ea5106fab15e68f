"""The bytes of a mesh over the time of a step."""

from __future__ import annotations

import itertools

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.shardings import mesh_symbols
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.memory.combinations import Combinations
from mpmd_trace.passes.memory.liveness import Change, Liveness

FRAGMENT = """%{0} = mpmd.fragment<mesh="a", origin=["{0}"]> ({1}) ({2}) {{
  %r = stablehlo.negate %x : tensor<4xf32>
  mpmd.return %r : tensor<4xf32>
}} : ({3}) -> !a
"""


def held_by(body: str, returned: str) -> tuple[Liveness, list[FragmentOp]]:
    """What a function holds, and its fragments."""
    module = parse(
        '!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>\nfunc.func public @main(%p: !a) -> !a attributes '
        f'{{topology = #mpmd.topology<<"a" : <["x"=1]>>>}} {{\n{body}return %{returned} : !a\n}}'
    )
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    return Liveness(module.main, "a", mesh_symbols(module)), fragments


def test_a_value_that_is_read_less_often_ends_earlier() -> None:
    one, two = ("%x: tensor<4xf32>", "!a"), ("%x: tensor<4xf32>, %y: tensor<4xf32>", "!a, !a")
    body = FRAGMENT.format("f", "%p", *one) + FRAGMENT.format("g", "%f", *one) + FRAGMENT.format("h", "%g, %f", *two)
    held, (f, _, h) = held_by(body, "h")
    before, after = held.profile(), held.profile([Change(unread=((f.results[0], held.time[h]),))])
    freed = {time for time, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert {a - b for a, b in zip(before, after, strict=True)} == {0.0, 16.0}
    assert freed and min(freed) > held.time[f] and max(freed) <= held.time[h]
    assert held.profile() == before


def test_a_value_that_is_not_read_any_more_frees_what_it_took() -> None:
    """Here until the fragment of which the result takes its memory."""
    one = ("%x: tensor<4xf32>", "!a")
    held, (f, g) = held_by(FRAGMENT.format("f", "%p", *one) + FRAGMENT.format("g", "%f", *one), "g")
    assert held.reused == {f.results[0]}
    after = held.profile([Change(unread=((f.results[0], held.time[g]),))])
    freed = {time: a - b for time, (a, b) in enumerate(zip(held.profile(), after, strict=True)) if a != b}
    assert freed == dict.fromkeys(range(held.time[f], held.time[g]), 16.0)


def test_combinations_hold_what_their_changes_do() -> None:
    """Two changes are about one value, which lives until the last read that either leaves or adds.

    They are about one that takes no memory, too.
    """
    one = ("%x: tensor<4xf32>", "!a")
    body = "".join(
        FRAGMENT.format(name, read, *one) for name, read in (("f", "%p"), ("g", "%f"), ("h", "%f"), ("i", "%h"))
    )
    held, (f, g, h, i) = held_by(body, "i")
    value, elsewhere = f.results[0], (f.body.block.args[0], 4)
    first = [Change(made=((64.0, 0, 8),)), Change(unread=((value, held.time[g]), elsewhere), made=((64.0, 3, 5),))]
    second = [Change(), Change(unread=((value, held.time[h]), elsewhere)), Change(read=((value, held.time[i]),))]
    third = [Change(), Change(unread=((h.results[0], held.time[i]),))]
    groups = first, second, third
    combinations = Combinations(held, groups)
    for choice in itertools.product(*(range(len(group)) for group in groups)):
        profile = held.profile([group[n] for group, n in zip(groups, choice, strict=True)])
        assert combinations.peak(choice) == max(profile)
        assert combinations.above(40.0, choice) == sum(size - 40.0 for size in profile if size > 40.0)
