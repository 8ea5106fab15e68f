"""optimize passes."""
