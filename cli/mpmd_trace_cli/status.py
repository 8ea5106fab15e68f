"""The exit statuses of commands, and the errors that have one of their own."""

from __future__ import annotations

from mpmd_trace.diagnostics.files import FileError
from mpmd_trace.diagnostics.messages import MpmdError

#: The command works, and its answer is no: the program cannot be compiled, numbers differ, a schedule has a deadlock.
FOUND = 1
#: The command cannot work: a wrong option, a file that is missing or cannot be written.
WRONG_CALL = 2
#: The user's own code raised an exception.
PROGRAM_FAILED = 3


class CallError(MpmdError):
    """A command that cannot be run like this."""


class ProgramFailed(MpmdError):
    """The user's code raised an exception, which is the cause of this error."""


def status_of(error: MpmdError) -> int:
    """Return the exit status of a command that raised `error`."""
    if isinstance(error, CallError | FileError):
        return WRONG_CALL
    return PROGRAM_FAILED if isinstance(error, ProgramFailed) else FOUND
