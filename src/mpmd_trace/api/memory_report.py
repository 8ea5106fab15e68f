"""The memory of each mesh, as a mapping that prints as a table."""

from __future__ import annotations

import dataclasses

from mpmd_trace.backend.load import MemoryAnalysis
from mpmd_trace.diagnostics.tables import Table, as_html, in_units


class MemoryReport(dict[str, MemoryAnalysis]):
    """The memory of one device of each mesh in bytes, by the name of the mesh; as text and in notebooks, a table."""

    @property
    def table(self) -> Table:
        """The report as a table."""
        names = [field.name for field in dataclasses.fields(MemoryAnalysis)]
        rows = [[mesh, *(in_units(getattr(one, name)) for name in names)] for mesh, one in self.items()]
        return Table("memory of a device of each mesh", ["mesh", *names], rows)

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return as_html("", [self.table])
