"""Speeds of devices and of the links between them, by the options of `mpmd-trace plan`."""

from __future__ import annotations

from typing import Any

from mpmd_trace.config import Config
from mpmd_trace.schedules import TRANSFERS, Transfers
from mpmd_trace.scheduling.transfers import Link, Links, over_network
from mpmd_trace_cli._plan_options import PlanOptions
from mpmd_trace_cli.status import CallError


def check_numbers(asked: PlanOptions) -> None:
    """Raise `MpmdError` for numbers out of range, and for options that exclude each other."""
    for name in ("memory_limit", "tflops", "gbytes", "link_gbytes", "collective_gbytes", "rows"):
        value = getattr(asked, name)
        if value is not None and not value > 0:
            raise CallError(f"--{name.replace('_', '-')} is {value:g}; it must be above 0")
    if asked.latency_us is not None and not asked.latency_us >= 0:
        raise CallError(f"--latency-us is {asked.latency_us:g}; it must be 0 or more")


def links_between(asked: PlanOptions, config: Config, *, has_target: bool) -> Links | None:
    """Return the links between the meshes, by the options and the devices; None where transfers take no time.

    Raises `MpmdError` for links that do not exist, and for times without the speeds that they need.
    """
    links = _given_links(asked, list(config.topology))
    has_speed = asked.tflops is not None or asked.gbytes is not None
    if links is not None and not asked.measure and not has_speed:
        raise CallError(
            "transfers take seconds, but the work of the program is counted in operations; give the speed of a "
            "device with --tflops and --gbytes, or measure with --measure"
        )
    if asked.collective_gbytes is not None and not has_speed:
        raise CallError("--collective-gbytes is for times; give the speed of a device with --tflops and --gbytes, too")
    if asked.measure and has_speed:
        raise CallError("--measure takes times from this machine, --tflops and --gbytes say them; choose one")
    if asked.measure and has_target:
        raise CallError("--measure runs the program, and a --target has no devices; give --tflops and --gbytes")
    if asked.measure and config.is_abstract:
        raise CallError("--measure runs the program, and abstract meshes have no devices; give --tflops and --gbytes")
    if not has_speed:
        return links
    connected = over_network(links or Links(transfers=mode_of(asked.transfers)), config.topology)
    return connected if links is not None or connected.single else None


def speeds(asked: PlanOptions) -> dict[str, Any]:
    """Return what the options say about devices, as arguments of `report.plan_costs.study`."""
    latency = 1e-6 * (asked.latency_us or 0.0)
    return {
        "flops_per_second": None if asked.tflops is None else 1e12 * asked.tflops,
        "bytes_per_second": None if asked.gbytes is None else 1e9 * asked.gbytes,
        "collectives": None if asked.collective_gbytes is None else Link(latency, 1e9 * asked.collective_gbytes),
    }


def mode_of(text: str | None) -> Transfers:
    """Return how transfers go.  Raises `MpmdError` for an unknown way."""
    for mode in TRANSFERS:
        if mode == (text or "async"):
            return mode
    raise CallError(f"--transfers is '{text}'; it is one of {', '.join(TRANSFERS)}")


def _given_links(asked: PlanOptions, known: list[str]) -> Links | None:
    """Return what the call says about links, or None."""
    mode = mode_of(asked.transfers)
    links: dict[tuple[str, str], Link] = {}
    for text in asked.link or ():
        pair, equals, numbers = text.partition("=")
        source, colon, target = pair.partition(":")
        parts = numbers.split(",")
        try:
            values = [float(p) for p in parts]
        except ValueError:
            values = []
        if not (equals and colon) or len(values) != 2 or not values[0] >= 0 or not values[1] > 0:
            raise CallError(
                f"--link is '{text}'; write two meshes, microseconds and GB/s, as in {':'.join(known[:2])}=20,12.5"
            )
        for mesh in (source, target):
            if mesh not in known:
                raise CallError(f"--link is '{text}', but the topology has no mesh '{mesh}'; it has {', '.join(known)}")
        if source == target:
            raise CallError(f"--link is '{text}', but within the mesh '{source}' nothing is sent; name two meshes")
        link = Link(1e-6 * values[0], 1e9 * values[1])
        links[source, target] = link
        links.setdefault((target, source), link)
    if asked.latency_us is None and asked.link_gbytes is None and not links:
        return None
    bandwidth = None if asked.link_gbytes is None else 1e9 * asked.link_gbytes
    return Links(Link(1e-6 * (asked.latency_us or 0.0), bandwidth), links, mode)
