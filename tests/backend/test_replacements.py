"""Which arguments a result replaces, against the rule said plainly; and that many arguments cost no squares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.backend.replacements import alike, path_in, replacements

names = st.builds(
    str.__add__,
    st.sampled_from(["params", "state", "", "opt"]),
    st.lists(st.sampled_from(["['w']", ".mu", "[0]", ".w"]), max_size=3).map("".join),
)
typed = st.tuples(names, st.sampled_from("ab"))


@given(st.lists(typed, max_size=6), st.lists(typed, max_size=6), st.sets(st.integers(0, 5)), st.booleans())
def test_the_rule(
    arguments: list[tuple[str, str]], results: list[tuple[str, str]], donated: set[int], trains: bool
) -> None:
    """Long paths choose first; each takes the free result of its type whose path, as short as can be, ends so."""
    free = dict(enumerate(results))
    wanted = {}
    for n in sorted(range(len(arguments)), key=lambda n: (-len(path_in(arguments[n][0])), n)):
        name, type = arguments[n]
        fits = [r for r, (other, made) in free.items() if made == type and path_in(other).endswith(path_in(name))]
        if fits and (path_in(name) or n in donated or (trains and name)):
            wanted[n] = min(fits, key=lambda r: (len(path_in(free[r][0])), r))
            del free[wanted[n]]
    assert replacements(dict(enumerate(arguments)), results, donated, trains=trains) == wanted


@given(st.lists(typed, max_size=8))
def test_arguments_alike(arguments: list[tuple[str, str]]) -> None:
    found = alike(dict(enumerate(arguments)))
    for n, (name, type) in enumerate(arguments):
        path, type_of = path_in(arguments[found[n]][0]), arguments[found[n]][1]
        assert type_of == type and path_in(name).endswith(path)
        shorter = [o for o, t in arguments if t == type and path_in(name).endswith(path_in(o))]
        assert len(path) == min(len(path_in(o)) for o in shorter)
