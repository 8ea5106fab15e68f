"""Checks programs in several processes, as `worker.py` does in one:

    mpmd-trace launch -n 2 --devices 8 tests/fuzz/several.py FOLDER DRIVER

Requests are files `0.json`, `1.json`, ... in the folder, as they come; each process answers all of them, in files such
as `0.1.answer`.  They end with the folder, or with the process DRIVER.  See `Job` in `driver.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import jax

import mpmd_trace as mt

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import oracles


def answer(request: dict[str, Any]) -> dict[str, str]:
    """What became of a program, as this process sees it."""
    alone = oracles.load(request["alone"], request["rtol"])
    try:
        alone.expected = oracles.plain_results(alone)
    except Exception as error:
        return {"kind": "invalid", "text": f"{type(error).__name__}: {error}"}
    try:
        oracles.over_processes(oracles.load(request["text"], request["rtol"]), alone)
    except oracles.Refused as error:
        return {"kind": "refused", "text": str(error)}
    except oracles.Finding as error:
        trace = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
        return {"kind": "finding", "text": f"processes: {error}", "trace": trace}
    return {"kind": "same", "text": ""}


def runs(process: int) -> bool:
    """Whether the process has not ended yet."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Answer until there is nobody to ask."""
    mt.initialize()
    folder, driver, number = Path(sys.argv[1]), int(sys.argv[2]), 0
    while folder.exists() and runs(driver):
        request = folder / f"{number}.json"
        if not request.exists():
            time.sleep(0.05)
            continue
        try:
            found = answer(json.loads(request.read_text()))
        except Exception as error:
            said = f"harness: {type(error).__name__}: {error}"
            found = {"kind": "finding", "text": said, "trace": traceback.format_exc()}
        written = folder / f"{number}.{jax.process_index()}"
        written.write_text(json.dumps(found))
        os.rename(written, f"{written}.answer")
        number += 1


if __name__ == "__main__":
    main()
