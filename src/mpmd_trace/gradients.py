"""Gradients of a batch in microbatches: of plain losses, of losses over a whole batch, and of models with encoders."""

from mpmd_trace.frontend.encoders import contrastive_value_and_grad, encoded_value_and_grad
from mpmd_trace.frontend.gradient_accumulation import value_and_grad

__all__ = ["contrastive_value_and_grad", "encoded_value_and_grad", "value_and_grad"]
