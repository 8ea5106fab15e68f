"""What lowered and compiled functions tell of themselves, held against `jax.stages`."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

import mpmd_trace as mt
from pipelines import topology


def config():
    return mt.make_config(topology(size=1), {"f": "m0", "g": "m1"})


def step(state, x, *, scale):
    y = mt.named_computation(lambda w, x: x @ w, name="f")(state["w"], x)
    z = mt.named_computation(lambda y, s: y * s, name="g")(y, scale)
    return {"w": state["w"] + 1, "n": state["n"] + 1}, (z, jnp.sum(z))


ARGS = ({"w": jnp.ones((4, 4)), "n": jnp.int32(0)}, jnp.ones((2, 4), jnp.bfloat16))


@pytest.mark.parametrize("compiled", [False, True])
def test_as_jax_stages(compiled):
    ours = mt.jit(step, config(), donate_argnums=0).lower(*ARGS, scale=jnp.float32(2))
    theirs = jax.jit(step, donate_argnums=0).lower(*ARGS, scale=jnp.float32(2))
    if compiled:
        ours, theirs = ours.compile(), theirs.compile()
    assert ours.in_tree == theirs.in_tree and ours.out_tree == theirs.out_tree
    assert ours.donate_argnums == theirs.donate_argnums == (0, 1)
    assert jax.tree.map(str, ours.args_info) == jax.tree.map(str, theirs.args_info)
    assert jax.tree.map(str, ours.in_avals) == jax.tree.map(str, theirs.in_avals)
    same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), ours.out_info, theirs.out_info)
    assert all(jax.tree.leaves(same))
    # `call` is a function of JAX's own that makes what __call__ is.
    missing = {name for name in dir(theirs) if not name.startswith("_")} - set(dir(ours)) - {"call"}
    assert not missing
    if compiled:
        assert jax.tree.map(lambda x: x.sharding, ours.out_info) == ours.output_shardings
        assert {key: [d.id for d in e.local_devices()] for key, e in ours.runtime_executable().items()} == {
            (e.name, e.mesh): [int(e.mesh[1])] for e in ours.executables()
        }
    else:
        assert repr(ours.compiler_ir()).startswith("<mpmd_trace Module: @main, @p") and ours.compiler_ir().topology
        assert str(ours.compiler_ir("stablehlo")).count("mpmd.named_computation") == 2
        for stage in ("mpmd", "stablehlo"):
            assert "test_stage_info.py" in ours.as_text(stage, debug_info=True)
            assert "test_stage_info.py" not in ours.as_text(stage)
        with pytest.raises(ValueError, match="'stablehlo' and 'mpmd', not 'hlo'"):
            ours.compiler_ir("hlo")


def test_traced_as_jax_stages():
    ours = mt.jit(step, config(), donate_argnums=0).trace(*ARGS, scale=jnp.float32(2))
    theirs = jax.jit(step, donate_argnums=0).trace(*ARGS, scale=jnp.float32(2))
    for name in ("in_tree", "out_tree", "donate_argnums", "fun_name", "effects"):
        if hasattr(theirs, name):  # effects: JAX 0.12
            assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("args_info", "in_avals", "out_avals", "out_info"):
        assert jax.tree.map(_type, getattr(ours, name)) == jax.tree.map(_type, getattr(theirs, name)), name
    assert ours.jaxpr.in_avals == jax.tree.leaves(theirs.in_avals)
    assert repr(ours).startswith("<mpmd_trace Traced: step, 4")
    # What is left are steps of JAX's own towards its lowering.
    own = {"lojax", "physicalize", "closure_convert", "with_consts_as_arg"}
    assert not {name for name in dir(theirs) if not name.startswith("_")} - set(dir(ours)) - own
    seen = []
    lowered = ours.lower(hooks=[lambda run, module: seen.append(run.spec)])
    assert seen and lowered.traced is ours.traced  # it was not traced again
    assert lowered.as_text() == mt.jit(step, config(), donate_argnums=0).lower(*ARGS, scale=jnp.float32(2)).as_text()


def _type(x):
    return (x.shape, x.dtype, getattr(x, "donated", None))


def test_shardings_of_arguments_and_results_and_shapes_without_compiling():
    jitted = mt.jit(step, config())
    compiled = jitted.lower(*ARGS, scale=jnp.float32(2)).compile()
    (state, _), kwargs = compiled.input_shardings
    assert isinstance(state["w"], NamedSharding) and state["w"].mesh.devices.flat[0].id == 0
    assert kwargs["scale"].mesh.devices.flat[0].id == 1
    assert compiled.output_shardings[1][0].mesh.devices.flat[0].id == 1
    assert jitted.eval_shape(*ARGS, scale=jnp.float32(2)) == jax.eval_shape(step, *ARGS, scale=jnp.float32(2))


def test_models_have_their_own_structure():
    model = eqx.nn.Linear(4, 2, key=jax.random.key(0))
    scaled = mt.named_computation(lambda x: 2 * x, name="g")
    fn = mt.filter_jit(lambda m, x, flag: scaled(mt.named_computation(m, name="f")(x)) if flag else x, config())
    lowered = fn.lower(model, jnp.ones(4), True)
    (info, _, flag), _ = lowered.args_info
    assert isinstance(info, eqx.nn.Linear) and info.weight.shape == (2, 4) and flag is True


def test_they_print_in_a_line():
    found = config()
    jitted = mt.jit(step, found)
    lowered = jitted.lower(*ARGS, scale=jnp.float32(2))
    assert repr(jitted) == "<mpmd_trace.jit of step over m0, m1>"
    assert repr(mt.jit(functools.partial(step, scale=2), found)) == repr(jitted)
    assert repr(lowered) == "<mpmd_trace Lowered: step, 4 arrays in, 4 out; m0, m1; program order>"
    assert repr(lowered.compile()).startswith("<mpmd_trace Compiled: step, 4 arrays in, 4 out; ")
    program = mt.Program(step, (*ARGS, 1.0), found, name="mine", steps=2)
    assert repr(program) == "<mpmd_trace Program mine: step, 4 leaves in, 2 steps; m0, m1>"
    assert repr(mt.compiler.Module()) == "<mpmd_trace Module: empty>"
    assert repr(found).startswith("Config({m0: {'x': 1}, m1: {'x': 1}}, {'f': 'm0', 'g': 'm1'}, pipeline_schedule=None")
