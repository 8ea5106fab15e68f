"""Programs with one mistake each, in an Equinox model: what the command line says about them is tested."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import enumerated_for
from mpmd_trace.equinox import name_layers

MICROBATCHES, ROWS, WIDTH = 2, 8, 4
HALVES = {"layers_0": "a", "layers_1": "b", "layers_2": "b"}


def model() -> Any:
    return eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 2, key=jax.random.key(0))


def program(names: Any = None, microbatches: int = MICROBATCHES, **settings: Any) -> mpmd_trace.Program:
    parameters, static = eqx.partition(model(), eqx.is_array)

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        named = name_layers(eqx.combine(parameters, static), lambda m: m.layers)
        return jnp.mean(jax.vmap(named)(x) ** 2)

    def step(parameters: Any, x: jax.Array) -> Any:
        def body(i: Any, total: Any, x: jax.Array) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(parameters, x))

        parts = x.reshape(microbatches, -1, WIDTH)  # the batch must divide
        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters))
        value, grads = enumerated_for(body, zero, parts)
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, grads), value

    devices = np.array(settings.pop("devices", None) or jax.devices()[:4])
    donated = settings.pop("donate_argnums", ())
    options = {"mpmd_infer_transfers": True, **settings.pop("partitioning_options", {})}
    config = mpmd_trace.make_config(
        {"a": Mesh(devices[:2], ("x",)), "b": Mesh(devices[2:], ("x",))},
        names or HALVES,
        partitioning_options=options,
        **settings,
    )
    x = jnp.ones((ROWS, WIDTH))
    return mpmd_trace.Program(
        step,
        (parameters, x),
        config,
        steps=2,
        loss=lambda result: result[1],
        advance=lambda i, args, result: (result[0], args[1]),
        donate_argnums=donated,
    )


def changed(**fields: Any) -> mpmd_trace.Program:
    return dataclasses.replace(program(), **fields)


def unknown_mesh() -> Any:
    return program({**HALVES, "layers_1": "c"})


def unknown_name() -> Any:
    return program({"layers_0": "a", "layer_1": "b", "layers_2": "b"})


def no_transfers() -> Any:
    return program(partitioning_options={"mpmd_infer_transfers": False}, placement="reference")


def cycle() -> Any:
    return program({"layers_0": ("a", 0), "layers_1": ("b", 1), "layers_2": ("a", 0)})


def no_devices() -> Any:
    return program(devices=jax.devices()[:2])


def undivided() -> Any:
    return program(microbatches=3)


def wrong_mesh() -> Any:
    found = program()
    there = NamedSharding(Mesh(found.config.topology["b"].devices, ("own",)), PartitionSpec())
    return dataclasses.replace(found, args=jax.device_put(found.args, there))


def donated_again() -> Any:
    return dataclasses.replace(program(donate_argnums=(0,)), advance=lambda i, args, result: args)


def no_array() -> Any:
    return changed(args=(model(), jnp.ones((ROWS, WIDTH))), filter_jit=False)


def unknown_option() -> Any:
    return program(partitioning_options={"mpmd_infer_transfer": True})


def unknown_schedule() -> Any:
    return program(pipeline_schedule="1F2B")


def few_arguments() -> Any:
    return changed(args=(jnp.ones(3),))


def no_tuple() -> Any:
    return changed(args=jnp.ones(3))


def no_steps() -> Any:
    return changed(steps=0)


def no_config() -> Any:
    return changed(config=None)


def few_next_arguments() -> Any:
    return changed(advance=lambda i, args, result: (result[0],))


def no_next_tuple() -> Any:
    return changed(advance=lambda i, args, result: result[0])


def few_parameters_of_advance() -> Any:
    return changed(advance=lambda args, result: result)


def batches_of_an_iterator() -> Any:
    batches = (jnp.full((ROWS, WIDTH), i) for i in range(9))
    return changed(advance=lambda i, args, result: (result[0], next(batches)))


def no_number() -> Any:
    return changed(loss=lambda result: result[0])


def no_tolerance() -> Any:
    return changed(loss_tolerance="low")


def deleted_argument() -> Any:
    found = program()
    found.args[1].delete()
    return found


def abstract_argument() -> Any:
    found = program()
    return dataclasses.replace(found, args=(found.args[0], jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)))


def donates_no_number() -> Any:
    return changed(donate_argnums="parameters")


def raising_callback() -> Any:
    def fails(x: Any) -> Any:
        raise ValueError("no luck")

    def step(parameters: Any, x: jax.Array) -> Any:
        return jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x), jnp.sum(x)

    found = program()
    config = mpmd_trace.make_config(found.config.topology, {})
    return dataclasses.replace(found, fn=step, config=config, steps=1)


def raising_loss() -> Any:
    return changed(loss=lambda result: result[7])
