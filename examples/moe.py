"""A mixture of experts as a pipeline, with the experts of a stage spread over its devices.

    python examples/moe.py

Each stage is a mesh of two devices, over which the experts of its layer are split: expert parallelism is a matter of
shardings inside of a stage, and the compiler of the stage adds its collectives.  Between stages, only activations move.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt

EXPERTS, WIDTH, HIDDEN = 4, 16, 32
BATCH, MICROBATCHES, STEPS = 16, 4, 2

jax.config.update("jax_num_cpu_devices", 4)

devices = np.array(jax.devices()).reshape(2, 2)
meshes = {"m0": Mesh(devices[0], ("expert",)), "m1": Mesh(devices[1], ("expert",))}
config = mt.make_config(meshes, {"layer0": "m0", "layer1": "m1"}, pipeline_schedule="1F1B")


def layer(params, x):
    """Each row goes to the expert that its router likes best; also how uneven that is, to be kept small."""
    scores = jax.nn.softmax(x @ params["router"])
    chosen = jax.nn.one_hot(jnp.argmax(scores, axis=-1), EXPERTS)
    hidden = jax.nn.gelu(jnp.einsum("be,bw,ewh->ebh", chosen, x, params["up"]))
    y = jnp.einsum("be,ebh,ehw->bw", chosen * scores, hidden, params["down"])
    return x + y, EXPERTS * jnp.sum(jnp.mean(chosen, 0) * jnp.mean(scores, 0))


def init(key, mesh):
    """Weights of a layer, on the devices of its stage: each has half of the experts."""
    k1, k2, k3 = jax.random.split(key, 3)
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("expert",), ()))
    return {
        "router": jax.device_put(jax.random.normal(k1, (WIDTH, EXPERTS)), whole),
        "up": jax.device_put(jax.random.normal(k2, (EXPERTS, WIDTH, HIDDEN)) / WIDTH**0.5, split),
        "down": jax.device_put(jax.random.normal(k3, (EXPERTS, HIDDEN, WIDTH)) / HIDDEN**0.5, split),
    }


def loss(params, x, y):
    balance = 0.0
    for i, weights in enumerate(params):
        x, uneven = mt.named_computation(layer, name=f"layer{i}")(weights, x)
        balance += uneven
    return jnp.mean((x - y) ** 2) + 0.01 * balance


optimizer = optax.adam(1e-2)


def step(params, state, x, y):
    value, grads = mt.value_and_grad(loss, microbatches=MICROBATCHES)(params, x, y)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, value


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    params = [init(k, mesh) for k, mesh in zip(keys, meshes.values(), strict=False)]
    state = optimizer.init(params)
    expected, expected_state = jax.device_get((params, state))
    x, y = (jax.random.normal(k, (BATCH, WIDTH)) for k in keys[2:])
    # Experts are balanced in each microbatch, as is usual, so the loss depends on their number.
    warnings.filterwarnings("ignore", "the loss is not linear")
    train = mt.jit(step, config).lower(params, state, x, y).compile()
    params, state = mt.place(train, params, state)
    plain = jax.jit(step)
    for _ in range(STEPS):
        params, state, value = train(params, state, x, y)
        expected, expected_state, wanted = plain(expected, expected_state, x, y)
        print(f"loss {value:.4f}, with jax.jit {wanted:.4f}")
        np.testing.assert_allclose(value, wanted, rtol=1e-4)

    # A device holds the experts of its stage that are its own, and their moments.
    for i, mesh in enumerate(meshes.values()):
        for part in (params[i], state[0].mu[i], state[0].nu[i]):
            for name in ("up", "down"):
                assert part[name].devices() == set(mesh.devices.flat)
                assert {shard.data.shape[0] for shard in part[name].addressable_shards} == {EXPERTS // 2}
    # And nothing else: what its programs take is that, and the batch.
    for mesh, memory in train.memory_analysis().items():
        shards = [s for array in jax.tree.leaves((params, state)) for s in array.addressable_shards]
        own = sum(s.data.nbytes for s in shards if s.device == meshes[mesh].devices.flat[0])
        assert 0 <= memory.arguments - own <= x.nbytes + y.nbytes  # rows
    for mesh, found in train.collectives().items():
        print(f"collectives of {mesh}: {found}")
    print("transfers and bytes of a step:", train.placement_report().causes)
    times = {cause: number for cause, (number, _) in train.placement_report().causes.items() if cause != "small"}
    assert times == {"activations": MICROBATCHES, "cotangents": MICROBATCHES}


if __name__ == "__main__":
    main()
