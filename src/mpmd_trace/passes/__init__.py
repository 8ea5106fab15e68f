"""Passes over the IR: one file each, one dataclass each."""
