"""What XLA is asked for by name on GPUs and TPUs is what `jax.jit` asks for, after all passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from platform_ops import entries, named_ops, programs, without_kernels

import mpmd_trace
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.mlir import run_pipeline
from mpmd_trace.passes import outlining
from mpmd_trace.passes.manager import PassRun
from pipelines import assert_same, config, summed_gradients, topology
from util import nightly, normal

SIZE = 32
Layer = Callable[[jax.Array, jax.Array], jax.Array]


def kernel(x: Any, out: Any) -> None:
    out[...] = jnp.sin(x[...])


@jax.custom_vjp
def sine(x: jax.Array) -> jax.Array:
    found: jax.Array = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    return found


sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))


def dropout(key: Callable[[], jax.Array], rounds: int = 1) -> Layer:
    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        for i in range(rounds):
            x = jnp.where(jax.random.bernoulli(jax.random.fold_in(key(), i), 0.5, x.shape), x @ w, 0)
        return x

    return run


def split(w: jax.Array, x: jax.Array) -> jax.Array:
    first, second = jax.random.split(jax.random.key(3))
    return dropout(lambda: first)(w, x) + dropout(lambda: second)(w, x) + jax.random.normal(second, x.shape)


def attention(w: jax.Array, x: jax.Array) -> jax.Array:
    q = (x @ w).astype(jnp.bfloat16).reshape(1, SIZE, 1, SIZE)
    found = jax.nn.dot_product_attention(q, q, q, is_causal=True, implementation="cudnn")
    return found.reshape(x.shape).astype(jnp.float32)


def experts(w: jax.Array, x: jax.Array) -> jax.Array:
    sizes = jnp.array([8, 24], jnp.int32)
    return jax.lax.ragged_dot(jax.nn.gelu(x @ w, approximate=False), jnp.stack([w, 2 * w]), sizes)


def eighth(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float8_e4m3fn).astype(jnp.bfloat16)


def nibbles(w: jax.Array, x: jax.Array) -> jax.Array:
    return x @ jax.lax.stop_gradient(w.astype(jnp.int4).astype(jnp.float32)) + x @ w


def offloaded(w: jax.Array, x: jax.Array) -> jax.Array:
    there = jax.device_put(jax.lax.stop_gradient(jnp.sin(w)), jax.memory.Space.Host)
    return x @ jax.device_put(there, jax.memory.Space.Device) + x @ w


def collective(mesh: Mesh) -> Layer:
    rows = PartitionSpec("x")

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        def each(w: jax.Array, x: jax.Array) -> jax.Array:
            mean = jax.lax.pmean(x, "x")
            moved = jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])
            return (x + mean + moved) @ jax.lax.all_gather(w, "x", tiled=True)

        return jax.shard_map(each, mesh=mesh, in_specs=(rows, rows), out_specs=rows)(w, x)

    return run


LAYERS: dict[str, Layer] = {
    "fixed key": dropout(lambda: jax.random.key(3), 2),
    "split key": split,
    "rbg key": dropout(lambda: jax.random.key(3, impl="rbg"), 2),
    "unsafe rbg key": dropout(lambda: jax.random.key(3, impl="unsafe_rbg")),
    "ragged_dot": experts,
    "top_k": lambda w, x: jax.lax.top_k(x @ w, SIZE)[0],
    "special functions": lambda w, x: jax.lax.lgamma(1 + (x @ w) ** 2) + jax.lax.asinh(x),
    "qr": lambda w, x: x @ jnp.linalg.qr(w)[0],
    "eigh": lambda w, x: x @ jnp.linalg.eigh(w + w.T)[1] ** 2,
    "svd": lambda w, x: x * jnp.linalg.svd(w, compute_uv=False)[0],
    "cholesky": lambda w, x: x @ jnp.linalg.cholesky(w @ w.T + jnp.eye(SIZE)),
    "solve": lambda w, x: jnp.linalg.solve(w @ w.T + jnp.eye(SIZE), x),
    "fft": lambda w, x: jnp.real(jnp.fft.fft(x @ w)),
    "pallas": lambda w, x: sine(x @ w),
    "fp8": lambda w, x: (eighth(x) @ eighth(w)).astype(jnp.float32),
    "int4": nibbles,
    "host": offloaded,
    "collectives": collective(topology()["m0"]),
}


def step_of(layer: Layer) -> Callable[..., Any]:
    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        x = mpmd_trace.named_computation(layer, name="f0")(ws[0], x)
        return jnp.sum(mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name="f1")(ws[1], x) ** 2)

    def step(ws: list[jax.Array], xs: jax.Array) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, summed_gradients(loss, ws, xs))

    return step


def arguments(microbatches: int = 3) -> tuple[list[jax.Array], jax.Array]:
    return [0.1 * normal(i, SIZE, SIZE) for i in range(2)], normal(2, microbatches, SIZE, SIZE)


def check(layer: Layer, platform: str) -> mpmd_trace.stages.Lowered:
    """The programs of all meshes have the ops of the plain step, as often: microbatches share their programs."""
    step = step_of(layer)
    try:
        plain = jax.jit(step).trace(*arguments()).lower(lowering_platforms=(platform,)).as_text()
    except RuntimeError as error:
        if "No supported GPU devices" in str(error):
            pytest.skip("JAX lowers kernels for GPUs only where it knows which")
        raise
    lowered = mpmd_trace.jit(step, config(pipeline_schedule="1F1B")).trace(*arguments())
    found = lowered.lower(lowering_platforms=(platform,))
    module = found.partitioned.module
    assert str(parse(found.as_text())) == found.as_text()
    made = named_ops(module, programs(module))
    traced = parse(found.as_text("stablehlo"))
    assert made == named_ops(traced, entries(traced))
    assert without_kernels(made) == without_kernels(named_ops(parse(plain), ["main"]))
    return found


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        pytest.param(name, platform, marks=[] if number % 2 == (platform == "tpu") else [pytest.mark.nightly])
        for number, name in enumerate(LAYERS)
        for platform in ("cuda", "tpu")
    ],
)
def test_ops_of_the_platform(name: str, platform: str) -> None:
    check(LAYERS[name], platform)


def test_attention_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its custom calls want layouts and alias nothing; the version of cuDNN is asked of the hardware."""
    module = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(module, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(module, "check_compute_capability", lambda *_: True)
    text = check(attention, "cuda").as_text()
    assert (
        text.count("custom_call @__cudnn$fmhaSoftmax(") == text.count("custom_call @__cudnn$fmhaSoftmaxBackward(") == 1
    )


@pytest.mark.parametrize("name", [nightly("fixed key"), "split key"])
def test_random_numbers_stay_functions(name: str) -> None:
    """Of some hundred ops each, which passes do not see; their numbers are those of `jax.jit`."""
    step = step_of(LAYERS[name])
    jitted = mpmd_trace.jit(step, config(pipeline_schedule="1F1B"))
    seen: list[str] = []

    def look(run: PassRun, module: Any) -> None:
        if run.changed:
            seen.append(str(module))

    args = arguments(2)
    traced = jitted.trace(*args)
    lowered = traced.lower(lowering_platforms=("cuda",), hooks=[look])
    assert all("custom_call @mpmd_trace.outlined" in text and "func.func private @" in text for text in seen[1:-1])
    for text in seen[:: len(seen) // 3]:
        assert str(parse(text)) == text
    without = traced.lower(lowering_platforms=("cuda",)).as_text()
    for text in (lowered.as_text(), without):
        assert "mpmd_trace" not in text
        assert text.count("stablehlo.xor") <= lowered.as_text("stablehlo").count("stablehlo.xor")
    expected = jax.jit(step)(*args)
    assert_same(jitted(*args), expected)
    assert_same(jitted.lower(*args, hooks=[look]).compile()(*args), expected)


def test_each_device_makes_its_own_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they stay functions, of which Shardy knows nothing: the work is what it is without."""
    rows = NamedSharding(topology()["m0"], PartitionSpec(None, "x"))
    jitted = mpmd_trace.jit(step_of(split), config(pipeline_schedule="1F1B"), in_shardings=(None, rows))
    ws, xs = arguments(2)
    wide = jnp.tile(xs, (1, 8, 1))
    found = jitted.lower(ws, wide).compile().cost_analysis()["programs"]
    monkeypatch.setattr(outlining, "_LARGE", 10**9)
    inlined = jitted.lower(ws, wide).compile().cost_analysis()["programs"]
    assert {k: v.get("flops") for k, v in found.items()} == {k: v.get("flops") for k, v in inlined.items()}


def test_a_key_among_the_arguments_and_a_counter() -> None:
    def loss(ws: list[jax.Array], x: jax.Array, key: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            x = mpmd_trace.named_computation(lambda w, x, key: dropout(lambda: key, 2)(w, x), name=f"f{i}")(w, x, key)
            key = jax.random.fold_in(key, i)
        return jnp.sum(x**2)

    def step(ws: list[jax.Array], xs: jax.Array, key: jax.Array, count: jax.Array) -> Any:
        def one(i: Any, grads: Any, x: jax.Array) -> Any:
            own = jax.random.fold_in(jax.random.fold_in(key, count), i)
            return jax.tree.map(jnp.add, grads, jax.grad(loss)(ws, x, own))

        noise = jax.random.uniform(jax.random.key(count))
        return mpmd_trace.enumerated_for(one, jax.tree.map(jnp.zeros_like, ws), xs), count + 1, noise

    args = (*arguments(), jax.random.key(7), jnp.int32(5))
    jitted = mpmd_trace.jit(step, config(pipeline_schedule="1F1B"))
    lowered = jitted.trace(*args).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    run_pipeline(parse(text).to_generic(), "builtin.module()")  # it verifies
    assert "sharding_constraint" not in text
    assert_same(jitted(*args), jax.jit(step)(*args), rtol=2e-4, atol=1e-4)
