"""`mpmd_trace.equinox` with real models: jit, placing, creating, saving."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mpmd_trace
from mpmd_trace import MpmdError, enumerated_for
from mpmd_trace.equinox import abstract, create, filter_jit, name_layers, place, restore, save
from pipelines import assert_same, config, meshes_of

VOCABULARY, WIDTH = 8, 4
NAMES = {"embedding": "m0", "blocks_0": "m0", "blocks_1": "m1", "head": "m1"}


class Model(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[eqx.nn.MLP]
    head: eqx.nn.Linear
    scale: float

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.embedding = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.blocks = [eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 1, jax.nn.gelu, key=k) for k in keys[1:3]]
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=keys[3])
        self.scale = 0.5

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of shape (length, 8) for tokens of shape (length,)."""
        x = jax.vmap(self.embedding)(tokens)
        for block in self.blocks:
            x = x + self.scale * jax.vmap(block)(x)
        return jax.vmap(self.head)(x)


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


@eqx.filter_value_and_grad
def loss(model: Model, tokens: jax.Array) -> jax.Array:
    named = name_layers(model, lambda m: [m.embedding, *m.blocks, m.head])
    logits = jax.vmap(named)(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def step(model: Model, state: Any, tokens: jax.Array, rate: str) -> Any:
    def microbatch(i: Any, carry: Any, tokens: jax.Array) -> Any:
        return jax.tree.map(jnp.add, carry, loss(model, tokens))

    zeros = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    value, grads = enumerated_for(microbatch, (jnp.zeros(()), zeros), tokens)
    updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, value, rate.upper()


def init(key: jax.Array) -> tuple[Model, Any]:
    model = Model(key)
    return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))


TOKENS = np.arange(24).reshape(2, 3, 4) % VOCABULARY


@pytest.fixture(scope="module")
def jitted() -> mpmd_trace.stages.Jitted:
    return filter_jit(step, config(NAMES, pipeline_schedule="1F1B"))


@pytest.fixture(scope="module")
def compiled(jitted: mpmd_trace.stages.Jitted) -> mpmd_trace.stages.Compiled:
    return jitted.lower(*init(jax.random.key(0)), TOKENS, "fast").compile()


@pytest.fixture(scope="module")
def expected() -> Any:
    return eqx.filter_jit(step)(*init(jax.random.key(0)), TOKENS, "fast")


def arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


def test_modules_and_static_leaves(compiled: mpmd_trace.stages.Compiled, expected: Any) -> None:
    found = compiled(*init(jax.random.key(0)), TOKENS, "fast")
    assert found[3] == "FAST"
    assert found[0].scale == 0.5 and found[0].blocks[0].activation is expected[0].blocks[0].activation
    assert_same(arrays(found), arrays(expected), rtol=1e-4, atol=1e-5)


def test_what_a_step_returns_is_where_the_next_wants_it(compiled: mpmd_trace.stages.Compiled, expected: Any) -> None:
    model, state, *_ = compiled(*place(compiled, *init(jax.random.key(0))), TOKENS, "fast")
    again = compiled(model, state, TOKENS, "fast")
    wanted = eqx.filter_jit(step)(*expected[:2], TOKENS, "fast")
    assert_same(arrays(again), arrays(wanted), rtol=1e-3, atol=1e-5)


def test_inspection_has_the_structure_of_the_arguments(compiled: mpmd_trace.stages.Compiled) -> None:
    meshes = compiled.function_mesh_assignment.inputs[0][0]
    assert isinstance(meshes, Model) and meshes.scale == 0.5
    assert (meshes.embedding.weight, meshes.head.weight) == ("m0", "m1")
    assert "model.blocks[0].layers[0].weight" in compiled.lowered.traced.in_names


def test_placing(compiled: mpmd_trace.stages.Compiled) -> None:
    model, state = place(compiled, *init(jax.random.key(0)))
    meshes = dict(compiled.lowered.config.topology)
    assert meshes_of(model.blocks[0].layers[0].weight, meshes) == "m0"
    assert meshes_of(model.blocks[1].layers[0].weight, meshes) == "m1"
    moments = state[1][0].mu
    assert meshes_of(moments.head.weight, meshes) == "m1"
    with pytest.raises(MpmdError, match="this is not the structure that step was compiled for"):
        place(compiled, state)
    wrong = eqx.tree_at(lambda m: m.head.bias, Model(jax.random.key(0)), jnp.zeros(3))
    with pytest.raises(MpmdError, match=r"head.bias is float32\[3\], and step was compiled for float32\[8\]"):
        place(compiled, wrong)


def test_creating(compiled: mpmd_trace.stages.Compiled) -> None:
    both = create(init, compiled, jax.random.key(0), argnums=(0, 1))
    assert_same(arrays(both[0]), arrays(Model(jax.random.key(0))))
    wanted = eqx.filter(abstract(compiled, (0, 1)), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    for made, spec in zip(jax.tree.leaves(arrays(both)), jax.tree.leaves(wanted), strict=True):
        assert made.sharding.is_equivalent_to(spec.sharding, made.ndim)
    compiled(*both, TOKENS, "fast")
    with pytest.raises(MpmdError, match="this is not the structure"):
        create(lambda key: {"a": jnp.zeros(3)}, compiled, jax.random.key(0))


def test_saving_and_restoring(compiled: mpmd_trace.stages.Compiled, tmp_path: Path) -> None:
    both = create(init, compiled, jax.random.key(1), argnums=(0, 1))
    save(tmp_path / "a", both)
    with pytest.raises(MpmdError, match="exists; save to another folder, or with overwrite=True"):
        save(tmp_path / "a", both)
    restored = restore(tmp_path / "a", compiled, argnums=(0, 1))
    assert_same(arrays(restored), arrays(both))
    for a, b in zip(jax.tree.leaves(arrays(restored)), jax.tree.leaves(arrays(both)), strict=True):
        assert a.sharding == b.sharding
    compiled(*restored, TOKENS, "fast")
    elsewhere = restore(tmp_path / "a", init(jax.random.key(0)))
    assert elsewhere[0].scale == 0.5
    assert_same(arrays(elsewhere), arrays(both))
    with pytest.raises(MpmdError, match=r"has the arrays that are wanted below 0"):
        restore(tmp_path / "a", compiled)
    with pytest.raises(MpmdError, match="there is no folder"):
        restore(tmp_path / "b", compiled)


def test_another_number_than_that_compiled_for() -> None:
    step = filter_jit(lambda x, n: mpmd_trace.named_computation(jnp.sin, name="layer")(x) * n, config({"layer": "m0"}))
    hint = r"argument 1: the static value 2, not the static value 3\n.*are passed as arrays: jnp\.asarray\(number\)"
    with pytest.raises(MpmdError, match=hint):
        step.lower(jnp.ones(3), 2).compile()(jnp.ones(3), 3)
    compiled = step.lower(jnp.ones(3), jnp.asarray(2)).compile()
    assert_same(compiled(jnp.ones(3), jnp.asarray(3)), 3 * jnp.sin(jnp.ones(3)))
    with pytest.raises(MpmdError, match="argument 1: an array, not a static value"):
        compiled(jnp.ones(3), 3)


def test_saving_keys_small_types_and_overwriting(tmp_path: Path) -> None:
    tree = {"key": jax.random.key(7), "half": jnp.ones(3, jnp.bfloat16), "count": jnp.int32(3), "name": "kept"}
    save(tmp_path / "a", {"half": tree["half"]})
    save(tmp_path / "a", tree, overwrite=True)
    found = restore(tmp_path / "a", tree)
    shapes = jax.tree.map(
        lambda x: x if isinstance(x, str) else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
    )
    from_shapes = restore(tmp_path / "a", shapes)
    assert found.pop("name") == from_shapes.pop("name") == tree.pop("name")
    assert_same(found, tree)
    assert_same(from_shapes, tree)
    with pytest.raises(MpmdError, match=r"is stored as bfloat16\[3\], and float32\[3\] is wanted"):
        restore(tmp_path / "a", {**tree, "half": jnp.ones(3)})
    with pytest.raises(MpmdError, match="there is no array to save"):
        save(tmp_path / "c", {"a": 1})


def test_the_module_imports_without_orbax() -> None:
    code = (
        "import sys; sys.modules['orbax'] = None; sys.modules['orbax.checkpoint'] = None\n"
        "import mpmd_trace\n"
        "try: mpmd_trace.equinox.save('x', {})\n"
        "except mpmd_trace.MpmdError as e: print(e)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "need orbax; install it with" in found.stdout


def test_retraces_for_static_leaves(jitted: mpmd_trace.stages.Jitted) -> None:
    traces = []

    def scaled(model: Any, x: jax.Array, how: Any) -> Any:
        traces.append(how)
        return jax.vmap(model)(x) * how

    layer = eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0))
    ours = filter_jit(scaled, config({}, meshes=1))
    x = jnp.ones((2, WIDTH))
    for how in (2, 2, 2.0, np.float32(2), np.float32(3)):
        assert jnp.allclose(ours(layer, x, how), jax.vmap(layer)(x) * how)
    assert len(traces) == 3, "2 and 2.0 are two programs, NumPy numbers are data"
    with pytest.raises(MpmdError, match=r"of type set is neither an array nor hashable"):
        ours(layer, x, {1, 2})


def test_a_module_as_the_function() -> None:
    model = Model(jax.random.key(0))
    named = name_layers(model, lambda m: [m.embedding, *m.blocks, m.head])
    ours = filter_jit(named, config(NAMES))
    assert_same(ours(jnp.arange(5)), eqx.filter_jit(model)(jnp.arange(5)))
    method = filter_jit(named.__call__, config(NAMES), donate_argnums=())
    assert_same(method(jnp.arange(5)), eqx.filter_jit(model)(jnp.arange(5)))


def test_the_names_are_public_and_need_no_equinox(tmp_path: Path) -> None:
    for name in ("filter_jit", "place", "create", "abstract", "save", "restore"):
        assert getattr(mpmd_trace, name) is getattr(mpmd_trace.equinox, name) and name in mpmd_trace.__all__

    def plain(state: Any, x: jax.Array) -> Any:
        first = mpmd_trace.named_computation(lambda w, x: x @ w, name="f0")(state["w"][0], x)
        return mpmd_trace.named_computation(lambda w, x: x @ w, name="f1")(state["w"][1], first)

    state = {"w": [jnp.full((WIDTH, WIDTH), 0.5), jnp.eye(WIDTH)]}
    x = jnp.ones((2, WIDTH))
    compiled = mpmd_trace.jit(plain, config()).lower(state, x).compile()
    meshes = dict(compiled.lowered.config.topology)
    [placed] = mpmd_trace.place(compiled, state)
    made = mpmd_trace.create(lambda: {"w": [jnp.full((WIDTH, WIDTH), 0.5), jnp.eye(WIDTH)]}, compiled)
    mpmd_trace.save(tmp_path / "state", placed)
    for found in (placed, made, mpmd_trace.restore(tmp_path / "state", compiled)):
        assert meshes_of(found, meshes) == {"w": ["m0", "m1"]}
        assert_same(compiled(found, x), plain(state, x))
    assert mpmd_trace.abstract(compiled)["w"][0].shape == (WIDTH, WIDTH)


class Regularized(eqx.Module):
    """Its only leaves that are no arrays are numbers."""

    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        return self.dropout(jax.vmap(self.linear)(x), key=key)


def descend(model: list[Regularized], x: jax.Array, key: jax.Array) -> Any:
    @eqx.filter_value_and_grad
    def loss(model: list[Regularized]) -> jax.Array:
        y = x
        for i, layer in enumerate(model):
            y = layer(y, jax.random.fold_in(key, i))
        return jnp.mean(y**2)

    value, grads = loss(model)
    return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), value


def regularized() -> tuple[Any, ...]:
    layers = [Regularized(eqx.nn.Linear(4, 4, key=jax.random.key(i)), eqx.nn.Dropout(0.5)) for i in range(2)]
    return name_layers(layers, lambda m: m, name=["one", "two"]), jnp.ones((2, 4)), jax.random.key(2)


def test_a_program_of_a_model_with_numbers_filters() -> None:
    program = mpmd_trace.Program(descend, regularized(), config({"one": "m0", "two": "m1"}))
    assert program.filters
    assert_same(program.arrays(program.jitted()(*program.args)), program.arrays(program.plain()(*program.args)))
    numbers = mpmd_trace.Program(lambda rate, x: rate * x, (0.5, jnp.ones(3)), config({}))
    assert not numbers.filters, "numbers outside of modules are arguments"


def test_jit_of_a_model_with_numbers_says_what_takes_it() -> None:
    text = r"model\[0\].dropout.p, model\[0\].dropout.inference, .* and 1 more\).* Use mpmd_trace.filter_jit"
    with pytest.raises(MpmdError, match=text):
        mpmd_trace.jit(descend, config({"one": "m0", "two": "m1"}))(*regularized())
