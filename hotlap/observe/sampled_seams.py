"""Makes the seams record details of the steps that the step sampling selects, and of no others."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns
from typing import Any

from hotlap.observe import tape as t
from hotlap.observe.agent_state import AgentState
from hotlap.observe.step_sampling import StepSampling, share_of_steps
from hotlap.observe.window import planned_steps


class SampledSeams:
    def __init__(self, known: AgentState) -> None:
        self._known = known
        self._sampling: StepSampling | None = None
        self.detail: float | None = None  # share of the steps to record in detail; None: by the length of a step
        self.due_in: int | None = None  # optimizer steps until sampling switches
        self.reading_since: int | None = None

    def begin(self) -> None:
        known = self._known
        typical = known.warmup.typical
        share = share_of_steps(typical, planned_steps(typical, known.session.steps))
        self._sampling = StepSampling(share if self.detail is None else self.detail)
        self.look_into(self._sampling.detailed)
        self.due_in = self._sampling.run_length()
        if known.on_cuda and self.due_in is None:
            known.seams.stepping.result = self._stepped_on_cuda

    def end(self) -> None:
        self.look_into(True)
        self.due_in = self._sampling = None

    def passed(self, steps: int) -> None:
        if self.due_in is not None and self._sampling is not None:
            self.due_in -= steps
            if self.due_in <= 0:
                self._switch(self._sampling)

    def _switch(self, sampling: StepSampling) -> None:
        if self._known.on_cuda and (event := self._event()) is not None:
            self._known.entries.append((t.MARK, perf_counter_ns(), get_ident(), event))
        sampling.switch()
        self.look_into(sampling.detailed)
        self.due_in = sampling.run_length()

    def look_into(self, detailed: bool) -> None:
        known, seams = self._known, self._known.seams
        for seam in (seams.calling, seams.backward, seams.syncing, seams.copying):
            seam.brief = not detailed
        at = self.reading_since or perf_counter_ns()  # the time of reading is not the program's
        known.entries.append((t.DETAIL, at, known.story.thread, detailed))

    def _event(self) -> Any:
        """Record a CUDA event, at some 14 µs of host time; so at every step only if each is recorded in detail."""
        cuda = self._known.torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _stepped_on_cuda(self, optimizer: Any, now: int) -> tuple[int, Any]:
        return id(optimizer), self._event()
