"""What users call: configurations, `jit`, lowered and compiled programs, placing and saving states."""
