"""Detectors for switches and limits: debugging left on, precision, memory layout, threads, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotlap.diagnose.compute import RECURRENT
from hotlap.diagnose.data_path import cores_each, most_workers
from hotlap.diagnose.sentences import part, percent
from hotlap.diagnose.step import NOTICEABLE, Step
from hotlap.records.diagnosis import Finding
from hotlap.records.figures import number
from hotlap.records.observation import BACKWARD, FORWARD, CodeLine

NEAR_LIMIT = 0.90
HALF = frozenset({"bfloat16", "float16"})
# GPUs older than Ampere have no TF32.
NO_TF32 = re.compile(r"\b(V100|T4|P100|P40|P4|K80|M60|GTX|TITAN|Quadro|RTX 20\d\d|RTX [3-8]000(?!.*Ada))\b")


def anomaly_mode(step: Step) -> Iterator[Finding]:
    settings = step.observation.settings
    if settings is None or not settings.anomaly_mode:
        return
    cost = step.ms(FORWARD) + step.ms(BACKWARD)
    yield step.finding(
        "anomaly-mode",
        title="autograd's anomaly mode is on",
        evidence=f"it slows every operation of forward and backward ({part(cost, step.total)}); "
        "by how much was not measured, so the bound counts all of their time",
        advice="remove set_detect_anomaly(True) (or detect_anomaly()) unless you are debugging",
        place=None,
        cost=cost,
    )


def autocast_recurrent(step: Step) -> Iterator[Finding]:
    settings = step.observation.settings
    if settings and step.cuda and _dtype(settings.autocast) in HALF and step.layers(*RECURRENT):
        yield from _device_finding(
            step,
            "autocast-recurrent",
            title=f"recurrent layers run in {_dtype(settings.autocast)}",
            evidence="on CUDA, cuDNN's LSTM was measured to be 7 to 13 times slower in bfloat16 than in float32",
            advice="exclude the recurrent layers from autocast: torch.autocast('cuda', enabled=False) "
            "around them, with .float() on their input",
            kinds=("recurrent",),
        )


def channels_last(step: Step) -> Iterator[Finding]:
    contiguous = [model for model in step.observation.models if model.memory_format == "contiguous"]
    convolutions = sum(model.layers.get("Conv2d", 0) for model in contiguous)
    if step.cuda and convolutions and _half_precision(step):
        yield from _device_finding(
            step,
            "channels-last",
            title=f"{convolutions} convolutions in half precision work on channels-first memory",
            evidence="tensor cores want channels last, so layouts are converted around each convolution",
            advice="call model.to(memory_format=torch.channels_last), and the same on the input batch",
            kinds=("convolution",),
        )


def tf32_off(step: Step) -> Iterator[Finding]:
    settings, gpu = step.observation.settings, step.observation.machine.gpu or ""
    if settings is None or not step.cuda or _half_precision(step) or NO_TF32.search(gpu):
        return
    kinds: tuple[str, ...] = ("matmul", "attention") if settings.matmul_precision == "highest" else ()
    kinds += () if settings.cudnn_tf32 else ("convolution", "recurrent")
    switches = ['torch.set_float32_matmul_precision("high")'] if settings.matmul_precision == "highest" else []
    switches += [] if settings.cudnn_tf32 else ["torch.backends.cudnn.allow_tf32 = True"]
    if kinds:
        yield from _device_finding(
            step,
            "tf32-off",
            title="float32 arithmetic runs without TF32",
            evidence="tensor cores (Ampere and newer) are unused; TF32 keeps 10 of the 23 mantissa bits",
            advice=f"{' and '.join(switches)}, then check that the model is as good as before",
            kinds=kinds,
        )


def _device_finding(
    step: Step, code: str, *, title: str, evidence: str, advice: str, kinds: tuple[str, ...]
) -> Iterator[Finding]:
    """Bound the gain of faster kernels by their time; without a device profile it is unknown (1.0)."""
    cost = step.kernels_ms(*kinds)
    if step.device is not None and step.share_of(cost) < NOTICEABLE:
        return
    known = (
        f"; such kernels take {part(cost, step.total)}"
        if step.device
        else "; without a device profile, how much is unknown"
    )
    yield Finding(
        code=code,
        title=title,
        evidence=evidence + known,
        advice=advice,
        place=_model_place(step),
        ms_per_step=cost,
        at_most=step.at_most_on_device(cost),
    )


def _model_place(step: Step) -> CodeLine | None:
    return next((model.place for model in step.observation.models if model.place), None)


def _half_precision(step: Step) -> bool:
    settings = step.observation.settings
    if settings and _dtype(settings.autocast) in HALF:
        return True
    counts: dict[str, int] = {}
    for model in step.observation.models:
        for dtype, parameters in model.dtypes.items():
            counts[_dtype(dtype)] = counts.get(_dtype(dtype), 0) + parameters
    return bool(counts) and max(counts, key=lambda dtype: counts[dtype]) in HALF


def _dtype(name: str | None) -> str:
    return (name or "").removeprefix("torch.")


def threads_oversubscribed(step: Step) -> Iterator[Finding]:
    settings, loader, cores = step.observation.settings, step.loader(), step.observation.machine.cores
    if settings is None or not step.measured:
        return
    workers, ranks = loader.workers if loader else 0, max(1, len(step.observation.ranks))
    # With a device, the training thread hardly uses torch's own threads, so only the workers compete.
    threads = 1 if step.asynchronous else settings.threads
    wanted = ranks * (workers + threads)
    if wanted <= cores:
        return
    yield Finding(
        code="threads-oversubscribed",
        title=f"{wanted} busy threads and workers on {cores} cores",
        evidence=f"{ranks} × ({workers} loader workers + {threads} torch threads); the cost was not measured",
        advice=_threads_advice(step, workers),
        place=None,
        ms_per_step=0.0,
        at_most=1.0,
    )


def _threads_advice(step: Step, workers: int) -> str:
    most = most_workers(step)
    if workers > most:
        return f"use at most {most} workers per process (num_workers={most})"
    threads = max(1, cores_each(step) - workers)
    return f"call torch.set_num_threads({threads}), or set OMP_NUM_THREADS={threads} before Python starts"


def memory_near_limit(step: Step) -> Iterator[Finding]:
    memory = step.observation.memory
    pools = (
        (
            "device",
            memory.peak_device_mb,
            memory.total_device_mb,
            "activation checkpointing or smaller micro-batches",
        ),
        (
            "host",
            memory.peak_host_mb,
            memory.total_host_mb,
            "memory-mapped or chunked reading, or fewer workers",
        ),
    )
    for name, peak, total, remedy in pools:
        if peak and total and peak / total >= NEAR_LIMIT:
            yield Finding(
                code="memory-near-limit",
                title=f"{name} memory is {percent(peak / total)} full at its peak",
                evidence=f"{number(peak)} of {number(total)} MB",
                advice=f"free memory before adding anything: {remedy} (empty_cache() frees nothing that is in use)",
                place=None,
                ms_per_step=0.0,
                at_most=1.0,
            )
