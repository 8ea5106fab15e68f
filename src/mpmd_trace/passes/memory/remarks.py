"""What remarks of the passes that make a step need less memory have in common."""

#: How they begin.
MEMORY = "memory: "
