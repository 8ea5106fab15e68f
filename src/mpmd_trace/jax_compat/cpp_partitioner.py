"""The C++ partitioner inside jaxlib >= 0.12, as a program: requests on stdin, answers on stdout, JSON a line each.

It runs in a process of its own, because it changes its input, logs to stdout and aborts on some mistakes; each
request gets a fork of that process, so that an abort loses one request only:

    python -m mpmd_trace.jax_compat.cpp_partitioner < requests

Request: `text`, `arguments` (of `apply_mpmd_partitioning` by name, in plain data), `phases` (one or more of "import",
"optimize" and "all", in this order: after which phases to print the module), `timeout` (seconds, or null).
Answers: one line with `phase`, `text` and `seconds` of CPU time (`talking`: of reading and printing so far) for each
of the phases; then one line with `end`, which is "done" (with `input_specs` and `output_specs` after the last phase),
"error" (with `message`) or "stopped"
(with `status`, and `log`, the last lines it printed).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

from mpmd_trace.jax_compat.mlir import new_context


def _library() -> Any:
    import jaxlib._jax  # loads the library: only the process that asks for it

    # The module looks for jaxlib under a name that the wheel does not have.
    alias: Any = types.ModuleType("jax.jaxlib")
    alias._jax = jaxlib._jax
    sys.modules["jax.jaxlib"] = alias
    sys.modules["jax.jaxlib._jax"] = jaxlib._jax
    from jaxlib import _sdy_mpmd  # finds what it looks for only now

    return _sdy_mpmd


def _info(library: Any, fields: dict[str, Any]) -> Any:
    origins = [library.FragmentOrigin(name, count) for name, count in fields["origins"]]
    parts = {"kKeepTransferred": library.KEEP_TRANSFERRED, "kDropTransferred": library.DROP_TRANSFERRED}
    return library.FragmentInfo(
        origins,
        stage_id=fields["stage"],
        call_counter=fields["call_counter"],
        split_type=parts.get(fields["split_type"]),
        mesh_name=fields["mesh_name"],
    )


#: How arguments are made of plain data.
_READ: dict[str, Callable[[Any, Any], Any]] = {
    "named_meshes": lambda library, meshes: [(name, [(a, n) for a, n in axes]) for name, axes in meshes],
    "assignment": lambda library, found: {k: v if isinstance(v, str) else tuple(v) for k, v in found.items()},
    "fragment_merge_rules": lambda library, rules: [
        library.FragmentMergeRule([_info(library, i) for i in rule["sources"]], _info(library, rule["target"]))
        for rule in rules
    ],
    "fragment_schedule_rules": lambda library, rules: [
        library.FragmentScheduleRule([_info(library, i) for i in rule["ordered_fragments"]]) for rule in rules
    ],
}


def _spec(spec: Any) -> dict[str, Any]:
    return {
        "mesh": spec.mesh_name,
        "dims": [list(axes) for axes in spec.tensor_spec],
        "unreduced": sorted(spec.unreduced_axes),
        "memory_kind": spec.memory_kind,
    }


def _partition(library: Any, request: dict[str, Any], answer: Any) -> dict[str, Any]:
    """Run the phases, tell `answer` about each, and give what `end` says."""
    from jaxlib.mlir import ir  # with the library, not before

    done = library.NONE
    upto = {"import": library.IMPORT, "optimize": library.IMPORT | library.OPTIMIZE, "all": library.ALL}
    arguments = dict(request["arguments"])
    for name, read in _READ.items():
        arguments[name] = read(library, arguments[name])
    context = new_context()
    with context, ir.Location.unknown(context):
        started = time.process_time()
        module = ir.Module.parse(request["text"], context)
        talking = time.process_time() - started
        for phase in request["phases"]:
            started = time.process_time()
            result = library.apply_mpmd_partitioning(
                module, **arguments, phases=library.PartitioningPhase(upto[phase].value & ~done.value)
            )
            done = upto[phase]
            module = result.mpmd_module
            seconds = time.process_time() - started
            text = str(module)
            talking += time.process_time() - started - seconds
            _say(answer, {"phase": phase, "seconds": seconds, "talking": talking, "text": text})
        specs = result.module_io_sharding_specs_and_meshes
        return {
            "end": "done",
            "input_specs": [_spec(s) for s in specs.input_specs],
            "output_specs": [_spec(s) for s in specs.output_specs],
        }


def _say(answer: Any, what: dict[str, Any]) -> None:
    answer.write(json.dumps(what) + "\n")
    answer.flush()


def _answer(library: Any, request: dict[str, Any], answer: Any) -> None:
    if request.get("timeout"):
        signal.alarm(max(1, round(request["timeout"])))  # the default action ends this process
    try:
        end = _partition(library, request, answer)
    except Exception as error:
        end = {"end": "error", "message": str(error)}
    _say(answer, end)


def _answer_apart(library: Any, request: dict[str, Any], answer: Any) -> None:
    """Answer in a forked process; whatever it logs goes to a file, from which an abort is explained."""
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            _answer(library, request, answer)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            log.seek(0)
            last = log.read()[-4000:].decode(errors="replace").strip().splitlines()[-3:]
            _say(answer, {"end": "stopped", "status": status, "log": last})


def main() -> None:
    """Answer requests until there are no more."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library logs to stdout
    library = _library()
    for line in sys.stdin:
        _answer_apart(library, json.loads(line), answer)


if __name__ == "__main__":
    main()
