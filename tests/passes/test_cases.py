"""`cases/**/*.mlir`: what passes make of programs.

A file begins with the passes that run and the aliases of its programs.  Each case is

    // ----- what is shown
    // passes: others than those of the file; several such lines are several pipelines that do the same
    the program
    // =>
    the program afterwards, as MLIR prints it; without `// =>`, nothing changes

or ends with what else holds, in any order:

    // error: words of an error ... further words of it, with its lines as one and without places
    // error, but no failure: the same of an error with which the passes succeed
    // warning: the same of a warning; a line for each message, in their order
    // note: the same of a note to the message before
    // fine; there is no message
    // CHECK: part of the program afterwards
    // CHECK-NOT: what is no part of it
    // CHECK-COUNT-2: what is part of it as often
    // log: words of what is logged ... further words of it
    // bodies: as many different ones the fragments and named computations have afterwards; the others share them
"""

from __future__ import annotations

import re

import pytest

from mlir_cases import Case, cases
from util import check, diagnostics, distinct_bodies, run

MESSAGE = re.compile(r"^// (error|warning|note)(, but no failure)?: (.*)\n", re.M)
PLACE = re.compile(r" \(-:\d+:\d+\)")
FINE = re.compile(r"^// fine\n", re.M)
LOG = re.compile(r"^// log: (.*)\n", re.M)
BODIES = re.compile(r"^// bodies: (.*)\n", re.M)
CHECK = re.compile(r"^// CHECK(-NOT|-COUNT-(\d+))?: (.*)\n", re.M)


def says(words: str, text: str) -> bool:
    text = PLACE.sub("", " ".join(text.split()))
    return re.search(".*".join(map(re.escape, words.split(" ... "))), text, re.DOTALL) is not None


@pytest.mark.parametrize(
    ("case", "passes"), [pytest.param(case, passes, id=case.title) for case in cases() for passes in case.pipelines]
)
def test_what_passes_do(case: Case, passes: str, caplog: pytest.LogCaptureFixture) -> None:
    if messages := MESSAGE.findall(case.text):
        ok, reported = diagnostics(case.before, passes, case.aliases)
        said = [one for d in reported for one in ((d.severity, d.message), *(("note", n.message) for n in d.notes))]
        assert [severity for severity, _ in said] == [severity for severity, _, _ in messages], reported
        assert ok == all(harmless or severity != "error" for severity, harmless, _ in messages)
        for (_, _, words), (_, message) in zip(messages, said, strict=True):
            assert says(words, message), message
    elif FINE.search(case.text):
        assert diagnostics(case.before, passes, case.aliases) == (True, [])
    elif parts := CHECK.findall(case.text):
        printed = str(run(case.before, passes, case.aliases))
        for kind, count, part in parts:
            found = printed.count(part)
            assert found == int(count) if count else bool(found) == (not kind), f"{part!r} is there {found} times"
    else:
        module = check(case.before, passes, case.after or case.before, case.aliases)
        if count := BODIES.search(case.text):
            assert distinct_bodies(module) == int(count[1])
    for words in LOG.findall(case.text):
        assert says(words, caplog.text)
