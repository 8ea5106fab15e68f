"""`mpmd-remove-transfer-cycles`."""

from __future__ import annotations

from util import run

PASS = "mpmd-remove-transfer-cycles"
H = '!mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">'
D = '!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">'


def chain(*types: str) -> str:
    """Transfers from `!A` through the types, all returned."""
    lines, last, last_type = [], "%p", "!A"
    for i, type in enumerate(types):
        lines.append(f"  %{i} = mpmd.transfer {last} : ({last_type}) -> {type}")
        last, last_type = f"%{i}", type
    names = ", ".join(f"%{i}" for i in range(len(types)))
    return (
        f"func.func @main(%p: !A) -> ({', '.join(types)}) attributes {{topology = #topo}} {{\n"
        + "\n".join(lines)
        + f"\n  return {names} : {', '.join(types)}\n}}"
    )


def transfers(text: str) -> int:
    return sum(op.name == "mpmd.transfer" for op in run(text, PASS).main.body)


def test_repeated_turns_unwind() -> None:
    assert transfers(chain("!B", "!A", "!B", "!A", "!B", "!A")) == 1


def test_identities_go() -> None:
    assert transfers(chain("!A", "!B", "!B")) == 1


def test_a_way_through_the_host_is_kept() -> None:
    assert transfers(chain(H, "!A")) == 2
    assert transfers(chain("!B", H, "!B", "!A")) == 4


def test_types_must_be_equal_including_the_memory_kind() -> None:
    assert transfers(chain("!B", D)) == 2
    assert transfers(chain(D, "!B", "!A", D)) == 2
