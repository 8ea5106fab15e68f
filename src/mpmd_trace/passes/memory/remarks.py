"""What remarks of the passes that make a step need less memory have in common."""

__all__ = ["MEMORY"]

#: How they begin.
MEMORY = "memory: "
