"""Each message in the index of errors occurs as it is quoted, for the reason that the page gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
ONES = np.ones((4, 4), np.float32)


def meshes(count: int = 2) -> dict[str, Mesh]:
    return {f"m{i}": Mesh(np.array([device]), ("x",)) for i, device in enumerate(jax.devices()[:count])}


CONFIG: Any = {"layer0": "m0", "layer1": "m1"}


def layers(w: Any, x: Any, count: int = 2) -> Any:
    for i in range(count):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
    return x


def run(fn: Callable[..., Any], *args: Any, names: Any = None, **options: Any) -> Any:
    config = mt.make_config(meshes(), CONFIG if names is None else names, **options.pop("config", {}))
    return mt.jit(fn, config, **options).lower(*args).compile()


def elsewhere() -> None:
    there = jax.device_put(ONES, NamedSharding(Mesh(meshes()["m1"].devices, ("own",)), PartitionSpec()))
    run(layers, ONES, ONES)(there, ONES)


def names_of_a_typo() -> None:
    run(layers, ONES, ONES, names={"layer0": "m0", "lay1": "m1"})


def unused_name() -> None:
    run(layers, ONES, ONES, names={**CONFIG, "layer2": "m1"})


def no_name_at_all() -> None:
    run(lambda w, x: jnp.tanh(x @ w), ONES, ONES)


def unknown_mesh() -> None:
    mt.make_config(meshes(), {"layer0": "m2"})


def name_in_a_loop() -> None:
    run(lambda w, x: jax.lax.while_loop(lambda x: jnp.sum(x) < 0, lambda x: layers(w, x), x), ONES, ONES)


def nested_names() -> None:
    inner = mt.named_computation(jnp.tanh, name="layer1")
    run(lambda x: mt.named_computation(lambda x: inner(x) * 2, name="layer0")(x), ONES)


def device_twice() -> None:
    mesh = meshes()["m0"]
    both = Mesh(np.array(jax.devices()[:2]), ("x",))
    mt.make_config({"m0": mesh, "m1": both}, CONFIG)


def shared_key() -> None:
    grads = mt.value_and_grad(lambda w, x, key: jnp.sum(layers(w, x) + jax.random.normal(key)), microbatches=2)
    run(lambda w, x, key: grads(w, x, key=key), ONES, ONES, jax.random.key(0))


def uneven_batch() -> None:
    grads = mt.value_and_grad(lambda w, x: jnp.sum(layers(w, x)), microbatches=3)
    run(grads, ONES, ONES)


def product_of_means() -> None:
    grads = mt.value_and_grad(lambda w, x: jnp.mean(layers(w, x)) ** 2, microbatches=2)
    run(grads, ONES, ONES)


def traced_microbatches() -> None:
    run(lambda w, n: mt.fori_loop(n, lambda i, w: layers(w, w), w), ONES, 2)


def swapped_arguments() -> None:
    run(lambda w, x: mt.enumerated_for(lambda total, i, x: total + jnp.sum(x), 0.0, x), ONES, ONES)


def carry_of_another_type() -> None:
    run(lambda w, x: mt.enumerated_for(lambda i, total, x: {"loss": total}, jnp.zeros(()), x), ONES, ONES)


def donated_twice() -> None:
    step = mt.jit(lambda w, x: layers(w, x), mt.make_config(meshes(), CONFIG), donate_argnums=0)
    w = step.lower(ONES, ONES).compile().place(ONES, ONES)[0][0]
    step(w, ONES)
    step(w, ONES)


def other_shape() -> None:
    run(layers, ONES, ONES)(ONES, np.ones((2, 4), np.float32))


def unhashable_static() -> None:
    mt.jit(layers, mt.make_config(meshes(), CONFIG), static_argnums=2)(ONES, ONES, [2])


def debug_print_in_a_saved_program() -> None:
    def noisy(w: Any, x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return layers(w, x)

    run(noisy, ONES, ONES).save("program.mpmd")


def unknown_schedule() -> None:
    mt.make_config(meshes(), CONFIG, pipeline_schedule="1f1bb")


def abstract_mesh() -> None:
    topology = {name: AbstractMesh((1,), ("x",)) for name in ("m0", "m1")}
    mt.jit(layers, mt.make_config(topology, CONFIG))(ONES, ONES)


def too_few_names() -> None:
    run(lambda w, x: layers(w, x, 1), ONES, ONES, names="auto")


def lost_changes() -> None:
    from flax import nnx

    def step(model: Any, x: Any) -> Any:
        model.value[...] += 1
        return x

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.value = nnx.Param(jnp.ones(4))

    run(step, Model(), ONES)


def equinox_selects_nothing() -> None:
    import equinox as eqx

    from mpmd_trace.equinox import name_layers

    name_layers(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), lambda m: [])


def model_under_plain_jit() -> None:
    import equinox as eqx

    run(lambda model, x: x, eqx.nn.MLP(4, 4, 4, 1, key=jax.random.key(0)), ONES)


def state_of_the_unnamed_model() -> None:
    import equinox as eqx

    from mpmd_trace.equinox import name_layers

    model = {"layer": [eqx.nn.Linear(4, 4, key=jax.random.key(0))]}

    def step(named: Any, state: Any) -> Any:
        return jax.tree.map(jnp.add, named, state)

    config = mt.make_config(meshes(), CONFIG)
    mt.filter_jit(step, config)(name_layers(model, lambda m: m["layer"]), model)


def checkpoint_of_another_model(tmp_path: Path) -> None:
    mt.save(tmp_path / "model", [ONES])
    mt.restore(tmp_path / "model", [np.ones((2, 2), np.float32)])


def checkpoint_exists(tmp_path: Path) -> None:
    mt.save(tmp_path / "model", [ONES])
    mt.save(tmp_path / "model", [ONES])


def no_checkpoint(tmp_path: Path) -> None:
    mt.restore(tmp_path / "nothing", [ONES])


def initialized_too_late() -> None:
    mt.initialize("localhost:1", 2, 0)


def idle_mesh(caplog: pytest.LogCaptureFixture) -> None:
    mt.jit(layers, mt.make_config(meshes(3), CONFIG)).lower(ONES, ONES).compile()
    raise mt.MpmdWarning(caplog.text)


def array_given_twice() -> None:
    w = jax.device_put(ONES, NamedSharding(meshes()["m0"], PartitionSpec()))
    mt.jit(lambda w, x: layers(w, x), mt.make_config(meshes(), CONFIG), donate_argnums=0)(w, w)


def no_batch() -> None:
    run(mt.value_and_grad(lambda w: jnp.sum(layers(w, w)), microbatches=2), ONES)


def one_microbatch() -> None:
    grads = mt.value_and_grad(lambda w, x: jnp.sum(layers(w, x)), microbatches=1)
    run(grads, ONES, ONES, config={"pipeline_schedule": "1F1B"})


def rows_that_do_not_divide() -> None:
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    topology = {f"m{i}": Mesh(row, ("x",)) for i, row in enumerate(devices)}
    grads = mt.value_and_grad(lambda w, x: jnp.sum(layers(w, x)), microbatches=4)
    rows = NamedSharding(topology["m0"], PartitionSpec("x"))
    mt.jit(grads, mt.make_config(topology, CONFIG), in_shardings=(None, rows)).lower(ONES, np.ones((12, 4), np.float32))


def host_arrays_again() -> None:
    large = np.ones((1024, 1024), np.float32)
    step = run(layers, large, large)
    for _ in range(3):
        step(large, large)


def arrays_of_another_program() -> None:
    def double(w: Any) -> Any:
        return mt.named_computation(lambda w: 2 * w, name="layer")(w)

    first, second = (mt.jit(double, mt.make_config(meshes(), {"layer": mesh})) for mesh in ("m0", "m1"))
    second(first(np.ones((1024, 1024), np.float32)))


def launched_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPMD_TRACE_LAUNCHED", "1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    run(layers, ONES, ONES)


#: What provokes the message of each entry, by its anchor.
CAUSES: dict[str, Callable[..., None]] = {
    "name-without-a-mesh": names_of_a_typo,
    "no-assigned-name-occurs": no_name_at_all,
    "name-that-occurs-nowhere": unused_name,
    "unknown-mesh": unknown_mesh,
    "name-inside-a-name": nested_names,
    "name-inside-a-loop": name_in_a_loop,
    "fewer-names-than-meshes": too_few_names,
    "overlapping-meshes": device_twice,
    "abstract-meshes": abstract_mesh,
    "unknown-schedule": unknown_schedule,
    "batch-that-does-not-divide": uneven_batch,
    "no-batch": no_batch,
    "shared-key": shared_key,
    "nonlinear-loss": product_of_means,
    "number-of-iterations": traced_microbatches,
    "order-of-the-body": swapped_arguments,
    "carry-of-another-structure": carry_of_another_type,
    "argument-that-is-not-an-array": model_under_plain_jit,
    "state-of-the-unnamed-model": state_of_the_unnamed_model,
    "donated-array": donated_twice,
    "array-given-twice": array_given_twice,
    "other-types": other_shape,
    "unhashable-static-argument": unhashable_static,
    "lost-changes": lost_changes,
    "argument-on-another-mesh": elsewhere,
    "no-layer-selected": equinox_selects_nothing,
    "checkpoint-of-another-model": checkpoint_of_another_model,
    "checkpoint-exists": checkpoint_exists,
    "no-checkpoint": no_checkpoint,
    "callbacks-in-a-saved-program": debug_print_in_a_saved_program,
    "initialize-too-late": initialized_too_late,
    "idle-mesh": idle_mesh,
    "one-microbatch": one_microbatch,
    "uneven-rows": rows_that_do_not_divide,
    "host-arrays-copied-again": host_arrays_again,
    "arrays-of-another-program": arrays_of_another_program,
    "launch-without-initialize": launched_alone,
}


def entries() -> dict[str, tuple[str, str]]:
    """The quoted message and the text of each entry of the page, by its anchor."""
    found = re.findall(r"^### .*\{#([\w-]+)\}\n\n    (.*)\n\n((?:.+\n)+)", PAGE.read_text(), re.M)
    return {anchor: (quoted, text) for anchor, quoted, text in found}


def test_every_entry_is_provoked_here_and_says_what_to_do() -> None:
    assert list(entries()) == re.findall(r"^### .*\{#([\w-]+)\}", PAGE.read_text(), re.M)
    assert sorted(entries()) == sorted(CAUSES)
    for anchor, (_, text) in entries().items():
        assert "**Cause**:" in text and "**Way out**:" in text, anchor


@pytest.mark.parametrize("anchor", CAUSES)
@pytest.mark.filterwarnings("error::mpmd_trace.MpmdWarning")
def test_the_message_is_as_quoted(anchor: str, request: pytest.FixtureRequest) -> None:
    cause, (quoted, _) = CAUSES[anchor], entries()[anchor]
    with pytest.raises((mt.MpmdError, mt.MpmdWarning)) as error:
        wanted = cause.__code__.co_varnames[: cause.__code__.co_argcount]
        cause(*map(request.getfixturevalue, wanted))
    pattern = ".*".join(map(re.escape, quoted.split("...")))
    assert re.search(pattern, str(error.value), re.S), str(error.value)
