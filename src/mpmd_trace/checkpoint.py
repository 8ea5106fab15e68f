"""Checkpoints: saving and restoring arrays by itself, with Orbax, and in the files of other libraries."""

from __future__ import annotations

from mpmd_trace.api.checkpoints import checkpoint_handler
from mpmd_trace.api.safetensors import save_safetensors
from mpmd_trace.api.saving import restore, save
from mpmd_trace.api.stored_as import StoredAs

__all__ = ["StoredAs", "checkpoint_handler", "restore", "save", "save_safetensors"]
