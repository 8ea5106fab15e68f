"""Passes that make a step need less memory.  See `docs/memory.md`."""
