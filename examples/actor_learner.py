"""An actor and a learner on meshes of their own: several programs, one state.

    python examples/actor_learner.py

The learner trains a policy as a pipeline over two meshes; the actor samples from it on a third one.  After each update
`mt.place` moves the parameters from where the learner's program has them to where the actor's wants them: that is all
that goes between the two, and the actor acts while the learner learns.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import mpmd_trace as mt

ARMS, CONTEXT, WIDTH, BATCH, MICROBATCHES, UPDATES = 4, 8, 16, 64, 4, 60

jax.config.update("jax_num_cpu_devices", 3)


# A policy for a bandit whose best arm depends on what it sees.


def layer(w, x):
    return jnp.tanh(x @ w)


def policy(params, seen):
    x = mt.named_computation(layer, name="first")(params["first"], seen)
    return mt.named_computation(jnp.matmul, name="second")(x, params["second"])


def init(key):
    first, second = jax.random.split(key)
    return {
        "first": jax.random.normal(first, (CONTEXT, WIDTH)) / CONTEXT**0.5,
        "second": jax.random.normal(second, (WIDTH, ARMS)) / WIDTH**0.5,
    }


def act(params, key):
    """What a batch of players see, the arms that they choose, and what they get."""
    look, choose = jax.random.split(key)
    seen = jax.random.normal(look, (BATCH, CONTEXT))
    arms = jax.random.categorical(choose, policy(params, seen))
    return seen, arms, (arms == jnp.argmax(seen[:, :ARMS], axis=-1)).astype(jnp.float32)


def loss(params, seen, arms, rewards):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(policy(params, seen)), arms[:, None], axis=-1)[:, 0]
    return -jnp.mean((rewards - 1 / ARMS) * chosen)


optimizer = optax.adam(3e-2)


def learn(params, state, seen, arms, rewards):
    value, grads = mt.value_and_grad(loss, microbatches=MICROBATCHES)(params, seen, arms, rewards)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, value


# Two configurations of the same names.

meshes = {name: Mesh(np.array([device]), ("data",)) for name, device in zip("abc", jax.devices(), strict=True)}
for_learner = mt.make_config(
    {"a": meshes["a"], "b": meshes["b"]}, {"first": "a", "second": "b"}, pipeline_schedule="1F1B"
)
for_actor = mt.make_config({"c": meshes["c"]}, {"first": "c", "second": "c"})


def main():
    params, key = init(jax.random.key(0)), jax.random.key(1)
    state = optimizer.init(params)
    actor = mt.jit(act, for_actor).lower(params, key).compile()
    learner = mt.jit(learn, for_learner).lower(params, state, *jax.eval_shape(act, params, key)).compile()
    expected = params, state

    params, state = mt.place(learner, params, state)
    gained = []
    for update in range(UPDATES):
        (sampling,) = mt.place(actor, params)  # sent over once an update
        played = actor(sampling, jax.random.fold_in(key, update))
        gained.append(played[2])
        params, state, value = learner(*mt.place(learner, params, state, *played))
        if update == 0:
            plain = jax.jit(learn)(*expected, *jax.jit(act)(expected[0], jax.random.fold_in(key, update)))
            for found, wanted in zip(jax.tree.leaves((params, state, value)), jax.tree.leaves(plain), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    print(f"reward {np.mean(gained[0]):.2f} at first, {np.mean(gained[-10:]):.2f} in the end")
    assert np.mean(gained[-10:]) > np.mean(gained[0]) + 0.2

    # Each layer of the learner is on its mesh, with its moments; the actor has all of them on its own.
    for name, mesh in (("first", "a"), ("second", "b")):
        for array in (params[name], state[0].mu[name], state[0].nu[name]):
            assert array.sharding.mesh == meshes[mesh]
        assert sampling[name].sharding.mesh == meshes["c"]
    # And nothing else: what the programs of a mesh take is that, and what was played.
    for mesh, memory in learner.memory_analysis().items():
        shards = [s for x in jax.tree.leaves((params, state)) for s in x.addressable_shards]
        own = sum(s.data.nbytes for s in shards if s.device == meshes[mesh].devices[0])
        assert 0 <= memory.arguments - own <= sum(x.nbytes for x in played)  # the batch
    print("transfers and bytes of an update:", learner.placement_report().causes)
    assert actor.placement_report().sent == ()


if __name__ == "__main__":
    main()
