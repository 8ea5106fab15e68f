"""The C++ partitioner inside jaxlib >= 0.12, as a program: JSON on stdin, JSON on stdout.

It runs in a process of its own, because it changes its input, logs to stdout and aborts on some mistakes:

    python -m mpmd_trace.jax_compat.cpp_partitioner < request.json

Request: `text`, `func_name`, `named_meshes`, `assignment`, `input_meshes`, `output_meshes`, `donate_argnums`,
`partitioning_options`, `merge_rules`, `schedule_rules`, `phases` ("import", "optimize" or "all"), `repeat`.
Answer: `text` or `error`, and `seconds` of CPU time.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from typing import Any

__all__ = ["main"]


def _library() -> Any:
    import jaxlib._jax

    # The module looks for jaxlib under a name that the wheel does not have.
    alias: Any = types.ModuleType("jax.jaxlib")
    alias._jax = jaxlib._jax
    sys.modules["jax.jaxlib"] = alias
    sys.modules["jax.jaxlib._jax"] = jaxlib._jax
    from jaxlib import _sdy_mpmd

    return _sdy_mpmd


def _info(library: Any, fields: dict[str, Any]) -> Any:
    origins = [library.FragmentOrigin(name, count) for name, count in fields["origins"]]
    parts = {"kKeepTransferred": library.KEEP_TRANSFERRED, "kDropTransferred": library.DROP_TRANSFERRED}
    return library.FragmentInfo(
        origins,
        fields["stage"],
        fields["call_counter"],
        parts.get(fields["split_type"]),
        fields["mesh_name"],
    )


def _partition(library: Any, request: dict[str, Any]) -> tuple[str, float]:
    from jaxlib.mlir import ir

    from .mlir import new_context

    phases = {
        "import": library.IMPORT,
        "optimize": library.IMPORT | library.OPTIMIZE,
        "all": library.ALL,
    }[request["phases"]]
    merge_rules = [
        library.FragmentMergeRule([_info(library, i) for i in r["sources"]], _info(library, r["target"]))
        for r in request["merge_rules"]
    ]
    schedule_rules = [
        library.FragmentScheduleRule([_info(library, i) for i in r["ordered_fragments"]])
        for r in request["schedule_rules"]
    ]
    context = new_context()
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(request["text"], context)
        started = time.process_time()
        result = library.apply_mpmd_partitioning(
            module,
            request["func_name"],
            [(name, [(a, n) for a, n in axes]) for name, axes in request["named_meshes"]],
            {k: v if isinstance(v, str) else tuple(v) for k, v in request["assignment"].items()},
            request["input_meshes"],
            request["output_meshes"],
            request["donate_argnums"],
            partitioning_options=request["partitioning_options"],
            fragment_merge_rules=merge_rules,
            fragment_schedule_rules=schedule_rules,
            phases=phases,
        )
        seconds = time.process_time() - started
        return str(result.mpmd_module), seconds


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library logs to stdout
    try:
        text, seconds = _partition(_library(), request)
        json.dump({"text": text, "seconds": seconds}, answer)
    except Exception as error:
        json.dump({"error": str(error), "seconds": 0.0}, answer)
    answer.close()


if __name__ == "__main__":
    main()
