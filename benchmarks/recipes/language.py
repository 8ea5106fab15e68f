"""Language models: embedding, blocks and head over the meshes, and the ways in which people train them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mpmd_trace import enumerated_for, named_computation
from recipes.recipe import Move, Recipe, in_flight, saved, size

VOCABULARY, WIDTH, LENGTH, ROWS, MICROBATCHES = 64, 16, 8, 2, 4


def norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def block(p: Any, x: jax.Array) -> jax.Array:
    y = norm(p["scale"], x)
    return x + jax.nn.gelu(y @ p["up"]) @ p["down"]


def embed(p: Any, tokens: jax.Array) -> jax.Array:
    return p["table"][tokens]


def head(p: Any, x: jax.Array) -> jax.Array:
    return norm(p["scale"], x) @ p["out"]


def parameters(blocks: int) -> dict[str, Any]:
    keys = iter(jax.random.split(jax.random.key(0), 2 * blocks + 2))

    def matrix(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / shape[0] ** 0.5

    return {
        "embed": {"table": matrix(VOCABULARY, WIDTH)},
        "blocks": [
            {"scale": jnp.ones(WIDTH), "up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH)}
            for _ in range(blocks)
        ],
        "head": {"scale": jnp.ones(WIDTH), "out": matrix(WIDTH, VOCABULARY)},
    }


def logits(p: Any, tokens: jax.Array) -> jax.Array:
    x = named_computation(embed, name="embed")(p["embed"], tokens)
    for i, one in enumerate(p["blocks"]):
        x = named_computation(block, name=f"block{i}")(one, x)
    return named_computation(head, name="head")(p["head"], x)


def cross_entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """The mean over all tokens of predicting `tokens[:, 1:]`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def batch_of(microbatches: int = MICROBATCHES) -> jax.Array:
    return jax.random.randint(jax.random.key(1), (microbatches, ROWS, LENGTH + 1), 0, VOCABULARY)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which part of the model is on which mesh: the embedding on the first, the head on the last, blocks in order."""

    meshes: tuple[str, ...]
    blocks: int

    def mesh_of(self, block: int) -> str:
        return self.meshes[block * len(self.meshes) // self.blocks]

    def names(self) -> dict[str, str]:
        found = {f"block{i}": self.mesh_of(i) for i in range(self.blocks)}
        return {"embed": self.meshes[0], **found, "head": self.meshes[-1]}

    def homes(self, prefix: str) -> dict[str, str]:
        """The homes of a tree like the parameters at this path (parameters, gradients, moments)."""
        found = {f"{prefix}['blocks'][{i}]": self.mesh_of(i) for i in range(self.blocks)}
        return {f"{prefix}['embed']": self.meshes[0], **found, f"{prefix}['head']": self.meshes[-1]}

    def share(self, tree: Any, mesh: str) -> int:
        """The bytes of a tree like the parameters whose home is `mesh`."""
        parts = [b for i, b in enumerate(tree["blocks"]) if self.mesh_of(i) == mesh]
        parts += [tree["embed"]] * (mesh == self.meshes[0]) + [tree["head"]] * (mesh == self.meshes[-1])
        return size(parts)

    def activation_moves(self, microbatches: int = MICROBATCHES, backward: bool = True) -> list[Move]:
        """The activations of the last block of each mesh go on, their cotangents come back."""
        one = ROWS * LENGTH * WIDTH * 4
        pairs = list(zip(self.meshes, self.meshes[1:], strict=False))
        forward = [Move("activations", a, b, one, microbatches) for a, b in pairs]
        return forward + [Move("cotangents", b, a, one, microbatches) for a, b in pairs] * backward

    def targets(self, batch: Any) -> Move:
        """The tokens are small: the last mesh gets them, and makes the targets."""
        return Move("tokens", self.meshes[0], self.meshes[-1], size(batch))

    def held(
        self, p: Any, loss: Callable[..., Any] = cross_entropy, schedule: str | None = "1F1B"
    ) -> dict[str, list[tuple[str, int]]]:
        """Sums of gradients at home, and the activations of the microbatches in flight."""
        x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
        tokens = jax.ShapeDtypeStruct((ROWS, LENGTH + 1), jnp.int32)
        found: dict[str, list[tuple[str, int]]] = {}
        for number, mesh in enumerate(self.meshes):
            one = sum(saved(block, b, x) for i, b in enumerate(p["blocks"]) if self.mesh_of(i) == mesh)
            if mesh == self.meshes[-1]:
                one += saved(lambda q, x, t: loss(head(q, x), t), p["head"], x, tokens)
            flight = in_flight(schedule, len(self.meshes), MICROBATCHES, number)
            found[mesh] = [
                ("sums of gradients", self.share(p, mesh)),
                (f"activations of {flight} microbatches", flight * one),
                ("what arrives and leaves", 2 * size(x)),
            ]
        return found


def small(count: int, meshes: Sequence[str], what: str) -> list[Move]:
    """`count` scalars from the first mesh to each of the others, or back."""
    return [Move(what, meshes[0], m, 4 * count) for m in meshes[1:]]


def train(
    name: str,
    optimizer: Any,
    *,
    meshes: tuple[str, ...] = ("a", "b"),
    blocks: int = 4,
    loss: Callable[..., Any] = cross_entropy,
    finish: Callable[..., Any] = lambda grads, p, batch: grads,
    extra: Callable[[Any, Any], dict[str, Any]] = lambda grads, loss: {},
    scalars: int = 1,
    schedule: str | None = "1F1B",
    reason: str = "",
) -> Recipe:
    """Gradients summed over microbatches, `finish`ed, and given to an optimizer of optax.

    `extra`: further arguments of the optimizer's update.  `scalars`: how many small values (counters, norms) go to
    each other mesh in a step.
    """
    layout, p, batch = Layout(meshes, blocks), parameters(blocks), batch_of()
    state = optimizer.init(p)

    def step(p: Any, state: Any, batch: jax.Array) -> Any:
        total, grads = summed(p, batch, lambda p, tokens: loss(logits(p, tokens[:, :-1]), tokens) / MICROBATCHES)
        grads = finish(grads, p, batch)
        updates, state = optimizer.update(grads, state, p, **extra(grads, total))
        return optax.apply_updates(p, updates), state, total

    return Recipe(
        name,
        step,
        (p, state, batch),
        meshes,
        layout.names(),
        {**layout.homes("[0]"), **state_homes(layout, state), "[2]": ""},
        [*layout.activation_moves(), layout.targets(batch), *small(scalars, meshes, "counters and norms")],
        layout.held(p, loss, schedule),
        reason,
        schedule,
        donate=(0, 1),
    )


def summed(p: Any, batch: Any, loss: Callable[..., Any]) -> Any:
    """The sums over the microbatches of a loss and its gradients."""

    def microbatch(i: jax.Array, total: Any, one: Any) -> Any:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(p, one))

    return enumerated_for(microbatch, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p)), batch)


def state_homes(layout: Layout, state: Any, at: str = "[1]") -> dict[str, str]:
    """The homes of an optimizer's state: what follows a parameter is with it, the rest is anywhere."""
    found: dict[str, str] = {}
    ours = layout.homes("")
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        text = jax.tree_util.keystr(path)
        home = next((mesh for part, mesh in ours.items() if part in text), "")
        found[at + text] = home if size(leaf) > 64 else ""
    return found
