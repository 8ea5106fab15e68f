"""The part of collectives that XLA runs in the background of products, by kind of device and collective.

The numbers are the parts of the bytes that `python benchmarks/overlap.py --target ... --of ... --json` reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpmd_trace.jax_compat.targets import slice_of


class HiddenShare(NamedTuple):
    """The part of collectives that is hidden in a forward, in a backward, and in each of them in a pair."""

    forward: float = 0.0
    backward: float = 0.0
    paired_forward: float = 0.0
    paired_backward: float = 0.0

    def of(self, is_forward: bool) -> tuple[float, float]:
        """Return what is hidden in a forward or a backward by itself, and in a pair; at least as much in a pair."""
        alone, paired = self[::2] if is_forward else self[1::2]
        return alone, max(alone, paired)


_ALWAYS = HiddenShare(1.0, 1.0, 1.0, 1.0)
#: Backwards hide theirs behind weight gradients; forwards only in pairs, all or all but the last one of a stage.
_IN_PAIRS = HiddenShare(0.0, 1.0, 1.0, 1.0)
_IN_PAIRS_BUT_LAST = HiddenShare(0.0, 1.0, 0.75, 1.0)
#: With the options of XLA that come with `overlap`, by `device_kind`; what is not listed is not hidden.
_WITH_OPTIONS: dict[str, dict[str, HiddenShare]] = {
    "TPU v5 lite": {"all-gather": _ALWAYS, "all-reduce": _IN_PAIRS, "all-to-all": _IN_PAIRS},
    "TPU v5": {"all-to-all": _IN_PAIRS_BUT_LAST},
    "TPU v6 lite": {"all-to-all": _IN_PAIRS_BUT_LAST},
}
#: Likewise of the others where a mesh has all devices of a slice.
_OF_WHOLE_SLICES: dict[str, dict[str, HiddenShare]] = {
    "TPU v6 lite": {"all-gather": _ALWAYS, "all-reduce": _IN_PAIRS, "reduce-scatter": _ALWAYS}
}
#: With XLA's defaults.
_BY_DEFAULT: dict[str, dict[str, HiddenShare]] = {"TPU v5 lite": {"all-gather": _ALWAYS}}


def hidden_shares(devices: Sequence[Any], *, with_options: bool) -> Mapping[str, HiddenShare] | None:
    """Return what XLA hides of the collectives between these devices, by kind; None where nothing is known of them.

    `with_options`: whether it has the options that come with `overlap`.
    """
    kind = devices[0].device_kind
    if kind not in _WITH_OPTIONS:
        return None
    if not with_options:
        return _BY_DEFAULT.get(kind, {})
    more = _OF_WHOLE_SLICES[kind] if kind in _OF_WHOLE_SLICES and _is_whole_slice(devices) else {}
    return {**_WITH_OPTIONS[kind], **more}


def _is_whole_slice(devices: Sequence[Any]) -> bool:
    [number, *others] = {slice_of(device) for device in devices}
    return not others and len(devices) == sum(slice_of(one) == number for one in devices[0].client.devices())
