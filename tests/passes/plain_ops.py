"""Bodies of fragments, as MLIR text, with each of the plain ops, from templates.

In a template `$t` is the type called t, `%t` a value of that type, and `{s s -> t}` a region with two arguments
of type s that returns a value of type t.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

__all__ = ["ARGUMENTS", "NO_RULE", "TEMPLATES", "TYPES", "instance", "module"]

TYPES = {
    "t": "tensor<4xf32>",
    "s": "tensor<f32>",
    "m": "tensor<4x4xf32>",
    "d": "tensor<1x4x4xf32>",
    "r": "tensor<1x4xf32>",
    "o": "tensor<1xf32>",
    "i": "tensor<4xi32>",
    "n": "tensor<i32>",
    "b": "tensor<i1>",
    "p": "tensor<4xi1>",
    "c": "tensor<4xcomplex<f32>>",
    "u": "tensor<2xui64>",
    "v": "tensor<4xui32>",
    "w": "tensor<1xi64>",
    "g": "tensor<ui32>",
    "x": "tensor<4x1xi32>",
    "k": "!stablehlo.token",
}
ARGUMENTS = "ttsmrinbpcu"

_GATHER = (
    "#stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
    "slice_sizes = array<i64: 1>"
)
_SCATTER = "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
_UNARY = """
    abs cbrt ceil cosine exponential exponential_minus_one floor log log_plus_one logistic negate
    round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh
"""
_CHLO = """
    acos acosh asin asinh atan atanh cosh digamma erf erf_inv erfc lgamma sinh square tan
"""
_BINARY = "add subtract multiply divide maximum minimum power remainder atan2"
_INTEGER = "and or xor shift_left shift_right_arithmetic shift_right_logical"
_CONSTANTS = {
    "t": ["0.0", "1.0", "[1.0, 2.0, 3.0, 4.0]"],
    "s": ["0.0", "1.0"],
    "m": ["0.0"],
    "r": ["1.0"],
    "o": ["1.0", "2.0"],
    "i": ["0", "[0, 1, 2, 3]"],
    "n": ["0", "1"],
    "b": ["true", "false"],
    "p": ["true"],
    "c": ["(1.0, 0.0)"],
    "u": ["1"],
    "w": ["4"],
    "x": ["0"],
}
CONSTANTS = [(f"stablehlo.constant dense<{v}> : ${t}", t) for t, all_of in _CONSTANTS.items() for v in all_of]
_IOTAS = [(f"stablehlo.iota dim = 0 : ${t}", t) for t in "timo"]
#: Ops for which Shardy has no rule, or that are its own.
NO_RULE = [
    *((f"chlo.{name} %t : $t -> $t", "t") for name in _CHLO.split()),
    ("chlo.top_k(%t, k = 4) : $t -> ($t, $i)", "ti"),
    (
        '"chlo.ragged_dot"(%m, %m, %w) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = '
        "[1], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [1]>}> : ($m, $m, $w) -> $d",
        "d",
    ),
    ("stablehlo.custom_call @foo(%t) : ($t) -> $t", "t"),
    ("stablehlo.custom_call @foo(%t) {has_side_effect = true} : ($t) -> $t", "t"),
    (
        'stablehlo.custom_call @mpmd_trace.outlined(%i) {backend_config = "f", mpmd_trace.work = 4 : i64} : ($i) -> $t',
        "t",
    ),
    ("stablehlo.get_dimension_size %t, dim = 0 : ($t) -> $n", "n"),
    ("stablehlo.rng %s, %s, %w, distribution = UNIFORM : ($s, $s, $w) -> $t", "t"),
    ('"stablehlo.map"(%t) <{dimensions = array<i64: 0>}> ({s -> s}) : ($t) -> $t', "t"),
    (
        '"stablehlo.batch_norm_grad"(%m, %t, %t, %t, %m) <{epsilon = 1.0 : f32, feature_index = 1 : i64}> '
        ": ($m, $t, $t, $t, $m) -> ($m, $t, $t)",
        "mtt",
    ),
    (
        '"stablehlo.batch_norm_training"(%m, %t, %t) <{epsilon = 1.0 : f32, feature_index = 1 : i64}> '
        ": ($m, $t, $t) -> ($m, $t, $t)",
        "mtt",
    ),
    ('sdy.sharding_constraint %t <@mesh, [{"x"}]> : $t', "t"),
    ("sdy.sharding_constraint %t <@mesh, [{}]> : $t", "t"),
    ("sdy.propagation_barrier %t allowed_direction = NONE : $t", "t"),
    ("sdy.sharding_group %t group_id = 0 : $t", ""),
]
_WITH_RULE = [
    *CONSTANTS,
    *_IOTAS,
    *((f"stablehlo.{name} %{t} : ${t}", t) for name in _UNARY.split() for t in "ts"),
    *((f"stablehlo.{name} %i : $i", "i") for name in ("not", "count_leading_zeros", "popcnt")),
    *((f"stablehlo.{name} %t, %t : $t", "t") for name in _BINARY.split()),
    *((f"stablehlo.{name} %{t}, %{t} : ${t}", t) for name in ("add", "multiply") for t in "smo"),
    *((f"stablehlo.{name} %i, %i : $i", "i") for name in _INTEGER.split()),
    *((f"stablehlo.{name} %p, %p : $p", "p") for name in ("and", "or", "xor")),
    ("stablehlo.add %n, %n : $n", "n"),
    ("stablehlo.is_finite %t : ($t) -> $p", "p"),
    ("stablehlo.real %c : ($c) -> $t", "t"),
    ("stablehlo.imag %c : ($c) -> $t", "t"),
    ("stablehlo.complex %t, %t : $c", "c"),
    ("stablehlo.compare LT, %t, %t : ($t, $t) -> $p", "p"),
    ("stablehlo.select %p, %t, %t : $p, $t", "t"),
    ("stablehlo.clamp %t, %t, %t : $t", "t"),
    ("stablehlo.convert %i : ($i) -> $t", "t"),
    ("stablehlo.bitcast_convert %t : ($t) -> $i", "i"),
    ("stablehlo.reduce_precision %t, format = e5m2 : $t", "t"),
    ("stablehlo.broadcast_in_dim %s, dims = [] : ($s) -> $t", "t"),
    ("stablehlo.broadcast_in_dim %o, dims = [0] : ($o) -> $t", "t"),
    ("stablehlo.broadcast_in_dim %t, dims = [1] : ($t) -> $m", "m"),
    ("stablehlo.broadcast_in_dim %t, dims = [0] : ($t) -> $t", "t"),
    ("stablehlo.reshape %t : ($t) -> $r", "r"),
    ("stablehlo.reshape %r : ($r) -> $t", "t"),
    ("stablehlo.reshape %s : ($s) -> $o", "o"),
    ("stablehlo.reshape %o : ($o) -> $s", "s"),
    ("stablehlo.transpose %m, dims = [1, 0] : ($m) -> $m", "m"),
    ("stablehlo.transpose %m, dims = [0, 1] : ($m) -> $m", "m"),
    ("stablehlo.slice %m [0:1, 0:4] : ($m) -> $r", "r"),
    ("stablehlo.slice %t [0:4] : ($t) -> $t", "t"),
    ("stablehlo.concatenate %r, %r, %r, %r, dim = 0 : ($r, $r, $r, $r) -> $m", "m"),
    ("stablehlo.concatenate %t, dim = 0 : ($t) -> $t", "t"),
    ("stablehlo.reverse %t, dims = [0] : $t", "t"),
    ("stablehlo.reverse %t, dims = [] : $t", "t"),
    ("stablehlo.pad %t, %s, low = [0], high = [0], interior = [0] : ($t, $s) -> $t", "t"),
    ("stablehlo.dynamic_slice %t, %n, sizes = [4] : ($t, $n) -> $t", "t"),
    ("stablehlo.dynamic_update_slice %t, %t, %n : ($t, $t, $n) -> $t", "t"),
    ("stablehlo.dot_general %m, %t, contracting_dims = [1] x [0] : ($m, $t) -> $t", "t"),
    (f'"stablehlo.gather"(%t, %i) <{{dimension_numbers = {_GATHER}}}> : ($t, $i) -> $t', "t"),
    ("stablehlo.optimization_barrier %t, %s : $t, $s", "ts"),
    ("stablehlo.rng_bit_generator %u, algorithm = THREE_FRY : ($u) -> ($u, $v)", "uv"),
    ("stablehlo.partition_id : $g", "g"),
    ("stablehlo.replica_id : $g", "g"),
    ("stablehlo.create_token : $k", "k"),
    ("stablehlo.after_all %k, %k : $k", "k"),
    ("stablehlo.cholesky %m, lower = true : $m", "m"),
    (
        '"stablehlo.triangular_solve"(%m, %m) <{left_side = true, lower = true, unit_diagonal = false, '
        "transpose_a = #stablehlo<transpose NO_TRANSPOSE>}> : ($m, $m) -> $m",
        "m",
    ),
    ("stablehlo.fft %c, type = FFT, length = [4] : ($c) -> $c", "c"),
    (
        "stablehlo.convolution(%m, %m) dim_numbers = [b, f]x[i, o]->[b, f], window = {} "
        "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : ($m, $m) -> $m",
        "m",
    ),
    (
        '"stablehlo.batch_norm_inference"(%m, %t, %t, %t, %t) <{epsilon = 1.0 : f32, '
        "feature_index = 1 : i64}> : ($m, $t, $t, $t, $t) -> $m",
        "m",
    ),
    ('"stablehlo.reduce"(%t, %s) <{dimensions = array<i64: 0>}> ({s s -> s}) : ($t, $s) -> $s', "s"),
    (
        '"stablehlo.reduce"(%t, %t, %s, %s) <{dimensions = array<i64: 0>}> ({s s s s -> s s}) '
        ": ($t, $t, $s, $s) -> ($s, $s)",
        "ss",
    ),
    ('"stablehlo.reduce_window"(%t, %s) <{window_dimensions = array<i64: 1>}> ({s s -> s}) : ($t, $s) -> $t', "t"),
    (
        '"stablehlo.select_and_scatter"(%t, %t, %s) <{window_dimensions = array<i64: 1>}> '
        "({s s -> b}, {s s -> s}) : ($t, $t, $s) -> $t",
        "t",
    ),
    (
        f'"stablehlo.scatter"(%t, %i, %t) <{{scatter_dimension_numbers = {_SCATTER}}}> ({{s s -> s}}) '
        ": ($t, $i, $t) -> $t",
        "t",
    ),
    ('"stablehlo.sort"(%t, %t) <{dimension = 0 : i64}> ({s s s s -> b}) : ($t, $t) -> ($t, $t)', "tt"),
    ('"stablehlo.while"(%t, %n) ({t n -> b}, {t n -> t n}) : ($t, $n) -> ($t, $n)', "tn"),
    ('"stablehlo.case"(%n) ({ -> t}, { -> t}) : ($n) -> $t', "t"),
]
#: Templates of plain ops, each with the types of its results.
TEMPLATES = [*_WITH_RULE, *NO_RULE]
Scope = dict[str, list[str]]
_REGION = re.compile(r"\{([a-z ]*)-> ([a-z ]+)\}")


class _Builder:
    def __init__(self, rng: random.Random, inside: Sequence[tuple[str, str]]) -> None:
        self.rng, self.inside, self.count = rng, inside, 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def lines(self, scope: Scope, size: int, depth: int) -> list[str]:
        """Up to so many ops, whose results are added to `scope`."""
        lines: list[tuple[str, str]] = []
        for text, results in self.rng.choices(self.inside, k=size):
            filled = None if _REGION.search(text) else self.filled(text, scope, depth)
            if filled is not None:
                self.define((filled, results), scope, lines)
        return [line for line, _ in lines]

    def define(self, op: tuple[str, str], scope: Scope, found: list[tuple[str, str]]) -> None:
        text, results = op
        name = self.name()
        left = f"{name}:{len(results)} = " if len(results) > 1 else f"{name} = " if results else ""
        found.append((f"{left}{text}", results))
        for number, type in enumerate(results):
            scope.setdefault(type, []).append(f"{name}#{number}" if len(results) > 1 else name)

    def filled(self, text: str, scope: Scope, depth: int) -> str | None:
        """The template with values and regions; None if there is no value of a type."""
        if any(letter not in scope for letter in re.findall(r"%([a-z])\b", text)):
            return None
        text = re.sub(r"%([a-z])\b", lambda match: self.pick(scope[match[1]]), text)
        text = re.sub(r"\$([a-z])\b", lambda match: TYPES[match[1]], text)
        while (region := _REGION.search(text)) is not None:
            inside = self.region(region[1].split(), region[2].split(), scope, depth)
            if inside is None:
                return None
            text = text[: region.start()] + inside + text[region.end() :]
        return text

    def pick(self, values: list[str]) -> str:
        return self.rng.choice(values[-5:] if self.rng.random() < 0.6 else values)

    def region(self, arguments: list[str], results: list[str], scope: Scope, depth: int) -> str | None:
        inner = {type: list(values) for type, values in scope.items()}
        names = [(self.name(), type) for type in arguments]
        for name, type in names:
            inner.setdefault(type, []).append(name)
        lines = self.lines(inner, self.rng.randint(0, 4), depth + 1)
        if any(type not in inner for type in results):
            return None
        header = f"^bb0({', '.join(f'{name}: {TYPES[type]}' for name, type in names)}):\n" if names else ""
        values = ", ".join(self.pick(inner[type]) for type in results)
        types = ", ".join(TYPES[type] for type in results)
        body = "".join(f"{line}\n" for line in lines)
        return f"{{\n{header}{body}stablehlo.return {values} : {types}\n}}"


def _arguments() -> Scope:
    scope: Scope = {}
    for number, type in enumerate(ARGUMENTS):
        scope.setdefault(type, []).append(f"%a{number}")
    return scope


def instance(
    text: str, results: str, inside: Sequence[tuple[str, str]] = CONSTANTS
) -> tuple[str, list[tuple[str, str]]]:
    """A body that applies one op to arguments, constants and constant expressions, each result used twice.

    Ops of `inside` are in its regions.
    """
    rng = random.Random(text)
    builder = _Builder(rng, inside)
    constants: Scope = {}
    iotas: Scope = {}
    lines: list[tuple[str, str]] = []
    for template, type in (*CONSTANTS, *CONSTANTS[:1], ("stablehlo.create_token : $k", "k"), *_IOTAS, *_IOTAS[:1]):
        if f"${type}" in text or f"{type} " in text:
            scope = iotas if "iota" in template else constants
            builder.define((builder.filled(template, {}, 2) or "", type), scope, lines)
    returned = []
    arguments = _arguments()
    same = {type: values[:1] for type, values in arguments.items()}
    both = {type: [*arguments.get(type, []), *constants.get(type, [])] for type in TYPES}
    for scope in (arguments, same, constants, {**constants, **iotas}, both):
        filled = builder.filled(text, {**constants, **{t: v for t, v in scope.items() if v}}, 2)
        if filled is None or (text.startswith('"stablehlo.case"') and scope is not arguments):
            continue  # a branch that is known is taken
        found: Scope = {}
        builder.define((filled, results), found, lines)
        for type in found:
            for value in found[type]:
                for argument in ("%a0", "%a1"):
                    user = f"stablehlo.optimization_barrier {value}, {argument} : {TYPES[type]}, {TYPES['t']}"
                    used: Scope = {}
                    builder.define((user, f"{type}t"), used, lines)
                    returned.append((used["t"][-1], TYPES["t"]))
    return "\n".join(line for line, _ in lines), returned or [("%a0", TYPES["t"])]


def module(bodies: Sequence[tuple[str, list[tuple[str, str]]]]) -> str:
    """A program of fragments with these bodies, all on the arguments."""

    def mesh(type: str) -> str:
        return f'!mpmd.mesh_tensor<"m", {type}>'

    types = [TYPES[type] for type in ARGUMENTS]
    inner = ", ".join(f"%a{i}: {type}" for i, type in enumerate(types))
    outer = ", ".join(f"%g{i}" for i in range(len(types)))
    fragments, values, returned = [], [], []
    for number, (lines, results) in enumerate(bodies):
        out = ", ".join(mesh(type) for _, type in results)
        fragments.append(
            f'%f{number}:{len(results)} = mpmd.fragment<mesh="m", origin=["f"]> ({outer}) ({inner}) {{\n{lines}\n'
            f"mpmd.return {', '.join(v for v, _ in results)} : {', '.join(t for _, t in results)}\n"
            f"}} : ({', '.join(map(mesh, types))}) -> ({out})"
        )
        values += [f"%f{number}#{i}" for i in range(len(results))]
        returned += [mesh(type) for _, type in results]
    arguments = ", ".join(f"%g{i}: {mesh(type)}" for i, type in enumerate(types))
    lines = "\n".join(fragments)
    mesh_op = 'sdy.mesh @mesh = <["x"=2]>\n' if "@mesh" in lines else ""
    return (
        f"{mesh_op}func.func public @main({arguments}) -> ({', '.join(returned)}) "
        f'attributes {{topology = #mpmd.topology<<"m" : <["x"=2]>>>}} {{\n'
        f"{lines}\nreturn {', '.join(values)} : {', '.join(returned)}\n}}\n"
    )
