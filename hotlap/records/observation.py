"""What was observed of one training command. Times are in milliseconds unless a name says otherwise.

A *step* is what a user counts: from one optimizer step to the next, where all optimizers of a GAN and all
micro-batches of an accumulation form one step. Shares are fractions of the window's wall-clock time and add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# The phases of every window. A user's own spans join them as "span:<name>".
DATA, COPY, FORWARD, BACKWARD, OPTIMIZER = "data", "copy", "forward", "backward", "optimizer"
SYNC, GARBAGE, EVALUATION, REST = "sync", "garbage", "evaluation", "rest"
PHASES = (DATA, COPY, FORWARD, BACKWARD, OPTIMIZER, SYNC, GARBAGE, EVALUATION, REST)
SPAN_PREFIX = "span:"


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeLine:
    """A line of code, preferably the user's."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync:
    """A place where the host asks the device for a value and therefore waits for it."""

    file: str
    line: int
    function: str
    kind: str  # "item", "cpu", "tolist", "numpy", "float", "int", "bool", "print", "nonzero", "synchronize", ...
    per_step: float
    ms_per_step: float
    calls: int  # total
    waits: bool  # False on CPU, where nothing waits: "would wait on CUDA"
    via: str | None = None  # "library/file.py:12" when a library made the call on behalf of the user's line


@dataclass(frozen=True, kw_only=True, slots=True)
class CopySite:
    """A line that copies tensors from host to device."""

    file: str
    line: int
    function: str
    per_step: float
    bytes_per_step: float
    ms_per_step: float
    pinned: bool
    blocking: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """A DataLoader as the program configured it."""

    role: str  # "train", "evaluation" or "unknown"
    dataset: str
    dataset_kind: str  # "map" or "iterable"
    dataset_place: CodeLine | None  # where __getitem__ or __iter__ is defined
    length: int | None
    batch_size: int | None
    workers: int
    prefetch: int | None
    pin_memory: bool
    persistent_workers: bool
    drop_last: bool
    sampler: str
    start_method: str | None
    batches: int  # fetched while observed

    @property
    def is_restarted(self) -> bool:
        """Whether a second epoch has begun; the length counts samples, not batches."""
        if not self.length or not self.batch_size:
            return False
        return self.batches > math.ceil(self.length / self.batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A root training module: the outermost module called that owns the optimizer's parameters."""

    name: str
    place: CodeLine | None  # where forward is defined
    parameters: int
    trainable: int
    tensors: int
    layers: Mapping[str, int]
    dtypes: Mapping[str, int]  # parameters by dtype
    memory_format: str  # "contiguous", "channels_last" or "none" (no 4-d weight)
    device: str
    compiled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    name: str
    place: CodeLine | None  # where step is defined
    groups: int
    tensors: int
    fused: bool
    foreach: bool | None  # None: torch chooses


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of torch that affect speed, read in the program after warm-up."""

    threads: int
    interop_threads: int
    autocast: str | None  # dtype in effect during forward
    grad_scaler: bool
    matmul_precision: str
    cudnn_tf32: bool
    cudnn_benchmark: bool
    deterministic: bool
    anomaly_mode: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HotLine:
    """A line of the user's code on which sampling found the training thread, after the timed window."""

    file: str
    line: int
    function: str
    phase: str
    share: float  # of the samples taken
    ms_per_step: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowedLines:
    """The lines that ran in the training thread over a few steps after the timed window, by file."""

    steps: int
    ran: Mapping[str, tuple[int, ...]]
    missed: Mapping[str, tuple[int, ...]]  # the other lines of the functions that ran


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    name: str
    kind: str  # "matmul", "convolution", "recurrent", "attention", "memory", "copy" or "other"
    per_step: float
    ms_per_step: float
    share: float  # of device busy time


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceActivity:
    """Measured in a short torch.profiler window after the timed one, since the profiler slows down the host."""

    steps: int
    busy_ms_per_step: float
    busy_share: float  # busy_ms_per_step over the mean step of the *timed* window
    launches_per_step: float
    syncs_per_step: float  # every blocking call of the CUDA runtime, attributed to a line or not
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A section that the user named with hotlap.span; its duration includes everything inside."""

    name: str
    per_step: float
    ms_per_step: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLoad:
    """The load of one process of the command, measured from outside."""

    pid: int
    name: str  # "main", "rank 1", "loader worker", or the program's name
    cpu_percent: float  # 100 = one core
    peak_memory_mb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLoad:
    index: int
    name: str
    utilization_percent: float
    memory_used_mb: float
    power_watts: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    peak_host_mb: float  # of the training process alone
    peak_device_mb: float | None
    reserved_device_mb: float | None
    total_host_mb: float
    total_device_mb: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    cpu: str
    cores: int  # usable by this process
    memory_mb: float
    system: str
    gpu: str | None
    gpus: int
    python: str
    torch: str
    cuda: str | None
    cudnn: str | None
    versions: Mapping[str, str]  # numpy, lightning, accelerate, transformers, ... as found

    @property
    def summary(self) -> str:
        gpu = f", {self.gpus} × {self.gpu}" if self.gpu else ""
        return f"{self.cpu}, {self.cores} cores{gpu}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One process of a distributed job. The slowest has the most work of its own, and the others wait for it."""

    rank: int
    pid: int
    steps: int
    step_ms: float  # mean
    own_ms: float  # mean step without backward, where ranks wait for each other
    samples_per_second: float
    shares: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """The step without its input: the same command, fed one cached batch again and again."""

    samples_per_second: float | None
    step_ms: tuple[float, ...]
    note: str | None  # why it was not measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    steps: int
    seconds: float  # from the import of torch to the first measured step
    settled: bool  # False: the limit was reached before step times were steady


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    schema: int
    command: tuple[str, ...]
    directory: str
    started: str  # ISO 8601, UTC
    machine: Machine
    ended: str  # "window complete", "program ended", "program failed", "interrupted", "time limit"
    exit_code: int | None
    steps: int  # measured, after warming up
    steps_seen: int | None = None  # those measured in detail; of the others only time, data wait and loss are known
    backwards_per_step: float
    batches_per_step: float
    samples_per_second: float | None
    samples_per_step: float | None
    step_ms: tuple[float, ...]
    evaluation_ms: tuple[float, ...] = ()  # of the evaluations within each of these steps; empty if there were none
    device_step_ms: tuple[float, ...]  # by CUDA events, means over a few steps each; empty on CPU
    warmup: Warmup
    shares: Mapping[str, float]
    syncs: tuple[Sync, ...]
    copies: tuple[CopySite, ...]
    hot_lines: tuple[HotLine, ...]
    spans: tuple[Span, ...]
    losses: tuple[
        float, ...
    ]  # one per step from the very first: what backward was called on, unscaled, and the mean if accumulated
    loaders: tuple[Loader, ...]
    models: tuple[Model, ...]
    optimizers: tuple[Optimizer, ...]
    settings: Settings | None
    device: DeviceActivity | None
    memory: Memory
    processes: tuple[ProcessLoad, ...]
    gpus: tuple[GpuLoad, ...]
    ranks: tuple[Rank, ...]
    ceiling: Ceiling | None
    trace: str | None  # path of the Chrome trace inside the run folder
    cautions: tuple[str, ...]  # names of hotlap.records.caution.Caution that make the figures less certain
    followed: FollowedLines | None = None  # None: not followed, so nobody knows what did not run

    @property
    def on_cuda(self) -> bool:
        return any(model.device.startswith("cuda") for model in self.models)

    @property
    def training_step_ms(self) -> tuple[float, ...]:
        """The steps without the evaluations within them."""
        if len(self.evaluation_ms) != len(self.step_ms):
            return self.step_ms
        return tuple(step - evaluation for step, evaluation in zip(self.step_ms, self.evaluation_ms, strict=True))

    @property
    def mean_step_ms(self) -> float:
        return sum(self.step_ms) / len(self.step_ms) if self.step_ms else 0.0

    def ms(self, phase: str) -> float:
        """Return the mean milliseconds per step spent in a phase."""
        return self.shares.get(phase, 0.0) * self.mean_step_ms
