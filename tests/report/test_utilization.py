"""Model FLOPs, MFU and tokens per second against counts by hand."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.scheduling.utilization import mfu, model_flops, peak_flops
from pipelines import config, loss_of, summed_gradients, topology

ROWS, WIDTH, MICROBATCHES = 4, 16, 3


def test_the_flops_of_a_training_step_are_those_of_its_products() -> None:
    """Each layer: one product forward, one for the weights, and one for the activations but for the first layer."""

    step = functools.partial(summed_gradients, loss_of(lambda w, x: x @ w))
    where = config(topology=topology(size=1), pipeline_schedule="1F1B")
    ws = [jnp.ones((WIDTH, WIDTH))] * 2
    module = mt.jit(step, where).lower(ws, jnp.ones((MICROBATCHES, ROWS, WIDTH))).compiler_ir("stablehlo")
    products = (2 + 2 + 1) * 2 * ROWS * WIDTH * WIDTH * MICROBATCHES
    assert products <= model_flops(module) <= 1.15 * products


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("TPU7x", 1153.5e12),
        ("cpu", None),
    ],
)
def test_peaks_by_kind_of_device(kind: str, peak: float | None) -> None:
    assert peak_flops(kind) == peak


def test_mfu_of_devices_of_several_kinds_is_over_the_sum_of_their_peaks() -> None:
    def devices(*kinds: str) -> list[Any]:
        return [SimpleNamespace(device_kind=kind) for kind in kinds]

    assert mfu(312e12, devices("NVIDIA A100", "NVIDIA H100", "NVIDIA H100")) == pytest.approx(312 / (312 + 2 * 989.4))
    assert mfu(312e12, devices("NVIDIA A100", "cpu")) is None
    assert mfu(312e12, devices("NVIDIA A100", "cpu"), peak=312e12) == 0.5
