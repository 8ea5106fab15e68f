"""export passes."""
