"""What models of several files are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from mpmd_trace import named_computation
from recipes.language import LENGTH, ROWS, WIDTH

TWO = ("a", "b")
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
ONE = ROWS * LENGTH * WIDTH * 4  # the bytes of an activation of one microbatch


def matrix(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) / shape[0] ** 0.5


def mlp(seed: int, width: int = WIDTH) -> dict[str, jax.Array]:
    return {"up": matrix(seed, width, 4 * width), "down": matrix(seed + 1, 4 * width, width)}


def apply(p: Any, x: jax.Array) -> jax.Array:
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def named(fn: Callable[..., Any], name: str, *args: Any) -> Any:
    return named_computation(fn, name=name)(*args)
