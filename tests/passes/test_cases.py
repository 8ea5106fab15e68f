"""`cases/**/*.mlir`: what passes make of programs.

A file begins with the passes that run and the aliases of its programs.  Each case is

    // ----- what is shown
    // passes: others than those of the file; several such lines are several pipelines that do the same
    the program
    // =>
    the program afterwards, as MLIR prints it; without `// =>`, nothing changes

or ends with what else holds, in any order:

    // error: words of an error ... further words of it
    // error, but no failure: the same of an error with which the passes succeed
    // warning: the same of a warning; a line for each message, in their order
    // fine; there is no message
    // CHECK: part of the program afterwards
    // CHECK-NOT: what is no part of it
    // CHECK-COUNT-2: what is part of it as often
"""

from __future__ import annotations

import re

import pytest

from mlir_cases import Case, cases
from util import check, diagnostics, run

MESSAGE = re.compile(r"^// (error|warning)(, but no failure)?: (.*)\n", re.M)
FINE = re.compile(r"^// fine\n", re.M)
CHECK = re.compile(r"^// CHECK(-NOT|-COUNT-(\d+))?: (.*)\n", re.M)


@pytest.mark.parametrize(
    ("case", "passes"), [pytest.param(case, passes, id=case.title) for case in cases() for passes in case.pipelines]
)
def test_what_passes_do(case: Case, passes: str) -> None:
    if messages := MESSAGE.findall(case.text):
        ok, said = diagnostics(case.before, passes, case.aliases)
        assert [d.severity for d in said] == [severity for severity, _, _ in messages], said
        assert ok == all(harmless or severity == "warning" for severity, harmless, _ in messages)
        for (_, _, words), diagnostic in zip(messages, said, strict=True):
            assert re.search(".*".join(map(re.escape, words.split(" ... "))), diagnostic.message, re.DOTALL), diagnostic
    elif FINE.search(case.text):
        assert diagnostics(case.before, passes, case.aliases) == (True, [])
    elif parts := CHECK.findall(case.text):
        printed = str(run(case.before, passes, case.aliases))
        for kind, count, part in parts:
            found = printed.count(part)
            assert found == int(count) if count else bool(found) == (not kind), f"{part!r} is there {found} times"
    else:
        check(case.before, passes, case.after or case.before, case.aliases)
