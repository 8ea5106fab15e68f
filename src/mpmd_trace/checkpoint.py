"""Checkpoints: saving and restoring arrays by itself, with Orbax, and in the files of other libraries."""

from __future__ import annotations

from mpmd_trace.api.checkpoints.orbax_handler import checkpoint_handler
from mpmd_trace.api.checkpoints.restoring import restore
from mpmd_trace.api.checkpoints.save_safetensors import save_safetensors
from mpmd_trace.api.checkpoints.saving import save
from mpmd_trace.api.checkpoints.stored_as import StoredAs

__all__ = ["StoredAs", "checkpoint_handler", "restore", "save", "save_safetensors"]
