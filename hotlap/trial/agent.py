"""Runs inside a trial process: applies the choices, times steps, records losses, and ends the program after enough.

A step ends when its optimizers are done, and is closed once one of them steps again. So steps are counted the same way
whatever an optimisation does to the loader, and both arms train the same steps. Nothing here makes the host wait for a
device.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotlap.control import applied_plan as plan_applied
from hotlap.control.wiring import Wiring
from hotlap.observe import surroundings
from hotlap.observe.losses import Losses
from hotlap.observe.ranks import rank_and_world
from hotlap.observe.stop import Stopper
from hotlap.patch.imports import when_imported
from hotlap.patch.ledger import Ledger
from hotlap.patch.seams import Seams
from hotlap.records import private
from hotlap.records.codec import SCHEMA, to_json
from hotlap.records.progress import DONE, STARTING, TIMING, Progress, ProgressWriter
from hotlap.records.session import Session
from hotlap.records.trial import MetricValue
from hotlap.trial import metric
from hotlap.trial.nudge import nudge
from hotlap.trial.order import ENOUGH, LEFT, REPORT, Mark, Order, ProcessReport, read_order
from hotlap.trial.state import Watch

MARK_SECONDS = 0.025  # between events on the device: recording one costs the host some 14 µs
MARKS, CLOSEST = 48, 4  # short steps: this many marks over the whole run, but at least four steps apart
SAY_SECONDS = 0.2
FOR_TRIALS = 0.5  # of the time for screening: what it costs to start and to measure optimisations
MIB = 1 << 20


def start(torch: Any, session: Session, seams: Seams) -> Callable[[], None]:
    """Start the agent, once torch is imported; the function returned is called when the process ends."""
    entered = plan_applied.enter(torch, session, seams)
    agent = Agent(torch, session, seams, read_order(session), entered.deciding)
    agent.subscribe()

    def finish() -> None:
        agent.process_ends()
        entered.tell()

    agent.tell_outcomes = entered.tell
    return finish


class Agent:
    def __init__(
        self, torch: Any, session: Session, seams: Seams, order: Order, deciding: Wiring | None = None
    ) -> None:
        self.torch, self.session, self.seams, self.order = torch, session, seams, order
        self._deciding = deciding
        if deciding is not None and order.screens is not None:
            deciding.grant(FOR_TRIALS * order.screens)
        self.folder = Path(session.folder)
        self.losses = Losses(torch)
        own = Ledger()
        seams.ledger.later(own.close)
        self.watch = Watch(torch, order.steps, own)
        self.tell_outcomes: Callable[[], None] = lambda: None
        self.on_cuda = False
        self.rank, self.world = 0, 1
        self.readings: list[MetricValue] = []
        self.ends: list[float] = []
        self.events: list[tuple[int, Any]] = []
        self._began: float | None = None
        self._stepped: set[int] = set()
        self._for_scaler: set[int] = set()
        self._pending: float | None = None
        self._pending_event: Any = None
        self._marked, self._marked_steps = 0.0, 0
        self._every = max(CLOSEST, (order.steps or 0) // MARKS)
        self._device: Any = None  # of the training, on CUDA
        self._stopper: Stopper | None = None
        self._state = STARTING
        self._reported = 0.0
        self._written = False
        self._offset = time.time() - time.perf_counter() - session.started  # puts all reported times on one clock
        self._progress = ProgressWriter(self.folder / f"progress-{os.getpid()}.bin")

    def subscribe(self) -> None:
        seams = self.seams
        seams.iterating.subscribe(before=self._iterating)
        seams.backward.subscribe(before=self._differentiating)
        seams.scaling.subscribe(after=self._scaled)
        seams.scaled_step.subscribe(after=self._scaler_stepped)
        seams.stepping.subscribe(before=self._stepping, after=self._ended)
        metric.take_to(self._read, self.order.metric)
        if self.order.tag is not None:
            for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
                when_imported(module, self._watch_writer)

    def _watch_writer(self, module: Any) -> None:
        tag = self.order.tag
        assert tag is not None
        writer = module.SummaryWriter
        self.seams.ledger.wrap(writer, "add_scalar", metric.watch_tag(writer, tag, self._read))

    def _now(self) -> float:
        return time.perf_counter() + self._offset

    # In the user's step

    def _iterating(self, *_: Any) -> None:
        if self._pending is None:
            self._began = self._now()

    def _differentiating(self, instance: Any, args: Any, kwargs: Any) -> None:
        if self._began is None:
            self._began = self._now()
        self.losses.add(self.losses.note(instance, args, kwargs))

    def _scaled(self, scaler: Any, args: Any, kwargs: Any, result: Any) -> None:
        if scaler.is_enabled():
            self.losses.scaled(scaler, args, kwargs, result)

    def _stepping(self, optimizer: Any) -> None:
        if id(optimizer) in self._stepped:
            self._close()
        elif self._pending is None and not self.ends:
            self._first_step(optimizer)
        self.watch.stepped(optimizer)
        if self.order.nudge and not self.ends:
            nudge(self.torch, optimizer, self.order.nudge, self.order.seed_shift)
        self.losses.stepping = True

    def _ended(self, optimizer: Any, _: Any) -> None:
        self.losses.stepping = False
        self._for_scaler.add(id(optimizer))
        self._optimizer_ended(optimizer)

    def _scaler_stepped(self, scaler: Any, args: Any, kwargs: Any, _: Any) -> None:
        """Count a step that the scaler skipped because of infinities; to the user it was a step all the same."""
        optimizer = args[0] if args else kwargs.get("optimizer")
        if id(optimizer) in self._for_scaler:
            self._for_scaler.discard(id(optimizer))
            return
        self._stepping(optimizer)
        self.losses.stepping = False
        self._optimizer_ended(optimizer)

    def _optimizer_ended(self, optimizer: Any) -> None:
        self._stepped.add(id(optimizer))
        self.losses.optimizer_ended()
        self._pending = self._now()
        if self.on_cuda and self._mark_due(self._pending):
            self._pending_event = self._event()

    def _mark_due(self, now: float) -> bool:
        steps = len(self.ends) + 1
        if now - self._marked >= MARK_SECONDS or steps == self.order.steps:
            return True
        return steps - self._marked_steps >= self._every

    def _event(self) -> Any:
        if self.torch.cuda.is_current_stream_capturing():
            return None
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.torch.cuda.current_stream(self._device))  # which need not be the current device
        return event

    def _close(self) -> None:
        """Close the previous step."""
        if self._pending is None:
            return
        self.ends.append(self._pending)
        self.losses.close_step()
        if self._pending_event is not None:
            self.events.append((len(self.ends), self._pending_event))
            self._marked, self._marked_steps, self._pending_event = self._pending, len(self.ends), None
        at, self._pending = self._pending, None
        self._stepped.clear()
        self.watch.step_over(len(self.ends), self.on_cuda)
        if at - self._reported >= SAY_SECONDS:
            self._report()
        if self._enough():
            self._done()

    def _first_step(self, optimizer: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self._device = next((weight.device for weight in weights if weight.is_cuda), None)
        self.on_cuda = self._device is not None
        self._limit_memory({weight.device for weight in weights if weight.is_cuda})
        self.losses.on_host = not self.on_cuda
        self.watch.training_begins()
        self.rank, self.world = rank_and_world(self.torch)
        self._state = TIMING
        self._stopper = Stopper(self.folder, self.rank, self.world, self._leaving)
        self._stopper.install()
        self._report()

    def _limit_memory(self, devices: set[Any]) -> None:
        """Make an allocation beyond the limit run out of memory, as on a smaller device."""
        if self.order.device_mb is None:
            return
        for device in devices:
            total = self.torch.cuda.get_device_properties(device).total_memory
            self.torch.cuda.set_per_process_memory_fraction(min(1.0, self.order.device_mb * MIB / total), device)

    def _enough(self) -> bool:
        if self.order.screens is not None:
            return self._state != DONE and self._has_screened(self.order.screens)
        if self._state == DONE or self.order.steps is None or len(self.ends) < self.order.steps:
            return False
        return len(self.readings) >= self.order.readings or (self.folder / ENOUGH).exists()

    def _has_screened(self, seconds: float) -> bool:
        over = self._deciding is None or self._deciding.is_over
        return over or self.ends[-1] - self.ends[0] > seconds

    def _done(self) -> None:
        self._state = DONE
        self._write()
        if self._stopper is not None:
            self._stopper.decide()
        self._report()  # only now: the watching process may end this one

    def _leaving(self) -> None:
        """Mark the end of the program's own code, `finally` blocks included.

        The handler registered last runs first, so before the interpreter waits for pools of compilers and the like.
        """
        atexit.register(_leave, self.folder / LEFT)

    # Reporting

    def _read(self, name: str, value: float) -> None:
        steps = len(self.ends) + (self._pending is not None)
        self.readings.append(MetricValue(name=name, step=steps, value=value))

    def _report(self) -> None:
        self._reported = self._now()
        steps = len(self.ends) + (self._pending is not None)
        self._progress.write(
            Progress(
                state=self._state,
                rank=self.rank,
                fraction=min(1.0, steps / (self.order.steps or 1)),
                steps=steps,
                batches=0,
                backwards=self.losses.backwards,
                optimizers=0,
                loaders=0,
            )
        )

    def process_ends(self) -> None:
        """Write the report if the program ended before it was asked to."""
        if self._state == TIMING:
            self._close()
        if self._state == TIMING:
            self._write()

    def _write(self) -> None:
        """Write the report. A full disk must not keep the program alive; the watcher notices the missing file."""
        if self._written:
            return
        self._written = True
        self.tell_outcomes()
        final = self.folder / f"{REPORT}-{os.getpid()}.json"
        draft = final.with_suffix(".tmp")
        try:
            private.write_text(draft, to_json(self._record()))
            draft.replace(final)
        except OSError as error:
            self.seams.guard.failed("writing the trial's report", error)

    def _record(self) -> ProcessReport:
        memory = surroundings.memory(self.torch)
        return ProcessReport(
            schema=SCHEMA,
            pid=os.getpid(),
            rank=self.rank,
            done=self._state == DONE,
            began=self._began if self._began is not None else (self.ends or [0.0])[0],
            ends=tuple(self.ends),
            marks=self._marks(),
            losses=self._finite(self.losses.values(may_wait=True)),
            readings=tuple(self.readings),
            hardware=plan_applied.hardware(self.torch),
            torch=str(self.torch.__version__),
            host_mb=memory.peak_host_mb,
            device_mb=memory.peak_device_mb,
            state=self.seams.guard.run("reading the state", self.watch.state, self.world),
        )

    @staticmethod
    def _finite(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(value if math.isfinite(value) else math.nan for value in values)

    def _marks(self) -> tuple[Mark, ...]:
        """Read the events by polling, without a sync; all but the last are long past by now."""
        if not self.events:
            return ()
        first = self.events[0][1]
        while not self.events[-1][1].query():
            time.sleep(0.001)
        return tuple(Mark(steps=steps, seconds=first.elapsed_time(event) / 1000) for steps, event in self.events)


def _leave(path: Path) -> None:
    """Flush what was printed, because a process that waits for its pools may be killed, and leave the mark."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with suppress(OSError):  # a full disk: the process then gets the longer time to end
        path.touch(private.FILE)
