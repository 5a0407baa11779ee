"""Has the seams look into some steps and pass over the others, as the rota says."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from hotlap.observe import tape as t
from hotlap.observe.rota import Rota, share_of_steps
from hotlap.observe.window import planned_steps

if TYPE_CHECKING:
    from hotlap.observe.agent import Agent


class Turns:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._rota: Rota | None = None
        self.detail: float | None = None  # share of the steps to look into; None: by the length of a step
        self.due_in: int | None = None  # optimizer steps until it is the other kind's turn
        self.reading_since: int | None = None

    def begin(self) -> None:
        agent = self._agent
        typical = agent.warmup.typical
        share = share_of_steps(typical, planned_steps(typical, agent.session.steps))
        self._rota = Rota(share if self.detail is None else self.detail)
        self.look_into(self._rota.detailed)
        self.due_in = self._rota.run_length()
        if agent.on_cuda and self.due_in is None:
            agent.seams.stepping.result = self._stepped_on_cuda

    def end(self) -> None:
        self.look_into(True)
        self.due_in = self._rota = None

    def passed(self, steps: int) -> None:
        if self.due_in is not None and self._rota is not None:
            self.due_in -= steps
            if self.due_in <= 0:
                self._switch(self._rota)

    def _switch(self, rota: Rota) -> None:
        if self._agent.on_cuda and (event := self._event()) is not None:
            self._agent.entries.append((t.MARK, perf_counter_ns(), get_ident(), event))
        rota.switch()
        self.look_into(rota.detailed)
        self.due_in = rota.run_length()

    def look_into(self, detailed: bool) -> None:
        agent, seams = self._agent, self._agent.seams
        for seam in (seams.calling, seams.backward, seams.syncing, seams.copying):
            seam.brief = not detailed
        at = self.reading_since or perf_counter_ns()  # the time of reading is not the program's
        agent.entries.append((t.DETAIL, at, agent.story.thread, detailed))

    def _event(self) -> Any:
        """Recording one costs the host some 14 µs: at every step only where each is looked into."""
        cuda = self._agent.torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _stepped_on_cuda(self, optimizer: Any, now: int) -> tuple[int, Any]:
        return id(optimizer), self._event()
