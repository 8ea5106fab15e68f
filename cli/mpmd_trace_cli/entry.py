"""The entry point of `mpmd-trace`.  `opt` and `passes` are answered without the libraries of the other commands."""

from __future__ import annotations

import os
import sys

from mpmd_trace_cli import INTERRUPTED


def main(arguments: list[str] | None = None) -> None:
    """Run `mpmd-trace`, and exit with the status of the command (`status.py`)."""
    _open_closed_streams()
    try:  # early: Ctrl-C may come while the first module is imported
        _main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except SystemExit as stop:
        _drop_unwritten()
        if stop.code != INTERRUPTED:
            raise
    # Python would wait for what XLA still compiles in other threads, and jaxlib may crash when it is taken down
    # in the middle of something.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _open_closed_streams() -> None:
    """Open the standard streams that the caller closed: else a file would get their number, and what is printed.

    Reading the input and writing the output fail, as they do in other programs.
    """
    for name, access in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_RDWR)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)  # gets the number of the closed one, the lowest that is free
            setattr(sys, name, os.fdopen(opened, "r" if name == "stdin" else "w", closefd=False))


def _drop_unwritten() -> None:
    """Forget output that cannot be written, which Python would try to write, and complain, when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
