"""The figures around the bar: speed, ceiling, warm-up, memory, loss, and where it all was measured."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from hotlap.records.figures import number, times
from hotlap.records.observation import EVALUATION, Loader, Machine, Observation
from hotlap.report.shared.figures import count, megabytes, percent, quantile


def figures(seen: Observation) -> Iterator[str]:
    median = quantile(seen.step_ms, 0.5)
    if median is None:
        yield "no step measured"
    else:
        low, high = quantile(seen.step_ms, 0.1), quantile(seen.step_ms, 0.9)
        yield f"step {number(median)} ms (p10–p90 {number(low)}–{number(high)}, n={len(seen.step_ms)})"
    if _is_rate(seen.samples_per_second):
        yield f"{number(seen.samples_per_second)} samples/s"
    ceiling = seen.ceiling.samples_per_second if seen.ceiling else None
    if _is_rate(ceiling):
        yield f"ceiling without input {number(ceiling)} samples/s{_ratio(ceiling, seen)}"
    if seen.device is not None:
        yield f"device busy {percent(_busy_share(seen))}"


def _busy_share(seen: Observation) -> float:
    step = seen.mean_step_ms * _training_share(seen)
    return min(1.0, seen.device.busy_ms_per_step / step) if seen.device and step > 0 else 0.0


def _ratio(ceiling: float | None, seen: Observation) -> str:
    rate, share = seen.samples_per_second, _training_share(seen)
    return f" ({times(ceiling * share / rate)})" if ceiling and rate and _is_rate(rate) and share > 0 else ""


def _training_share(seen: Observation) -> float:
    """Evaluation is no part of step speed, nor of the profile and the ceiling measured after the window."""
    return 1.0 - min(max(seen.shares.get(EVALUATION, 0.0), 0.0), 1.0)


def _is_rate(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def background(seen: Observation) -> Iterator[str]:
    if seen.warmup.steps or seen.warmup.seconds:
        yield f"warm-up {seen.warmup.steps} steps, {number(seen.warmup.seconds)} s (not counted)"
    if seen.steps_seen is not None and seen.steps_seen < seen.steps:
        yield f"parts of a step from {seen.steps_seen} of {seen.steps} steps"
    yield f"peak memory {megabytes(seen.memory.peak_host_mb)}"
    if seen.memory.peak_device_mb is not None:
        total = f" of {megabytes(seen.memory.total_device_mb)}" if seen.memory.total_device_mb else ""
        yield f"device {megabytes(seen.memory.peak_device_mb)}{total}"
    if seen.losses:
        yield _loss(seen.losses)
    if seen.ended != "window complete":
        code = f" (exit code {seen.exit_code})" if seen.exit_code else ""
        yield f"{seen.ended}{code}"


def _loss(losses: tuple[float, ...]) -> str:
    broken = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if broken is not None:
        return f"loss {losses[broken]} at step {broken + 1} of the window"
    return f"loss {losses[0]:.4g} → {losses[-1]:.4g}"


def footer(seen: Observation) -> Iterator[tuple[str, str]]:
    yield "command", shlex.join(seen.command)
    if setup := " · ".join(_setup(seen)):
        yield "training", setup
    yield "machine", _machine(seen.machine)
    yield "versions", _versions(seen.machine)
    yield "started", seen.started


def _setup(seen: Observation) -> Iterator[str]:
    for model in seen.models[:2]:
        compiled = ", compiled" if model.compiled else ""
        yield f"{model.name} with {count(model.parameters)} parameters on {model.device}{compiled}"
    for optimizer in seen.optimizers[:2]:
        yield f"{optimizer.name}{' fused' if optimizer.fused else ''}"
    for loader in [loader for loader in seen.loaders if loader.role == "train"][:1]:
        yield _loader(loader)
    if seen.settings and seen.settings.autocast:
        yield f"autocast {seen.settings.autocast}"


def _loader(loader: Loader) -> str:
    batch = f"batch {loader.batch_size}, " if loader.batch_size else ""
    return f"{batch}{loader.workers} workers{', pinned' if loader.pin_memory else ''}"


def _machine(machine: Machine) -> str:
    gpu = f", {machine.gpus} × {machine.gpu}" if machine.gpu else ""
    return f"{machine.cpu}, {machine.cores} cores, {megabytes(machine.memory_mb)}{gpu}, {machine.system}"


def _versions(machine: Machine) -> str:
    named = {"Python": machine.python, "torch": machine.torch, "CUDA": machine.cuda, "cuDNN": machine.cudnn}
    pairs = [*named.items(), *sorted(machine.versions.items())]
    return ", ".join(f"{name} {version}" for name, version in pairs if version)
