"""The command line, `mpmd-trace`.  Commands import what they need when they run, so that `--help` is quick."""
