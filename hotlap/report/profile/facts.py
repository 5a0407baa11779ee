"""The figures around the bar: speed, ceiling, warm-up, memory, loss, and where they were measured."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from hotlap.records.figures import number, times
from hotlap.records.observation import EVALUATION, Loader, Machine, Observation
from hotlap.report.shared.figures import count, megabytes, percent, quantile


def figures(observation: Observation) -> Iterator[str]:
    steps = observation.training_step_ms
    median = quantile(steps, 0.5)
    if median is None:
        yield "no step measured"
    else:
        low, high = quantile(steps, 0.1), quantile(steps, 0.9)
        yield f"median step {number(median)} ms (p10–p90 {number(low)}–{number(high)}, n={len(steps)})"
    if _is_rate(observation.samples_per_second):
        yield f"{number(observation.samples_per_second)} samples/s"
    ceiling = observation.ceiling.samples_per_second if observation.ceiling else None
    if _is_rate(ceiling):
        yield f"with one cached batch {number(ceiling)} samples/s{_ratio(ceiling, observation)}"
    if observation.device is not None:
        yield f"device busy {percent(_busy_share(observation))}"


def _busy_share(observation: Observation) -> float:
    step = observation.mean_step_ms * _training_share(observation)
    return min(1.0, observation.device.busy_ms_per_step / step) if observation.device and step > 0 else 0.0


def _ratio(ceiling: float | None, observation: Observation) -> str:
    rate = observation.samples_per_second
    return f" ({times(ceiling / rate)})" if ceiling and rate and _is_rate(rate) else ""


def _training_share(observation: Observation) -> float:
    """Return the share without evaluation, which the profile, measured after the window, lacks."""
    return 1.0 - min(max(observation.shares.get(EVALUATION, 0.0), 0.0), 1.0)


def _is_rate(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def background(observation: Observation) -> Iterator[str]:
    if observation.warmup.steps or observation.warmup.seconds:
        yield f"warm-up {observation.warmup.steps} steps, {number(observation.warmup.seconds)} s (not counted)"
    if observation.steps_seen is not None and observation.steps_seen < observation.steps:
        yield f"phases from {observation.steps_seen} of {observation.steps} steps"
    yield f"peak memory {megabytes(observation.memory.peak_host_mb)}"
    if observation.memory.peak_device_mb is not None:
        total = f" of {megabytes(observation.memory.total_device_mb)}" if observation.memory.total_device_mb else ""
        yield f"device {megabytes(observation.memory.peak_device_mb)}{total}"
    if (evaluation := observation.ms(EVALUATION)) > 0:
        yield f"evaluation {number(evaluation)} ms for each step, not part of it"
    if observation.losses:
        yield _loss(observation.losses)
    if observation.ended != "window complete":
        code = f" (exit code {observation.exit_code})" if observation.exit_code else ""
        yield f"{observation.ended}{code}"


def _loss(losses: tuple[float, ...]) -> str:
    broken = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if broken is not None:
        return f"loss {losses[broken]} at step {broken + 1} of the window"
    return f"loss {losses[0]:.4g} → {losses[-1]:.4g}"


def footer(observation: Observation) -> Iterator[tuple[str, str]]:
    yield "command", shlex.join(observation.command)
    if setup := " · ".join(_setup(observation)):
        yield "training", setup
    yield "machine", _machine(observation.machine)
    yield "versions", _versions(observation.machine)
    yield "started", observation.started


def _setup(observation: Observation) -> Iterator[str]:
    for model in observation.models[:2]:
        compiled = ", compiled" if model.compiled else ""
        yield f"{model.name} with {count(model.parameters)} parameters on {model.device}{compiled}"
    for optimizer in observation.optimizers[:2]:
        yield f"{optimizer.name}{' fused' if optimizer.fused else ''}"
    for loader in [loader for loader in observation.loaders if loader.role == "train"][:1]:
        yield _loader(loader)
    if observation.settings and observation.settings.autocast:
        yield f"autocast {observation.settings.autocast}"


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
