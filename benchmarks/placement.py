"""Bytes moved and peak memory of training recipes, over those of a plan drawn by hand.

Each recipe is a step as people write it, with the drawing of its plan: the home of every argument, what is sent and
how often, what a mesh holds at its peak.  The table shows our placement and the reference's, each divided by the
drawing; "home" counts the arguments that are not where the drawing has them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 8)

import numpy as np  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from recipes import models, training, two_models, unusual  # noqa: E402
from recipes.recipe import Recipe  # noqa: E402

import mpmd_trace  # noqa: E402
from mpmd_trace.backend.planner import make_plan  # noqa: E402

PLACEMENTS = ("cut", "reference")


@dataclasses.dataclass(frozen=True)
class Found:
    """What a placement makes of a recipe."""

    bytes: int
    peak: int
    transfers: int
    misplaced: tuple[str, ...]
    error: float | None = None


def recipes() -> list[Recipe]:
    """All of them."""
    return [*training.recipes(), *models.recipes(), *two_models.recipes(), *unusual.recipes()]


def measure(recipe: Recipe, placement: str, *, run: bool) -> Found:
    """Partition the recipe with that placement; with `run`, also compare its results with those of `jax.jit`."""
    devices = iter(jax.devices())
    topology = {name: Mesh(np.array([next(devices)]), ("x",)) for name in recipe.meshes}
    config = mpmd_trace.make_config(
        topology,
        dict(recipe.names),
        pipeline_schedule=recipe.schedule,
        partitioning_options={"mpmd_infer_transfers": True},
        placement=placement,
    )
    lowered = mpmd_trace.jit(recipe.step, config, donate_argnums=recipe.donate).lower(*recipe.args)
    plan = make_plan(lowered.partitioned.module)
    meshes = [plan.slots[slot].mesh for slot in plan.arguments[len(lowered.traced.constants) :]]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(recipe.args)]
    misplaced = tuple(
        f"{path}: {mesh}, not {recipe.home(path)}"
        for path, mesh in zip(paths, meshes, strict=True)
        if recipe.home(path) not in ("", mesh)
    )
    error = _error(recipe, lowered.compile()) if run else None
    moved = sum(len(t.outputs) for t in plan.transfers if t.source != t.target)
    return Found(plan.transferred_bytes, max(plan.live_bytes().values()), moved, misplaced, error)


def _error(recipe: Recipe, compiled: Any) -> float:
    """The largest difference to `jax.jit`, relative to the largest number of each array."""
    wanted = jax.jit(recipe.step)(*recipe.args)
    got = compiled(*jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, recipe.args))
    worst = 0.0
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        keys = jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key)
        left, right = (np.asarray(jax.random.key_data(x) if keys else x, dtype=np.float64) for x in (a, b))
        scale = max(float(np.max(np.abs(left), initial=0.0)), 1e-6)
        worst = max(worst, float(np.max(np.abs(left - right), initial=0.0)) / scale)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="recipes whose names contain this")
    parser.add_argument("--placements", nargs="+", default=PLACEMENTS, choices=PLACEMENTS)
    parser.add_argument("--run", action="store_true", help="also run each recipe and compare it with jax.jit")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for recipe in recipes():
        if given.only not in recipe.name:
            continue
        row: dict[str, Any] = {"recipe": recipe.name, "bytes": recipe.bytes, "peak": recipe.peak()}
        for placement in given.placements:
            found = measure(recipe, placement, run=given.run)
            row[placement] = {
                "bytes": round(found.bytes / max(recipe.bytes, 1), 3),
                "peak": round(found.peak / row["peak"], 3),
                "transfers": found.transfers,
                "misplaced": found.misplaced,
                "error": found.error,
            }
        rows.append(row)
        if not given.json:
            _print(row, given.placements)
    if given.json:
        print(json.dumps(rows))


def _print(row: dict[str, Any], placements: list[str]) -> None:
    parts = [f"{row['recipe']:32} {row['bytes']:>8,} B {row['peak']:>9,} B"]
    for placement in placements:
        found = row[placement]
        error = "" if found["error"] is None else f", error {found['error']:.1e}"
        parts.append(
            f"{placement}: bytes {found['bytes']:.3f}, peak {found['peak']:.3f}, "
            f"{found['transfers']} transfers, {len(found['misplaced'])} not at home{error}"
        )
    print("\n    ".join(parts), flush=True)


if __name__ == "__main__":
    main()
