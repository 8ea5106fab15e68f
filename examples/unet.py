"""A U-Net as a pipeline: skip connections from the way down to the way up.

    python examples/unet.py

Three stages on two meshes: the outer level, down and up, is on `m0`, and the inner level between them on `m1`.  What
the first stage gives to the last one, the skip, therefore never leaves `m0`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import mpmd_trace as mt

WIDTH, IMAGE = 8, 8
BATCH, MICROBATCHES, STEPS = 8, 4, 2

jax.config.update("jax_num_cpu_devices", 2)


def convolution(w, x):
    """3 by 3 pixels; `x` is `(batch, height, width, channels)`."""
    return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))


def down(weights, x):
    skip = convolution(weights, x)
    batch, height, width, channels = skip.shape
    return skip, skip.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def up(weights, skip, x):
    x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
    return jnp.concatenate([skip, x], axis=-1) @ weights


def loss(params, noisy, clean):
    """The network takes the noise out of images."""
    skip, x = mt.named_computation(down, name="down")(params["down"], noisy)
    x = mt.named_computation(convolution, name="inner")(params["inner"], x)
    return jnp.mean((mt.named_computation(up, name="up")(params["up"], skip, x) - clean) ** 2)


def init(key):
    shapes = {"down": (3, 3, 1, WIDTH), "inner": (3, 3, WIDTH, 2 * WIDTH), "up": (3 * WIDTH, 1)}
    keys = jax.random.split(key, len(shapes))
    return {name: 0.2 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


optimizer = optax.adam(1e-2)


def step(params, state, noisy, clean):
    value, grads = mt.value_and_grad(loss, microbatches=MICROBATCHES)(params, noisy, clean)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, value


meshes = {name: Mesh(np.array([d]), ("data",)) for name, d in zip(("m0", "m1"), jax.devices(), strict=True)}
config = mt.make_config(meshes, {"down": ("m0", 0), "inner": ("m1", 1), "up": ("m0", 2)}, pipeline_schedule="GPipe")


def main():
    keys = jax.random.split(jax.random.key(0), 2)
    clean = jnp.broadcast_to(jnp.linspace(0, 1, IMAGE)[:, None, None], (BATCH, IMAGE, IMAGE, 1))
    noisy = clean + 0.1 * jax.random.normal(keys[1], clean.shape)
    params = expected = init(keys[0])
    state = expected_state = optimizer.init(params)
    lowered = mt.jit(step, config).lower(params, state, noisy, clean)
    train = lowered.compile()
    params, state = mt.place(train, params, state)
    plain = jax.jit(step)
    for _ in range(STEPS):
        params, state, value = train(params, state, noisy, clean)
        expected, expected_state, wanted = plain(expected, expected_state, noisy, clean)
        print(f"loss {value:.4f}, with jax.jit {wanted:.4f}")
        np.testing.assert_allclose(value, wanted, rtol=1e-4)

    for name, mesh in (("down", "m0"), ("inner", "m1"), ("up", "m0")):
        for part in (params, state[0].mu, state[0].nu):
            assert part[name].devices() == set(meshes[mesh].devices.flat)
    # And nothing else: what the programs of a mesh take is that, and the batch.
    for mesh, memory in train.memory_analysis().items():
        shards = [s for x in jax.tree.leaves((params, state)) for s in x.addressable_shards]
        own = sum(s.data.nbytes for s in shards if s.device == meshes[mesh].devices[0])
        assert 0 <= memory.arguments - own <= noisy.nbytes + clean.nbytes  # images
    # Each microbatch goes to the inner level and comes back, and so do its gradients.  (What runs sends all at once: so
    # small a step is compiled to few programs.)
    causes = lowered.placement_report().causes
    print("transfers and bytes of a step:", causes)
    times = {cause: number for cause, (number, _) in causes.items() if cause != "small"}
    assert times == {"activations": 2 * MICROBATCHES, "cotangents": 2 * MICROBATCHES}
    smaller = noisy.nbytes // 4 * WIDTH  # a quarter of the pixels
    assert causes["activations"][1] == causes["cotangents"][1] == smaller + 2 * smaller


if __name__ == "__main__":
    main()
