"""The entry point of `mpmd-trace`.  `opt` and `passes` are answered without the libraries of the other commands."""

from __future__ import annotations

import os
import sys

from mpmd_trace_cli import INTERRUPTED


def main(arguments: list[str] | None = None) -> None:
    """Run `mpmd-trace`, and exit with the status of the command (`status.py`)."""
    try:  # early: Ctrl-C may come while the first module is imported
        _main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except SystemExit as stop:
        if stop.code != INTERRUPTED:
            raise
    # Python would wait for what XLA still compiles in other threads, and jaxlib may crash when it is taken down
    # in the middle of something.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _main(arguments: list[str]) -> None:
    """Run a command, and exit."""
    if arguments[:1] == ["opt"]:
        from mpmd_trace_cli.opt import main as opt  # each command loads what it needs

        sys.exit(opt(arguments[1:]))
    if arguments[:1] == ["passes"] and not any(a.startswith("-") and a != "--json" for a in arguments):
        names = [a for a in arguments[1:] if a != "--json"]
        if len(names) < 2:
            from mpmd_trace_cli.console import guard  # as above
            from mpmd_trace_cli.inspect import print_passes

            sys.exit(guard(lambda: print_passes(names[0] if names else None, "--json" in arguments)))
    import importlib  # only here

    for library in ("typer", "rich"):
        try:
            importlib.import_module(library)
        except ModuleNotFoundError:
            print(
                f"mpmd-trace needs {library} for all commands but opt and passes; install it with: "
                "pip install 'mpmd_trace[cli]'",
                file=sys.stderr,
            )
            sys.exit(2)
    from mpmd_trace_cli.main import main as other  # opt and passes start without it

    other(arguments)


if __name__ == "__main__":
    main()
