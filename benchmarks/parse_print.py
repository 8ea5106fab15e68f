"""The CPU time of reading and printing a module, against jaxlib's own parser and printer in the same process.

    python benchmarks/parse_print.py [--ops 50000] [--repeat 3] [--json]

Ours: text -> jaxlib's parser -> generic text -> our IR -> generic text -> jaxlib -> pretty text.
jaxlib's: text -> jaxlib's parser -> pretty text.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable


def module_text(ops: int, per_fragment: int = 20) -> str:
    """A pipeline of fragments and transfers with `ops` ops in all."""
    lines = [
        '!A = !mpmd.mesh_tensor<"m1", tensor<8x16xf32>>',
        '!B = !mpmd.mesh_tensor<"m2", tensor<8x16xf32>>',
        'func.func @main(%v0: !A) -> !A attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, '
        '<"m2" : <["x"=2]>>>} {',
    ]
    number = 0
    for count in range(ops // (per_fragment + 1)):
        mesh, here, there = ("m1", "!A", "!B") if count % 2 == 0 else ("m2", "!B", "!A")
        lines.append(
            f'  %f{count} = mpmd.fragment<mesh="{mesh}", origin=["f"({count % 3})]> (%v{count}) '
            f"{{call_counter = {count} : ui32}} (%x: tensor<8x16xf32>) {{"
        )
        last = "%x"
        for _ in range(per_fragment - 2):
            lines.append(f"    %o{number} = stablehlo.add {last}, %x : tensor<8x16xf32>")
            last = f"%o{number}"
            number += 1
        lines.append(f"    mpmd.return {last} : tensor<8x16xf32>\n  }} : ({here}) -> {here}")
        lines.append(f"  %v{count + 1} = mpmd.transfer %f{count} : ({here}) -> {there}")
    lines.append(f"  return %f{count - count % 2} : !A\n}}")
    return "\n".join(lines)


def seconds(run: Callable[[], object], repeat: int) -> float:
    """The least CPU time of several runs."""
    best = float("inf")
    for _ in range(repeat):
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    return best


def measure(ops: int, repeat: int) -> dict[str, float]:
    """Seconds of both, of our own part, and the ratio."""
    from jaxlib.mlir import ir

    from mpmd_trace.ir.parser import parse_generic
    from mpmd_trace.ir.text import parse
    from mpmd_trace.jax_compat.mlir import new_context, to_generic

    text = module_text(ops)

    def theirs() -> str:
        return str(ir.Module.parse(text, new_context()))

    def ours() -> str:
        return str(parse(text))

    assert theirs().split() == ours().split()
    generic = to_generic(text)
    return {
        "ops": ops,
        "jaxlib": (reference := seconds(theirs, repeat)),
        "ours": (whole := seconds(ours, repeat)),
        "parse": seconds(lambda: parse_generic(generic), repeat),
        "print": seconds(parse_generic(generic).to_generic, repeat),
        "ratio": whole / reference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.ops, options.repeat)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{options.ops} ops: parse and print")
    for key in ("jaxlib", "ours", "parse", "print"):
        print(f"  {key:8} {result[key]:8.3f} s")
    print(f"  ratio    {result['ratio']:8.2f}")


if __name__ == "__main__":
    main()
