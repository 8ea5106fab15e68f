"""Import passes."""
