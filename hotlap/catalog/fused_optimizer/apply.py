"""Switches optimizers that have a fused form to it, before their first step."""

from __future__ import annotations

from typing import Any

from hotlap.catalog.site import Site


def apply(site: Site) -> None:
    site.before(site.seams.stepping, lambda optimizer: _switch(site, optimizer))


def _switch(site: Site, optimizer: Any) -> None:
    if not site.first_sight(optimizer):
        return
    why = _why_not(site, optimizer)
    if why is not None:
        site.no_effect(f"{type(optimizer).__name__}: {why}")
        return
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    tensors = sum(len(group["params"]) for group in optimizer.param_groups)
    site.applied(f"{type(optimizer).__name__} over {tensors} tensors")


def _why_not(site: Site, optimizer: Any) -> str | None:
    groups = optimizer.param_groups
    if not all("fused" in group for group in groups):
        return "has no fused form"
    if all(group["fused"] for group in groups):
        return "is fused already"
    if any(optimizer.state.values()):
        return "has stepped before"  # its step counts may live where the fused form does not look
    if any(group.get("differentiable") for group in groups):
        return "must stay differentiable"
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    floating = all(parameter.is_floating_point() for group in groups for parameter in group["params"])
    if not devices <= {"cpu", "cuda"} or not floating:
        return f"parameters on {', '.join(sorted(devices))} cannot be fused"
    return None
