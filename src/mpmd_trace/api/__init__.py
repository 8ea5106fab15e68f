"""The API: configurations, `jit`, lowered and compiled programs, placing and saving states."""
