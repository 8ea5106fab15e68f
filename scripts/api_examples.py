"""An example of each public name of `mpmd_trace`, in the order in which they can be run; the site shows them.

`# == NAME, NAME` starts the example of these names.  All run in one process with eight CPU devices, one after the
other, in a folder of their own.
"""

# == initialize
import mpmd_trace as mt

count = mt.initialize()  # before anything else of JAX; without a launcher it returns 1

# == named_computation, jit, make_config
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh


def forward(weights, x):
    for i, w in enumerate(weights):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
    return x


first, second = (Mesh(np.array([device]), ("x",)) for device in jax.devices()[:2])
config = mt.make_config({"first": first, "second": second}, {"layer0": "first", "layer1": "second"})
weights = list(jax.random.normal(jax.random.key(0), (2, 4, 4)))
x = jnp.ones((8, 4))
y = mt.jit(forward, config)(weights, x)  # on the second mesh
assert y.devices() == {jax.devices()[1]}

# == value_and_grad, gradients, gradients.value_and_grad
loss = lambda weights, x: jnp.mean(forward(weights, x) ** 2)
value, grads = mt.value_and_grad(loss, microbatches=4)(weights, x)  # mt.gradients has this one, too; of the whole batch, in four parts

# == stages, stages.Jitted, stages.Traced, stages.Lowered, stages.Compiled
jitted = mt.jit(mt.value_and_grad(loss, microbatches=4), config)  # an mt.stages.Jitted
traced = jitted.trace(weights, x)  # an mt.stages.Traced
print(traced.names)  # {'layer0': [...], 'layer1': [...]}
lowered = jitted.lower(weights, x)  # an mt.stages.Lowered
print(lowered.as_text("plan"))
compiled = lowered.compile()  # an mt.stages.Compiled
print(compiled.memory_analysis())
value, grads = compiled(weights, x)

# == config, config.Config
assert isinstance(config, mt.config.Config)
print(config.name_to_mesh_assignment)  # {'layer0': 'first', 'layer1': 'second'}

# == enumerated_for
total = mt.enumerated_for(lambda i, total, part: total + loss(weights, part), 0.0, x.reshape(4, 2, 4))

# == fori_loop
power = mt.fori_loop(3, lambda i, x: x @ weights[0], jnp.eye(4))

# == call
parts = [mt.call(loss, call_counter=i)(weights, part) for i, part in enumerate(x.reshape(4, 2, 4))]

# == gradients.contrastive_value_and_grad
similar = lambda weights, rows: jax.nn.log_softmax(rows @ rows.T)[::2, 1::2].diagonal().mean()  # of the whole batch
value, grads = mt.gradients.contrastive_value_and_grad(forward, similar, microbatches=4)(weights, x)

# == gradients.encoded_value_and_grad
embed = lambda weights, rows: mt.named_computation(jnp.dot, name="layer0")(rows, weights[0])
head = lambda weights, encoded, rows: jnp.mean((encoded["image"] @ weights[1] - rows) ** 2)
both_loops = mt.gradients.encoded_value_and_grad(head, {"image": (embed, 2)}, microbatches=4)  # two for the encoder
value, grads = both_loops(weights, {"image": x}, x)

# == pad_rows
batch, row_weights = mt.pad_rows(jnp.ones((5, 4)), 4)  # eight rows, three of them with weight 0
assert batch.shape == (8, 4) and row_weights.sum() == 5

# == named_tensor
on_first = mt.make_config(config.topology, {"scaled": "first"})
scaled = mt.jit(lambda x: mt.named_tensor(x * 2, "scaled"), on_first)(x)

# == reduce
halves = [mt.named_computation(jnp.sum, name=f"layer{i}") for i in range(2)]
both = mt.jit(lambda x: mt.reduce(halves[0](x), halves[1](x), kind="add"), config)(x)
assert both == 2 * x.sum()

# == broadcast
norm = lambda weights: sum(jnp.sum(w**2) for w in weights)
clipped = mt.jit(
    lambda weights: [w / mt.broadcast(norm(weights)) for w in weights], mt.make_config(config.topology, {})
)

# == scan
stacked = mt.make_config(config.topology, {"layers": ["first", "second"]})
run = lambda w, x: mt.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w, name="layers")[0]
y = mt.jit(run, stacked)(jnp.ones((4, 4, 4)), x)

# == name_scans
library = lambda w, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]
y = mt.jit(mt.name_scans(library, "layers"), stacked)(jnp.ones((4, 4, 4)), x)

# == stages.Pieces
uneven = mt.make_config(config.topology, {"layers[0:1]": "first", "layers[1:4]": "second"})
compiled_uneven = mt.jit(run, uneven).lower(jnp.ones((4, 4, 4)), x).compile()
mesh_of_each_piece = compiled_uneven.function_mesh_assignment.inputs[0][0]  # arguments and results are Pieces

# == MeshOfInput, config.MeshOfInput
update = lambda weights, x: [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x))]
kept = mt.make_config(config.topology, config.name_to_mesh_assignment, output_mesh_assignment=mt.MeshOfInput(0))
trained = mt.jit(update, kept, donate_argnums=0).lower(weights, x).compile()

# == place
(weights,) = mt.place(trained, weights)

# == abstract
print(mt.abstract(trained, 0)[1].sharding.mesh)  # that of the second mesh

# == create
fresh = mt.create(lambda key: list(jax.random.normal(key, (2, 4, 4))), trained, jax.random.key(1))

# == save, restore, checkpoint.save, checkpoint.restore
mt.save("checkpoint", weights)
weights = mt.restore("checkpoint", trained)

# == checkpoint, checkpoint.checkpoint_handler
from pathlib import Path

import orbax.checkpoint as ocp

with ocp.Checkpointer(mt.checkpoint.checkpoint_handler()) as checkpointer:
    checkpointer.save(Path("with_orbax").absolute(), weights)

# == load
trained.save("step.mpmd")
weights = mt.load("step.mpmd")(weights, x)

# == fetch
(mean,) = [mt.fetch(jnp.mean(x))]  # a NumPy array in every process, wherever it is

# == filter_jit
import equinox as eqx

mlp = eqx.nn.MLP(4, 4, 8, depth=1, key=jax.random.key(0))
on_first = mt.make_config(config.topology, {"mlp": "first"})
y = mt.filter_jit(lambda mlp, x: mt.named_computation(lambda mlp, x: jax.vmap(mlp)(x), name="mlp")(mlp, x), on_first)(
    mlp, x
)

# == equinox
from mpmd_trace.equinox import name_layers

named = name_layers(mlp, lambda mlp: mlp.layers)  # layers_0, layers_1

# == nnx
from flax import nnx

import mpmd_trace.nnx as mnnx

layers = mnnx.name_layers(nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0))), "layers")  # layers_0

# == linen
from flax import linen

from mpmd_trace.linen import name_layers as name_modules

dense = name_modules(linen.Sequential([linen.Dense(4)]).apply, "layers_*")

# == Program
program = mt.Program(update, (fresh, x), kept, steps=3, advance=lambda i, args, result: (result, args[1]))

# == schedules
schedule = mt.schedules.get_schedule("zb-h1", 4, 8)
print(mt.schedules.simulate(schedule).bubble_rate_span)

# == scheduling, scheduling.Link, scheduling.Links
links = mt.scheduling.Links(
    mt.scheduling.Link(latency=5e-6, bandwidth=25e9), {("first", "second"): mt.scheduling.Link(2e-6, 100e9)}
)

# == scheduling.AutoSchedule
auto = mt.scheduling.AutoSchedule(memory_limit=4, links=links, flops_per_second=400e12)

# == rules, rules.FragmentInfo, rules.ScheduleRule, rules.MergeRule
info = mt.rules.FragmentInfo(origins=(("layer0", 0),), call_counter=0)
rule = mt.rules.ScheduleRule((info, mt.rules.FragmentInfo(origins=(("layer0", 0),), call_counter=1)))
merge = mt.rules.MergeRule((info, info), info)  # mpmd_trace.rules makes such rules of the fragments of a program


# == compiler.target_devices
def for_gpus():  # in a process of its own: before anything else uses a device
    return mt.make_config(
        Mesh(np.array(mt.compiler.target_devices("gpu:h100:8")).reshape(4, 2), ("pp", "data")), stage_axis="pp"
    )


# == checkpoint.StoredAs, checkpoint.save_safetensors
model = {"blocks": jnp.ones((2, 4, 4)), "head": jnp.ones((4, 8))}
names = {
    "blocks": mt.checkpoint.StoredAs("layers.{}.weight", transpose=True),
    "head": mt.checkpoint.StoredAs("lm_head.weight", transpose=True),
}
mt.checkpoint.save_safetensors("exported", model, names=names)  # layers.0.weight, layers.1.weight, lm_head.weight
again = mt.restore("exported", model, names=names)

# == compiler, compiler.trace
traced = mt.compiler.trace(forward, weights, x)
print(traced.mlir_text()[:60])

# == compiler.parse, compiler.Module
module = mt.compiler.parse(lowered.as_text())
assert isinstance(module, mt.compiler.Module)

# == compiler.run_passes
mt.compiler.run_passes(module, "symbol-dce")

# == compiler.after
hook = mt.compiler.after("mpmd-delay-inferred-fragments", "symbol-dce")
mt.jit(forward, config).lower(weights, x, hooks=[hook])

# == compiler.run_module
exported = mt.jit(forward, config).lower(weights, x)
[y] = mt.compiler.run_module(mt.compiler.parse(exported.as_text()), config.topology, [*weights, x])

# == compiler.partition
partitioned = mt.compiler.partition(
    mt.compiler.trace(forward, weights, x).mlir_text(),
    "forward",
    [("first", first), ("second", second)],
    {"layer0": "first", "layer1": "second"},
    [None] * 3,
    [None],
    partitioning_options={"mpmd_infer_transfers": True},
)

# == MpmdError, errors.MpmdError, compiler.Diagnostic
try:
    mt.make_config(config.topology, {"layer0": "third"})
except mt.MpmdError as error:
    [diagnostic] = error.diagnostics
    assert isinstance(diagnostic, mt.compiler.Diagnostic) and "'third', which the topology lacks" in diagnostic.message

# == MpmdWarning, errors.MpmdWarning
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("error", mt.MpmdWarning)  # in a test: what costs time without need is an error

# == errors, errors.InternalError, errors.PeerError
try:
    compiled(weights, x)
except mt.errors.PeerError as error:
    print(f"process {error.process} has failed")  # save, and end
except mt.errors.InternalError as error:
    print(error)  # a bug of mpmd_trace: says what to send

# == shutdown
mt.shutdown()  # leaves the job before the process ends; nothing to do in one process
