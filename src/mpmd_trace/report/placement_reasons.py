"""Why parameters are not where they are used, for the tables of what meshes hold."""

from __future__ import annotations

from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.backend.placement_report import PlacementReport
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.report.explain import BeforePlacement, explain, rules_of

#: So many values get a reason; those of the others are mostly the same.
MOST_REASONS = 8


def reasons(held: PlacementReport, lowered: PartitionedProgram) -> dict[int, str]:
    """Why the largest of what is not where it is used is there, by the number of the argument: the rule, and uses.

    Takes an import of the program, unless all is where it is used.  Raises `MpmdError`.
    """
    if not held.misplaced:
        return {}
    request = lowered.request
    ready = BeforePlacement(request.options.placement)
    partition_as(lowered.traced.module, request, hooks=[ready], phases="import")
    if ready.module is None:  # the program has no meshes to choose from
        return {}
    result = {}
    for one in held.misplaced[:MOST_REASONS]:
        (where,) = explain(ready.module, f"input {one.number}", **rules_of(request)).placements
        chains = [f"{' -> '.join(chain.steps)} on {chain.mesh}" for chain in where.needed]
        result[one.number] = "; ".join([where.rule, *chains])
    return result
