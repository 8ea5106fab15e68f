"""Random mpmd programs as MLIR text, for property tests: the same seed gives the same program."""

from __future__ import annotations

import dataclasses
import random
import re

L, F, E, H = "tensor<4xf32>", "tensor<f32>", "tensor<1xf32>", "tensor<2x2xf32>"
MESHES = ("alpha", "beta", "gamma")
TOPOLOGY = "#mpmd.topology<" + ", ".join(f'<"{m}" : <["x"=2]>>' for m in MESHES) + ">"


@dataclasses.dataclass(frozen=True)
class Shape:
    """What kind of program to make."""

    fragments: int = 8
    body_ops: int = 6
    backward: float = 0.4  # how many fragments are backward
    attributes: bool = True  # call counters, stages, inferred fragments
    shardings: bool = True  # also memory kinds
    effects: bool = True
    regions: bool = True
    dead: bool = True  # ops, results and transfers without use
    calls: int = 0  # functions that main calls
    loops: int = 0
    transfers: float = 0.5
    scalars: float = 0.3
    bundles: float = 0.0  # how often several values go from one mesh to another together
    local: bool = False  # tensors that are on no mesh, no fragments
    sinkable: float = 0.0  # how many call operands are operand-free ops


@dataclasses.dataclass(frozen=True)
class Val:
    name: str
    tensor: str
    mesh: str = ""
    suffix: str = ""

    @property
    def type(self) -> str:
        return f'!mpmd.mesh_tensor<"{self.mesh}", {self.tensor}{self.suffix}>' if self.mesh else self.tensor


class Program:
    """Writes one module."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.rng = random.Random(seed)
        self.shape = shape
        self.count = 0
        self.lines: list[str] = []
        self.used: set[str] = set()
        self.callees: list[tuple[str, list[Val], list[Val]]] = []
        self.inner_used: set[str] = set()
        self.inner_values: list[Val] = []
        self.shared: dict[tuple[str, int], Val] = {}

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def text(self) -> str:
        functions = []
        for i in range(self.shape.calls):
            functions.append(self.function(f"f{i}", "private", self.rng.randint(1, 4)))
        main = self.function("main", "", self.rng.randint(2, 5))
        meshes = 'sdy.mesh @mesh = <["x"=2]>\n'
        order = [main, *functions] if self.chance(0.7) else [*functions, main]
        return meshes + "\n".join(order)

    # Functions.

    def function(self, name: str, visibility: str, n_args: int) -> str:
        self.lines, self.used = [], set()
        args = [self.fresh_type() for _ in range(n_args)]
        if not self.shape.local and not any(a.mesh == "alpha" for a in args):
            args.append(Val(self.name(), L, "alpha"))
        values = list(args)
        for _ in range(self.shape.fragments):
            self.statement(values, "  ")
        if name == "main":
            for callee in self.callees:
                for k in range(self.rng.randint(1, 3)):
                    self.call(callee, values, k, "  ")
            for _ in range(self.shape.loops):
                self.loop(values, "  ")
            for _ in range(3):
                self.statement(values, "  ")
        chosen = [self.rng.choice(values) for _ in range(self.rng.randint(1, 4))]
        if not self.shape.dead:
            chosen += [v for v in values if v.name not in self.used and v not in args]
        self.used.update(v.name for v in chosen)
        if visibility:
            self.callees.append((name, args, chosen))
        inputs = ", ".join(f"{a.name}: {a.type}" for a in args)
        results = ", ".join(v.type for v in chosen)
        head = f"func.func {visibility} @{name}({inputs}) -> ({results})"
        body = "\n".join(self.lines)
        end = f"  return {', '.join(v.name for v in chosen)} : {results}"
        return f"{head} attributes {{topology = {TOPOLOGY}}} {{\n{body}\n{end}\n}}\n"

    def fresh_type(self) -> Val:
        if self.shape.local:
            return Val(self.name(), self.tensor())
        return Val(self.name(), self.tensor(), self.rng.choice(MESHES), self.suffix())

    def tensor(self) -> str:
        if self.chance(self.shape.scalars):
            return self.rng.choice((F, F, E))
        return self.rng.choice((L, L, H))

    def suffix(self) -> str:
        if not self.shape.shardings or self.chance(0.8):
            return ""
        return self.rng.choice((', memory_kind="pinned_host"', ', memory_kind="device"'))

    def attrs(self, extra: dict[str, str] | None = None) -> str:
        found = dict(extra or {})
        if self.shape.attributes and self.chance(0.3):
            found["call_counter"] = f"{self.rng.randint(0, 2)} : ui32"
        inner = ", ".join(f"{k} = {v}" for k, v in found.items())
        return f"{{{inner}}} " if inner else ""

    # Ops of functions.

    def statement(self, values: list[Val], indent: str, transfers: bool = True) -> None:
        if self.shape.local:
            known = len(values)
            lines, _ = self.body(values, indent)
            self.lines += lines[:-1]
            self.used.update(self.inner_used)
            values += [v for v in self.inner_values if v not in values[:known]]
            return
        if transfers and self.chance(self.shape.transfers):
            self.transfer(values, indent)
        self.fragment(values, indent)
        if transfers and self.chance(self.shape.transfers):
            self.transfer(values, indent)
        if transfers and self.chance(self.shape.bundles):
            self.bundle(values, indent)

    def bundle(self, values: list[Val], indent: str) -> None:
        target = self.rng.choice(MESHES)
        recent = values[-6:]
        moved = []
        for _ in range(self.rng.randint(2, 6)):
            source = self.rng.choice(recent)
            result = Val(self.name(), source.tensor, target, self.suffix())
            self.used.add(source.name)
            self.lines.append(f"{indent}{result.name} = mpmd.transfer {source.name} : ({source.type}) -> {result.type}")
            moved.append(result)
        values += moved
        for _ in range(self.rng.randint(1, 2)):
            operands = [self.rng.choice(moved) for _ in range(self.rng.randint(2, 6))]
            self.fragment(values, indent, target, operands)

    def transfer(self, values: list[Val], indent: str) -> None:
        source = self.rng.choice(values[-6:] if self.chance(0.7) else values)
        result = Val(self.name(), source.tensor, self.rng.choice(MESHES), self.suffix())
        self.used.add(source.name)
        self.lines.append(f"{indent}{result.name} = mpmd.transfer {source.name} : ({source.type}) -> {result.type}")
        values.append(result)

    def fragment(
        self, values: list[Val], indent: str, mesh: str | None = None, operands: list[Val] | None = None
    ) -> None:
        mesh = mesh or self.rng.choice(MESHES)
        here = [v for v in values if v.mesh == mesh]
        if operands is None:
            count = self.rng.randint(0, 5) if here else 0
            operands = [self.rng.choice(here) for _ in range(count)]
        self.used.update(v.name for v in operands)
        args = [Val(self.name(), v.tensor) for v in operands]
        lines, returned = self.body(args, indent + "  ")
        results = [Val("", v.tensor, mesh, self.suffix()) for v in returned]
        base = self.name()
        if len(results) == 1:
            results = [dataclasses.replace(results[0], name=base)]
        else:
            results = [dataclasses.replace(r, name=f"{base}#{i}") for i, r in enumerate(results)]
        left = "" if not results else f"{base}{f':{len(results)}' if len(results) > 1 else ''} = "
        phase = 1 if self.chance(self.shape.backward) else 0
        origins = self.rng.sample(("f", "g", "h"), self.rng.randint(1, 2))
        origin = ", ".join(f'"{o}"' + (f"({phase})" if phase else "") for o in origins)
        extra = {}
        if self.shape.attributes and self.chance(0.3):
            origin, extra = "", {"mpmd.inferred_by": '["p"]'}
        stage = ", stage=0" if self.shape.attributes and origin and self.chance(0.3) else ""
        types = ", ".join(v.type for v in operands)
        out = ", ".join(r.type for r in results)
        self.lines.append(
            f'{indent}{left}mpmd.fragment<mesh="{mesh}", origin=[{origin}]{stage}> '
            f"({', '.join(v.name for v in operands)}) {self.attrs(extra)}"
            f"({', '.join(f'{a.name}: {a.tensor}' for a in args)}) {{"
        )
        self.lines += lines
        self.lines.append(f"{indent}}} : ({types}) -> {out if len(results) == 1 else f'({out})'}")
        values += results

    def call(self, callee: tuple[str, list[Val], list[Val]], values: list[Val], k: int, indent: str) -> None:
        name, args, results = callee
        operands = []
        for i, a in enumerate(args):
            same = [v for v in values if v.type == a.type]
            if indent == "  " and self.chance(self.shape.sinkable):
                same = [self.shared_operand(name, i, a)]
            if not same:
                return
            operands.append(self.rng.choice(same))
        self.used.update(v.name for v in operands)
        base = self.name()
        made = [
            dataclasses.replace(r, name=base if len(results) == 1 else f"{base}#{i}") for i, r in enumerate(results)
        ]
        many = f":{len(results)}" if len(results) > 1 else ""
        out = ", ".join(r.type for r in results)
        self.lines.append(
            f"{indent}{base}{many} = mpmd.call @{name}({', '.join(v.name for v in operands)}) "
            f"{{call_counter = {k} : ui32}} : ({', '.join(a.type for a in args)}) -> ({out})"
        )
        values += made

    def shared_operand(self, callee: str, i: int, like: Val) -> Val:
        found = self.shared.get((callee, i))
        if found is None:
            found = self.shared[callee, i] = dataclasses.replace(like, name=self.name())
            constant = f"stablehlo.constant dense<3.0> : {like.tensor}"
            if not like.mesh:
                self.lines.append(f"  {found.name} = {constant}")
            else:
                inner = self.name()
                self.lines.append(
                    f'  {found.name} = mpmd.fragment<mesh="{like.mesh}", origin=[]> () () {{\n'
                    f"    {inner} = {constant}\n"
                    f"    mpmd.return {inner} : {like.tensor}\n  }} : () -> {like.type}"
                )
        return found

    def loop(self, values: list[Val], indent: str) -> None:
        carried = [self.rng.choice(values) for _ in range(self.rng.randint(1, 3))]
        self.used.update(v.name for v in carried)
        args = [dataclasses.replace(v, name=self.name()) for v in carried]
        n = self.rng.randint(1, 3)
        base = self.name()
        many = f":{len(carried)}" if len(carried) > 1 else ""
        self.lines.append(
            f"{indent}{base}{many} = mpmd.for ({', '.join(v.name for v in carried)}) "
            f"{{iterations = {n} : ui32, unroll_factor = {n} : ui32}} "
            f"({', '.join(f'{a.name}: {a.type}' for a in args)}, {self.name()}: tensor<ui32>) {{"
        )
        inner = list(args)
        outer = len(inner)
        for _ in range(2):
            self.statement(inner, indent + "  ", transfers=False)
        if self.callees and self.chance(0.5):
            self.call(self.rng.choice(self.callees), inner, 7, indent + "  ")
        yielded = []
        for v in carried:
            same = [x for x in inner[outer:] if x.type == v.type] or [x for x in inner if x.type == v.type]
            yielded.append(self.rng.choice(same))
        self.used.update(v.name for v in yielded)
        types = ", ".join(v.type for v in carried)
        self.lines.append(f"{indent}  mpmd.return {', '.join(v.name for v in yielded)} : {types}")
        self.lines.append(f"{indent}}} : {types}")
        values += [
            dataclasses.replace(v, name=base if len(carried) == 1 else f"{base}#{i}") for i, v in enumerate(carried)
        ]

    # Bodies.

    def body(self, args: list[Val], indent: str) -> tuple[list[str], list[Val]]:
        lines: list[str] = []
        values = list(args)

        def pick(tensor: str | None = None) -> Val:
            found = [v for v in values if tensor in (None, v.tensor)]
            if not found:
                new = Val(self.name(), tensor or L)
                number = self.rng.randint(1, 2)
                lines.append(f"{indent}{new.name} = stablehlo.constant dense<{number}.0> : {new.tensor}")
                values.append(new)
                return new
            return self.rng.choice(found[-4:] if self.chance(0.7) else found)

        for _ in range(self.rng.randint(0, self.shape.body_ops)):
            kinds = ["unary", "binary", "binary", "constant", "cast"]
            if self.shape.effects and self.chance(0.2):
                kinds = ["effect"]
            elif self.shape.regions and self.chance(0.2):
                kinds = ["if", "while", "reduce"]
            kind = self.rng.choice(kinds)
            a = pick()
            r = Val(self.name(), a.tensor)
            if kind == "unary":
                op = self.rng.choice(("negate", "abs", "sine"))
                lines.append(f"{indent}{r.name} = stablehlo.{op} {a.name} : {a.tensor}")
            elif kind == "binary":
                b = pick(a.tensor)
                op = self.rng.choice(("add", "multiply", "subtract", "maximum"))
                lines.append(f"{indent}{r.name} = stablehlo.{op} {a.name}, {b.name} : {a.tensor}")
            elif kind == "constant":
                number = self.rng.randint(1, 2)
                lines.append(f"{indent}{r.name} = stablehlo.constant dense<{number}.0> : {a.tensor}")
            elif kind == "cast":
                to = {F: E, E: F, L: H, H: L}[a.tensor]
                r = Val(r.name, to)
                lines.append(f"{indent}{r.name} = stablehlo.reshape {a.name} : ({a.tensor}) -> {to}")
            elif kind == "effect":
                lines.append(
                    f"{indent}{r.name} = stablehlo.custom_call @Sharding({a.name}) "
                    f"{{has_side_effect = true}} : ({a.tensor}) -> {a.tensor}"
                )
            elif kind == "if":
                c, d, p = pick(F), pick(a.tensor), self.name()
                lines.append(f"{indent}{p} = stablehlo.compare LT, {c.name}, {c.name} : ({F}, {F}) -> tensor<i1>")
                n = self.name()
                lines.append(
                    f'{indent}{r.name} = "stablehlo.if"({p}) ({{\n'
                    f"{indent}  {n} = stablehlo.add {a.name}, {d.name} : {a.tensor}\n"
                    f"{indent}  stablehlo.return {n} : {a.tensor}\n{indent}}}, {{\n"
                    f"{indent}  stablehlo.return {d.name} : {a.tensor}\n"
                    f"{indent}}}) : (tensor<i1>) -> {a.tensor}"
                )
            elif kind == "while":
                d, it, c, n = pick(a.tensor), self.name(), self.name(), self.name()
                lines.append(
                    f"{indent}{r.name} = stablehlo.while({it} = {a.name}) : {a.tensor} cond {{\n"
                    f"{indent}  {c} = stablehlo.constant dense<false> : tensor<i1>\n"
                    f"{indent}  stablehlo.return {c} : tensor<i1>\n{indent}}} do {{\n"
                    f"{indent}  {n} = stablehlo.add {it}, {d.name} : {a.tensor}\n"
                    f"{indent}  stablehlo.return {n} : {a.tensor}\n{indent}}}"
                )
            else:
                b, i = pick(L), pick(F)
                r = Val(r.name, F)
                lines.append(
                    f"{indent}{r.name} = stablehlo.reduce({b.name} init: {i.name}) "
                    f"applies stablehlo.add across dimensions = [0] : ({L}, {F}) -> {F}"
                )
            values.append(r)
        text = "\n".join(lines)
        read = re.findall(r"(%\w+)(?![\w:]| = (?!%))", text)
        used = {name for name in read if name in {v.name for v in values}}
        self.inner_used, self.inner_values = used, values
        returned = [self.rng.choice(values) for _ in range(self.rng.randint(0, 3))] if values else []
        if not self.shape.dead:
            returned += [v for v in values if v.name not in used and v not in args]
            returned = returned or values[-1:]
        types = ", ".join(v.tensor for v in returned)
        names = ", ".join(v.name for v in returned)
        lines.append(f"{indent}mpmd.return {names} : {types}" if returned else f"{indent}mpmd.return")
        return lines, returned


def random_program(seed: int, shape: Shape | None = None) -> str:
    """The text of a random module whose entry point is `@main`."""
    return Program(seed, shape or Shape()).text()
