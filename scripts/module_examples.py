"""An example of each public name of the modules of `mpmd_trace`, as in `api_examples.py`; names are written `module.name`."""

# == schedules.get_schedule, schedules.simulate, schedules.report
from mpmd_trace import schedules

schedule = schedules.get_schedule("1f1b", 4, 8)  # four meshes, eight microbatches
result = schedules.simulate(schedule)  # each action takes one unit of time, and transfers none
print(schedules.report(result))

# == schedules.Costs
costs = schedules.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.5)
print(schedules.simulate(schedule, costs).makespan)

# == schedules.Schedule, schedules.Placement
assert isinstance(schedule, schedules.Schedule)
print(schedule.orders[3][:4])  # the first actions of the last mesh
assert schedule.placement == schedules.Placement(4, (0, 1, 2, 3))

# == schedules.Simulation, schedules.Event, schedules.Timeline
assert isinstance(result, schedules.Simulation) and isinstance(result.timeline, schedules.Timeline)
first = result.timeline.rows[0][0]  # what mesh 0 does first
assert isinstance(first, schedules.Event) and (first.mesh, first.start, first.end) == (0, 0, 1)

# == schedules.Kind, schedules.KINDS, schedules.KIND_NAMES
kinds: tuple[schedules.Kind, ...] = schedules.KINDS  # "F", "I", "W", "B", "O"
assert schedules.KIND_NAMES[kinds[0]] == "forward"


# == schedules.Step
def length(order: tuple[schedules.Step, ...]) -> int:  # a Step is an Action, or a Fused of two
    return sum(2 if isinstance(step, schedules.Fused) else 1 for step in order)


assert length(schedule.orders[0]) == 16

# == schedules.Transfers, schedules.TRANSFERS
lengths: dict[schedules.Transfers, float] = {
    transfers: schedules.simulate(schedule, costs, transfers=transfers).makespan for transfers in schedules.TRANSFERS
}
assert lengths["async"] <= lengths["blocking"]

# == schedules.MemoryLimit, schedules.AUTO_WEIGHT_FRACTION
limit: schedules.MemoryLimit = [4, 3, 3, 2]  # microbatches, for each mesh; or one number
fitted = schedules.zb_auto(4, 8, memory_limit=limit, weight_fraction=schedules.AUTO_WEIGHT_FRACTION)  # its default

# == schedules.ENTRIES
assert "gpipe" in {entry.name for entry in schedules.ENTRIES}

# == schedules.grid
print(schedules.grid(result, width=80))

# == schedules.path_report
print(schedules.path_report(result))

# == schedules.draw, schedules.Picture, schedules.to_svg, schedules.to_html
from pathlib import Path

picture = schedules.draw(result, names=["a", "b", "c", "d"])
assert isinstance(picture, schedules.Picture)
Path("schedule.svg").write_text(schedules.to_svg(picture))
Path("schedule.html").write_text(schedules.to_html(picture, "1F1B on four meshes"))

# == schedules.save_pdf, schedules.save_png
schedules.save_pdf(picture, "schedule.pdf")  # needs Matplotlib
schedules.save_png(picture, "schedule.png")  # needs Pillow

# == schedules.chrome_trace
Path("schedule.json").write_text(schedules.chrome_trace(result))  # for https://ui.perfetto.dev

# == schedules.Trace, schedules.Slice
trace = schedules.Trace()  # events of your own, for the same viewer; times are microseconds
trace.name(0, "loader")
reading = trace.slice(0, 0, "read batch 0", "data", 0.0, 120.0)
assert isinstance(reading, schedules.Slice) and reading.end == 120.0
Path("loader.json").write_text(trace.text())

# == schedules.schedule_names, schedules.find_entry, schedules.Entry
for name in schedules.schedule_names():
    entry = schedules.find_entry(name)
    assert isinstance(entry, schedules.Entry) and entry.summary

# == schedules.orders
assert schedules.orders("gpipe", 1, 2) == [[(0, "F", 0), (0, "F", 1), (0, "B", 0), (0, "B", 1)]]

# == schedules.Action, schedules.forward, schedules.backward, schedules.parse_action
action = schedules.forward(stage=2, microbatch=0)
assert action == schedules.Action(2, "F", 0) == schedules.parse_action("2F0")
assert str(schedules.backward(2, 0)) == "2B0"

# == schedules.input_grad, schedules.weight_grad
halves = [schedules.input_grad(2, 0), schedules.weight_grad(2, 0)]  # of a backward

# == schedules.fused, schedules.Fused
block = schedules.fused(schedules.forward(2, 1), schedules.backward(2, 0))  # one program
assert isinstance(block, schedules.Fused)

# == schedules.from_orders, schedules.check, schedules.Problem, schedules.explain
mine = schedules.from_orders([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], name="mine")
assert schedules.check(mine) == []
wrong = schedules.from_orders([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B1", "1B0"]])
problems = schedules.check(wrong)
assert isinstance(problems[0], schedules.Problem)
print(schedules.explain(wrong, problems))

# == schedules.validate, schedules.ScheduleError
try:
    schedules.validate(wrong)
except schedules.ScheduleError as error:
    print(error.problems[0].message)

# == schedules.ScheduleWarning
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("error", schedules.ScheduleWarning)  # legal, but unlikely to be what the name promises
    schedules.get_schedule("1f1b", 4, 8)

# == schedules.from_function
gpipe = lambda meshes, microbatches: [
    [f"{mesh}{kind}{i}" for kind in "FB" for i in range(microbatches)] for mesh in range(meshes)
]
mine = schedules.from_function(gpipe, 2, 4)

# == schedules.from_key
mine = schedules.from_key(lambda action: (action.kind != "F", action.microbatch), 2, 4)  # GPipe again

# == schedules.from_comparator
forwards_first = lambda a, b: a.kind == "F" and b.kind != "F"
mine = schedules.from_comparator(forwards_first, 2, 4)

# == schedules.save_csv, schedules.load_csv
schedules.save_csv(schedule, "1f1b.csv")
assert schedules.load_csv("1f1b.csv").orders == schedule.orders

# == schedules.search, schedules.SearchResult, schedules.Candidate
found = schedules.search(costs, meshes=2, microbatches=4, exact=False)
assert isinstance(found, schedules.SearchResult) and isinstance(found.best, schedules.Candidate)
print(found.best.schedule.name, found.best.result.makespan, found.lower_bound)

# == schedules.solve_exact, schedules.Exact
best = schedules.solve_exact(2, 2, time_limit=10.0)
assert isinstance(best, schedules.Exact) and best.value >= best.lower_bound

# == schedules.zb_auto
built = schedules.zb_auto(4, 8, costs, memory_limit=4)  # at most the activations of four microbatches

# == schedules.partition_layers, schedules.Partition, schedules.Cut
parts = schedules.partition_layers([1, 1, 1, 1, 2, 2], 2)  # six layers, the last two twice as expensive
assert isinstance(parts, schedules.Partition) and parts.bounds == (0, 4, 6)
sends = [schedules.Cut(before=0.1, after=0.1)] * 5  # what it costs to cut after each layer but the last
parts = schedules.partition_layers([1, 1, 1, 1, 2, 2], 2, cuts=sends)

# == schedules.StageGraph, schedules.forward_passes, schedules.training_passes
skip = schedules.StageGraph(((), (0,), (1, 0)))  # stage 2 reads stage 0, too
where = schedules.Placement(2, (0, 1, 0))  # the last stage is on the first mesh again
inference = schedules.forward_passes(where, 4, skip)
training = schedules.training_passes(where, 4, skip)

# == schedules.overlapped
hiding = schedules.overlapped(schedule, costs)  # a forward and a backward in one block, where that is shorter

# == schedules.contiguous_stages
doubled = schedules.contiguous_stages(schedule, 2)  # two stages in place of each, on the same mesh

# == schedules.meshes_over
limits = [4, 4, 2, 2]  # activations of each mesh, or one number for all
print(schedules.meshes_over(result.peak_activations, limits))  # the numbers of the meshes that hold more

# == rules.Fragments, rules.Fragment
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import mpmd_trace as mt
from mpmd_trace import rules


def loss(weights, x):
    for i, w in enumerate(weights):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
    return jnp.mean(x**2)


step = mt.value_and_grad(loss, microbatches=4)
meshes = {f"m{i}": Mesh(np.array([device]), ("x",)) for i, device in enumerate(jax.devices()[:2])}
names = {"layer0": "m0", "layer1": "m1"}
weights, x = list(jax.random.normal(jax.random.key(0), (2, 4, 4))), jnp.ones((8, 4))
fragments = mt.jit(step, mt.make_config(meshes, names)).lower(weights, x).fragments()
assert isinstance(fragments, rules.Fragments) and isinstance(fragments[0], rules.Fragment)
print(fragments.where(mesh="m0", kind="F"))

# == rules.order
two_ahead = rules.order(fragments.where(mesh="m0", kind="F", microbatch=range(2)), fragments.where(mesh="m0").backward)
assert isinstance(two_ahead[0], mt.rules.ScheduleRule)
config = mt.make_config(meshes, names, pipeline_schedule="none", fragment_schedule_rules=two_ahead)
lowered = mt.jit(step, config).lower(weights, x)

# == rules.merge
[pair] = rules.merge(fragments.where(mesh="m0", kind="F", microbatch=range(2)))
assert isinstance(pair, mt.rules.MergeRule)

# == rules.merge_neighbours, rules.MergeNeighbours
small = rules.merge_neighbours(lambda a, b: a.flops + b.flops < 1e4)  # for fragment_merge_rules
assert isinstance(small, rules.MergeNeighbours)

# == rules.parse
assert rules.parse(str(pair)) == pair

# == equinox.name_layers, equinox.NamedLayer, equinox.NamedFunction
import equinox as eqx

import mpmd_trace.equinox as mpmd_equinox

mlp = eqx.nn.MLP(4, 4, 8, depth=1, key=jax.random.key(0))
named = mpmd_equinox.name_layers(mlp, lambda mlp: mlp.layers, name=["layer0", "layer1"])
assert isinstance(named.layers[0], mpmd_equinox.NamedLayer) and isinstance(named.layers[0], eqx.nn.Linear)
activated = mpmd_equinox.NamedFunction(jax.nn.relu, "activation")  # what name_layers makes of a function

# == equinox.filter_value_and_grad, equinox.filter_jit
mean = lambda mlp, x: jnp.mean(jax.vmap(mlp)(x) ** 2)
gradients = mpmd_equinox.filter_value_and_grad(mean, microbatches=4)
train = mpmd_equinox.filter_jit(gradients, mt.make_config(meshes, names))
compiled = train.lower(named, x).compile()
value, grads = compiled(named, x)

# == equinox.place, equinox.abstract, equinox.create
(named,) = mpmd_equinox.place(compiled, named)
types = mpmd_equinox.abstract(compiled)  # shapes, dtypes and shardings
make = lambda key: mpmd_equinox.name_layers(eqx.nn.MLP(4, 4, 8, depth=1, key=key), lambda m: m.layers, name=list(names))
fresh = mpmd_equinox.create(make, compiled, jax.random.key(1))

# == equinox.save, equinox.restore
mpmd_equinox.save("mlp", named)
named = mpmd_equinox.restore("mlp", compiled)

# == equinox.split, equinox.join, equinox.Statics
arrays, statics = mpmd_equinox.split(mlp)
assert isinstance(statics, mpmd_equinox.Statics)
same = mpmd_equinox.join([2 * array for array in arrays], statics)  # an MLP again

# == nnx.name_layers, nnx.NamedLayer
from flax import nnx

import mpmd_trace.nnx as mpmd_nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


model = mpmd_nnx.name_layers(Model(nnx.Rngs(0)), "layers", name=["layer0", "layer1"])
assert isinstance(model.layers[0], mpmd_nnx.NamedLayer)

# == nnx.value_and_grad, nnx.jit
gradients = mpmd_nnx.value_and_grad(lambda model, x: jnp.mean(model(x) ** 2), microbatches=4)
train = mpmd_nnx.jit(gradients, mt.make_config(meshes, names))
value, grads = train(model, x)

# == nnx.place, nnx.create
compiled = train.lower(model, x).compile()
mpmd_nnx.place(compiled, model)  # in place
make = lambda: mpmd_nnx.name_layers(Model(nnx.Rngs(1)), "layers", name=["layer0", "layer1"])
fresh = mpmd_nnx.create(make, compiled)

# == nnx.program
program = mpmd_nnx.program(gradients, (model, x), mt.make_config(meshes, names), steps=3, loss=lambda result: result[0])

# == nnx.named_computation
first_layer = mpmd_nnx.named_computation(lambda model, x: model.layers[0](x), name="layer0")


# == nnx.name_scans
class Stacked(nnx.Module):
    def __init__(self, rngs):
        make = nnx.vmap(lambda rngs: nnx.Linear(4, 4, rngs=rngs), in_axes=0, out_axes=0)
        self.layers = nnx.split_rngs(splits=4)(make)(rngs)

    def __call__(self, x):
        return nnx.scan(lambda x, layer: jnp.tanh(layer(x)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)


stacked = mt.make_config(meshes, {"blocks": ["m0", "m1"]})
y = mpmd_nnx.jit(lambda model, x: mpmd_nnx.name_scans(model, "blocks")(x), stacked)(Stacked(nnx.Rngs(0)), x)

# == linen.name_layers
from flax import linen

import mpmd_trace.linen as mpmd_linen

dense = linen.Sequential([linen.Dense(4), linen.Dense(4)])
variables = dense.init(jax.random.key(0), x)
apply = mpmd_linen.name_layers(dense.apply, "layers_*")
y = mt.jit(apply, mt.make_config(meshes, {"layers_0": "m0", "layers_1": "m1"}))(variables, x)
