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
from jax.experimental import checkify
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace as mt
from mpmd_trace.report.planning import check_plannable, study
from mpmd_trace.report.timeline import FragmentActions

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


def safetensors(**options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for more in ({}, options):
            mt.checkpoint.save_safetensors(folder, {"w": X}, **more)


def number_restored(**options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mt.save(f"{folder}/saved", {"n": 2**40, "w": X})
        mt.restore(f"{folder}/saved", {"n": jnp.zeros((), jnp.int32), "w": X}, **options)


def damaged(**options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mt.save(f"{folder}/saved", {"w": X})
        file = Path(folder, "saved", "_sharding")
        file.write_text(file.read_text() + " ")
        mt.restore(f"{folder}/saved", {"w": X}, **options)


def with_key(impl: str) -> Any:
    step = mt.jit(lambda x, key: x + jax.random.normal(key, x.shape), mt.make_config(meshes(), {}))
    return step.lower(X, jax.random.key(0)).compile()(X, jax.random.key(0, impl=impl))


def on_axes(kind: AxisType) -> Any:
    own = {f"m{i}": Mesh(np.array(jax.devices()[2 * i : 2 * i + 2]), ("x",), axis_types=(kind,)) for i in range(2)}
    x, w = (jax.device_put(jnp.eye(4), NamedSharding(own["m0"], spec)) for spec in (P(None, "x"), P("x")))
    return mt.jit(jnp.dot, mt.make_config(own, {})).lower(x, w)


def planned(assigned: dict[str, str], args: Any = (WEIGHTS, X), fn: Any = None) -> Any:
    actions = FragmentActions()
    apart = {"mpmd_merge_forward_with_backward": False}
    lowered = mt.jit(fn or training(2), mt.make_config(meshes(), assigned, partitioning_options=apart)).lower(
        *args, hooks=[actions]
    )
    check_plannable(lowered)
    return study(lowered.compile(), actions)


def host_arrays(place: bool) -> None:
    large = np.ones((1024, 1024), np.float32)
    step = mt.jit(lambda w: w + 1, mt.make_config(meshes(), {})).lower(large).compile()
    args = step.place(large)[0] if place else (large,)
    for _ in range(3):
        step(*args)


def printing(ordered: bool) -> Any:
    def body(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda x: None, x, ordered=ordered)
        return x

    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    everywhere = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return mt.jit(everywhere, mt.make_config({"m0": mesh}, {})).lower(X)


def checked(x: jax.Array) -> jax.Array:
    checkify.check(jnp.sum(x) > 0, "a sum")
    return x * 2


def throw(result: Any) -> None:
    result[0].throw()


def remat(**options: Any) -> Any:
    return mt.jit(training(2), config(remat="auto", **options)).lower(WEIGHTS, X).compile()


def donating(**options: Any) -> Any:
    return mt.filter_jit(loss, config(), **options)


SPLIT = {"f0": "m0", "f1": "m1"}
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
    "; restore(..., cast=True) converts it": (number_restored, [lambda: number_restored(cast=True)]),
    "; save to another folder, or with overwrite=True": (safetensors, [lambda: safetensors(overwrite=True)]),
    "is damaged: the file": (damaged, [lambda: damaged(verify=False)]),
    "make it with jax.random.key(seed, impl=": (lambda: with_key("rbg"), [lambda: with_key("threefry2x32")]),
    "axis_types=(jax.sharding.AxisType.Auto,)": (lambda: on_axes(AxisType.Explicit), [lambda: on_axes(AxisType.Auto)]),
    "so there is nothing to divide into stages": (lambda: planned({}, (X,), jnp.sum), [lambda: planned(SPLIT)]),
    "there is nothing to schedule: the program": (lambda: planned(SPLIT, fn=loss), [lambda: planned(SPLIT)]),
    "the program has one stage": (lambda: planned({"f0": "m0"}, (WEIGHTS[:1], X)), [lambda: planned(SPLIT)]),
    "come again in every call": (lambda: host_arrays(False), [lambda: host_arrays(True)]),
    "ordered callbacks occur inside": (lambda: printing(True), [lambda: printing(False)]),
    "checkify.check raises nothing": (
        lambda: mt.jit(checked, mt.make_config(meshes(), {}))(X),
        [lambda: throw(mt.jit(checkify.checkify(checked), mt.make_config(meshes(), {}))(X))],
    ),
    "because the devices do not say how much memory": (remat, [lambda: remat(device_memory=10**9)]),
    "says which arguments are donated": (
        lambda: donating(donate="all", donate_argnums=0),
        [lambda: donating(donate="all"), lambda: donating(donate_argnums=0)],
    ),
}
#: Messages with suggestions that other tests try, as (piece of the message, file, test).
ELSEWHERE = [
    ("is followed exactly here", "api/test_way_out.py", "test_messages_name_a_schedule_that_is_followed"),
    ("is not a dataclass itself", "cli/test_plugins.py", "test_plugins_that_are_wrong"),
    ("write mesh_name=", "passes/common/test_rule_based_merge.py", "test_target_on_another_mesh"),
]
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
#: Pieces of messages with suggestions that nothing here tries, and why not.
NEEDS_MORE = {
    "give the meshes to run on as topology=": "a saved program on fewer devices",
    "engine='python'": "said by the C++ partitioner alone, which not every jaxlib has",
    "engine='cpp' needs": "it tells to install another jaxlib",
    "which want engine=": "said by the C++ partitioner alone, which not every jaxlib has",
    "stays on the devices of that mesh": "memory of the host is memory of the device on CPUs",
    "without a pipeline_schedule the microbatches run one after the other": "a line of the log, told once in a process",
    "Leave initialize(transfers=": "several processes",
    "Transform the part by itself": "a transformed function of Haiku",
    "Name layers from outside": "a module of Linen",
    "mpmd_trace.fetch(x), called in all processes": "several processes",
    "and metric.compute() outside": "a model of NNX with metrics",
    "has the rules and the data flow alone": "a text of MLIR with rules",
    "has no mesh yet": "a command line on a file",
    "as one program, so the cost of its parts is unknown": "a command line on a schedule with paired actions",
}


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
