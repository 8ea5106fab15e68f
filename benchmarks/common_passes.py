"""Times every common pass on a pipeline of S stages and M microbatches, for two values of M.

No pass may be worse than linear in fragments plus distinct bodies: twice the microbatches, at most about
twice the time, and the same number of distinct bodies.

    python benchmarks/common_passes.py [--stages 16] [--microbatches 64 128] [--ops 60] [--only NAME]
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import time
from collections.abc import Callable

from mpmd_trace.ir.ops import CallOp, FragmentOp, Module, TransferOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.pass_table import PASSES
from mpmd_trace.passes.registry import get_pass

T = "tensor<f32>"
WEIGHTS = 4


@dataclasses.dataclass(frozen=True)
class Size:
    stages: int
    microbatches: int
    ops: int


def _m(stage: int) -> str:
    return f'!mpmd.mesh_tensor<"m{stage}", {T}>'


def _list(*parts: str) -> str:
    return ", ".join(p for p in parts if p)


def _body(inputs: int, outputs: int, ops: int) -> str:
    """A chain of elementwise ops that reads all arguments; returns its end and what leads to it.

    The last of four results is a constant, so that there is something to copy.
    """
    lines, last = [f"    %k = stablehlo.constant dense<1.0> : {T}"], "%a0"
    for i in range(ops):
        lines.append(f"    %s{i} = stablehlo.add {last}, %a{i % inputs} : {T}")
        last = f"%s{i}"
    returned = [f"%s{ops - 1 - i}" for i in range(outputs)]
    if outputs == 4:
        returned[3] = "%k"
    types = ", ".join([T] * outputs)
    lines.append(f"    mpmd.return {', '.join(returned)} : {types}")
    return "\n".join(lines)


def _fragment(name: str, stage: int, origin: str, operands: list[str], outputs: int, ops: int) -> str:
    args = ", ".join(f"%a{i}: {T}" for i in range(len(operands)))
    types = _list(*[_m(stage)] * len(operands))
    out = _list(*[_m(stage)] * outputs)
    at = f", stage={stage}" if origin else ""
    return (
        f'  {name}:{outputs} = mpmd.fragment<mesh="m{stage}", origin=[{origin}]{at}> ({_list(*operands)}) '
        f"({args}) {{\n{_body(len(operands), outputs, ops)}\n  }} : ({types}) -> ({out})\n"
    )


def _transfer(name: str, value: str, source: int, target: int) -> str:
    return f"  {name} = mpmd.transfer {value} : ({_m(source)}) -> {_m(target)}\n"


def program(size: Size, loop: bool = False) -> str:
    """One call per microbatch (or a loop around one) of forward, backward and gradient accumulation."""
    s = size.stages
    meshes = ", ".join(f'<"m{i}" : <["x"=1]>>' for i in range(s))
    attributes = f"attributes {{topology = #mpmd.topology<{meshes}>}}"
    weights = [(f"%w{i}_{k}", i) for i in range(s) for k in range(WEIGHTS)]
    sums = [(f"%g{i}_{k}", i) for i in range(s) for k in range(WEIGHTS)]
    body = ""
    received = ["%x"]
    for i in range(s):
        mine = [f"%w{i}_{k}" for k in range(WEIGHTS)]
        body += _fragment(f"%f{i}", i, '"f"', [*mine, *received], 4, size.ops)
        if i + 1 < s:
            received = [f"%t{i}", f"%k{i}"]
            body += _transfer(received[0], f"%f{i}#0", i, i + 1)
            body += _transfer(received[1], f"%f{i}#3", i, i + 1)
    ct = f"%f{s - 1}#0"
    for i in reversed(range(s)):
        mine = [f"%w{i}_{k}" for k in range(WEIGHTS)]
        operands = [*mine, f"%f{i}#1", f"%f{i}#2", ct]
        body += _fragment(f"%b{i}", i, '"f"(1)', operands, 1 + WEIGHTS, size.ops)
        if i > 0:
            ct = f"%u{i}"
            body += _transfer(ct, f"%b{i}#0", i, i - 1)
        for k in range(WEIGHTS):
            body += _fragment(f"%n{i}_{k}", i, "", [f"%g{i}_{k}", f"%b{i}#{1 + k}"], 1, 1)
    results = _list(*(f"%n{i}_{k}" for _, i in sums[::WEIGHTS] for k in range(WEIGHTS)))
    body = body.replace(":1 = ", " = ")
    weight_types = _list(*(_m(i) for _, i in weights))
    sum_types = _list(*(_m(i) for _, i in sums))
    arguments = _list(*(f"{n}: {_m(i)}" for n, i in weights), f"%x: {_m(0)}", *(f"{n}: {_m(i)}" for n, i in sums))
    step = (
        f"func.func private @step({arguments}) -> ({sum_types}) {attributes} {{\n{body}"
        f"  return {results} : {sum_types}\n}}\n"
    )
    calls, current, n = "", _list(*(name for name, _ in sums)), len(sums)

    def call(name: str, operands: str, attrs: str) -> str:
        return (
            f"  {name}:{n} = mpmd.call @step({_list(*(w for w, _ in weights))}, %x, {operands}) {attrs}"
            f" : ({weight_types}, {_m(0)}, {sum_types}) -> ({sum_types})\n"
        )

    if loop:
        carried = _list(*(f"%l{i}: {_m(j)}" for i, (_, j) in enumerate(sums)))
        inner = _list(*(f"%l{i}" for i in range(n)))
        m = size.microbatches
        calls = (
            f"  %r:{n} = mpmd.for ({current}) {{iterations = {m} : ui32, unroll_factor = {m} : ui32}} "
            f"({carried}, %index: tensor<ui32>) {{\n{call('%c', inner, '')}"
            f"    mpmd.return {_list(*(f'%c#{i}' for i in range(n)))} : {sum_types}\n  }} : {sum_types}\n"
        )
        current = _list(*(f"%r#{i}" for i in range(n)))
    else:
        for i in range(size.microbatches):
            calls += call(f"%c{i}", current, f"{{call_counter = {i} : ui32}}")
            current = _list(*(f"%c{i}#{k}" for k in range(n)))
    main = (
        f"func.func public @main({arguments}) -> ({sum_types}) {attributes} {{\n{calls}"
        f"  return {current} : {sum_types}\n}}\n"
    )
    return main + step


def _rules(size: Size) -> str:
    """Merge the forward and the backward fragment of the last stage, for every microbatch."""
    mesh = f'mesh_name="m{size.stages - 1}"'
    stage = f"stage={size.stages - 1}"

    def info(origins: str, i: int) -> str:
        return f"FragmentInfo(origins=[{origins}],{stage},call_counter={i},{mesh})"

    return ",".join(
        "FragmentMergeRule(sources=["
        + ",".join(info(o, i) for o in ('"f"', '"f"(1)'))
        + f"],target={info(chr(34) + 'f' + chr(34), i)})"
        for i in range(size.microbatches)
    )


#: What runs before a pass, so that it has something to do; `mpmd-call-inline` for the others.
BEFORE = {
    "mpmd-call-inline": "",
    "mpmd-erase-unused-callee-block-arguments": "",
    "mpmd-sink-negligible-ops-into-call-op": "",
    "mpmd-unroll-for-loops": "",
    "mpmd-from-unroll-to-call-counter": "mpmd-unroll-for-loops",
    "mpmd-verify-stage-merging": "mpmd-call-inline",
}
LOOPS = {"mpmd-unroll-for-loops", "mpmd-from-unroll-to-call-counter"}
OPTIONS: dict[str, list[Callable[[Size], dict[str, str | None]]]] = {
    "mpmd-absorb-inferred-fragments": [lambda _: {"absorb-on-entry-point-function": "true"}],
    "mpmd-merge-inferred-fragments": [
        lambda _: {},
        lambda _: {"merge-any-consumer": "true"},
        lambda _: {"merge-sideways": "true"},
    ],
    "mpmd-rule-based-merge": [lambda size: {"rules": _rules(size)}],
    "mpmd-uniquify-function-inputs-outputs": [lambda _: {}, lambda _: {"use-transfer-instead-of-fragment": "true"}],
    "mpmd-split-bwd-fragments": [lambda _: {}, lambda _: {"split-first-stage": "true"}],
}


@dataclasses.dataclass(frozen=True)
class Measured:
    seconds: float
    ops: int
    bodies: int


REPEATS = 3


def measure(name: str, options: dict[str, str | None], size: Size) -> Measured:
    """Least CPU time of the pass on fresh programs, and the ops and distinct bodies of main afterwards."""
    (one,) = get_pass(name, options)
    seconds: list[float] = []
    for _ in range(REPEATS):
        module = parse(program(size, loop=name in LOOPS))
        before = BEFORE.get(name, "mpmd-call-inline")
        if before:
            run_passes(module, before)
        gc.collect()
        started = time.process_time()
        run_passes(module, [one])
        seconds.append(time.process_time() - started)
    return Measured(min(seconds), *_count(module))


def _count(module: Module) -> tuple[int, int]:
    main = module.main
    ops = [op for op in main.body if isinstance(op, FragmentOp | TransferOp | CallOp)]
    return len(ops), len({id(op.body) for op in ops if isinstance(op, FragmentOp)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=16)
    parser.add_argument("--microbatches", type=int, nargs=2, default=(64, 128))
    parser.add_argument("--ops", type=int, default=60)
    parser.add_argument("--only", default="", help="part of the names of the passes to time")
    options = parser.parse_args()
    sizes = [Size(options.stages, m, options.ops) for m in options.microbatches]
    heads = [f"{s.stages}x{s.microbatches}" for s in sizes]
    print(f"{'pass':<70} {heads[0]:>9} {heads[1]:>9} {'ratio':>6} {'ops after':>10} {'bodies':>12}")
    for name in (name for name, where in PASSES.items() if str(where).startswith("common.")):
        if options.only not in name:
            continue
        for make in OPTIONS.get(name, [lambda _: {}]):
            chosen = make(sizes[0])
            label = name.removeprefix("mpmd-")
            if chosen and "rules" not in chosen:
                label += " " + " ".join(chosen)
            few, many = (measure(name, make(size), size) for size in sizes)
            ratio = many.seconds / max(few.seconds, 1e-4)
            bodies = f"{few.bodies} {many.bodies}"
            print(
                f"{label[:70]:<70} {few.seconds:8.3f}s {many.seconds:8.3f}s {ratio:6.2f} {many.ops:>10} {bodies:>12}",
                flush=True,
            )


if __name__ == "__main__":
    main()
