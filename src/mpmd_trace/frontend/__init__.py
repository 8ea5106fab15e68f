"""From a user's JAX function to an MLIR module with `mpmd` ops."""

from mpmd_trace.frontend.errors import FrontendError as FrontendError
from mpmd_trace.frontend.trace import check_names as check_names
from mpmd_trace.frontend.trace import trace as trace
from mpmd_trace.frontend.traced import Traced as Traced
