"""A vision transformer in Flax Linen, on one mesh that is cut into stages; the layers are assigned by their work.

    python examples/vit.py

The model and its `TrainState` are those of any Linen tutorial.  One axis of the mesh, `pp`, is for the pipeline; over
the other one, `data`, the images are split inside of each stage.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh

import mpmd_trace as mt
from mpmd_trace.linen import name_layers

LAYERS, WIDTH, HEADS, PATCH, IMAGE, CLASSES = 2, 16, 2, 4, 8, 10
BATCH, MICROBATCHES, STEPS = 16, 2, 2

jax.config.update("jax_num_cpu_devices", 4)


class Patches(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Conv(WIDTH, (PATCH, PATCH), strides=PATCH)(images)
        x = x.reshape(len(x), -1, WIDTH)
        return x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:])


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x))
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))


class Head(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.LayerNorm()(x).mean(axis=1))


class ViT(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = Patches(name="patches")(images)
        for i in range(LAYERS):
            x = Block(name=f"block_{i}")(x)
        return Head(name="head")(x)


def step(state, images, labels):
    def loss(params, images, labels):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = mt.value_and_grad(loss, microbatches=MICROBATCHES)(state.params, images, labels)
    return state.apply_gradients(grads=grads), value


mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("pp", "data"))
config = mt.make_config(mesh, "auto", stage_axis="pp", pipeline_schedule="1F1B")


def main():
    model = ViT()
    images = jax.random.normal(jax.random.key(0), (BATCH, IMAGE, IMAGE, 3))
    labels = jnp.arange(BATCH) % CLASSES
    params = model.init(jax.random.key(1), images)["params"]
    apply = name_layers(model.apply, ["patches", "block_*", "head"])
    tx = optax.adam(1e-3)
    state = TrainState.create(apply_fn=apply, params=params, tx=tx)
    expected = TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    train = mt.jit(step, config).lower(state, images, labels).compile()
    (state,) = mt.place(train, state)
    plain = jax.jit(step)
    for _ in range(STEPS):
        (state, value), (expected, wanted) = train(state, images, labels), plain(expected, images, labels)
        print(f"loss {value:.4f}, with jax.jit {wanted:.4f}")
        np.testing.assert_allclose(value, wanted, rtol=1e-4)

    # Half of the blocks are on either stage, with the moments of their parameters.
    for i in range(LAYERS):
        for part in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
            for array in jax.tree.leaves(part[f"block_{i}"]):
                assert array.devices() == set(mesh.devices[2 * i // LAYERS])
    # And nothing else: what the programs of a stage take on each of its devices is that, and the batch.
    for stage, memory in train.memory_analysis().items():
        shards = [s for x in jax.tree.leaves(state) for s in x.addressable_shards]
        own = sum(s.data.nbytes for s in shards if s.device == config.topology[stage].devices[0])
        assert 0 <= memory.arguments - own <= images.nbytes + labels.nbytes  # images and labels
    report = train.placement_report()
    for one in report.meshes:
        print(f"{one.mesh} holds {one.parameters} bytes of parameters and {one.state} of optimizer state")
    print("transfers and bytes of a step:", report.causes)
    times = {cause: number for cause, (number, _) in report.causes.items() if cause != "small"}
    assert times == {"activations": MICROBATCHES, "cotangents": MICROBATCHES}


if __name__ == "__main__":
    main()
