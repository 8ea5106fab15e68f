"""What messages tell users to write is tried: the message is provoked, and what it says makes it go away."""

from __future__ import annotations

import ast
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import mpmd_trace as mt

SOURCES = Path(mt.__file__).parent
#: Code in a message: a call with arguments, or an argument with a value.
CODE = re.compile(r"mpmd_trace\.\w[\w.]*\([^)]|\b\w+\([^() ]*=|\b[a-z_]+=(?:[A-Z\"'{\[(0-9]|\.\.\.)")
WEIGHTS = [jnp.eye(4), jnp.eye(4)]
X = jnp.ones((6, 4))


def meshes(axes: tuple[str, str] = ("x", "x")) -> dict[str, Mesh]:
    return {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), (axis,)) for i, axis in enumerate(axes)}


def config(**options: Any) -> Any:
    return mt.make_config(meshes(), {"f0": "m0", "f1": "m1"}, **options)


def forward(ws: Any, x: Any) -> jax.Array:
    for i, w in enumerate(ws):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"f{i}")(w, x)
    return x


def loss(ws: Any, x: Any) -> jax.Array:
    return jnp.mean(forward(ws, x) ** 2)


def lower(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    lowered = mt.jit(fn, config(**options)).lower(*args)
    return lowered.partitioned


def training(microbatches: int) -> Callable[..., Any]:
    return lambda ws, x: mt.value_and_grad(loss, microbatches=microbatches)(ws, x)


def totals(ws: Any, x: Any, weights: Any) -> Any:
    return jnp.sum(jnp.mean(forward(ws, x) ** 2, 1) * weights), jnp.sum(weights)


def masked(reduce: Any) -> Any:
    """A mean over the rows that count."""

    def of_rows(ws: Any, x: Any) -> Any:
        total, weight = totals(ws, x, x[:, 0] > 0)
        return (total, weight) if reduce == "weighted" else total / weight

    return lower(lambda ws, x: mt.value_and_grad(of_rows, microbatches=2, reduce=reduce)(ws, x), WEIGHTS, X)


def padded() -> Any:
    rows, weights = mt.pad_rows(X, 4)
    got = mt.value_and_grad(totals, microbatches=4, reduce="weighted")(WEIGHTS, rows, weights)
    np.testing.assert_allclose(got[0], loss(WEIGHTS, X), rtol=1e-5)


def with_rows(aux: Any) -> Any:
    return mt.value_and_grad(lambda ws, x: (loss(ws, x), x[:, 0]), microbatches=2, has_aux=True, aux=aux)(WEIGHTS, X)


def with_scalar(aux: Any) -> Any:
    return mt.value_and_grad(lambda ws, x: (loss(ws, x), x[0, 0]), microbatches=2, has_aux=True, aux=aux)(WEIGHTS, X)


def in_calls(ws: Any, x: Any, run: Callable[[int], Any]) -> Any:
    parts = [run(i)(ws, x[3 * i : 3 * i + 3]) for i in range(2)]
    return jax.tree.map(jnp.add, *parts)


class Scaled(eqx.Module):
    """A module with a number that is no array."""

    w: jax.Array
    scale: float

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.w * (1.0 if self.scale > 1 else 0.5)


def unlike(axes: tuple[str, str], heterogeneous: bool | None) -> Any:
    options = {} if heterogeneous is None else {"enable_heterogeneous_meshes": heterogeneous}
    return mt.make_config(meshes(axes), {}, partitioning_options=options)


def automatic(fn: Callable[..., Any], count: int = 2) -> Any:
    own = dict(list(meshes().items())[:count])
    return mt.jit(fn, mt.make_config(own, "auto")).lower(WEIGHTS, X)


def saved_twice(**options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for more in ({}, options):
            mt.save(f"{folder}/saved", {"w": X}, **more)


def restored(**options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mt.save(f"{folder}/saved", {"there": X})
        mt.restore(f"{folder}/saved", {"w": X.astype(jnp.bfloat16)}, names={"w": "there"}, **options)


Trial = tuple[Callable[[], Any], list[Callable[[], Any]]]
#: For a piece of a message what provokes it, and what does everything that the message says.
TRIALS: dict[str, Trial] = {
    "cuts one mesh into those of the pipeline": (
        lambda: config(stage_axis="x"),
        [config, lambda: mt.make_config(meshes()["m0"], stage_axis="x")],
    ),
    "or leave out enable_heterogeneous_meshes=False": (
        lambda: unlike(("x", "y"), False),
        [lambda: unlike(("x", "y"), None), lambda: unlike(("x", "x"), False)],
    ),
    "the batch cannot be cut into": (
        lambda: mt.value_and_grad(loss, microbatches=4)(WEIGHTS, X),
        [lambda: mt.value_and_grad(loss, microbatches=3)(WEIGHTS, X), padded],
    ),
    "return the sum and the count with reduce=": (lambda: masked("mean"), [lambda: masked("weighted")]),
    "gives the rows of the whole batch": (
        lambda: with_rows(None),
        [lambda: with_rows("concatenate"), lambda: with_rows("mean")],
    ),
    "cannot join along its first axis": (lambda: with_scalar("concatenate"), [lambda: with_scalar("stack")]),
    "aux says what becomes of auxiliary results": (
        lambda: mt.value_and_grad(loss, microbatches=2, aux="mean"),
        [lambda: with_scalar("mean")],
    ),
    "can only be unrolled fully": (
        lambda: mt.fori_loop(3, lambda i, x: x + i, 0, unroll=2),
        [lambda n=n: mt.fori_loop(3, lambda i, x: x + i, 0, unroll=n) for n in (None, True, 3)],
    ),
    "has one microbatch to order": (
        lambda: lower(training(1), WEIGHTS, X, pipeline_schedule="1F1B"),
        [lambda: lower(training(2), WEIGHTS, X, pipeline_schedule="1F1B")],
    ),
    "orders microbatches, but nothing says": (
        lambda: lower(lambda ws, x: in_calls(ws, x, lambda i: jax.grad(loss)), WEIGHTS, X, pipeline_schedule="1F1B"),
        [
            lambda: lower(
                lambda ws, x: in_calls(ws, x, lambda i: mt.call(jax.grad(loss), i)),
                WEIGHTS,
                X,
                pipeline_schedule="1F1B",
            ),
            lambda: lower(lambda ws, x: in_calls(ws, x, lambda i: jax.grad(loss)), WEIGHTS, X),
        ],
    ),
    "orders microbatches, but the step has none": (
        lambda: lower(jax.grad(loss), WEIGHTS, X, pipeline_schedule="1F1B"),
        [lambda: lower(training(2), WEIGHTS, X, pipeline_schedule="1F1B"), lambda: lower(jax.grad(loss), WEIGHTS, X)],
    ),
    "Use mpmd_trace.filter_jit": (
        lambda: mt.jit(lambda m, x: m(x), mt.make_config(meshes(), {})).lower(Scaled(jnp.eye(4), 2.0), X),
        [lambda: mt.filter_jit(lambda m, x: m(x), mt.make_config(meshes(), {})).lower(Scaled(jnp.eye(4), 2.0), X)],
    ),
    "Make the argument static": (
        lambda: mt.jit(lambda ws, x, kind: loss(ws, x), config()).lower(WEIGHTS, X, "mean"),
        [lambda: mt.jit(lambda ws, x, kind: loss(ws, x), config(), static_argnums=2).lower(WEIGHTS, X, "mean")],
    ),
    "mpmd_merge_backward_with_forward both merge": (
        lambda: config(overlap="auto", partitioning_options={"mpmd_merge_backward_with_forward": True}),
        [
            lambda: config(overlap="auto"),
            lambda: config(partitioning_options={"mpmd_merge_backward_with_forward": True}),
        ],
    ),
    "mpmd_fragment_remat both recompute": (
        lambda: config(remat="auto", partitioning_options={"mpmd_fragment_remat": True}),
        [lambda: config(remat="auto"), lambda: config(partitioning_options={"mpmd_fragment_remat": True})],
    ),
    "and each mesh needs one. Name its layers": (
        lambda: automatic(lambda ws, x: jnp.mean((x @ ws[0]) ** 2)),
        [lambda: automatic(loss), lambda: automatic(lambda ws, x: forward(ws[:1], x), 1)],
    ),
    "exists; save to another folder": (saved_twice, [lambda: saved_twice(overwrite=True)]),
    "is wanted; restore(..., cast=True) converts it": (restored, [lambda: restored(cast=True)]),
}
#: Messages with suggestions that other tests try, as (piece of the message, file, test).
ELSEWHERE = [("is followed exactly here", "api/test_way_out.py", "test_messages_name_a_schedule_that_is_followed")]
#: Pieces of messages that quote code of the user or of a format, and suggest none.
NO_SUGGESTION = [
    "merge={} is not the first and the last",
    "transpose={} does not list",
    "config.with_options(name=value)",
    "This is a bug in mpmd_trace",
    "module {",
    "canonicalize{",
    "inline{default-pipeline",
    "merge rules: ",
    "rules contain no blanks",
    "Comma separated rules",
    "runs twice on mesh",
    "origins=[{}]",
    "does not fit it",
    "finds no schedule for these stages",
]
#: Pieces of messages with suggestions that nothing here tries: most need several processes, GPUs, the C++ partitioner,
#: frames of other libraries, a log line, or text of MLIR.
NEEDS_MORE = [
    "make it with jax.random.key(seed, impl=",
    "is damaged: the file",
    "says which arguments are donated",
    "give the meshes to run on as topology=",
    "because the devices do not say how much memory they have",
    "engine='python'",
    "engine='cpp' needs",
    "which want engine=",
    "stays on the devices of that mesh",
    "without a pipeline_schedule the microbatches run one after the other",
    "or with overwrite=True",
    "which is no {}; restore(..., cast=True)",
    "come again in every call",
    "Leave initialize(transfers=",
    "checkify.check raises nothing",
    "axis_types=",
    "ordered callbacks occur inside",
    "Transform the part by itself",
    "Name layers from outside",
    "mpmd_trace.fetch(x), called in all processes",
    "and metric.compute() outside",
    "write mesh_name=",
    "has the rules and the data flow alone",
    "is not a dataclass itself",
    "has no mesh yet",
    "there is nothing to divide into stages",
    "there is nothing to schedule",
    "the program has one stage",
    "as one program, so the cost of its parts is unknown",
]


def said(run: Callable[[], Any]) -> str:
    """The message of an error, or all warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run()
        except mt.MpmdError as error:
            return str(error)
    return "\n".join(str(one.message) for one in caught if issubclass(one.category, mt.MpmdWarning))


@pytest.mark.parametrize("piece", TRIALS)
def test_what_a_message_says_makes_it_go_away(piece: str) -> None:
    provoke, ways = TRIALS[piece]
    assert piece in said(provoke)
    for way in ways:
        assert not said(way)


def text_of(node: ast.expr) -> str:
    """The text of a literal, with {} for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in values)
    return ""


def messages_with_code() -> dict[str, str]:
    """Each literal in the sources that is a sentence with code in it, and its file."""
    result: dict[str, str] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        other = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}  # docstrings
        other |= {id(v) for n in nodes if isinstance(n, ast.JoinedStr) for v in n.values}
        for node in nodes:
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in other:
                text = text_of(node)
                if len(text) > 40 and " " in text and text[0] != "<" and CODE.search(text):  # no HTML
                    result[text] = str(path.relative_to(SOURCES))
    return result


def test_every_message_with_code_is_tried_or_said_not_to_be() -> None:
    texts = messages_with_code()
    tried = [*TRIALS, *(piece for piece, _, _ in ELSEWHERE)]
    for piece, file, name in ELSEWHERE:
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(), piece
    unknown = {t: f for t, f in texts.items() if not any(p in t for p in (*tried, *NO_SUGGESTION, *NEEDS_MORE))}
    assert not unknown, "try what these messages say in TRIALS"
    gone = [p for p in (*NO_SUGGESTION, *NEEDS_MORE) if not any(p in t for t in texts)]
    assert not gone, "no message has these pieces any more"
