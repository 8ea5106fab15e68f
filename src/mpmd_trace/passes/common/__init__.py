"""common passes."""
