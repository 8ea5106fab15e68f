"""`mpmd-rule-based-merge`."""

from __future__ import annotations

import pytest

from fragment_texts import frag, function
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.control_dependencies import CONTROL_START, add_control_dependency
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule
from mpmd_trace.passes.manager import run_passes
from util import PRELUDE


def info(name: str, counter: int | None = 0, mesh: str = "alpha", stage: int | None = None) -> FragmentInfo:
    return FragmentInfo(((name, 0),), stage, counter, None, mesh)


def pipeline(*rules: MergeRule, options: str = "") -> str:
    return f"mpmd-rule-based-merge{{rules={','.join(map(str, rules))}{options}}}"


RULE = MergeRule((info("f"), info("g")), FragmentInfo((("f", 0), ("g", 0)), 1, 0, None, "alpha"))
ZERO = "{call_counter = 0 : ui32}"


@pytest.mark.parametrize("keep", [False, True])
def test_control_operands(keep: bool) -> None:
    """They order the groups and are taken out at the end, also when the pair could take the short way."""
    body = (
        "  %0 = "
        + frag("alpha", '"f"', "%p", attrs=ZERO)
        + "\n  %1 = "
        + frag("alpha", '"h"', "%p", attrs=ZERO)
        + "\n  %2 = "
        + frag("alpha", '"g"', "%0", attrs=ZERO)
    )
    module = parse(PRELUDE + function(body, "%1, %2", "!A, !A"))
    _, second, third = [op for op in module.main.body if isinstance(op, FragmentOp)]
    add_control_dependency(second, third)
    run_passes(module, pipeline(RULE, options=f" remove-control-dependencies={str(not keep).lower()}"))
    merged = module.main.body.ops[1]
    assert isinstance(merged, FragmentOp) and len(merged.origin) == 2
    assert (CONTROL_START in merged.attrs) == keep
    assert merged.num_operands == len(merged.body.block.args) + keep


def test_members_that_wait_for_each_other_stay(caplog: pytest.LogCaptureFixture) -> None:
    first = f"  %0 = {frag('alpha', chr(34) + 'f' + chr(34), '%p', attrs=ZERO)}"
    second = f"  %1 = {frag('alpha', chr(34) + 'g' + chr(34), '%0', attrs=ZERO)}"
    module = parse(PRELUDE + function(f"{first}\n{second}", "%1", "!A"))
    f, g = (op for op in module.main.body if isinstance(op, FragmentOp))
    add_control_dependency(g, f)
    with pytest.raises(MpmdError, match="Cycle detected"):
        run_passes(module, pipeline(RULE))
    assert "depend on each other in a cycle" in caplog.text
