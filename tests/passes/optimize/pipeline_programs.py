"""Pipelines of fragments as MLIR text."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp, Module

T = "tensor<4xf32>"


def mesh_tensor(mesh: int) -> str:
    return f'!mpmd.mesh_tensor<"m{mesh}", {T}>'


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def _new(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def fragment(
        self, mesh: int, name: str, transpose: int, counter: int, operand: str, stage: int | None, extra: str = ""
    ) -> str:
        origin = f'"{name}"' + (f"({transpose})" if transpose else "")
        header = f'mesh="m{mesh}", origin=[{origin}]' + ("" if stage is None else f", stage={stage}")
        value = self._new()
        self.lines.append(
            f"{value} = mpmd.fragment<{header}> ({operand}) {{call_counter = {counter} : ui32{extra}}} "
            f"(%x: {T}) {{ %y = stablehlo.sine %x : {T} mpmd.return %y : {T} }} : "
            f"({mesh_tensor(mesh)}) -> {mesh_tensor(mesh)}"
        )
        return value

    def transfer(self, value: str, source: int, target: int) -> str:
        if source == target:
            return value
        moved = self._new()
        self.lines.append(f"{moved} = mpmd.transfer {value} : ({mesh_tensor(source)}) -> {mesh_tensor(target)}")
        return moved


def pipeline(
    meshes: int,
    microbatches: int,
    *,
    stages_per_mesh: int = 1,
    split_backward: bool = False,
    forward_only: bool = False,
) -> str:
    """Forward over all stages and back, microbatch after microbatch, with transfers between neighbours."""
    w = _Writer()
    returned: list[tuple[str, int]] = []
    stages = meshes * stages_per_mesh
    staged = stages_per_mesh > 1
    for b in range(microbatches):
        x = f"%a{b}"
        for s in range(stages):
            if s:
                x = w.transfer(x, (s - 1) % meshes, s % meshes)
            x = w.fragment(s % meshes, f"f{s}", 0, b, x, s if staged else None)
        if forward_only:
            returned.append((x, (stages - 1) % meshes))
            continue
        for s in reversed(range(stages)):
            mesh = s % meshes
            if s < stages - 1:
                x = w.transfer(x, (s + 1) % meshes, mesh)
            split = split_backward and mesh > 0
            given = x
            keep = ", split_keep_transferred" if split else ""
            x = w.fragment(mesh, f"f{s}", 1, b, given, s if staged else None, keep)
            if split:
                stage = s if staged else None
                dropped = w.fragment(mesh, f"f{s}", 1, b, given, stage, ", split_drop_transferred")
                returned.append((dropped, mesh))
        returned.append((x, 0))
    topology = ", ".join(f'<"m{i}" : <["d"=2]>>' for i in range(meshes))
    arguments = ", ".join(f"%a{b}: {mesh_tensor(0)}" for b in range(microbatches))
    types = ", ".join(mesh_tensor(m) for _, m in returned)
    body = "\n  ".join(w.lines)
    return (
        f"func.func public @main({arguments}) -> ({types}) attributes "
        f"{{topology = #mpmd.topology<{topology}>}} {{\n  {body}\n"
        f"  return {', '.join(v for v, _ in returned)} : {types}\n}}"
    )


def orders(module: Module, *, stages: bool = False) -> dict[str, str]:
    """Per mesh the fragments in order: F0 B0 W0, with stages F1.0."""
    found: dict[str, list[str]] = {}
    for op in module.main.body:
        if isinstance(op, FragmentOp):
            backward = op.origin[0].transpose_count
            letter = "W" if "split_drop_transferred" in op.attrs else "B" if backward else "F"
            stage = f"{op.stage}." if stages else ""
            found.setdefault(op.mesh, []).append(f"{letter}{stage}{op.call_counter}")
    return {mesh: " ".join(row) for mesh, row in sorted(found.items())}
