"""Why parameters are not where they are used, told beside the tables of what meshes hold."""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.report.explain import BeforePlacement, explain, rules_of

__all__ = ["reasons"]


def reasons(lowered: PartitionedProgram, arguments: Sequence[int]) -> dict[int, str]:
    """For each of the arguments, by number, the rule that puts it on its mesh, and the uses that ask for it.

    Takes an import of the program, unless there are no arguments.  Raises `MpmdError`.
    """
    if not arguments:
        return {}
    request = lowered.request
    ready = BeforePlacement(request.placement)
    partition_as(lowered.traced.module, request, hooks=[ready], phases="import")
    if ready.module is None:  # the program has no meshes to choose from
        return {}
    found = {}
    for number in arguments:
        (where,) = explain(ready.module, f"input {number}", **rules_of(request)).placements
        chains = [f"{' -> '.join(chain.steps)} on {chain.mesh}" for chain in where.needed]
        found[number] = "; ".join([where.rule, *chains])
    return found
