"""`python -m mpmd_trace`: the command line without an installed script."""

from mpmd_trace_cli.entry import main

if __name__ == "__main__":
    main()
