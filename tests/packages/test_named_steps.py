"""Whole models of packages with their own training steps, in which one line names the layers, against `jax.jit`.

Each program gets `name`, a function that names the layers of its model or loss, or leaves it as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import mpmd_trace as mt
from util import filled, normal

WIDTH = 8
KEYS = list(jax.random.split(jax.random.key(0), 4))
X = normal(3, 8, WIDTH)
OPTIMIZER = optax.sgd(1e-2, momentum=0.9)  # Adam would make noise of gradients that are 0, as of biases of keys


class Training(NamedTuple):
    """A step `(state, x) -> (state, loss)`, its first state, its batch, and the mesh of each name."""

    step: Callable[[Any, Any], Any]
    state: Any
    x: Any
    assignment: dict[str, Any]


def train_state(apply: Any, params: Any, loss: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """The step of Flax's examples: a `TrainState` of the model's own `apply`."""
    from flax.training.train_state import TrainState

    def step(state: Any, x: Any) -> Any:
        def of_rows(params: Any, x: Any) -> Any:
            return loss(state.apply_fn({"params": params}, x), x)

        value, gradients = mt.value_and_grad(of_rows, microbatches=2)(state.params, x)
        return state.apply_gradients(grads=gradients), value

    return step, TrainState.create(apply_fn=apply, params=params, tx=OPTIMIZER)


def partitioned(loss: Callable[[Any, Any], Any], model: Any, merge: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The step of Optax's examples, over the arrays of a model."""

    def step(state: Any, x: Any) -> Any:
        params, moments = state
        value, gradients = mt.value_and_grad(lambda p, x: loss(merge(p), x), microbatches=2)(params, x)
        updates, moments = OPTIMIZER.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return step, (model, OPTIMIZER.init(model))


def hugging_face(named: bool) -> Training:
    """Modules as in the Flax models of Hugging Face: layers are called by their numbers, and return tuples."""
    from flax import linen as nn

    from mpmd_trace.linen import name_layers

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, hidden: Any, deterministic: bool = True) -> Any:
            y = nn.SelfAttention(2, name="attention")(nn.LayerNorm()(hidden), deterministic=deterministic)
            return (hidden + nn.Dense(WIDTH, name="output")(nn.gelu(nn.Dense(16, name="intermediate")(y))),)

    class Layers(nn.Module):
        def setup(self) -> None:
            self.layers = [Layer(name=str(i)) for i in range(2)]

        def __call__(self, hidden: Any) -> Any:
            for layer in self.layers:
                hidden = layer(hidden)[0]
            return hidden

    class Encoder(nn.Module):
        def setup(self) -> None:
            self.layer = Layers()

        def __call__(self, hidden: Any) -> Any:
            return self.layer(hidden)

    class Model(nn.Module):
        def setup(self) -> None:
            self.embeddings, self.encoder = nn.Embed(16, WIDTH), Encoder()

        def __call__(self, tokens: Any) -> Any:
            return self.embeddings.attend(self.encoder(self.embeddings(tokens)))

    tokens = jnp.arange(40).reshape(8, 5) * 7 % 16
    model = Model()
    apply = name_layers(model.apply, "encoder.layer.*") if named else model.apply

    def loss(logits: Any, tokens: Any) -> Any:
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]))

    step, state = train_state(apply, filled(model.init, KEYS[1], tokens)["params"], loss)
    return Training(step, state, tokens, {"encoder_layer_0": "m0", "encoder_layer_1": "m1"})


def lora(named: bool, quantized: str | None) -> Training:
    """Adapters of Linen layers by qwix; with weights in four bits, which are frozen."""
    import qwix
    from flax import linen as nn

    from mpmd_trace.linen import name_layers

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for i in range(2):
                x = x + nn.Dense(WIDTH, name=f"block_{i}")(jnp.tanh(x))
            return x

    more = {} if quantized is None else {"weight_qtype": quantized}
    rule = qwix.LoraRule(module_path=".*", rank=2, alpha=2.0, **more)
    model = qwix.apply_lora_to_model(Model(), qwix.LoraProvider([rule]))
    apply = name_layers(model.apply, "block_*") if named else model.apply
    params = model.init(KEYS[0], X)["params"]
    adapters = {block: {k: v for k, v in own.items() if "lora" in k} for block, own in params.items()}
    frozen = {block: {k: v for k, v in own.items() if "lora" not in k} for block, own in params.items()}

    def merge(adapters: Any) -> Any:
        return {block: {**frozen[block], **own} for block, own in adapters.items()}

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((apply({"params": params}, x) - 1) ** 2)

    return Training(*partitioned(loss, adapters, merge), X, {"block_0": "m0", "block_1": "m1"})


def neural_ode(named: bool) -> Training:
    """The model of the first example of diffrax: layers before and behind the solver."""
    import diffrax
    import equinox as eqx

    from mpmd_trace.equinox import name_layers

    class Solve(eqx.Module):
        field: eqx.nn.MLP

        def __call__(self, y: Any) -> Any:
            term = diffrax.ODETerm(lambda t, y, args: self.field(y))
            stepping = diffrax.PIDController(rtol=1e-3, atol=1e-6)
            return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 0.5, 0.1, y, stepsize_controller=stepping).ys[-1]

    class Model(eqx.Module):
        encode: eqx.nn.Linear
        solve: Solve
        decode: eqx.nn.Linear

        def __call__(self, x: Any) -> Any:
            return self.decode(self.solve(jnp.tanh(self.encode(x))))

    model = Model(
        eqx.nn.Linear(WIDTH, 4, key=KEYS[0]),
        Solve(eqx.nn.MLP(4, 4, 8, 1, activation=jnp.tanh, key=KEYS[1])),
        eqx.nn.Linear(4, WIDTH, key=KEYS[2]),
    )
    model = name_layers(model, lambda m: [m.encode, m.solve, m.decode]) if named else model
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(model: Any, x: Any) -> Any:
        return jnp.mean((jax.vmap(model)(x) - x) ** 2)

    step, state = partitioned(loss, arrays, lambda p: eqx.combine(p, rest))
    return Training(step, state, X, {"encode": "m0", "solve": "m0", "decode": "m1"})


def haliax_stack(named: bool) -> Training:
    """Layers in a `Stacked` of haliax, which folds over them with a scan."""
    import equinox as eqx
    import haliax as hax

    d, out = hax.Axis("d", WIDTH), hax.Axis("out", WIDTH)

    class Block(eqx.Module):
        linear: hax.nn.Linear

        @staticmethod
        def init(*, key: Any) -> Block:
            return Block(hax.nn.Linear.init(d, out, key=key))

        def __call__(self, x: Any) -> Any:
            return x + hax.tanh(self.linear(x)).rename({"out": "d"})

    layers = hax.nn.Stacked.init(hax.Axis("layers", 4), Block)(key=jax.random.split(KEYS[0], 4))
    arrays, rest = eqx.partition(layers, eqx.is_inexact_array)

    def loss(model: Any, x: Any) -> Any:
        return hax.mean(model.fold(hax.named(x, ("batch", "d"))) ** 2).scalar()

    loss_of_names = mt.name_scans(loss, "blocks") if named else loss
    step, state = partitioned(loss_of_names, arrays, lambda p: eqx.combine(p, rest))
    return Training(step, state, X, {"blocks": ["m0", "m1"]})


def penzai_model(named: bool) -> Training:
    """Blocks of penzai with named axes and its own parameters."""
    from penzai import pz

    from mpmd_trace.equinox import name_layers

    def block(name: str, key: Any) -> Any:
        linear = pz.nn.Linear.from_config(name, key, {"features": WIDTH}, {"features": WIDTH})
        return pz.nn.Residual(pz.nn.Sequential([linear, pz.nn.Elementwise(jnp.tanh)]))

    model = pz.nn.Sequential([block("a", KEYS[0]), block("b", KEYS[1])])
    model = name_layers(model, lambda m: m.sublayers) if named else model
    unbound, parameters = pz.unbind_params(model)

    def merge(values: Any) -> Any:
        given = zip(parameters, values, strict=True)
        bound = [pz.ParameterValue(value=v, label=p.label, metadata=p.metadata) for p, v in given]
        return pz.bind_variables(unbound, bound)

    def loss(model: Any, x: Any) -> Any:
        return jnp.mean(model(pz.nx.wrap(x).tag("batch", "features")).unwrap("batch", "features") ** 2)

    step, state = partitioned(loss, [p.value for p in parameters], merge)
    return Training(step, state, X, {"sublayers_0": "m0", "sublayers_1": "m1"})


PROGRAMS: dict[str, tuple[str, Callable[[bool], Training]]] = {
    "Linen as in Hugging Face": ("flax", hugging_face),
    "qwix LoRA": ("qwix", lambda named: lora(named, None)),
    "qwix QLoRA": ("qwix", lambda named: lora(named, "int4")),
    "diffrax neural ODE": ("diffrax", neural_ode),
    "haliax Stacked": ("haliax", haliax_stack),
    "penzai": ("penzai", penzai_model),
}


@pytest.mark.filterwarnings("ignore:(?!.*mpmd_trace)")
@pytest.mark.parametrize("program", PROGRAMS)
def test_three_steps(program: str) -> None:
    package, make = PROGRAMS[program]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    try:
        importlib.import_module(package)
    except (AttributeError, ImportError) as error:  # of a release that this JAX is too new for
        pytest.skip(f"{package} cannot be imported with JAX {jax.__version__}: {error}")
    meshes = {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i in range(2)}
    results = []
    for named in (False, True):
        step, state, x, assignment = make(named)
        config = mt.make_config(meshes, assignment, pipeline_schedule="1F1B")
        run = mt.jit(step, config) if named else jax.jit(step)
        values = []
        for _ in range(3):
            state, value = run(state, x)
            values.append(value)
        results.append((jax.tree.leaves(mt.fetch(state) if named else state), values))
        used = {d for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array) for d in leaf.devices()}
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=1e-5)
    assert len(set(map(float, results[1][1]))) == 3, "it is trained"
    assert used == {d for mesh in meshes.values() for d in mesh.devices.flat}, "parameters are on both meshes"
