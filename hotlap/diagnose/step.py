"""The figures of a training step that all detectors share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotlap.records.diagnosis import Finding
from hotlap.records.observation import (
    BACKWARD,
    DATA,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
    PHASES,
    SPAN_PREFIX,
    CodeLine,
    DeviceActivity,
    HotLine,
    Loader,
    Observation,
)

NOTICEABLE = 0.02  # of a step; what costs less is not worth a reader's time
LONG_WAIT = 0.30  # of a step: it limits the step, whatever a busy machine makes of the second run
TOLERANCE = 0.25  # of a step, by which two runs of one program differ on a machine that is equally fast in both
LEAST_REMAINDER = 0.01  # a step never becomes free: no bound above 100×


@dataclass(frozen=True, slots=True)
class Step:
    """The mean training step of an observation, without evaluations: they are not part of step speed."""

    observation: Observation

    @property
    def total(self) -> float:
        evaluation = min(max(self.observation.shares.get(EVALUATION, 0.0), 0.0), 1.0)
        return self.observation.mean_step_ms * (1.0 - evaluation)

    @property
    def measured(self) -> bool:
        return self.total > 0 and any(self.observation.shares.values())

    @property
    def asynchronous(self) -> bool:
        """Whether work is queued on a device, so that host time says little about device time."""
        return self.cuda or any(not model.device.startswith("cpu") for model in self.observation.models)

    @property
    def cuda(self) -> bool:
        seen = self.observation
        return seen.on_cuda or seen.device is not None or bool(seen.device_step_ms)

    @property
    def device(self) -> DeviceActivity | None:
        return self.observation.device

    @property
    def busy(self) -> float:
        """Milliseconds of a step in which the device works; 0 if it was not profiled."""
        return min(self.device.busy_ms_per_step, self.total) if self.device else 0.0

    @property
    def idle(self) -> float:
        return self.total - self.busy

    @property
    def issuing(self) -> float:
        """Host time in the phases that launch device work."""
        return self.ms(FORWARD) + self.ms(BACKWARD) + self.ms(OPTIMIZER)

    def ms(self, phase: str) -> float:
        return max(0.0, self.observation.ms(phase))

    def share(self, phase: str) -> float:
        return self.share_of(self.ms(phase))

    def share_of(self, cost: float) -> float:
        return cost / self.total if self.total > 0 else 0.0

    def spans(self) -> dict[str, float]:
        """Return the milliseconds per step of the user's own sections, largest first."""
        own = {name: self.ms(name) for name in self.observation.shares if name.startswith(SPAN_PREFIX)}
        return dict(sorted(own.items(), key=lambda item: -item[1]))

    def largest_phase(self) -> str:
        names = [name for name in (*PHASES, *self.spans()) if name != EVALUATION]
        return max(names, key=self.ms)

    def at_most(self, cost: float) -> float:
        """Return Amdahl's bound for removing host time; a step cannot get shorter than the device's own work."""
        if self.total <= 0:
            return 1.0
        remaining = max(self.total - cost, self.busy, self.total * LEAST_REMAINDER)
        return max(1.0, self.total / remaining)

    def at_most_on_device(self, cost: float) -> float:
        """Return the bound for a change that makes the device's own work smaller, so busy time is no floor."""
        if self.total <= 0:
            return 1.0
        return max(1.0, self.total / max(self.total - cost, self.total * LEAST_REMAINDER))

    def ceiling_ratio(self) -> float | None:
        """Return how many times as many samples per second one cached batch gives; neither counts an evaluation."""
        ceiling, seen = self.observation.ceiling, self.observation
        if ceiling is None or not self.measured:
            return None
        if _positive(ceiling.samples_per_second) and _positive(seen.samples_per_second):
            return float(ceiling.samples_per_second or 0) / float(seen.samples_per_second or 1)
        mean = sum(ceiling.step_ms) / len(ceiling.step_ms) if ceiling.step_ms else None
        return self.total / mean if mean is not None and _positive(mean) else None

    def explains_ceiling(self) -> bool:
        """Return whether the wait for data can be why a cached batch was faster: without workers nothing else is."""
        ratio, loader = self.ceiling_ratio(), self.loader()
        if ratio is None or loader is None or loader.workers:
            return True  # workers also compete with the training for the cores
        return self.share(DATA) >= LONG_WAIT or 1.0 / ratio >= 1.0 - self.share(DATA) - TOLERANCE

    def data_at_most(self) -> float:
        """Return the bound for removing the wait for data, from the measured ceiling where there is one."""
        ratio = self.ceiling_ratio()
        return max(1.0, ratio) if ratio is not None else self.at_most(self.ms(DATA))

    def kernels_ms(self, *kinds: str) -> float:
        kernels = self.device.kernels if self.device else ()
        return sum(kernel.ms_per_step for kernel in kernels if kernel.kind in kinds)

    def kernels_share(self, *kinds: str) -> float:
        kernels = self.device.kernels if self.device else ()
        return min(1.0, sum(kernel.share for kernel in kernels if kernel.kind in kinds))

    def hot_line(self, phase: str) -> HotLine | None:
        lines = [line for line in self.observation.hot_lines if line.phase == phase]
        return max(lines, key=lambda line: line.share, default=None)

    def hot_place(self, phase: str) -> CodeLine | None:
        line = self.hot_line(phase)
        return CodeLine(file=line.file, line=line.line, function=line.function) if line else None

    def loader(self) -> Loader | None:
        """Return the loader that feeds training: the busiest one not known to serve evaluation."""
        loaders = [loader for loader in self.observation.loaders if loader.role != "evaluation"]
        return max(loaders, key=lambda loader: (loader.role == "train", loader.batches), default=None)

    def layers(self, *names: str) -> int:
        return sum(model.layers.get(name, 0) for model in self.observation.models for name in names)

    def worth_saying(self, cost: float) -> bool:
        return self.share_of(cost) >= NOTICEABLE and self.at_most(cost) >= 1.0 + NOTICEABLE

    def finding(
        self, code: str, *, title: str, evidence: str, advice: str, place: CodeLine | None, cost: float
    ) -> Finding:
        """Make a finding about host time, whose stake is the cost less what the device would still take."""
        bound = self.at_most(cost)
        stake = self.total * (1.0 - 1.0 / bound)
        return Finding(
            code=code,
            title=title,
            evidence=evidence,
            advice=advice,
            place=place,
            ms_per_step=stake,
            at_most=bound,
        )


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
