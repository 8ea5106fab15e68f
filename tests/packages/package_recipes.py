"""Two stages made of a package's own modules, for each of several packages.

A recipe imports its package, and returns for each stage its parameters and a function of these and of the value that
comes in; and the batch.  The steps around them are alike; see `test_packages.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from util import filled, normal

Stage = tuple[Any, Callable[[Any, Any], Any]]
Recipe = Callable[[], tuple[list[Stage], Any]]
RECIPES: dict[str, Recipe] = {}
KEYS = list(jax.random.split(jax.random.key(0), 4))
ROWS, WIDTH = 8, 8


def recipe(package: str) -> Callable[[Recipe], Recipe]:
    def added(fn: Recipe) -> Recipe:
        RECIPES[package] = fn
        return fn

    return added


def batch(*shape: int) -> jax.Array:
    return normal(3, ROWS, *shape)


def equinox(module: Any, call: Callable[[Any, Any], Any] = lambda m, x: jax.vmap(m)(x)) -> Stage:
    """A module of Equinox as a stage."""
    import equinox as eqx

    arrays, rest = eqx.partition(module, eqx.is_inexact_array)
    return arrays, lambda p, x: call(eqx.combine(p, rest), x)


def nnx(module: Any, call: Callable[[Any, Any], Any] = lambda m, x: m(x)) -> Stage:
    """A module of Flax NNX as a stage; what is no parameter is closed over."""
    from flax import nnx

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    return params, lambda p, x: call(nnx.merge(graph, p, rest), x)


def linen(module: Any, x: Any, call: Callable[[Any], Any] = lambda y: y) -> Stage:
    """A module of Flax Linen as a stage, initialized for inputs like `x`."""
    params = filled(module.init, KEYS[0], x)["params"]
    return params, lambda p, x: call(module.apply({"params": p}, x))


def readout(width: int = WIDTH) -> Stage:
    """A linear layer."""
    w = 0.3 * normal(2, width, width)
    return {"w": w}, lambda p, x: jnp.tanh(x @ p["w"])


@recipe("equimo")
def _equimo() -> tuple[list[Stage], Any]:
    from equimo.core.layers.attention import Attention

    def stage(key: Any) -> Stage:
        module = Attention(WIDTH, 2, key=key)
        return equinox(module, lambda m, x: jax.vmap(lambda x: x + m(x, KEYS[0], inference=True))(x))

    return [stage(KEYS[0]), stage(KEYS[1])], batch(5, WIDTH)


@recipe("nano_moe")
def _nano_moe() -> tuple[list[Stage], Any]:
    from nano_moe import NanoMoEConfig, TransformerBlock

    block = TransformerBlock(NanoMoEConfig(n_heads=2, d_model=WIDTH, d_ff=16, block_size=5, dropout_rate=0.0))
    x = batch(5, WIDTH)
    return [linen(block, x, lambda y: y[0]), linen(block, x, lambda y: y[0])], x


@recipe("mamba2_jax")
def _mamba2() -> tuple[list[Stage], Any]:
    from flax import nnx as flax_nnx
    from mamba2_jax import Mamba2Block, Mamba2Config

    config = Mamba2Config(vocab_size=16, hidden_size=WIDTH, state_size=4, head_dim=4, chunk_size=4, num_hidden_layers=2)
    blocks = [Mamba2Block(config, layer_idx=i, rngs=flax_nnx.Rngs(i)) for i in range(2)]
    return [nnx(block, lambda m, x: m(x)[0]) for block in blocks], batch(8, WIDTH)


@recipe("penzai")
def _penzai() -> tuple[list[Stage], Any]:
    from penzai import pz

    def stage(name: str) -> Stage:
        linear = pz.nn.Linear.from_config(name, KEYS[0], {"features": WIDTH}, {"features": WIDTH})
        unbound, params = pz.unbind_params(pz.nn.Sequential([linear, pz.nn.Elementwise(jnp.tanh)]))

        def run(values: Any, x: Any) -> Any:
            given = zip(params, values, strict=True)
            bound = [pz.ParameterValue(value=v, label=p.label, metadata=p.metadata) for p, v in given]
            y = pz.bind_variables(unbound, bound)(pz.nx.wrap(x).tag("batch", "features"))
            return y.unwrap("batch", "features")

        return [p.value for p in params], run

    return [stage("first"), stage("second")], batch(WIDTH)


@recipe("flowjax")
def _flowjax() -> tuple[list[Stage], Any]:
    from flowjax.distributions import Normal
    from flowjax.flows import coupling_flow
    from paramax import unwrap

    def flow(key: Any) -> Any:
        return coupling_flow(key, base_dist=Normal(jnp.zeros(WIDTH)), flow_layers=2, nn_width=8)

    first = equinox(flow(KEYS[0]), lambda m, x: jax.vmap(unwrap(m).bijection.inverse)(x))
    return [first, equinox(flow(KEYS[1]), lambda m, x: -m.log_prob(x))], batch(WIDTH)


@recipe("paramax")
def _paramax() -> tuple[list[Stage], Any]:
    import equinox as eqx
    from paramax import WeightNormalization, non_trainable, unwrap

    def stage(key: Any, frozen: bool) -> Stage:
        layer = eqx.nn.Linear(WIDTH, WIDTH, key=key)
        layer = eqx.tree_at(lambda m: m.weight, layer, replace_fn=WeightNormalization)
        if frozen:
            layer = eqx.tree_at(lambda m: m.bias, layer, replace_fn=non_trainable)
        return equinox(layer, lambda m, x: jnp.tanh(jax.vmap(unwrap(m))(x)))

    return [stage(KEYS[0], True), stage(KEYS[1], False)], batch(WIDTH)


@recipe("transformer_flows")
def _transformer_flows() -> tuple[list[Stage], Any]:
    from transformer_flows import MLP

    def stage(key: Any) -> Stage:
        return equinox(MLP(WIDTH, 2, None, None, key=key), lambda m, x: jax.vmap(lambda x: x + m(x, None))(x))

    return [stage(KEYS[0]), stage(KEYS[1])], batch(WIDTH)


@recipe("diffrax")
def _diffrax() -> tuple[list[Stage], Any]:
    import diffrax
    import equinox as eqx

    def flow(m: Any, x: Any) -> Any:
        def one(y: Any) -> Any:
            term = diffrax.ODETerm(lambda t, y, args: jnp.tanh(m(y)))
            return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y).ys[0]

        return jax.vmap(one)(x)

    fields = [eqx.nn.MLP(WIDTH, WIDTH, 8, 1, key=key) for key in KEYS[:2]]
    return [equinox(field, flow) for field in fields], batch(WIDTH)


@recipe("jraph")
def _jraph() -> tuple[list[Stage], Any]:
    import jraph

    def stage(key: Any) -> Stage:
        def one(w: Any, nodes: Any) -> Any:
            edges = jnp.arange(5)
            graph = jraph.GraphsTuple(
                nodes=nodes,
                edges=None,
                senders=edges,
                receivers=(edges + 1) % 5,
                n_node=jnp.array([5]),
                n_edge=jnp.array([5]),
                globals=None,
            )
            return jraph.GraphConvolution(lambda n: jnp.tanh(n @ w), add_self_edges=True)(graph).nodes

        w = 0.5 * jax.random.normal(key, (WIDTH, WIDTH))
        return {"w": w}, lambda p, x: jax.vmap(lambda x: one(p["w"], x))(x)

    return [stage(KEYS[0]), stage(KEYS[1])], batch(5, WIDTH)


@recipe("jraphx")
def _jraphx() -> tuple[list[Stage], Any]:
    from flax import nnx as flax_nnx
    from jraphx.nn.conv import GCNConv

    nodes = jnp.arange(5)
    edges = jnp.stack([nodes, (nodes + 1) % 5])

    def stage(seed: int) -> Stage:
        conv = GCNConv(WIDTH, WIDTH, rngs=flax_nnx.Rngs(seed))
        return nnx(conv, lambda m, x: jnp.tanh(jnp.stack([m(row, edges) for row in x])))

    return [stage(0), stage(1)], batch(5, WIDTH)


@recipe("qwix")
def _qwix() -> tuple[list[Stage], Any]:
    """QLoRA: weights in four bits are frozen, their adapters are trained."""
    import qwix
    from flax import nnx as flax_nnx

    def stage(seed: int) -> Stage:
        x = batch(WIDTH)
        rule = qwix.LoraRule(module_path=".*", rank=2, alpha=2.0, weight_qtype="int4")
        model = flax_nnx.Sequential(flax_nnx.Linear(WIDTH, WIDTH, rngs=flax_nnx.Rngs(seed)), jnp.tanh)
        model = qwix.apply_lora_to_model(model, qwix.LoraProvider([rule]), x)
        graph, params, rest = flax_nnx.split(model, flax_nnx.LoRAParam, ...)
        return params, lambda p, x: flax_nnx.merge(graph, p, rest)(x)

    return [stage(0), stage(1)], batch(WIDTH)


@recipe("numpyro")
def _numpyro() -> tuple[list[Stage], Any]:
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer.util import log_density

    def model(x: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros((WIDTH, WIDTH)), 1.0).to_event(2))
        numpyro.sample("y", dist.Normal(x @ w, 1.0).to_event(2), obs=jnp.ones((x.shape[0], WIDTH)))

    w = {"w": 0.1 * jnp.ones((WIDTH, WIDTH))}
    return [readout(), (w, lambda p, x: -log_density(model, (x,), {}, p)[0] / x.shape[0])], batch(WIDTH)


@recipe("ott")
def _ott() -> tuple[list[Stage], Any]:
    from ott.tools import sinkhorn_divergence as divergence

    def distance(p: Any, x: Any) -> Any:
        return divergence.sinkdiv(x, p["anchors"], epsilon=1.0)[0]

    return [readout(), ({"anchors": normal(1, 6, WIDTH)}, distance)], batch(WIDTH)


@recipe("jaxopt")
def _jaxopt() -> tuple[list[Stage], Any]:
    import jaxopt

    def objective(w: Any, l2: Any, x: Any) -> Any:
        return jnp.mean((x @ w - 1) ** 2) + jnp.exp(l2) * jnp.sum(w**2)

    def fitted(p: Any, x: Any) -> Any:
        """Ridge regression on features, differentiated implicitly."""
        return x @ jaxopt.GradientDescent(objective, maxiter=20).run(jnp.zeros(WIDTH), p["l2"], x).params

    return [readout(), ({"l2": jnp.zeros(())}, fitted)], batch(WIDTH)


@recipe("haiku")
def _haiku() -> tuple[list[Stage], Any]:
    import haiku as hk

    def stage(key: Any) -> Stage:
        net = hk.without_apply_rng(hk.transform(lambda x: jnp.tanh(hk.Linear(WIDTH)(hk.LayerNorm(-1, True, True)(x)))))
        return filled(net.init, key, batch(WIDTH)), net.apply

    return [stage(KEYS[0]), stage(KEYS[1])], batch(WIDTH)
