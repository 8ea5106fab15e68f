"""Fuzzed programs as Python source: what is tested is this text, which also runs by itself."""

from __future__ import annotations

import itertools
import textwrap

from fuzz.pieces import BETWEEN, LATER_LOOPS, LAYERS, LOOPS, OPTIMISERS, RESULTS, STACK, SUPPORT
from fuzz.programs import Program, Setup, Step

_HEAD = '''\
"""{title}"""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
'''

#: Makes a file of its own from the text of a program.
_TEST = """

def test_program():
    expected = jax.jit(step)(*arguments())
    found = mt.jit(step, CONFIG, **OPTIONS)(*arguments())
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), {rtol}, {rtol})


if __name__ == "__main__":
    test_program()
"""

#: Likewise, for a program over several processes.
_SEVERAL = """

def compare():
    expected = jax.jit(step)(*arguments())
    found = mt.fetch(mt.jit(step, CONFIG, **OPTIONS)(*arguments()))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    bits = []
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), {rtol}, {rtol})
        bits.append(np.asarray(a).tobytes().hex())
    print("results", *bits)


def said(processes):
    launch = ["-m", "mpmd_trace_cli.entry", "launch", "-n", str(processes), "--devices", "8", __file__]
    done = subprocess.run([sys.executable, *launch], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {{line.partition("] ")[2] for line in done.stdout.splitlines() if "] results" in line}}


def test_program():
    alone = said(1)
    assert len(alone) == 1 and said({processes}) == alone


if __name__ == "__main__":
    compare()
"""


def source(program: Program, title: str = "A generated program.", test: bool = False) -> str:
    """The program as Python; with `test` as a file for pytest that compares it with `jax.jit`."""
    step, setup = program.step, program.setup
    parts = [_HEAD.format(title=title), topology_source(setup), step_source(step), setup_source(setup, step)]
    text = "\n".join(parts)
    several = bool(setup.processes)
    if several:
        text = text.replace("import os\n", "import os\nimport subprocess\nimport sys\n" if test else "import os\n", 1)
        text = text.replace("import mpmd_trace as mt\n", "import mpmd_trace as mt\n\nmt.initialize()\n", 1)
    # What is imported and not used would stop a linter.
    for name in ("NamedSharding", "PartitionSpec"):
        if text.count(name) == 1:
            text = text.replace(f", {name}", "", 1)
    if "lax." not in text:
        text = text.replace("from jax import lax\n", "")
    if test:
        processes = 1 + max(setup.processes, default=0)
        text += (_SEVERAL if several else _TEST).format(rtol=tolerance(step), processes=processes)
    return text


def tolerance(step: Step) -> float:
    """How far results may be from those of one program on one device."""
    low = step.dtype == "bfloat16" or any(layer.kind == "lower_precision" for layer in step.layers)
    return 6e-2 if low else 1e-2 if step.dtype == "float16" else 2e-4


def _axis(setup: Setup, mesh: int) -> str:
    return f"s{mesh}_data" if len(set(setup.meshes)) > 1 else "data"


def topology_source(setup: Setup) -> str:
    """`MESHES`; their order in the reference's hash tables is this one, too."""
    lines, first, known = ["MESHES = {"], 0, "jax.local_devices()"
    if setup.processes:
        count = sum(setup.meshes)
        owners = (setup.processes * count)[:count]
        known = "DEVICES"
        lines = [
            f"OWNERS = {owners}  # the process of each device; fewer processes have the parts of others",
            "LOCAL = [iter(jax.local_devices(process_index=p)) for p in range(jax.process_count())]",
            "DEVICES = [next(LOCAL[p % len(LOCAL)]) for p in OWNERS]",
            *lines,
        ]
    for i, size in enumerate(setup.meshes):
        devices = f"np.array({known}[{first}:{first + size}])"
        lines.append(f'    "s{i}": Mesh({devices}, ("{_axis(setup, i)}",)),')
        first += 0 if setup.shares_devices else size
    return "\n".join([*lines, "}", ""])


def step_source(step: Step) -> str:
    """The functions `step` and `arguments`; `MESHES` is defined before them."""
    kinds = list(dict.fromkeys(layer.kind for layer in step.layers))
    lines = [f"MICROBATCHES = {step.microbatches}"] if step.loops else []
    if any(layer.kind == "sharded" or layer.behind == "constraint" for layer in step.layers):
        # On meshes of different shapes, no axis means the same everywhere.
        lines += [
            "AXES = {name: mesh.axis_names[0] for name, mesh in MESHES.items()}",
            'ROWS = NamedSharding(MESHES["s0"], PartitionSpec(AXES["s0"] if AXES["s0"] == "data" else None))',
        ]
    lines += [text for kind, text in SUPPORT.items() if kind in kinds]
    for kind in kinds:
        needs, body = LAYERS[kind]
        lines += ["", "", f"def {kind}({', '.join(('w', 'h', *needs))}):", _indented(body)]
    if step.stacked:
        lines.append(STACK)
    lines += ["", "", "def model(p, b):", '    h = first = b["x"]', "    aux = jnp.float32(0)"]
    for i, layer in enumerate(step.layers):
        needs, _ = LAYERS[layer.kind]
        given = [f'p["w{step.weight(i)}"]', "h"]
        given += [f'jax.random.fold_in(b["key"], {i})' if n == "key" else f'b["{n}"]' for n in needs]
        called = f'mt.named_computation({layer.kind}, name="{step.name(i)}")({", ".join(given)})'
        if layer.kind == "auxiliary":
            lines += [f"    h, more = {called}", "    aux = aux + more"]
        else:
            lines.append(f"    h = {called}")
        if layer.behind:
            lines.append(_indented(BETWEEN[layer.behind]))
    if step.stacked:
        lines.append('    h, _ = mt.scan(block, h, p["stack"], name="stack")')
    lines.append("    return h, aux")
    lines += [_loss(step), _work(step), _step(step), _arguments(step)]
    return "\n".join(lines) + "\n"


def _loss(step: Step) -> str:
    if step.work == "forward":
        return ""
    rows = "(h.astype(jnp.float32) ** 2).mean(-1)"
    if step.weighted:
        given, value = "h, mask", f"jnp.sum(mask * {rows}) / jnp.maximum(mask.sum(), 1)"
    else:
        given, value = "h", f"jnp.mean({rows})"
    actual = given.replace("mask", 'b["mask"]')
    named = 'mt.named_computation(distance, name="loss")' if step.named_loss else "distance"
    value_and = ", h" if step.work == "hidden" else ""
    checkpoint = "@jax.checkpoint\n" if step.checkpointed else ""
    return f"""

def distance({given}):
    return {value}


{checkpoint}def loss(p, b):
    h, aux = model(p, b)
    return {named}({actual}) + 0.1 * aux{value_and}"""


def _work(step: Step) -> str:
    body = {
        "grad": "jax.value_and_grad(loss)(p, b)",
        "hidden": "jax.value_and_grad(loss, has_aux=True)(p, b)",
        "forward": "model(p, b)",
        "hvp": "jax.jvp(lambda q: jax.grad(loss)(q, b), (p,), (p,))[1]",
    }[step.work]
    return f"""

def work(p, b):
    return {body}


def one(batch, i):
    return {"batch[i]" if step.listed else "jax.tree.map(lambda a: a[i], batch)"}


def add(a, b):
    return jax.tree.map(jnp.add, a, b)"""


def _step(step: Step) -> str:
    lines = []
    if step.updates:
        lines += ["", "", "def update(p, s, g):", _indented(OPTIMISERS[step.optimiser][0])]
    more = ", ".join(f'"{name}": {RESULTS[name]}' for name in step.results)
    lines += ["", "", "def step(p, s, batch, extra):", _indented({**LOOPS, **LATER_LOOPS}[step.loop])]
    if step.updates:
        lines += ["    value, grads = found", "    p, s = update(p, s, grads)", f"    return p, s, value, {{{more}}}"]
    else:
        lines.append(f"    return found, {{{more}}}")
    return "\n".join(lines)


def _needs(step: Step) -> list[str]:
    """What the batch has beside `x`."""
    needs = {need for layer in step.layers for need in LAYERS[layer.kind][0]}
    return sorted(needs | ({"mask"} if step.weighted and step.work != "forward" else set()))


def _arguments(step: Step) -> str:
    rows, width = step.shape
    lead = f"{step.microbatches}, " if step.loops else ""
    dtype = f"jnp.{step.dtype}"
    needs = _needs(step)
    lengths = {"scale": f"{width}", "stack": f"{step.stacked}, {width}, {width}"}
    weights = ", ".join(f'"{k}": normal({lengths.get(k, f"{width}, {width}")})' for k in step.parameters)
    batch = [f'"x": normal({lead}{rows}, {width})']
    if "tokens" in needs:
        batch.append(f'"tokens": jnp.asarray(rng.integers(0, 4, size=({lead}{rows},)), jnp.int32)')
    if "mask" in needs:
        batch.append(f'"mask": jnp.asarray(rng.random(({lead}{rows},)) < 0.7)')
    if "key" in needs:
        key = "jax.random.key(1)"
        batch.append(f'"key": jax.random.split({key}, {step.microbatches})' if step.loops else f'"key": {key}')
    used = "".join(RESULTS[name] for name in step.results)
    extra = {
        "untouched": "jnp.arange(4.0)",
        "empty": "jnp.zeros((0, 3))",
        "count": "jnp.int32(7)",
        "flags": "jnp.array([True, False])",
        "key": "jax.random.key(2)",
        "number": "0.5",
    }
    given = ", ".join(f'"{k}": {v}' for k, v in extra.items() if f'extra["{k}"]' in used)
    lines = ["", "", "def arguments():", "    rng = np.random.default_rng(0)", ""]
    lines.append("    def normal(*shape):")
    lines.append(f"        return jnp.asarray(rng.normal(size=shape) * 0.5, {dtype})")
    lines += ["", f"    p = {{{weights}}}", f"    batch = {{{', '.join(batch)}}}"]
    if step.listed:
        lines.append("    batch = [jax.tree.map(lambda a: a[i], batch) for i in range(MICROBATCHES)]")
    state = OPTIMISERS[step.optimiser][1] if step.updates else "{}"
    lines.append(f"    return p, {state}, batch, {{{given}}}")
    return "\n".join(lines)


def setup_source(setup: Setup, step: Step) -> str:
    """`CONFIG`, and the keyword arguments of `mpmd_trace.jit`."""
    names = {}
    for i, name in enumerate(step.names):
        mesh, stage = setup.places[i % len(setup.places)]
        text = f"s{mesh % len(setup.meshes)}"
        if name == "tensor":
            names[name] = repr(text + setup.tensor_memory)
        else:
            names[name] = repr(text) if stage is None or name.startswith("update") else repr((text, stage))
    inner = next((i for i, layer in enumerate(step.layers) if layer.kind == "nested"), None)
    if inner is not None and sum(layer.kind == "nested" for layer in step.layers) == 1:
        names["inner"] = names[step.name(inner)]
    if step.stacked:
        names |= _places_of_stack(setup, step)
    options = dict.fromkeys(("mpmd_infer_transfers", *setup.options), True)
    if len(set(setup.meshes)) > 1:
        options["enable_heterogeneous_meshes"] = True
    if setup.unequal_microbatches:
        options["mpmd_equal_microbatches"] = False
    lines = ["", "CONFIG = mt.make_config(", "    MESHES,"]
    lines.append(f"    {{{', '.join(f'{n!r}: {v}' for n, v in names.items())}}},")
    lines.append(f"    partitioning_options={options},")
    lines.append(f"    placement={setup.placement!r},")
    if setup.hoists_nothing:
        lines.append("    hoist_invariants=False,")
    if setup.reduces_each:
        lines.append("    gradient_reduction='microbatch',")
    if setup.shard_optimizer:
        lines.append("    optimizer_sharding='data',")
    if setup.gather != "auto":
        lines.append(f"    gather={setup.gather!r},")
    if setup.device_memory is not None:
        lines.append(f"    device_memory={setup.device_memory},")
    if setup.remat:
        lines.append("    remat='auto',")
    if setup.schedule is not None:
        lines.append(f"    pipeline_schedule={setup.schedule!r},")
    others = f"dict.fromkeys({[k for k in step.parameters if k != 'w0']})"
    if setup.input_mesh is not None:
        lines.append(f"    input_mesh_assignment=({{'w0': {setup.input_mesh!r}, **{others}}}, None, None, None),")
    if setup.in_place and step.updates:
        lines.append("    output_mesh_assignment=(mt.MeshOfInput(0), mt.MeshOfInput(1), None, None),")
    elif setup.output_mesh is not None and step.updates:
        lines.append(f"    output_mesh_assignment=({{'w0': {setup.output_mesh!r}, **{others}}}, None, None, None),")
    elif setup.output_mesh is not None:
        first = f"{setup.output_mesh!r}" if step.work == "hvp" else f"({setup.output_mesh!r}, None)"
        lines.append(f"    output_mesh_assignment=({first}, None),")
    lines += [")", "OPTIONS = {"]
    if setup.engine != "python":
        lines.append(f"    'engine': {setup.engine!r},")
    if setup.donated:
        lines.append(f"    'donate_argnums': {setup.donated},")
    batch = weights = "None"
    if setup.shard_batch:
        dims = f"{'None, ' if step.loops and not step.listed else ''}'data'"
        rest = "".join(f"'{key}': None, " for key in _needs(step))
        batch = f"{{'x': NamedSharding(MESHES['s0'], PartitionSpec({dims})), {rest}}}"
        batch = f"[{batch}] * MICROBATCHES" if step.listed else batch
    if setup.shard_weights:  # whichever mesh they are on
        sharding = "NamedSharding(MESHES['s0'].abstract_mesh, PartitionSpec(None, 'data'))"
        each = [f"{k!r}: {sharding if k.startswith('w') else None}" for k in step.parameters]
        weights = f"{{{', '.join(each)}}}"
    if setup.shard_batch or setup.shard_weights:
        lines.append(f"    'in_shardings': ({weights}, None, {batch}, None),")
    if setup.shard_results and step.updates and step.shape[1] % 2 == 0:
        sharding = "NamedSharding(MESHES['s0'], PartitionSpec('data'))"
        lines.append(f"    'out_shardings': ({{'w0': {sharding}, **{others}}}, None, None, None),")
    return "\n".join([*lines, "}"]) + "\n"


def _places_of_stack(setup: Setup, step: Step) -> dict[str, str]:
    """The stacked layers, over all meshes; where the others are numbered, in the last stage."""
    mesh, stage = setup.places[-1]
    if stage is not None:
        return {"stack": repr((f"s{mesh % len(setup.meshes)}", stage))}
    count = min(len(setup.meshes), step.stacked)
    if step.stacked % count == 0:
        return {"stack": repr([f"s{i}" for i in range(count)])}
    cuts = [i * step.stacked // count for i in range(count + 1)]
    return {f"stack[{a}:{b}]": repr(f"s{i}") for i, (a, b) in enumerate(itertools.pairwise(cuts))}


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")
