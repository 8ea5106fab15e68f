"""The command line, `mpmd-trace`.  Commands import what they need when they run, so that `--help` is quick."""

#: The exit status after Ctrl-C, as shells have it; here, since it is needed before anything else is imported.
INTERRUPTED = 130
