"""Checks programs one by one, in a process that may crash or hang: reads requests and writes answers as JSON lines.

A request has the text of a program, its tolerance and the names of oracles; see `Worker` in `driver.py`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, str]:
    """What became of a program: `same`, `refused`, `reference` (the C++ partitioner failed), `invalid`
    (`jax.jit` does not take it) or `finding`."""
    from fuzz import oracles  # after the settings of the process

    subject = oracles.load(request["text"], request["rtol"])
    for name in request["oracles"]:
        try:
            wanted = oracles.plain_module if name == "interpret" else oracles.plain_results
            subject.expected = wanted(subject)
        except Exception as error:
            return {"kind": "invalid", "text": f"{type(error).__name__}: {error}"}
        try:
            oracles.ORACLES[name](subject)
        except oracles.Refused as error:
            return {"kind": "refused", "text": str(error)}
        except oracles.Finding as error:
            said = str(error)
            if "the C++ partitioner s" in said:  # says, stopped
                return {"kind": "reference", "text": said}
            trace = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            return {"kind": "finding", "text": f"{name}: {said}", "trace": trace}
    return {"kind": "same", "text": ""}


def main() -> None:
    """Answer until there are no more requests."""
    # Only answers go to stdout; whatever else prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        faulthandler.dump_traceback_later(request["seconds"], exit=True)
        try:
            found = answer(request)
        except Exception as error:
            said = f"harness: {type(error).__name__}: {error}"
            found = {"kind": "finding", "text": said, "trace": traceback.format_exc()}
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
