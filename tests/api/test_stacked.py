"""Stacked layers: one array per weight to the user, slices on the meshes that run them."""

from __future__ import annotations

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.backend.stacked import Pieces
from pipelines import assert_same, topology
from util import nightly, normal

LAYERS, WIDTH, ROWS = 4, 8, 8


def meshes(count):
    return topology(count, axis="data")


def config(count=2, names=None, schedule="1F1B", **options):
    names = {"blocks": list(meshes(count))} if names is None else names
    return mt.make_config(meshes(count), names, pipeline_schedule=schedule, placement="cut", **options)


def parameters(layers=LAYERS):
    return {
        "in": normal(0, WIDTH, WIDTH),
        "blocks": {"w": 0.3 * normal(1, layers, WIDTH, WIDTH), "b": 0.1 * normal(2, layers, WIDTH)},
        "out": normal(3, WIDTH, WIDTH),
    }


def batch():
    return normal(4, ROWS, WIDTH)


def block(x, w):
    return jnp.tanh(x @ w["w"] + w["b"]), None


def loss_of(scan, block=block):
    def loss(p, x):
        x, _ = scan(block, x @ p["in"], p["blocks"])
        return jnp.mean((x @ p["out"]) ** 2)

    return loss


def named(*args, **options):
    return mt.scan(*args, name="blocks", **options)


def step_of(loss, optimizer, microbatches=4):
    def step(p, state, x):
        value, gradients = mt.value_and_grad(loss, microbatches=microbatches)(p, x)
        updates, state = optimizer.update(gradients, state, p)
        return optax.apply_updates(p, updates), state, value

    return step


same = functools.partial(assert_same, rtol=3e-5, atol=2e-6)


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adamw": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)),
    "ema in bfloat16": lambda: optax.chain(optax.ema(0.9, accumulator_dtype=jnp.bfloat16), optax.scale(-0.1)),
}


@pytest.mark.parametrize(
    ("count", "optimizer", "checkpointed"),
    [nightly(2, "sgd", False), (4, "adamw", False), (2, "adamw", True), (2, "ema in bfloat16", False)],
)
def test_training_gives_the_numbers_of_jit_and_each_mesh_holds_its_layers(count, optimizer, checkpointed):
    optimizer = OPTIMIZERS[optimizer]()
    inside = jax.checkpoint(block) if checkpointed else block
    plain = jax.jit(step_of(loss_of(jax.lax.scan, inside), optimizer))
    jitted = mt.jit(step_of(loss_of(named, inside), optimizer), config(count))
    state = parameters(), optimizer.init(parameters())
    x = batch()
    want = got = state
    for _ in range(2):
        want, got = plain(*want[:2], x), jitted(*got[:2], x)
        same(got, want)
    [programs] = jitted._compiled.values()
    assert len(programs) == 1  # results are taken back as they are

    report = programs[0].placement_report()
    assert not report.returning
    assert {one.cause for one in report.sent} <= {"activations", "cotangents", "small"}
    borders = (count - 1) * 4
    assert len([s for s in report.sent if s.cause in ("activations", "cotangents")]) == 2 * borders
    layers = LAYERS // count
    for leaf in jax.tree.leaves((got[0]["blocks"], [x for x in jax.tree.leaves(got[1]) if x.shape[:1] == (LAYERS,)])):
        assert isinstance(leaf, jax.Array)
        assert leaf.shape[0] == LAYERS
        for shard in leaf.addressable_shards:
            stage = shard.device.id // 2
            assert shard.index[0] == slice(stage * layers, (stage + 1) * layers, None)
    # Nothing else that is large: of the middle meshes, layers alone.
    wide = WIDTH * WIDTH * 4
    held = [one.parameters + one.state for one in report.meshes]
    copies = len([x for x in jax.tree.leaves(state) if x.shape == (LAYERS, WIDTH, WIDTH)])
    assert max(held) < copies * wide * layers + copies * 2 * wide


def test_a_checkpoint_around_the_scan_sends_nothing_more():
    def sent(around):
        x = batch()
        step = jax.value_and_grad(around(loss_of(named)))
        report = mt.jit(step, config(schedule=None)).lower(parameters(), x).placement_report()
        return report.causes

    assert sent(jax.checkpoint) == sent(lambda loss: loss) == {"activations": (1, 512), "cotangents": (1, 512)}


def test_an_array_of_the_user_shares_its_buffers_with_the_pieces():
    optimizer = optax.sgd(0.1)
    jitted = mt.jit(step_of(loss_of(named), optimizer), config(), donate_argnums=(0, 1))
    p, state, _ = jitted(parameters(), optimizer.init(parameters()), batch())
    w = p["blocks"]["w"]
    assert w.sharding.mesh.shape == {"stage": 2, "data": 2}
    assert w.sharding.spec[0] == "stage"
    assert w.aval == jax.device_put(np.asarray(w), w.sharding).aval
    [[compiled]] = jitted._compiled.values()
    stacked = compiled._caller.stacked_in
    flat = jax.tree.leaves(((p, state, batch()), {}))
    number = next(i for i, leaf in enumerate(flat) if leaf is w)
    pieces = stacked.apart(flat)[stacked.places[number]]
    assert [piece.shape for piece in pieces] == [(2, WIDTH, WIDTH)] * 2
    pointers = [s.data.unsafe_buffer_pointer() for piece in pieces for s in piece.addressable_shards]
    assert pointers == [s.data.unsafe_buffer_pointer() for s in w.addressable_shards]
    jitted(p, state, batch())
    assert w.is_deleted()
    with pytest.raises(mt.MpmdError, match=r"p\['blocks'\]\['b'\].* was donated to an earlier call"):
        jitted(p, state, batch())


def test_arrays_from_anywhere_are_taken_and_donated():
    step = step_of(loss_of(named), optax.sgd(0.1))
    state = optax.sgd(0.1).init(parameters())
    want = jax.jit(step)(parameters(), state, batch())
    jitted = mt.jit(step, config(), donate_argnums=0)
    host = jax.tree.map(np.asarray, parameters())
    same(jitted(host, state, batch()), want)
    single = parameters()
    same(jitted(single, state, batch()), want)
    assert single["blocks"]["w"].is_deleted()
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("pipeline", "data"))
    own = jax.device_put(parameters()["blocks"], NamedSharding(mesh, PartitionSpec("pipeline")))
    same(jitted({**host, "blocks": own}, state, batch()), want)
    # Elsewhere, and sharded in another way.
    other = jax.device_put(parameters()["blocks"], jax.devices()[7])
    same(jitted({**host, "blocks": other}, state, batch()), want)


def test_shardings_inside_of_the_meshes_are_kept():
    whole = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("pp", "data"))
    step = step_of(loss_of(named), optax.sgd(0.1))
    state = optax.sgd(0.1).init(parameters())
    place = NamedSharding(whole, PartitionSpec("pp", None, "data"))
    p = parameters()
    p["blocks"]["w"] = jax.device_put(p["blocks"]["w"], place)
    jitted = mt.jit(step, config())
    got = jitted(p, state, batch())
    same(got, jax.jit(step)(parameters(), state, batch()))
    compiled = jitted.lower(p, state, batch()).compile()
    assert compiled.function_named_shardings.inputs[0][0]["blocks"]["w"].is_equivalent_to(place, 3)

    places = {"in": None, "blocks": {"w": place, "b": None}, "out": None}
    asked = mt.jit(step, config(), in_shardings=(places, None, None))
    compiled = asked.lower(parameters(), state, batch()).compile()
    wanted = compiled.function_named_shardings.inputs[0][0]["blocks"]
    assert wanted["w"].is_equivalent_to(place, 3)
    same(compiled(parameters(), state, batch()), jax.jit(step)(parameters(), state, batch()))


def test_pieces_that_are_no_array():
    optimizer = optax.adam(1e-2)
    step = step_of(loss_of(named), optimizer)
    state = parameters(), optimizer.init(parameters())
    want = jax.jit(step)(*jax.jit(step)(*state, batch())[:2], batch())
    for names in ({"blocks[0:1]": "m0", "blocks[1:4]": "m1"}, {"blocks": ["m0", "m1", "m0", "m1"]}):
        schedule = "1F1B" if len(names) == 2 else "Interleaved1F1B"
        jitted = mt.jit(step, config(names=names, schedule=schedule), donate_argnums=(0, 1))
        first = jitted(*map(jax.tree.map, [jnp.copy] * 2, state), batch())
        w = first[0]["blocks"]["w"]
        assert isinstance(w, mt.stages.Pieces)
        assert (w.shape, w.dtype) == ((LAYERS, WIDTH, WIDTH), jnp.float32)
        assert [next(iter(part.devices())).id // 2 for part in w.parts] == ([0, 1] if len(names) == 2 else [0, 1, 0, 1])
        assert repr(w).startswith("Pieces(float32[4, 8, 8], layers 0:1, 1:")
        np.testing.assert_array_equal(jax.device_get(w), jnp.asarray(w))
        got = jitted(*first[:2], batch())
        assert w.is_deleted()
        same(got, want)


@pytest.mark.parametrize("names", [nightly(None), {"blocks[0:1]": "m0", "blocks[1:4]": "m1"}])
def test_layers_along_another_axis_than_the_first(names):
    """As MaxText's `param_scan_axis=1` has them."""

    def loss_of_scan(scan):
        def loss(p, x):
            return loss_of(scan)({**p, "blocks": jax.tree.map(lambda v: jnp.moveaxis(v, 1, 0), p["blocks"])}, x)

        return loss

    p = parameters()
    p["blocks"] = jax.tree.map(lambda v: jnp.moveaxis(v, 0, 1), p["blocks"])
    optimizer = OPTIMIZERS["adamw"]()
    step = mt.jit(step_of(loss_of_scan(named), optimizer), config(names=names))
    given = dict(p)
    if names is None:
        whole = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("pp", "data"))
        place = NamedSharding(whole, PartitionSpec(None, "pp", "data"))
        given["blocks"] = {**p["blocks"], "w": jax.device_put(p["blocks"]["w"], place)}
    got = step(*step(given, optimizer.init(p), batch())[:2], batch())
    plain = jax.jit(step_of(loss_of_scan(jax.lax.scan), optimizer))
    same(got, plain(*plain(p, optimizer.init(p), batch())[:2], batch()))
    [[compiled]] = step._compiled.values()
    assert {one.cause for one in compiled.placement_report().sent} == {"activations", "cotangents", "small"}
    w, moment = got[0]["blocks"]["w"], got[1][1][0].mu["blocks"]["w"]
    for one in (w, moment):
        assert one.shape == (WIDTH, LAYERS, WIDTH)
        if names is None:
            assert one.sharding.spec[1] in ("stage", ("stage",))
        else:
            assert [part.shape for part in one.parts] == [(WIDTH, 1, WIDTH), (WIDTH, 3, WIDTH)]
    if names is None:
        wanted = compiled.function_named_shardings.inputs[0][0]["blocks"]["w"]
        assert wanted.is_equivalent_to(place, 3)
    else:
        assert "layers 0:1, 1:4 of axis 1" in repr(w)


@pytest.mark.parametrize("reverse", [nightly(False), True])
def test_outputs_per_layer_caches_keys_and_checkpoints_around(reverse):
    def run(scan):
        def block(x, own):
            w, cache, key = own
            kept = jax.random.bernoulli(key, 0.9, x.shape)
            x = jnp.where(kept, jnp.tanh(x @ w["w"] + w["b"] + cache.sum()), 0)
            return x, (cache + x.mean(), x[0])

        def decode(p, cache, key, x):
            keys = jax.random.split(key, LAYERS)

            def loss(p, cache):
                y, (cache, rows) = scan(block, x @ p["in"], (p["blocks"], cache, keys), reverse=reverse)
                return jnp.mean((y @ p["out"]) ** 2) + rows.mean(), (cache, rows)

            (value, (cache, rows)), gradients = jax.value_and_grad(jax.checkpoint(loss), has_aux=True)(p, cache)
            return value, cache, rows, gradients

        return decode

    args = parameters(), jnp.ones((LAYERS, 3)), jax.random.key(3), batch()
    jitted = mt.jit(run(named), config(schedule=None))
    got = jitted(*args)
    same(got, jax.jit(run(jax.lax.scan))(*args), rtol=1e-4)
    compiled = jitted.lower(*args).compile()
    assert compiled.function_mesh_assignment.inputs[0][1] == ("m0", "m1")
    assert compiled.function_mesh_assignment.outputs[1] == ("m0", "m1")
    again = jitted(args[0], got[1], *args[2:])
    same(again, jax.jit(run(jax.lax.scan))(args[0], jax.device_get(got[1]), *args[2:]), rtol=1e-4)


@pytest.mark.parametrize("checkpointed", [nightly(False), True])
def test_scans_of_model_code_are_named_from_outside(checkpointed):
    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))  # another one than JAX would find

    class Model(eqx.Module):
        weights: jax.Array
        bias: jax.Array
        activation: object = jax.nn.relu

        @eqx.filter_jit
        def __call__(self, x):
            x, _ = jax.lax.scan(lambda x, i: (x + i, None), x, jnp.arange(3.0))  # not the layers

            def layer(x, own):
                w, b = own
                return doubled(self.activation(x @ w + b)), x[0]

            x, firsts = jax.lax.scan(layer, x, (self.weights, self.bias))
            return jnp.mean(x**2) + jnp.mean(firsts), "a text"

    def loss_of(call):
        def loss(arrays, rest, x):
            model = eqx.combine(arrays, rest)
            run = call(lambda model, x: model(x)[0])
            if not checkpointed:
                return run(model, x)
            return jax.checkpoint(lambda arrays, x: run(eqx.combine(arrays, rest), x))(arrays, x)

        return loss

    p = parameters()["blocks"]
    arrays, rest = eqx.partition(Model(p["w"], p["b"]), eqx.is_array)
    step = loss_of(lambda call: mt.name_scans(call, "blocks"))
    jitted = mt.jit(jax.value_and_grad(lambda a, x: step(a, rest, x)), config(schedule=None))
    plain = loss_of(lambda call: call)
    same(jitted(arrays, batch()), jax.jit(jax.value_and_grad(lambda a, x: plain(a, rest, x)))(arrays, batch()))
    assert set(jitted.lower(arrays, batch()).traced.rewritten.computations) == {"blocks[0/2]", "blocks[1/2]"}
    np.testing.assert_array_equal(step(arrays, rest, batch()), plain(arrays, rest, batch()))
    if not checkpointed:
        texts = mt.jit(lambda a, x: mt.name_scans(eqx.combine(a, rest), "blocks")(x)[0], config(schedule=None))
        np.testing.assert_allclose(texts(arrays, batch()), plain(arrays, rest, batch()), rtol=1e-5)


def test_name_scans_without_a_scan():
    def plain(x):
        return x

    jitted = mt.jit(mt.name_scans(plain, "blocks"), config(schedule=None))
    with pytest.raises(mt.MpmdError, match=r"found no jax.lax.scan over layers in 'plain' to be called 'blocks'"):
        jitted.lower(batch())
    with pytest.raises(mt.MpmdError, match="name_scans takes a function, not 3"):
        mt.name_scans(3, "blocks")


def test_layers_are_cut_where_names_are_assigned_by_their_work(tmp_path):
    step = step_of(loss_of(named), optax.sgd(0.1))
    state = optax.sgd(0.1).init(parameters())
    for count, chosen in ((2, {"blocks[0/2]": "m0", "blocks[1/2]": "m1"}), (3, None)):
        jitted = mt.jit(step, mt.make_config(meshes(count), "auto", pipeline_schedule="1F1B", placement="cut"))
        lowered = jitted.lower(parameters(), state, batch())
        chosen = chosen or {"blocks[0:1]": "m0", "blocks[1:2]": "m1", "blocks[2:4]": "m2"}
        assert lowered.config.name_to_mesh_assignment == chosen
    p, _, _ = jitted(parameters(), state, batch())
    assert isinstance(p["blocks"]["w"], mt.stages.Pieces)
    mt.save(tmp_path / "saved", p)
    compiled = lowered.compile()
    restored = mt.restore(tmp_path / "saved", compiled)
    same(restored, jax.device_get(p))
    same(compiled(restored, state, batch()), jax.jit(step)(jax.device_get(p), state, batch()))


def test_programs_that_share_a_state():
    optimizer = optax.sgd(0.1)
    step = mt.jit(step_of(loss_of(named), optimizer), config())
    evaluate = mt.jit(loss_of(named), config(schedule=None))

    def squares(p):
        return mt.named_computation(lambda w: jnp.sum(w**2), name="all")(p["blocks"]["w"])

    norm = mt.jit(squares, mt.make_config(meshes(2), {"all": "m1"}))
    p, _, _ = step(parameters(), optimizer.init(parameters()), batch())
    host = jax.device_get(p)
    np.testing.assert_allclose(evaluate(p, batch()), loss_of(jax.lax.scan)(host, batch()), rtol=1e-5)
    moved, _ = norm.lower(p).compile().place(p)  # to one mesh, as for any array that is elsewhere
    np.testing.assert_allclose(norm(*moved), np.sum(host["blocks"]["w"] ** 2), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda w: w.sum())(p["blocks"]["w"]), host["blocks"]["w"].sum(), rtol=1e-4)


def test_the_compiled_programs_do_not_depend_on_the_number_of_layers():
    def ops(layers):
        optimizer = optax.adam(1e-2)
        p = parameters(layers)
        lowered = mt.jit(step_of(loss_of(named), optimizer), config()).lower(p, optimizer.init(p), batch())
        return re.findall(r" = \"?((?:mpmd|stablehlo|func)\.\w+)", lowered.as_text("stablehlo") + lowered.as_text())

    assert ops(8) == ops(32)


def test_what_needs_all_layers_is_told_and_right():
    def step(p, x):
        gradients = jax.grad(loss_of(named))(p, x)
        ranks = jnp.sort(gradients["blocks"]["w"], axis=0)
        return jax.tree.map(lambda w, g: w - g, p, gradients), ranks

    jitted = mt.jit(step, config(schedule=None))
    with pytest.warns(mt.MpmdWarning, match=r"'sort' needs all layers of an array of stacked layers") as told:
        got = jitted(parameters(), batch())
    assert len(told) == 1
    assert told[0].filename == __file__
    same(got, jax.jit(step)(parameters(), batch()))

    def tied(p, x):
        w = p["blocks"]["w"]
        x, _ = named(block, x @ p["in"], p["blocks"])
        return mt.named_computation(lambda w, x: jnp.sum(x @ w[::-1][0]), name="head")(w, x)

    names = {"blocks": ["m0", "m1"], "head": "m1"}
    with pytest.warns(mt.MpmdWarning, match=r"computation 'head' needs all layers of p\['blocks'\]\['w'\]"):
        got = mt.jit(tied, config(names=names, schedule=None))(parameters(), batch())
    same(got, jax.jit(tied)(parameters(), batch()), rtol=1e-4)


def test_one_mesh_whole_scans_and_calls():
    want = loss_of(jax.lax.scan)(parameters(), batch())
    whole = mt.jit(loss_of(named), config(names={"blocks": "m0"}, schedule=None))
    np.testing.assert_allclose(whole(parameters(), batch()), want, rtol=1e-5)

    def called(p, x):
        one = mt.call(lambda p, x: loss_of(named)(p, x))
        return one(p, x[:4]) + one(p, x[4:])

    jitted = mt.jit(jax.value_and_grad(called), config(schedule=None))
    same(jitted(parameters(), batch()), jax.jit(jax.value_and_grad(called))(parameters(), batch()))
    # A function that JAX remembers is cut as each configuration says.
    inner = jax.jit(loss_of(named))
    for names in ({"blocks": ["m0", "m1"]}, {"blocks[0:1]": "m0", "blocks[1:4]": "m1"}):
        program = mt.jit(lambda p, x: inner(p, x), config(names=names, schedule=None)).lower(parameters(), batch())
        assert len(program.traced.rewritten.computations) == 2
        assert set(program.traced.rewritten.computations) <= {*names, "blocks[0/2]", "blocks[1/2]"}
    assert "blocks" not in str(jax.make_jaxpr(inner)(parameters(), batch()))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"blocks[0:1]": "m0", "blocks[2:4]": "m1"}, r"'blocks\[1:2\]' is assigned to no mesh"),
        ({"blocks[1:4]": "m1"}, r"'blocks\[0:1\]' is assigned to no mesh"),
        ({"blocks[0:3]": "m0", "blocks[2:4]": "m1"}, r"'blocks\[2:4\]' overlaps with the layers below 3"),
        ({"blocks[0:0]": "m0", "blocks[0:4]": "m1"}, r"'blocks\[0:0\]' has no layers"),
        ({"blocks[0:4]": "m0", "blocks": "m1"}, r"'blocks' is assigned, and 'blocks\[0:4\]', too"),
        ({"blocks[0:4]": "m0", "blocks": ["m1"]}, r"'blocks' as a list is assigned"),
        ({"blocks": []}, r"the layers 'blocks' are assigned to an empty list"),
        ({"blocks": ["m0", "m7"]}, r"'blocks\[1/2\]' is assigned to the mesh 'm7'"),
    ],
)
def test_ranges_that_do_not_fit_are_told_at_once(names, text):
    with pytest.raises(mt.MpmdError, match=text):
        config(names=names)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"blocks[0:2]": "m0", "blocks[2:5]": "m1"}, r"'blocks' has 4 layers, and the ranges assigned end at 5"),
        ({"blocks": ["m0", "m1", "m0"]}, r'3 equal parts. Give ranges: \{"blocks\[0:1\]": ..., "blocks\[1:2\]"'),
        ({}, r"the named computation 'blocks' is not assigned"),
    ],
)
def test_parts_that_do_not_fit_the_layers(names, text):
    with pytest.raises(mt.MpmdError, match=text) as raised:
        mt.jit(loss_of(named), config(names=names, schedule=None)).lower(parameters(), batch())
    assert __file__ in str(raised.value)
    unlike = mt.jit(lambda p: named(block, p["in"], {**p["blocks"], "b": p["in"]}), config(schedule=None))
    with pytest.raises(ValueError, match="scan"):
        unlike.lower(parameters())
    with pytest.raises(mt.MpmdError, match="non-empty string"):
        mt.scan(block, 0, None, 3, name="")


@pytest.mark.parametrize("how", ["unequal pieces", "shared devices", "several on a mesh"])
def test_pieces_are_created_where_they_are_wanted(how):
    """Without a sharding of the whole array: each is made on its mesh alone."""
    names = {"blocks[0:1]": "m0", "blocks[1:4]": "m1"} if how == "unequal pieces" else None
    found = config(names=names)
    if how == "shared devices":
        shared = dict.fromkeys(found.topology, found.topology["m0"])
        found = mt.make_config(shared, {"blocks": list(shared)}, pipeline_schedule="1F1B", placement="cut")
    elif how == "several on a mesh":
        found = config(names={"blocks": ["m0", "m1", "m0", "m1"]}, schedule="interleaved-1f1b")
    optimizer = optax.sgd(0.1)
    step = step_of(loss_of(named), optimizer)
    args = parameters(), optimizer.init(parameters()), batch()
    compiled = mt.jit(step, found, donate_argnums=0).lower(*args).compile()
    created = mt.create(parameters, compiled)
    pieces = created["blocks"]["w"]
    assert isinstance(pieces, Pieces)
    for part, mesh in zip(pieces.parts, ("m0", "m1", "m0", "m1"), strict=False):
        assert part.devices() == set(found.topology[mesh].devices.flat)
    same(jax.tree.map(np.asarray, created), parameters())
    got, want = compiled(created, args[1], batch()), jax.jit(step_of(loss_of(jax.lax.scan), optimizer))(*args)
    same(jax.tree.map(np.asarray, got), want)
    assert pieces.is_deleted()
