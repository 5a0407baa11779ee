"""Says what limits the step, in one sentence with its evidence."""

from __future__ import annotations

from hotlap.diagnose.sentences import listed, part, percent
from hotlap.diagnose.step import Step
from hotlap.records.figures import number, times
from hotlap.records.observation import (
    BACKWARD,
    COPY,
    DATA,
    FORWARD,
    GARBAGE,
    OPTIMIZER,
    REST,
    SPAN_PREFIX,
    SYNC,
)

BOUND = 0.30  # of a step lost to one cause: that cause names the verdict
MOSTLY = 0.50  # of a step spent in one phase
DEVICE_BUSY = 0.80  # of a step: the device itself is the limit, whatever the host does
HIDDEN = 0.10  # of a step waiting for data, below which a faster cached batch is not explained by waiting
LARGE_SYNC_MS = 1.0  # on CPU, where a read does not wait
NO_FASTER = 1.1  # a ceiling ratio below this contradicts a wait for data
SLOW_LAUNCH_US = 100.0  # a launch costs about 10 µs; what takes ten times that is Python between launches
COMPUTE_KERNELS = ("matmul", "convolution", "recurrent", "attention")

Verdict = tuple[str, str]


def verdict(step: Step) -> Verdict:
    if not step.measured:
        return "unknown", "Unknown: no training step was measured."
    name, sentence = _cause(step)
    remark = "" if name == "input-bound" else _ceiling_remark(step)
    return name, f"{sentence}{remark}."


def _cause(step: Step) -> Verdict:
    if _input_leads(step):
        return "input-bound", _input(step)
    if step.device is not None:
        return _device_bound_verdict(step) if _device_bound(step) else _device_idle(step)
    if step.asynchronous:
        return _no_device_profile(step)
    return _on_cpu(step)


def _input_leads(step: Step) -> bool:
    loss = input_loss(step)
    if step.device is None or (step.ceiling_ratio() is not None and _device_bound(step)):
        return loss >= BOUND
    return loss >= BOUND and loss >= max(step.share_of(cost) for cost in _host_losses(step).values())


def input_loss(step: Step) -> float:
    """Return the share of a step that input costs: by the ceiling, else the wait that the device cannot hide."""
    waiting, ratio = step.share(DATA), step.ceiling_ratio()
    if ratio is None:
        return step.share_of(min(step.ms(DATA), step.idle))
    return max(0.0, 1.0 - 1.0 / ratio) if waiting >= HIDDEN else 0.0


def _device_bound(step: Step) -> bool:
    return step.device is not None and step.share_of(step.busy) >= DEVICE_BUSY


def _input(step: Step) -> str:
    waits = f"{percent(step.share(DATA))} of each step waits for data ({part(step.ms(DATA), step.total)})"
    ratio = step.ceiling_ratio()
    if ratio is not None:
        return f"Input-bound: {waits}; with a cached batch it would run {times(ratio)} as many samples a second"
    return f"Input-bound: {waits}; without that wait it would be at most {times(step.data_at_most())} as fast"


def _ceiling_remark(step: Step) -> str:
    ratio = step.ceiling_ratio()
    if ratio is None or step.share(DATA) < BOUND:
        return ""
    gain = f"no faster ({times(ratio)})" if ratio < NO_FASTER else f"only {times(ratio)} as fast"
    return (
        f"; {percent(step.share(DATA))} of each step waits for data, yet with a cached batch it ran {gain}, "
        "so input is not what limits it"
    )


def _device_bound_verdict(step: Step) -> Verdict:
    compute, memory, copy = (step.kernels_share(*kinds) for kinds in (COMPUTE_KERNELS, ("memory",), ("copy",)))
    busy = f"the device is busy {percent(step.share_of(step.busy))} of each step ({part(step.busy, step.total)})"
    if copy > max(compute, memory):
        return "copy-bound", f"Copy-bound: {busy}, {percent(copy)} of that copying memory"
    if memory > compute:
        return (
            "memory-bound",
            f"Memory-bound: {busy}, {percent(memory)} of that in kernels limited by memory traffic",
        )
    kinds = f", {percent(compute)} of that in {_largest_compute_kinds(step)}" if compute > 0 else ""
    return "compute-bound", f"Compute-bound: {busy}{kinds}; only less work on the device makes it faster"


def _largest_compute_kinds(step: Step) -> str:
    shares = {kind: step.kernels_share(kind) for kind in COMPUTE_KERNELS}
    return listed(sorted((kind for kind, share in shares.items() if share > 0.05), key=lambda kind: -shares[kind]))


def _device_idle(step: Step) -> Verdict:
    """Blame the host's largest occupation, counted only as far as the device is idle meanwhile."""
    losses = _host_losses(step)
    name = max(losses, key=lambda cause: losses[cause])
    elsewhere = _mostly_elsewhere(step)
    if elsewhere or step.share_of(losses[name]) < BOUND:
        return elsewhere or _balanced(step)
    sentences = {"sync-bound": _sync, "copy-bound": _copy, "launch-bound": _launch}
    return name, sentences[name](step)


def _host_losses(step: Step) -> dict[str, float]:
    """Return the milliseconds lost per cause, at most the device's idle time: waits while it works cost nothing."""
    return {
        "sync-bound": min(step.ms(SYNC), step.idle),
        "copy-bound": min(step.ms(COPY), step.idle),
        "launch-bound": min(step.issuing, step.idle),
    }


def _busy_only(step: Step) -> str:
    return f"the device is busy only {percent(step.share_of(step.busy))} of it"


def _sync(step: Step) -> str:
    calls = sum(sync.per_step for sync in step.observation.syncs if sync.waits)
    reads = f"in {number(calls)} syncs " if calls else "in syncs "
    return (
        f"Sync-bound: {percent(step.share(SYNC))} of each step the host waits {reads}"
        f"({part(step.ms(SYNC), step.total)}), while {_busy_only(step)}"
    )


def _copy(step: Step) -> str:
    return (
        f"Copy-bound: {percent(step.share(COPY))} of each step the host copies batches to the device "
        f"({part(step.ms(COPY), step.total)}), while {_busy_only(step)}"
    )


def _launch(step: Step) -> str:
    launches = step.device.launches_per_step if step.device else 0.0
    took = f"takes the host {part(step.issuing, step.total)}"
    if launches < 1:
        return f"Launch-bound: issuing the work of a step {took}, while {_busy_only(step)}"
    launch_us = step.issuing * 1000 / launches
    python = ", mostly Python between launches" if launch_us > SLOW_LAUNCH_US else ""
    return (
        f"Launch-bound: issuing the {launches:,.0f} launches of a step {took} "
        f"({number(launch_us)} µs a launch{python}), while {_busy_only(step)}"
    )


def _no_device_profile(step: Step) -> Verdict:
    waiting = step.ms(SYNC) + step.ms(COPY)
    return _mostly_elsewhere(step) or (
        "unknown",
        "Unknown: cannot tell launch- from compute-bound, because no device profile was taken; the host "
        f"issues work for {part(step.issuing, step.total)} and waits {number(waiting)} ms in syncs or copies",
    )


def _on_cpu(step: Step) -> Verdict:
    compute = step.issuing
    if step.share(SYNC) >= BOUND and step.ms(SYNC) >= LARGE_SYNC_MS and step.ms(SYNC) > compute:
        return "sync-bound", (
            f"Sync-bound: {percent(step.share(SYNC))} of each step is spent reading tensors back "
            f"({part(step.ms(SYNC), step.total)}); on CPU there is no device to wait for: the calls cost this"
        )
    if step.share(COPY) >= BOUND and step.ms(COPY) > compute:
        figures = part(step.ms(COPY), step.total)
        return (
            "copy-bound",
            f"Copy-bound: {percent(step.share(COPY))} of each step is spent copying tensors ({figures})",
        )
    if step.share_of(compute) >= MOSTLY:
        return "compute-bound", _compute_on_cpu(step)
    return _mostly_elsewhere(step) or _balanced(step)


def _compute_on_cpu(step: Step) -> str:
    names = sorted((FORWARD, BACKWARD, OPTIMIZER), key=lambda name: -step.ms(name))
    figures = listed(f"{name} {number(step.ms(name))}" for name in names if step.share(name) >= 0.01)
    return (
        f"Compute-bound: {percent(step.share_of(step.issuing))} of each step is spent computing "
        f"({part(step.issuing, step.total)}: {figures})"
    )


def _mostly_elsewhere(step: Step) -> Verdict | None:
    """Return a verdict where most of a step goes to something that no verdict is named after."""
    largest = step.largest_phase()
    figures = f"{percent(step.share(largest))} of each step ({part(step.ms(largest), step.total)})"
    if step.share(largest) < MOSTLY:
        return None
    if largest == REST:
        unseen = "" if step.observation.models else " (including the forward pass: no root module was seen)"
        return "unknown", f"Unknown: {figures} is in no phase hotlap can name{unseen}"
    if largest == GARBAGE:
        return "unknown", f"Unknown: none of the usual limits apply; garbage collection takes {figures}"
    if largest.startswith(SPAN_PREFIX):
        name = largest.removeprefix(SPAN_PREFIX)
        return "unknown", f"Unknown: none of the usual limits apply; your own section “{name}” takes {figures}"
    return None


def _balanced(step: Step) -> Verdict:
    largest = step.largest_phase()
    device = f"; the device is busy {percent(step.share_of(step.busy))} of it" if step.device else ""
    return "balanced", (
        f"Balanced: no large stall stands out in the {number(step.total)} ms step; the largest part is "
        f"{largest.removeprefix(SPAN_PREFIX)} with {percent(step.share(largest))} "
        f"({number(step.ms(largest))} ms){device}"
    )
