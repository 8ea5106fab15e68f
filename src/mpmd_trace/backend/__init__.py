"""From an exported module to executables, a plan and a runtime."""
