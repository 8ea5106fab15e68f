"""The parts that fuzzed steps are made of, as source text: layers, code between them, optimisers, loops over
microbatches.  Each part stands for something that training code does; the first of each table is the simplest.
"""

from __future__ import annotations

#: Bodies of named computations: what they take beside the weight and the activations, and their code.  `w` is
#: (width, width), `h` (rows, width), `tokens` and `mask` (rows,).
LAYERS: dict[str, tuple[tuple[str, ...], str]] = {
    "dense": ((), "return jnp.tanh(h @ w)"),
    "identity": ((), "return h"),
    "ones": ((), "return jnp.ones_like(h)"),
    "weight": ((), "return jnp.broadcast_to(w[:1], h.shape)"),
    "residual": ((), "return h + jnp.sin(h @ w)"),
    "auxiliary": ((), "y = h @ w\nreturn jnp.tanh(y), jnp.mean(y.astype(jnp.float32) ** 2)"),
    "layer_norm": (
        (),
        """\
y = h - h.mean(-1, keepdims=True)
return y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 0.1) * w[0]""",
    ),
    "attention": ((), "return h + jax.nn.softmax((h @ w) @ h.T / 4, axis=-1) @ h"),
    "embed": (("tokens",), "return h + w[tokens % w.shape[0]]"),
    "one_hot": (("tokens",), "return h + jax.nn.one_hot(tokens, w.shape[0], dtype=w.dtype) @ w"),
    "masked": (("mask",), "return jnp.where(mask[:, None], h @ w, h)"),
    "dropout": (("key",), "return jnp.tanh(h @ w) * jax.random.bernoulli(key, 0.5, h.shape)"),
    "scanned": (
        (),
        """\
def body(c, x):
    c = jnp.tanh(c @ w + x)
    return c, c.sum()
c, sums = lax.scan(body, h, jnp.arange(3, dtype=h.dtype))
return c * sums.mean()""",
    ),
    "rows": ((), "return lax.map(lambda row: jnp.tanh(row @ w), h)"),
    "looped": ((), "return lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c @ w) + i, h)"),
    "branch": (("tokens",), "return lax.cond(tokens.sum() > 3, lambda: jnp.tanh(h @ w), lambda: h * 2)"),
    "switch": (("tokens",), "return lax.switch(tokens.sum() % 3, [lambda a: a, lambda a: a @ w, jnp.sin], h)"),
    "counted": (
        ("tokens",),
        """\
n = lax.while_loop(lambda n: n * n < tokens.sum(), lambda n: n + 1, jnp.int32(0))
return (h @ w) / (1 + n).astype(h.dtype)""",
    ),
    "constant": ((), "return h @ w + jnp.asarray(TABLE[: h.shape[1]], h.dtype)"),
    "large_constant": ((), "return h @ w + LARGE.sum(0)[: h.shape[1]].astype(h.dtype)"),
    "checkpointed": ((), "return jax.checkpoint(lambda w, h: jnp.tanh(jnp.sin(h @ w) @ w))(w, h)"),
    "custom": ((), "return clipped_gradient(h @ w)"),
    "jitted": ((), "return jax.jit(lambda a, b: jnp.cos(a @ b))(h, w)"),
    "mapped": ((), "return jax.vmap(lambda row: jnp.tanh(row @ w))(h)"),
    "sorted": ((), "return jnp.sort(h @ w, axis=-1)"),
    "summed": ((), "return jnp.cumsum(h @ w, axis=-1) / 4"),
    "rolled": ((), "return jnp.concatenate([h[:, 1:], jnp.roll(h, 1, 0)[:, :1]], axis=1) @ w"),
    "spectrum": ((), "return jnp.fft.fft((h @ w).astype(jnp.float32)).real.astype(h.dtype) / 2"),
    "lower_precision": ((), "return (h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(h.dtype)"),
    "stopped": ((), "return jnp.tanh(h) + lax.stop_gradient(h @ w)"),
    "nested": ((), 'return mt.named_computation(lambda w, h: jnp.tanh(h @ w), name="inner")(w, h)'),
    "padded": ((), "return jnp.pad(h @ w, ((0, 0), (1, 2)))[:, 1:-2] + jnp.zeros((0, h.shape[1]), h.dtype).sum(0)"),
    "sharded": ((), "return lax.with_sharding_constraint(jnp.tanh(h @ w), ROWS)"),
}

#: Needed by some layers, by their names.
SUPPORT = {
    "constant": "TABLE = np.linspace(-1.0, 1.0, 64, dtype=np.float32)",
    "large_constant": "LARGE = jnp.linspace(-1.0, 1.0, 70 * 64).reshape(70, 64)",
    "custom": """\
@jax.custom_vjp
def clipped_gradient(x):
    return jnp.sin(x)


clipped_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, d: (jnp.clip(d, -0.5, 0.5) * jnp.cos(x),))""",
}

#: Code without a name behind a layer; `first` is what went into the first layer.
BETWEEN = {
    "": "",
    "scale": 'h = h * p["scale"]',
    "skip": "h = h + first",
    "normalise": "h = h / (1 + jnp.abs(h).mean())",
    "dead": "dead = jnp.exp(h) @ h.T",
    "tensor": 'h = mt.named_tensor(h, "tensor")',
    "broadcast": "h = mt.broadcast(h)",
    "statistics": "aux = aux + jnp.mean(h.astype(jnp.float32))",
    "constraint": "h = lax.with_sharding_constraint(h, ROWS)",
}

#: From parameters, state and gradients to new parameters and state, and the first state.
OPTIMISERS: dict[str, tuple[str, str]] = {
    "": ("", "{}"),
    "sgd": ("return jax.tree.map(lambda w, d: w - 0.1 * d, p, g), s", "{}"),
    "momentum": (
        "s = jax.tree.map(lambda m, d: 0.9 * m + d, s, g)\nreturn jax.tree.map(lambda w, m: w - 0.1 * m, p, s), s",
        "jax.tree.map(jnp.zeros_like, p)",
    ),
    "adam": (
        """\
m = jax.tree.map(lambda m, d: 0.9 * m + 0.1 * d, s["m"], g)
v = jax.tree.map(lambda v, d: 0.99 * v + 0.01 * d * d, s["v"], g)
count = s["count"] + 1
rate = 0.1 / (1 - 0.9 ** count.astype(jnp.float32))
p = jax.tree.map(lambda w, m, v: (w - rate * m / (jnp.sqrt(v) + 0.1)).astype(w.dtype), p, m, v)
return p, {"m": m, "v": v, "count": count}""",
        '{"m": jax.tree.map(jnp.zeros_like, p), "v": jax.tree.map(jnp.zeros_like, p), "count": jnp.int32(0)}',
    ),
    "clip": (
        """\
norm = jnp.sqrt(sum(jnp.sum(d.astype(jnp.float32) ** 2) for d in jax.tree.leaves(g)))
rate = 0.1 / jnp.maximum(norm, 1.0)
return jax.tree.map(lambda w, d: (w - rate * d).astype(w.dtype), p, g), s""",
        "{}",
    ),
    "skip_bad": (
        """\
norm = sum(jnp.sum(jnp.abs(d.astype(jnp.float32))) for d in jax.tree.leaves(g))
good = jnp.isfinite(norm)
return jax.tree.map(lambda w, d: jnp.where(good, w - 0.1 * d, w), p, g), {"bad": s["bad"] + ~good}""",
        '{"bad": jnp.int32(0)}',
    ),
    "decay": ("return {k: w - 0.1 * g[k] - (0.01 * w if k[0] == 'w' else 0) for k, w in p.items()}, s", "{}"),
    "named": (
        """\
new = {}
for k, w in p.items():
    new[k] = mt.named_computation(lambda w, d: w - 0.1 * d, name="update_" + k)(w, g[k])
return new, s""",
        "{}",
    ),
}

#: What is done with each microbatch: `found` is the sum over all of what `work(p, b)` returns.
LOOPS = {
    "none": "found = work(p, batch)",
    "unrolled": """\
found = work(p, one(batch, 0))
for i in range(1, MICROBATCHES):
    found = add(found, work(p, one(batch, i)))""",
    "calls": """\
found = mt.call(work, call_counter=0)(p, one(batch, 0))
for i in range(1, MICROBATCHES):
    found = add(found, mt.call(work, call_counter=i)(p, one(batch, i)))""",
    "backwards": """\
found = mt.call(work, call_counter=MICROBATCHES - 1)(p, one(batch, MICROBATCHES - 1))
for i in reversed(range(MICROBATCHES - 1)):
    found = add(found, mt.call(work, call_counter=i)(p, one(batch, i)))""",
    "enumerated_for": """\
start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(work, p, one(batch, 0)))
found = mt.enumerated_for(lambda i, total, b: add(total, work(p, b)), start, batch)""",
    "fori_loop": """\
start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(work, p, one(batch, 0)))
found = mt.fori_loop(MICROBATCHES, lambda i, total: add(total, work(p, one(batch, i))), start)""",
    "scan": """\
start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(work, p, one(batch, 0)))
found = lax.scan(lambda total, b: (add(total, work(p, b)), None), start, batch)[0]""",
    "stacked": """\
count, all_found = mt.enumerated_for(lambda i, n, b: (n + 1, work(p, b)), jnp.int32(0), batch)
found = jax.tree.map(lambda x: x.sum(0), all_found)""",
    "vmap": "found = jax.tree.map(lambda x: x.sum(0), jax.vmap(work, (None, 0))(p, batch))",
    "around": """\
found = jax.value_and_grad(
    lambda p: mt.enumerated_for(lambda i, total, b: total + loss(p, b), jnp.float32(0), batch)
)(p)""",
    "last": """\
for i in range(MICROBATCHES):
    found = mt.call(work, call_counter=i)(p, one(batch, i))""",
}

#: Loops that came later, which only `later_step` draws.
LATER_LOOPS = {
    "value_and_grad": """\
found = mt.value_and_grad(
    lambda p, b: loss(p, jax.tree.map(lambda a: a[0], b)), microbatches=MICROBATCHES, reduce="sum"
)(p, batch)"""
}

#: The layers of `Step.stacked`, whose weights are one array.
STACK = """

def block(h, w):
    return h + jnp.tanh(h @ w) / 2, None"""

#: Further results of a step, by name; `extra` is the last argument.
RESULTS = {
    "untouched": 'extra["untouched"]',
    "twice": "(found, found)",
    "numbers": "(1, 2.5, True, np.float32(3))",
    "table": "jnp.arange(3)",
    "empty": 'extra["empty"] * 2',
    "count": '(extra["count"] + 1, ~extra["flags"])',
    "next_key": 'jax.random.split(extra["key"])[0]',
    "weak": 'extra["number"] * 2',
    "none": '{"none": None, "nested": [(), {"x": extra["untouched"].sum()}]}',
    "parameter": 'p["w0"]',
    "batch": "jax.tree.leaves(batch)[0]",
    "sum": "sum(jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(p))",
}
