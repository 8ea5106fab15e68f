"""Programs that `test_suggestions.py` writes as messages say, and as they say not to."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.experimental import checkify
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace as mt
import mpmd_trace.linen
import mpmd_trace.nnx
from mpmd_trace import rules
from mpmd_trace.api import partitioned
from mpmd_trace.report.plan_costs import check_plannable, study
from mpmd_trace.report.timeline import FragmentActions, actions_by_place
from mpmd_trace_cli.entry import main
from mpmd_trace_cli.explain import explain_value

SPLIT = {"f0": "m0", "f1": "m1"}
MERGING = ("mpmd_merge_forward_with_backward", "mpmd_merge_backward_with_forward")
NEIGHBORS = [rules.merge_neighbours(lambda a, b: False)]
WEIGHTS = [jnp.eye(4), jnp.eye(4)]
X = jnp.ones((6, 4))


def meshes(axes: tuple[str, str] = ("x", "x"), first: int = 0) -> dict[str, Mesh]:
    devices = jax.devices()[first:]
    return {f"m{i}": Mesh(np.array(devices[i : i + 1]), (axis,)) for i, axis in enumerate(axes)}


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


def drawing(key: Any, **options: Any) -> Any:
    def noisy(weights: Any, x: Any, key: Any) -> Any:
        return loss(weights, x) + jnp.mean(jax.vmap(jax.random.normal)(jnp.atleast_1d(key)))

    return mt.value_and_grad(noisy, microbatches=2, **options)(WEIGHTS, X, key)


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
    compiled = lowered.compile()
    return study(compiled.lowered, compiled.program, actions)


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


def engine(name: str, **options: Any) -> Any:
    """Partition, as far as an engine gets without the C++ partitioner."""
    try:
        return mt.jit(training(2), config(**options), engine=name).lower(WEIGHTS, X).partitioned
    except mt.MpmdError as error:
        if "engine='cpp' needs the partitioner inside jaxlib" not in str(error):
            raise


def loaded(**options: Any) -> Any:
    """A program that was saved where there were more devices."""
    with tempfile.TemporaryDirectory() as folder:
        mt.jit(training(2), config()).lower(WEIGHTS, X).compile().save(f"{folder}/step.mpmd")
        with mock.patch.object(jax, "devices", return_value=jax.devices()[2:]):
            return mt.load(f"{folder}/step.mpmd", **options)(WEIGHTS, X)


FIRST = mt.make_config(meshes(), {"f0": "m0"})


def linen(kind: str) -> Any:
    """A part of a Linen module, named inside of it, from outside, or as a scan."""

    class Body(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4, name="layer")(x), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            if kind == "scan":
                layers = nn.scan(Body, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
                return layers(name="layers")(x)[0]
            body = Body(name="body")
            return (mt.named_computation(body, name="f0") if kind == "inside" else body)(x)[0]

    model = Model()
    variables = model.init(jax.random.key(0), X)
    apply = model.apply
    if kind == "outside":
        apply = mpmd_trace.linen.name_layers(model.apply, "body", name="f0")
    elif kind == "scan":
        apply = mt.name_scans(model.apply, "f0")
    return mt.jit(lambda v, x: jnp.sum(apply(v, x)), FIRST).lower(variables, X).partitioned


def haiku(kind: str) -> Any:
    """The same with Haiku."""
    hk = pytest.importorskip("haiku")
    init, apply = hk.transform(lambda x: hk.Linear(4)(x))

    def model(x: Any) -> Any:
        if kind == "scan":
            return hk.layer_stack(2)(hk.Linear(4))(x)
        return mt.named_computation(lambda x: hk.Linear(4)(x), name="f0")(x)

    key = jax.random.key(0)
    if kind == "outside":
        named = mt.named_computation(apply, name="f0")
        return mt.jit(lambda p, x: jnp.sum(named(p, key, x)), FIRST).lower(init(key, X), X).partitioned
    outer = hk.transform(mt.name_scans(model, "f0") if kind == "scan" else model)
    return mt.jit(lambda p, x: jnp.sum(outer.apply(p, key, x)), FIRST).lower(outer.init(key, X), X).partitioned


def metric(named: bool) -> Any:
    """Two numbers of a metric, of which each mesh computes one."""

    class Both(nnx.Metric):
        def __init__(self) -> None:
            self.first = nnx.metrics.MetricState(jnp.zeros(()))
            self.second = nnx.metrics.MetricState(jnp.zeros(()))

        def reset(self) -> None: ...

        def update(self, *, first: Any, second: Any) -> None:
            self.first[...], self.second[...] = (
                (self.first[...] + first, self.second[...] + second)
                if named
                else (
                    mt.named_computation(jnp.add, name="f0")(self.first[...], first),
                    mt.named_computation(jnp.add, name="f1")(self.second[...], second),
                )
            )

        def compute(self) -> Any:
            return self.first[...] + self.second[...]

    def step(metrics: Both, ws: Any, x: Any) -> None:
        first = mt.named_computation(lambda w, x: jnp.sum(x @ w), name="f0")(ws[0], x)
        second = mt.named_computation(lambda w, x: jnp.sum(x @ w), name="f1")(ws[1], x)
        update = mpmd_trace.nnx.named_computation(metrics.update, name="metrics") if named else metrics.update
        update(first=first, second=second)

    metrics = Both()
    own = mt.make_config(meshes(), {**SPLIT, "metrics": "m1"})
    mpmd_trace.nnx.jit(step, own)(metrics, WEIGHTS, X)
    return float(metrics.compute()) if named else None


def backward_first(**options: Any) -> Any:
    """A rule that 1F1B contradicts: a later forward before an earlier backward."""

    def later(fragments: Any) -> Any:
        own = fragments.where(mesh="m1")
        return rules.order(own.one(kind="F", microbatch=2), own.one(kind="B", microbatch=0))

    return lower(training(3), WEIGHTS, X, fragment_schedule_rules=later, **options)


def waiting(**options: Any) -> Any:
    """What the log says, as a warning."""
    with mock.patch.object(partitioned, "tell_once", lambda text: warnings.warn(text, mt.MpmdWarning, stacklevel=2)):
        return lower(training(2), WEIGHTS, X, **options)


def hosted(**options: Any) -> Any:
    def step(ws: Any, x: Any) -> Any:
        h = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name="f0")(ws[0], x)
        h = mt.named_tensor(h, name="kept")
        return mt.named_computation(lambda w, h: jnp.sum(h @ w), name="f1")(ws[1], h)

    assigned = {"f0": "m0", "f1": "m0", **options.pop("more", {})}
    return mt.jit(step, mt.make_config(meshes(), assigned, **options)).lower(WEIGHTS, X).partitioned


def explained(passes: list[str]) -> Any:
    """What the command line says of a computation in a text."""
    text = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32>
        attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
      %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
        mpmd.return %x : tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "in.mlir")
        file.write_text(text)
        if passes:
            file.write_text(optimized(str(file), *passes))
        return explain_value(str(file), "input 0", infer_transfers=False)


def optimized(*arguments: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as stop:
        main(["opt", *arguments])
    assert not stop.value.code
    return out.getvalue()


def priced(**options: Any) -> Any:
    """The cost of each action of a step."""
    actions = FragmentActions()
    lowered = mt.jit(training(3), config(pipeline_schedule="1F1B", **options)).lower(WEIGHTS, X, hooks=[actions])
    return actions_by_place(lowered.compile().program.plan, actions)
