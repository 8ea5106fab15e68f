"""Reasons why parameters are not where they are used, for the tables of what meshes hold."""

from __future__ import annotations

from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.backend.placement_tables import PlacementReport
from mpmd_trace.diagnostics.messages import shortened
from mpmd_trace.diagnostics.source_files import from_here
from mpmd_trace.report.explain import before_placement, explain, rules_of

#: So many values get a reason; those of the others are mostly the same.
MOST_REASONS = 8
#: So many uses are named in a reason.
MOST_USES = 3


def reasons(held: PlacementReport, lowered: PartitionedProgram) -> dict[int, str]:
    """Return why the largest arguments that are not where they are used are there, by number: the rule, and uses.

    Takes an import of the program, unless all is where it is used.  Raises `MpmdError`.
    """
    if not held.misplaced:
        return {}
    module = before_placement(lowered)
    if module is None:
        return {}
    result = {}
    for one in held.misplaced[:MOST_REASONS]:
        (where,) = explain(module, f"input {one.number}", **rules_of(lowered.request)).placements
        uses = [f"{chain.steps[-1]} on {chain.mesh}" for chain in where.needed]  # `explain` has all the steps
        result[one.number] = from_here("; ".join([where.rule, *map(str.strip, shortened(uses, MOST_USES))]))
    return result
