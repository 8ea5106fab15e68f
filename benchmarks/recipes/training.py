"""The ways in which people train a language model: optimizers, clipping, loss scaling, masks, averages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from mpmd_trace import enumerated_for
from recipes.language import (
    MICROBATCHES,
    Layout,
    batch_of,
    cross_entropy,
    logits,
    parameters,
    small,
    state_homes,
    summed,
    train,
)
from recipes.recipe import Recipe, size

TWO = ("a", "b")
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def _weights(tokens: jax.Array) -> jax.Array:
    return (tokens[..., 1:] > 3).astype(jnp.float32)


def _token_sum(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.sum(each * _weights(tokens))


def _smoothed(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    targets = optax.smooth_labels(jax.nn.one_hot(tokens[:, 1:], logits.shape[-1]), 0.1)
    return optax.softmax_cross_entropy(logits, targets).mean() + 1e-4 * jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)


def _by_tokens(grads: Any, p: Any, batch: jax.Array) -> Any:
    count = jnp.sum(_weights(batch))
    return jax.tree.map(lambda g: g / count, grads)


def _noisy(grads: Any, p: Any, batch: jax.Array) -> Any:
    leaves, tree = jax.tree.flatten(grads)
    keys = jax.random.split(jax.random.key(jnp.sum(batch)), len(leaves))
    noise = [1e-3 * jax.random.normal(k, g.shape) for k, g in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [g + n for g, n in zip(leaves, noise, strict=True)])


def _decayed(grads: Any, p: Any, batch: jax.Array) -> Any:
    """The gradient of the norm of all parameters, as people regularise by it."""
    return jax.tree.map(jnp.add, grads, jax.grad(lambda p: 1e-2 * optax.global_norm(p))(p))


def tokens_counted_in_the_loop() -> Recipe:
    """As most training loops have it: the number of tokens is summed beside the loss, and divides the gradients."""
    layout, p, batch = Layout(TWO, 4), parameters(4), batch_of()
    state = CLIPPED.init(p)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        def microbatch(i: jax.Array, total: Any, tokens: jax.Array) -> Any:
            def loss(p: Any) -> Any:
                return _token_sum(logits(p, tokens[:, :-1]), tokens), jnp.sum(_weights(tokens))

            (value, count), grads = jax.value_and_grad(loss, has_aux=True)(p)
            return jax.tree.map(jnp.add, total, (value, count, grads))

        start = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        value, count, grads = enumerated_for(microbatch, start, batch)
        grads = jax.tree.map(lambda g: g / count, grads)
        updates, state = CLIPPED.update(grads, state, p)
        return optax.apply_updates(p, updates), state, value / count

    return Recipe(
        "tokens counted in the loop",
        step,
        (p, state, batch),
        TWO,
        layout.names(),
        {**layout.homes("[0]"), **state_homes(layout, state), "[2]": ""},
        [*layout.activation_moves(), layout.targets(batch), *small(4, TWO, "tokens, norm there and back, counter")],
        layout.held(p, _token_sum),
        "Every mesh divides its gradients; the number of tokens is one float.",
        donate=(0, 1),
    )


def loss_scaling(conditional: bool) -> Recipe:
    """Mixed precision: the loss is scaled, gradients unscaled, the update skipped where one is not finite."""
    layout, p, batch = Layout(TWO, 4), parameters(4), batch_of()
    optimizer = optax.adam(1e-3)
    state = {"optimizer": optimizer.init(p), "scale": jnp.float32(1024), "good": jnp.int32(0)}

    def cast(p: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), p)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        scale = state["scale"]

        def loss(p: Any, tokens: jax.Array) -> jax.Array:
            return scale * cross_entropy(logits(cast(p), tokens[:, :-1]), tokens) / MICROBATCHES

        total, grads = summed(p, batch, loss)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))

        def update(_: None) -> Any:
            updates, new = optimizer.update(grads, state["optimizer"], p)
            return optax.apply_updates(p, updates), new

        old = (p, state["optimizer"])
        if conditional:
            new = jax.lax.cond(finite, update, lambda _: old, None)
        else:
            new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), update(None), old)
        good = jnp.where(finite, state["good"] + 1, 0)
        scale = jnp.where(finite, jnp.where(good % 100 == 0, scale * 2, scale), scale / 2)
        return new[0], {"optimizer": new[1], "scale": scale, "good": good}, total

    return Recipe(
        "loss scaling, cond" if conditional else "loss scaling, where",
        step,
        (p, state, batch),
        TWO,
        layout.names(),
        {**layout.homes("[0]"), **state_homes(layout, state), "[2]": ""},
        [*layout.activation_moves(), layout.targets(batch), *small(5, TWO, "scale, finite there and back, counter")],
        {
            mesh: [*held, ("the parameters in half precision, as wide", layout.share(p, mesh))]
            for mesh, held in layout.held(p).items()
        },
        "Whether all is finite is one bit of each mesh.",
        donate=(0, 1),
    )


def averaged() -> Recipe:
    """An exponential moving average of the parameters, for evaluation."""
    layout, p, batch = Layout(TWO, 4), parameters(4), batch_of()
    state = {"optimizer": CLIPPED.init(p), "average": jax.tree.map(jnp.copy, p), "step": jnp.int32(0)}

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        total, grads = summed(p, batch, lambda p, t: cross_entropy(logits(p, t[:, :-1]), t) / MICROBATCHES)
        updates, optimizer = CLIPPED.update(grads, state["optimizer"], p)
        p = optax.apply_updates(p, updates)
        decay = jnp.minimum(0.999, (1 + state["step"]) / (10 + state["step"]))
        average = jax.tree.map(lambda a, q: decay * a + (1 - decay) * q, state["average"], p)
        return p, {"optimizer": optimizer, "average": average, "step": state["step"] + 1}, total

    return Recipe(
        "moving average of parameters",
        step,
        (p, state, batch),
        TWO,
        layout.names(),
        {**layout.homes("[0]"), **state_homes(layout, state), "[2]": ""},
        [*layout.activation_moves(), layout.targets(batch), *small(4, TWO, "counters, norm there and back")],
        layout.held(p),
        "The average of a parameter is with it.",
        donate=(0, 1),
    )


def metrics() -> Recipe:
    """Norms of gradients and parameters by layer, accuracy, and the learning rate are returned."""
    layout, p, batch = Layout(TWO, 4), parameters(4), batch_of()
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 10, 100)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate))
    state = optimizer.init(p)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        def microbatch(i: jax.Array, total: Any, tokens: jax.Array) -> Any:
            def loss(p: Any) -> Any:
                found = logits(p, tokens[:, :-1])
                right = jnp.mean((jnp.argmax(found, -1) == tokens[:, 1:]).astype(jnp.float32))
                return cross_entropy(found, tokens) / MICROBATCHES, right / MICROBATCHES

            (value, right), grads = jax.value_and_grad(loss, has_aux=True)(p)
            return jax.tree.map(jnp.add, total, (value, right, grads))

        start = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        value, right, grads = enumerated_for(microbatch, start, batch)
        updates, state = optimizer.update(grads, state, p)
        norms = {"gradients": [optax.global_norm(g) for g in grads["blocks"]], "all": optax.global_norm(grads)}
        shown = {"loss": value, "accuracy": right, "norms": norms, "ratio": optax.global_norm(updates)}
        return optax.apply_updates(p, updates), state, shown

    return Recipe(
        "metrics of layers",
        step,
        (p, state, batch),
        TWO,
        layout.names(),
        {**layout.homes("[0]"), **state_homes(layout, state), "[2]": ""},
        [*layout.activation_moves(), layout.targets(batch), *small(5, TWO, "counters and norms")],
        layout.held(p),
        "A norm is a number, wherever it is returned.",
        donate=(0, 1),
    )


def frozen() -> Recipe:
    """LoRA: the weights of the model stay, small matrices beside them are trained."""
    layout, p, batch = Layout(TWO, 4), parameters(4), batch_of()
    rank = 2
    keys = iter(jax.random.split(jax.random.key(2), 4))
    lora = {
        "embed": {},
        "blocks": [
            {"up": {"left": 0.1 * jax.random.normal(next(keys), (16, rank)), "right": jnp.zeros((rank, 64))}}
            for _ in range(4)
        ],
        "head": {},
    }
    optimizer = optax.adam(1e-2)
    state = optimizer.init(lora)

    def joined(lora: Any, p: Any) -> Any:
        blocks = [
            {**b, "up": b["up"] + q["up"]["left"] @ q["up"]["right"]}
            for b, q in zip(p["blocks"], lora["blocks"], strict=True)
        ]
        return {**p, "blocks": blocks}

    def step(lora: Any, state: Any, p: Any, batch: jax.Array) -> Any:
        def loss(lora: Any, tokens: jax.Array) -> jax.Array:
            return cross_entropy(logits(joined(lora, p), tokens[:, :-1]), tokens) / MICROBATCHES

        total, grads = summed(lora, batch, loss)
        updates, state = optimizer.update(grads, state, lora)
        return optax.apply_updates(lora, updates), state, total

    held = layout.held(p)
    for mesh in TWO:  # sums of small gradients only, but one layer's joined weight and its gradient beside the old
        joined_bytes = sum(size(b["up"]) for i, b in enumerate(p["blocks"]) if layout.mesh_of(i) == mesh)
        held[mesh][0] = ("sums of gradients", layout.share(lora, mesh))
        held[mesh].append(("the joined weights and their gradients", 2 * joined_bytes))
    return Recipe(
        "LoRA",
        step,
        (lora, state, p, batch),
        TWO,
        layout.names(),
        {**layout.homes("[0]"), **state_homes(layout, state), **layout.homes("[2]"), "[3]": ""},
        [*layout.activation_moves(), layout.targets(batch), *small(1, TWO, "counter")],
        held,
        "What is joined to a layer is where the layer is.",
        donate=(0, 1),
    )


def evaluation() -> Recipe:
    """Loss and accuracy on labels made of the input tokens: the tokens travel, not the logits."""
    layout, p, batch = Layout(TWO, 4), parameters(4), batch_of()

    def step(p: Any, batch: jax.Array) -> Any:
        def microbatch(i: jax.Array, total: Any, tokens: jax.Array) -> Any:
            found = logits(p, tokens[:, :-1])
            right = jnp.sum((jnp.argmax(found, -1) == tokens[:, 1:]) * _weights(tokens))
            return jax.tree.map(jnp.add, total, (_token_sum(found, tokens), right, jnp.sum(_weights(tokens))))

        value, right, count = enumerated_for(microbatch, (jnp.zeros(()), jnp.zeros(()), jnp.zeros(())), batch)
        return {"loss": value / count, "accuracy": right / count, "perplexity": jnp.exp(value / count)}

    held = {mesh: [("activations of a microbatch", 4 * 2 * 8 * 64 * 4)] for mesh in TWO}
    return Recipe(
        "evaluation",
        step,
        (p, batch),
        TWO,
        layout.names(),
        {**layout.homes("[0]"), "[1]": ""},
        [*layout.activation_moves(backward=False), layout.targets(batch)],
        held,
        "Labels are smaller than logits.",
        schedule=None,
    )


def recipes() -> list[Recipe]:
    """All of them."""
    finite = optax.apply_if_finite(optax.adam(1e-3), 5)
    several = optax.MultiSteps(CLIPPED, 2)
    skipping = optax.MultiSteps(optax.adam(1e-3), 2, should_skip_update_fn=optax.skip_not_finite)
    plateau = optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau(patience=2))
    injected = optax.inject_hyperparams(optax.adamw)(optax.linear_schedule(1e-3, 0.0, 100))
    found = [
        train("sgd", optax.sgd(0.1), scalars=0, reason="The update of a layer is where the layer is."),
        train("clipped adamw", CLIPPED, scalars=3, reason="Each mesh sums its squares; numbers go and return."),
        train("clipped adamw, four meshes", CLIPPED, meshes=("a", "b", "c", "d"), scalars=3, reason="As on two."),
        train("GPipe", CLIPPED, schedule="GPipe", scalars=3, reason="All microbatches are in flight."),
        train("token weights", CLIPPED, loss=_token_sum, finish=_by_tokens, scalars=4, reason="One number of tokens."),
        train("label smoothing, z loss", CLIPPED, loss=_smoothed, scalars=3, reason="Targets are made there."),
        train("gradient noise", CLIPPED, finish=_noisy, scalars=8, reason="Keys are small, noise is made at home."),
        train("decay by the global norm", CLIPPED, finish=_decayed, scalars=6, reason="As clipping."),
        train("apply_if_finite", finite, scalars=6, reason="One conditional a mesh, its predicate sent."),
        train("MultiSteps", several, scalars=6, reason="One conditional a mesh, its predicate sent."),
        train("MultiSteps that skips", skipping, scalars=8, reason="The same, with a bit from each mesh."),
        train("zero_nans", optax.chain(optax.zero_nans(), optax.adam(1e-3)), reason="Element by element."),
        train("plateau", plateau, extra=lambda g, loss: {"value": loss}, scalars=5, reason="The loss is a number."),
        train("injected hyperparameters", injected, scalars=5, reason="They are numbers."),
        tokens_counted_in_the_loop(),
        loss_scaling(True),
        loss_scaling(False),
        averaged(),
        metrics(),
        frozen(),
        evaluation(),
    ]
    optimizers: dict[str, Any] = {
        "adabelief": optax.adabelief(1e-3),
        "adadelta": optax.adadelta(1e-3),
        "adafactor": optax.adafactor(1e-3),
        "adagrad": optax.adagrad(1e-3),
        "adam": optax.adam(1e-3),
        "adamax": optax.adamax(1e-3),
        "adan": optax.adan(1e-3),
        "amsgrad": optax.amsgrad(1e-3),
        "fromage": optax.fromage(1e-3),
        "lamb": optax.lamb(1e-3),
        "lars": optax.lars(1e-3),
        "lion": optax.lion(1e-3),
        "nadamw": optax.nadamw(1e-3),
        "noisy_sgd": optax.noisy_sgd(1e-3),
        "novograd": optax.novograd(1e-3),
        "radam": optax.radam(1e-3),
        "rmsprop": optax.rmsprop(1e-3),
        "rprop": optax.rprop(1e-3),
        "sm3": optax.sm3(1e-3),
        "yogi": optax.yogi(1e-3),
        "adamaxw": optax.adamaxw(1e-3),
        "adamw": optax.adamw(1e-3),
        "nadam": optax.nadam(1e-3),
        "optimistic_adam_v2": optax.optimistic_adam_v2(1e-3),
        "optimistic_gradient_descent": optax.optimistic_gradient_descent(1e-3),
        "sign_sgd": optax.sign_sgd(1e-3),
    }
    reason = "An optimizer works parameter by parameter."
    found += [train(f"optax.{name}", o, scalars=4, reason=reason) for name, o in optimizers.items()]
    polyak = train(
        "optax.polyak_sgd",
        optax.polyak_sgd(),
        extra=lambda g, loss: {"value": loss},
        scalars=4,
        reason="The loss is a number.",
    )
    reason = "An inner product for each of the ten vectors, twice: a number there, and a coefficient back."
    return [*found, polyak, train("optax.lbfgs", optax.lbfgs(1e-2, linesearch=None), scalars=50, reason=reason)]
