"""Realistic observations for tests: `observation()` is a healthy CPU run, each scenario bends it one way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotlap.records.codec import SCHEMA
from hotlap.records.observation import (
    Ceiling,
    CodeLine,
    CopySite,
    DeviceActivity,
    HotLine,
    Kernel,
    Loader,
    Machine,
    Memory,
    Model,
    Observation,
    Optimizer,
    ProcessLoad,
    Rank,
    Settings,
    Span,
    Sync,
    Warmup,
)

PROJECT = "/home/ann/project"
TRAIN = f"{PROJECT}/train.py"
GPU = "NVIDIA H100 80GB HBM3"


def place(line: int = 12, file: str = "data.py", function: str = "__getitem__") -> CodeLine:
    return CodeLine(file=f"{PROJECT}/{file}", line=line, function=function)


def machine(**overrides: Any) -> Machine:
    values: dict[str, Any] = {
        "cpu": "AMD EPYC 9354",
        "cores": 8,
        "memory_mb": 64_000.0,
        "system": "Linux 6.1",
        "gpu": None,
        "gpus": 0,
        "python": "3.11.7",
        "torch": "2.8.0",
        "cuda": None,
        "cudnn": None,
        "versions": {"numpy": "2.1.0"},
    }
    return Machine(**values | overrides)


def loader(**overrides: Any) -> Loader:
    values: dict[str, Any] = {
        "role": "train",
        "dataset": "ImageFolder",
        "dataset_kind": "map",
        "dataset_place": place(31),
        "length": 50_000,
        "batch_size": 64,
        "workers": 0,
        "prefetch": None,
        "pin_memory": False,
        "persistent_workers": False,
        "drop_last": False,
        "sampler": "RandomSampler",
        "start_method": None,
        "batches": 60,
    }
    return Loader(**values | overrides)


def model(**overrides: Any) -> Model:
    values: dict[str, Any] = {
        "name": "Net",
        "place": place(8, "model.py", "forward"),
        "parameters": 1_200_000,
        "trainable": 1_200_000,
        "tensors": 24,
        "layers": {"Linear": 6, "ReLU": 5},
        "dtypes": {"float32": 1_200_000},
        "memory_format": "none",
        "device": "cpu",
        "compiled": False,
    }
    return Model(**values | overrides)


def optimizer(**overrides: Any) -> Optimizer:
    values: dict[str, Any] = {
        "name": "AdamW",
        "place": CodeLine(file="/usr/lib/python3/site-packages/torch/optim/adam.py", line=213, function="step"),
        "groups": 1,
        "tensors": 24,
        "fused": True,
        "foreach": None,
    }
    return Optimizer(**values | overrides)


def settings(**overrides: Any) -> Settings:
    values: dict[str, Any] = {
        "threads": 8,
        "interop_threads": 8,
        "autocast": None,
        "grad_scaler": False,
        "matmul_precision": "high",
        "cudnn_tf32": True,
        "cudnn_benchmark": False,
        "deterministic": False,
        "anomaly_mode": False,
    }
    return Settings(**values | overrides)


def sync(**overrides: Any) -> Sync:
    values: dict[str, Any] = {
        "file": TRAIN,
        "line": 41,
        "function": "train",
        "kind": "item",
        "per_step": 1.0,
        "ms_per_step": 0.01,
        "calls": 50,
        "waits": False,
        "via": None,
    }
    return Sync(**values | overrides)


def copy_site(**overrides: Any) -> CopySite:
    values: dict[str, Any] = {
        "file": TRAIN,
        "line": 35,
        "function": "train",
        "per_step": 2.0,
        "bytes_per_step": 38e6,
        "ms_per_step": 4.0,
        "pinned": False,
        "blocking": True,
    }
    return CopySite(**values | overrides)


def hot_line(phase: str, line: int = 20, **overrides: Any) -> HotLine:
    values: dict[str, Any] = {"file": TRAIN, "function": "train", "share": 0.2, "ms_per_step": 8.0}
    return HotLine(phase=phase, line=line, **values | overrides)


def kernel(kind: str, share: float, name: str | None = None, busy: float = 10.0) -> Kernel:
    return Kernel(name=name or f"{kind}_kernel", kind=kind, per_step=12.0, ms_per_step=share * busy, share=share)


def device(busy_ms: float, step_ms: float = 10.0, **overrides: Any) -> DeviceActivity:
    values: dict[str, Any] = {
        "steps": 10,
        "launches_per_step": 800.0,
        "syncs_per_step": 1.0,
        "kernels": (kernel("matmul", 0.7, busy=busy_ms), kernel("memory", 0.3, busy=busy_ms)),
    }
    return DeviceActivity(busy_ms_per_step=busy_ms, busy_share=busy_ms / step_ms, **values | overrides)


def rank(number: int, own_ms: float, **overrides: Any) -> Rank:
    values: dict[str, Any] = {
        "steps": 50,
        "step_ms": 10.0,
        "samples_per_second": 6400.0,
        "shares": {"data": 0.1, "forward": 0.3, "backward": 0.6},
    }
    return Rank(rank=number, pid=100 + number, own_ms=own_ms, **values | overrides)


def memory(**overrides: Any) -> Memory:
    values: dict[str, Any] = {
        "peak_host_mb": 1_850.0,
        "peak_device_mb": None,
        "reserved_device_mb": None,
        "total_host_mb": 64_000.0,
        "total_device_mb": None,
    }
    return Memory(**values | overrides)


def observation(step: float = 10.0, steps: int = 50, **overrides: Any) -> Observation:
    """A healthy run: 64 samples a step of `step` ms on CPU, most of it forward and backward."""
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "command": ("python", "train.py", "--epochs", "3"),
        "directory": PROJECT,
        "started": "2026-01-02T03:04:05+00:00",
        "machine": machine(),
        "ended": "window complete",
        "exit_code": None,
        "steps": steps,
        "backwards_per_step": 1.0,
        "batches_per_step": 1.0,
        "samples_per_second": 64 * 1000 / step,
        "samples_per_step": 64.0,
        "step_ms": (step,) * steps,
        "device_step_ms": (),
        "warmup": Warmup(steps=8, seconds=3.2, settled=True),
        "shares": {"data": 0.01, "forward": 0.4, "backward": 0.5, "optimizer": 0.08, "rest": 0.01},
        "syncs": (sync(),),
        "copies": (),
        "hot_lines": (),
        "spans": (),
        "losses": tuple(2.3 - 0.01 * i for i in range(steps)),
        "loaders": (loader(),),
        "models": (model(),),
        "optimizers": (optimizer(),),
        "settings": settings(),
        "device": None,
        "memory": memory(),
        "processes": (ProcessLoad(pid=100, name="main", cpu_percent=640.0, peak_memory_mb=1_850.0),),
        "gpus": (),
        "ranks": (),
        "ceiling": Ceiling(samples_per_second=64 * 1000 / step, step_ms=(step,) * 10, note=None),
        "trace": None,
        "cautions": (),
    }
    return Observation(**values | overrides)


def on_cuda(step: float = 10.0, **overrides: Any) -> Observation:
    """The same on a GPU; the device's busy time is what decides, so tests pass their own `device`."""
    values: dict[str, Any] = {
        "machine": machine(gpu=GPU, gpus=1, cuda="12.8", cudnn="9.8", cores=16),
        "models": (model(device="cuda:0"),),
        "device_step_ms": (step,) * 50,
        "device": device(step * 0.9, step),
        "syncs": (),
        "memory": memory(peak_device_mb=9_400.0, reserved_device_mb=11_000.0, total_device_mb=81_000.0),
    }
    return observation(step, **values | overrides)


def input_bound() -> Observation:
    return observation(
        40.0,
        shares={
            "data": 0.72,
            "forward": 0.11,
            "backward": 0.13,
            "optimizer": 0.02,
            "sync": 0.005,
            "rest": 0.015,
        },
        step_ms=tuple(36.0 + (i % 9) for i in range(50)),
        ceiling=Ceiling(samples_per_second=5_440.0, step_ms=(11.8,) * 20, note=None),
        hot_lines=(
            hot_line("data", 31, file=f"{PROJECT}/data.py", function="__getitem__", share=0.48, ms_per_step=19.2),
            hot_line("data", 27, file=f"{PROJECT}/data.py", function="augment", share=0.21, ms_per_step=8.4),
            hot_line("forward", 14, file=f"{PROJECT}/model.py", function="forward", share=0.1, ms_per_step=4.0),
        ),
        cautions=("EVALUATION_INSIDE",),
    )


def sync_bound() -> Observation:
    lines = tuple(
        sync(line=40 + i, kind=kind, ms_per_step=4.0 / (i + 1), per_step=3.0, waits=True, calls=150)
        for i, kind in enumerate(
            ("item", "cpu", "bool", "print", "nonzero", "synchronize", "tolist", "float", "int", "numpy")
        )
    )
    return on_cuda(
        20.0,
        shares={
            "data": 0.03,
            "copy": 0.05,
            "forward": 0.12,
            "backward": 0.1,
            "optimizer": 0.05,
            "sync": 0.6,
            "rest": 0.05,
        },
        device=device(4.0, 20.0, launches_per_step=310.0, syncs_per_step=30.0),
        syncs=(
            *lines,
            sync(line=9, kind="item", waits=True, via="torchmetrics/metric.py:512", ms_per_step=0.4),
        ),
        copies=(copy_site(ms_per_step=0.9), copy_site(line=36, ms_per_step=0.1, pinned=True)),
    )


def launch_bound() -> Observation:
    names = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "ampere_sgemm_32x128_tn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>",
    )
    kinds = (("memory", 0.5), ("matmul", 0.3), ("other", 0.2))
    return on_cuda(
        10.0,
        shares={
            "data": 0.02,
            "copy": 0.01,
            "forward": 0.32,
            "backward": 0.38,
            "optimizer": 0.2,
            "rest": 0.03,
            "span:augment [gpu]": 0.04,
        },
        device=device(
            1.8,
            launches_per_step=840.0,
            kernels=tuple(kernel(kind, share, name, 1.8) for name, (kind, share) in zip(names, kinds, strict=True)),
        ),
        optimizers=(optimizer(fused=False),),
        spans=(Span(name="augment [gpu]", per_step=1.0, ms_per_step=0.5),),
        ceiling=None,
        trace="trace.json",
    )


def two_ranks() -> Observation:
    slow = rank(1, 5.6, shares={"data": 0.26, "forward": 0.3, "backward": 0.44}, samples_per_second=6390.0)
    return observation(ranks=(rank(0, 4.0), slow), cautions=("NOISY",))


def partial() -> Observation:
    """A program that failed before its first step."""
    return observation(
        steps=0,
        ended="program failed",
        exit_code=1,
        samples_per_second=None,
        samples_per_step=None,
        shares={},
        syncs=(),
        loaders=(),
        models=(),
        optimizers=(),
        settings=None,
        processes=(),
        ceiling=Ceiling(samples_per_second=None, step_ms=(), note="the program makes its batches itself"),
        cautions=("FEW_STEPS", "A_NAME_FROM_A_NEWER_HOTLAP"),
    )


def not_a_number() -> Observation:
    return replace(
        observation(),
        losses=(float("nan"), 1.0, float("inf")),
        samples_per_second=float("nan"),
        cautions=("LOSS_UNSEEN",),
    )
