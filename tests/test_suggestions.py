"""What messages tell users to write is tried: the message is provoked, and what it says makes it go away."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify
from jax.sharding import AxisType

import mpmd_trace as mt
from suggested_programs import (
    MERGING,
    NEIGHBORS,
    SPLIT,
    WEIGHTS,
    Scaled,
    X,
    automatic,
    backward_first,
    checked,
    config,
    damaged,
    donating,
    drawing,
    engine,
    explained,
    forward,
    haiku,
    host_arrays,
    hosted,
    in_calls,
    linen,
    loaded,
    loss,
    lower,
    masked,
    meshes,
    metric,
    number_restored,
    on_axes,
    padded,
    planned,
    priced,
    printing,
    remat,
    restored,
    safetensors,
    saved_twice,
    throw,
    training,
    unlike,
    waiting,
    with_key,
    with_rows,
    with_scalar,
)

SOURCES = Path(mt.__file__).parent
#: Code in a message: a call with arguments, or an argument with a value.
CODE = re.compile(r"mpmd_trace\.\w[\w.]*\([^)]|\b\w+\([^() ]*=|\b[a-z_]+=(?:[A-Z\"'{\[(0-9]|\.\.\.)")
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
    "a PRNG key, which is not cut": (
        lambda: drawing(jax.random.key(0)),
        [
            lambda: drawing(jax.random.key(0), key_argnum=2),
            lambda: drawing(jax.random.split(jax.random.key(0), len(X))),
        ],
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
    "give the meshes to run on as topology=": (loaded, [lambda: loaded(topology=meshes(first=2))]),
    "Name layers from outside": (lambda: linen("inside"), [lambda: linen("outside"), lambda: linen("scan")]),
    "Transform the part by itself": (lambda: haiku("inside"), [lambda: haiku("outside"), lambda: haiku("scan")]),
    "and metric.compute() outside": (lambda: metric(False), [lambda: metric(True)]),
    "has the rules and the data flow alone": (
        lambda: backward_first(pipeline_schedule="1F1B"),
        [lambda: backward_first(pipeline_schedule="none"), lambda: lower(training(3), WEIGHTS, X)],
    ),
    "one works at a time": (
        waiting,
        [lambda: waiting(pipeline_schedule="1F1B"), lambda: waiting(pipeline_schedule="auto")],
    ),
    "stays on the devices of that mesh": (
        lambda: hosted(more={"kept": "m0#pinned_host"}),
        [lambda: hosted(offload="auto", device_memory=10**6)],
    ),
    "has no mesh yet": (
        lambda: explained([]),
        [lambda: explained(["-mpmd-map-named-ops-to-mpmd-ops=assignment=f@m", "-mpmd-introduce-transfers"])],
    ),
    "as one program, so the cost of its parts is unknown": (
        lambda: priced(partitioning_options={MERGING[0]: True}),
        [lambda: priced(partitioning_options=dict.fromkeys(MERGING, False))],
    ),
    "has no merge_neighbours; use": (
        lambda: engine("cpp", fragment_merge_rules=NEIGHBORS),
        [lambda: engine("python", fragment_merge_rules=NEIGHBORS), lambda: engine("cpp")],
    ),
    '"vision": "GPipe", ("m0", "m1"): "1F1B"': (
        lambda: config(pipeline_schedule={0: "GPipe"}),
        [lambda: config(pipeline_schedule={"m0": "GPipe", ("m1",): "1F1B"})],
    ),
    "which want engine=": (
        lambda: engine("cpp", optimizer_sharding="x"),
        [lambda: engine("python", optimizer_sharding="x")],
    ),
    "results on the mesh of an argument (MeshOfInput); use": (
        lambda: engine("cpp", output_mesh_assignment=(None, mt.MeshOfInput(0))),
        [lambda: engine("python", output_mesh_assignment=(None, mt.MeshOfInput(0))), lambda: engine("cpp")],
    ),
    "knows the reference's schedules only": (
        lambda: engine("cpp", pipeline_schedule="zb-auto"),
        [lambda: engine("python", pipeline_schedule="zb-auto"), lambda: engine("cpp", pipeline_schedule="GPipe")],
    ),
    "the C++ partitioner has no option": (
        lambda: engine("cpp", partitioning_options={MERGING[0]: True}),
        [lambda: engine("python", partitioning_options={MERGING[0]: True}), lambda: engine("cpp")],
    ),
}
#: Messages with suggestions that other tests try, as (piece of the message, file, test).
ELSEWHERE = [
    (
        "pass like=x instead of (x,)",
        "api/test_foreign_checkpoints.py",
        "test_the_model_of_a_checkpoint_that_has_the_optimizer_too",
    ),
    ("To divide a jax.lax.scan in it", "api/test_name_scans.py", "test_a_named_scan_that_is_to_be_divided"),
    ("would be followed exactly", "api/test_way_out.py", "test_messages_name_a_schedule_that_is_followed"),
    ("is not a dataclass itself", "cli/test_plugins.py", "test_plugins_that_are_wrong"),
    (
        "mpmd_trace.fetch(x), called in all processes",
        "processes/together.py",
        "values_of_other_processes_say_how_to_get_them",
    ),
    (
        "Leave initialize(transfers=",
        "backend/test_distributions.py",
        "test_what_does_not_fit_goes_through_host_memory_with_the_reason",
    ),
    ("leaves it there", "api/test_foreign_checkpoints.py", "test_the_model_of_a_checkpoint_that_has_the_optimizer_too"),
    ("them once and pass what", "api/test_values.py", "test_large_arrays_of_other_programs_are_warned_of_once"),
    ("write mesh_name=", "passes/cases/common/rule_based_merge.mlir", "A target on another mesh"),
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
NEEDS_MORE = {"engine='cpp' needs": "it tells to install another jaxlib"}


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
        title = f"// ----- {name}\n" if file.endswith(".mlir") else f"def {name}("
        assert title in (Path(__file__).parent / file).read_text(), piece
    unknown = {t: f for t, f in texts.items() if not any(p in t for p in (*tried, *NO_SUGGESTION, *NEEDS_MORE))}
    assert not unknown, "try what these messages say in TRIALS"
    gone = [p for p in (*NO_SUGGESTION, *NEEDS_MORE) if not any(p in t for t in texts)]
    assert not gone, "no message has these pieces any more"
