"""A pipelined training step with gradient accumulation and random shardings, as scheduling leaves it."""

from __future__ import annotations

import dataclasses
import random

W, X = "tensor<8x8xf32>", "tensor<4x8xf32>"
ROWS = ' {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}'
SHARDINGS = ('[{"d"}, {}]', '[{}, {"e"}]', '[{"e"}, {"d"}]', '[{"d"}, {?}]', '[{"d", "e"}, {}]', '[{?}, {"d"}]')


def mesh_type(stage: int, tensor: str) -> str:
    return f'!mpmd.mesh_tensor<"m{stage}", {tensor}>'


def forward_body(constant: float | None) -> str:
    scale = (
        ""
        if constant is None
        else (f"%k = stablehlo.constant dense<{constant}> : {X}\n%s = stablehlo.multiply %x, %k : {X}\n")
    )
    x = "%x" if constant is None else "%s"
    return (
        scale
        + f"%y = stablehlo.dot_general {x}, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}\n"
        + f"%z = stablehlo.tanh %y : {X}\nmpmd.return %z, {x} : {X}, {X}\n"
    )


def backward_body(others: list[str]) -> str:
    """Return a body that adds its gradient to the `others`."""
    text = f"%v = stablehlo.dot_general %r, %g, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}\n"
    result, *rest = [*others, "%v"]
    for i, value in enumerate(rest):
        text += f"%a{i} = stablehlo.add {result}, {value} : {W}\n"
        result = f"%a{i}"
    return (
        text
        + f"%h = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : ({X}, {W}) -> {X}\n"
        + f"mpmd.return %h, {result} : {X}, {W}\n"
    )


@dataclasses.dataclass(frozen=True)
class Step:
    """What the program looks like."""

    stages: int
    microbatches: int
    seed: int
    counters: bool = True
    constants: bool = False  # the first stage has another constant for each microbatch
    split: bool = False  # one fragment cuts the batch into microbatches, with `rows` each sharded as the batch is
    alike: bool = False  # the weights of all stages have one sharding
    rows: bool = False  # the batch is sharded by rows, and nothing else is
    summed: bool = False  # the last microbatch adds up the gradients of all

    def text(self) -> str:
        rng = random.Random(self.seed)
        lines: list[str] = []
        args = [f"%w{s}: {mesh_type(s, W)}{given}" for s, given in enumerate(self._of_stages(rng))]
        batch = f"tensor<{4 * self.microbatches}x8xf32>"
        if self.split:
            given = ROWS if self.rows else self._given(rng)
            args.append(f"%batch: {mesh_type(0, batch)}{given}")
            lines.append(self._split(batch))
        else:
            shared = ROWS if self.rows else self._given(rng)
            args += [f"%x{m}: {mesh_type(0, X)}{shared}" for m in range(self.microbatches)]
        accumulated: dict[int, str] = {}
        outputs: list[tuple[str, str]] = []
        for m in range(self.microbatches):
            x = f"%x_#{m}" if self.split else f"%x{m}"
            for s in range(self.stages):
                lines.append(self._fragment(f"f{m}_{s}", s, m, [(f"%w{s}", "%w", W), (x, "%x", X)], 0))
                x = f"%f{m}_{s}#0"
                if s + 1 < self.stages:
                    lines.append(self._transfer(f"%t{m}_{s}", x, s, s + 1))
                    x = f"%t{m}_{s}"
            for s in reversed(range(self.stages)):
                operands = [(f"%w{s}", "%w", W), (f"%f{m}_{s}#1", "%r", X), (x, "%g", X)]
                if self.summed and m == self.microbatches - 1:
                    operands += [(f"%b{i}_{s}#1", f"%o{i}", W) for i in range(m)]
                elif s in accumulated and not self.summed:
                    operands.append((accumulated[s], "%o", W))
                lines.append(self._fragment(f"b{m}_{s}", s, m, operands, 1))
                accumulated[s] = f"%b{m}_{s}#1"
                x = f"%b{m}_{s}#0"
                if s:
                    lines.append(self._transfer(f"%u{m}_{s}", x, s, s - 1))
                    x = f"%u{m}_{s}"
            outputs.append((x, mesh_type(0, X)))
        results = [mesh_type(0, X) + self._given(rng)] * self.microbatches
        results += [mesh_type(s, W) + given for s, given in enumerate(self._of_stages(rng))]
        outputs += [(accumulated[s], mesh_type(s, W)) for s in range(self.stages)]
        topology = ", ".join(f'<"m{s}" : <["d"=2, "e"=2]>>' for s in range(self.stages))
        body = "\n".join(lines)
        return (
            'module {\nsdy.mesh @mesh = <["d"=2, "e"=2]>\n'
            f"func.func public @main({', '.join(args)}) -> ({', '.join(results)}) "
            f"attributes {{topology = #mpmd.topology<{topology}>}} {{\n{body}\n"
            f"return {', '.join(v for v, _ in outputs)} : {', '.join(k for _, k in outputs)}\n}}\n}}\n"
        )

    def _of_stages(self, rng: random.Random) -> list[str]:
        return [self._given(rng)] * self.stages if self.alike else [self._given(rng) for _ in range(self.stages)]

    def _given(self, rng: random.Random) -> str:
        if self.rows or rng.random() < 0.3:
            return ""
        return f" {{sdy.sharding = #sdy.sharding<@mesh, {rng.choice(SHARDINGS)}>}}"

    def _transfer(self, name: str, value: str, source: int, target: int) -> str:
        return f"{name} = mpmd.transfer {value} : ({mesh_type(source, X)}) -> {mesh_type(target, X)}"

    def _fragment(
        self, name: str, stage: int, microbatch: int, operands: list[tuple[str, str, str]], count: int
    ) -> str:
        attrs = f"{{call_counter = {microbatch} : ui32}} " if self.counters else ""
        constant = float(microbatch) if self.constants and stage == 0 else None
        body = backward_body([a for _, a, _ in operands[3:]]) if count else forward_body(constant)
        results = [mesh_type(stage, t) for t in ((X, W) if count else (X, X))]
        return (
            f'%{name}:2 = mpmd.fragment<mesh="m{stage}", origin=["s{stage}"{"(1)" if count else ""}]> '
            f"({', '.join(v for v, _, _ in operands)}) {attrs}"
            f"({', '.join(f'{a}: {t}' for _, a, t in operands)}) {{\n{body}}} : "
            f"({', '.join(mesh_type(stage, t) for _, _, t in operands)}) -> ({', '.join(results)})"
        )

    def _split(self, batch: str) -> str:
        count = self.microbatches
        stacked, one = f"tensor<{count}x4x8xf32>", "tensor<1x4x8xf32>"
        if self.rows:
            slices = (
                f"%r = stablehlo.reshape %b : ({batch}) -> {stacked}\n"
                f'%c = sdy.sharding_constraint %r <@mesh, [{{}}, {{"d"}}, {{}}]> : {stacked}\n'
            ) + "".join(
                f"%o{m} = stablehlo.slice %c [{m}:{m + 1}, 0:4, 0:8] : ({stacked}) -> {one}\n"
                f"%s{m} = stablehlo.reshape %o{m} : ({one}) -> {X}\n"
                for m in range(count)
            )
        else:
            slices = "".join(
                f"%s{m} = stablehlo.slice %b [{4 * m}:{4 * m + 4}, 0:8] : ({batch}) -> {X}\n" for m in range(count)
            )
        return (
            f'%x_:{count} = mpmd.fragment<mesh="m0", origin=["split"]> (%batch) (%b: {batch}) {{\n{slices}'
            f"mpmd.return {', '.join(f'%s{m}' for m in range(count))} : {', '.join([X] * count)}\n}} : "
            f"({mesh_type(0, batch)}) -> ({', '.join([mesh_type(0, X)] * count)})"
        )
