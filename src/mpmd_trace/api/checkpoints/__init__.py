"""Checkpoints: saving, restoring, and the formats of other libraries."""
