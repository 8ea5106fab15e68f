"""Small fragments as text."""

from __future__ import annotations


def frag(mesh: str, origin: str, operand: str, op: str = "negate", attrs: str = "", stage: str = "") -> str:
    """A fragment with one operand and one result."""
    kind = {"alpha": "!A", "beta": "!B"}[mesh]
    return (
        f'mpmd.fragment<mesh="{mesh}", origin=[{origin}]{stage}> ({operand}) {attrs} (%x: tensor<4xf32>) '
        f"{{\n    %y = stablehlo.{op} %x : tensor<4xf32>\n    mpmd.return %y : tensor<4xf32>\n"
        f"  }} : ({kind}) -> {kind}"
    )


def function(body: str, returned: str, types: str, args: str = "%p: !A, %q: !B", visibility: str = "") -> str:
    return (
        f"func.func {visibility} @main({args}) -> ({types}) attributes {{topology = #topo}} {{\n"
        f"{body}\n  return {returned} : {types}\n}}"
    )
