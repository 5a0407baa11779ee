"""The observer inside the user's process: subscribes to the seams, keeps time, writes its part, asks for the stop.

    warming up → measuring → looking closer → done

Each change happens at the end of a step. Everything of ours is gone from the process once it is done.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from threading import get_ident
from time import perf_counter, time
from typing import Any

from hotlap.model.codec import to_json
from hotlap.model.observation import BACKWARD, DATA, FORWARD, GARBAGE, OPTIMIZER, PHASES, SPAN_PREFIX, Warmup
from hotlap.model.progress import DONE, LOOKING, STARTING, TIMING, WARMING, Progress, ProgressWriter
from hotlap.model.session import Session
from hotlap.observe import span, surroundings
from hotlap.observe.clock import Clock
from hotlap.observe.feed import feed_one_batch
from hotlap.observe.loaders import EVALUATION, TRAIN, Loaders, batch_size_of
from hotlap.observe.look import LineSampler, Tracer
from hotlap.observe.losses import Losses
from hotlap.observe.models import Roots, describe_optimizer
from hotlap.observe.ranks import rank_and_world
from hotlap.observe.steps import Boundary, StepClock
from hotlap.observe.stop import Stopper
from hotlap.observe.summary import Tally, part_of
from hotlap.observe.syncs import Copies, Syncs
from hotlap.observe.window import WarmupDetector, enough, progress
from hotlap.patch.ledger import Ledger
from hotlap.patch.seams import Seams
from hotlap.patch.tensors import open_indexing, open_tensors

_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _GARBAGE = map(PHASES.index, (DATA, FORWARD, BACKWARD, OPTIMIZER, GARBAGE))

SAY_SECONDS, FLUSH_SECONDS = 0.05, 5.0
LINES_SECONDS, LINES_STEPS = 1.5, 3
TRACE_SECONDS, TRACE_STEPS = 3.0, 5


def start(torch: Any, session: Session, seams: Seams) -> Any:
    """Called once torch is imported; the result is called when the process ends."""
    agent = Agent(torch, session, seams)
    agent.subscribe()
    return agent.process_ends


class Agent:
    def __init__(self, torch: Any, session: Session, seams: Seams) -> None:
        self.torch, self.session, self.seams = torch, session, seams
        self.folder = Path(session.folder)
        self.clock = Clock()
        self.steps = StepClock(self.clock, self._step_closed)
        self.losses = Losses(torch)
        self.loaders = Loaders()
        self.roots = Roots(seams)
        self.rank, self.world_size = 0, 1
        self.stopper: Stopper | None = None
        self.warmup = WarmupDetector(session.warmup)
        self.tally = Tally()
        self.optimizers: list[Any] = []
        self.optimizers_made = 0
        self.on_cuda = False
        self.autocast: str | None = None
        self.grad_scaler = False
        self.syncs: Syncs | None = None
        self.copies: Copies | None = None
        self.lines: LineSampler | None = None
        self._indexing: Ledger | None = None
        self.tracer: Tracer | None = None
        self.state = STARTING
        self.ending = False
        self.spans: dict[str, list[float]] = {}
        self._open_spans: list[float] = []
        self._born = perf_counter()
        self._state_since = self._last_flush = self._born
        self._said = 0.0
        self._last: Boundary | None = None
        self._progress = ProgressWriter(self.folder / f"progress-{os.getpid()}.bin")

    def subscribe(self) -> None:
        seams = self.seams
        seams.loader_made.subscribe(after=self._loader_made)
        seams.iterating.subscribe(self._iterating, self._iterated)
        seams.fetching.subscribe(self._fetching, self._fetched)
        seams.optimizer_made.subscribe(after=self._optimizer_made)
        seams.clearing.subscribe(self._enter_optimizer, self._leave_optimizer)
        seams.stepping.subscribe(self._stepping, self._stepped)
        seams.backward.subscribe(self._backward, self._backward_done)
        seams.scaling.subscribe(after=self._scaled)
        seams.scaled_step.subscribe(after=self._scaler_stepped)
        seams.calling.subscribe(self._calling, self._called)
        if self.session.ceiling:
            feed_one_batch(seams)
        gc.callbacks.append(self._collecting)
        seams.ledger.later(lambda: gc.callbacks.remove(self._collecting))
        span.record_to(self)
        seams.ledger.later(lambda: span.record_to(None))

    # Loading

    def _loader_made(self, *_: Any) -> None:
        self.loaders.made += 1
        self._say()

    def _iterating(self, loader: Any, *_: Any) -> None:
        if self.loaders.role_of_loader(loader) == EVALUATION:
            self.clock.evaluate(True)
        self.clock.enter(_DATA)

    def _iterated(self, loader: Any, args: Any, kwargs: Any, iterator: Any) -> None:
        self.clock.leave(_DATA)
        self.loaders.iterated(loader, iterator)

    def _fetching(self, iterator: Any, *_: Any) -> None:
        if get_ident() == self.clock.thread:
            self.steps.close()
        seen = self.loaders.of(iterator)
        if seen is not None:
            self._set_evaluating(seen.role)
        self.clock.enter(_DATA)

    def _fetched(self, iterator: Any, args: Any, kwargs: Any, batch: Any) -> None:
        self.clock.leave(_DATA)
        self.loaders.fetched(iterator, batch)
        if self.state == STARTING:
            self._say()

    def _set_evaluating(self, role: str) -> None:
        if role == EVALUATION:
            self.clock.evaluate(True)
        elif role == TRAIN:
            self.clock.evaluate(False)

    # The model

    def _calling(self, module: Any, args: Any, kwargs: Any) -> None:
        if get_ident() != self.clock.thread or not self.roots.is_root(module):
            return
        if not self.torch.is_grad_enabled() and not module.training:
            self.clock.evaluate(True)
            self.loaders.evaluated()
        else:
            self.clock.evaluate(False)
            if not self.loaders.seen:
                self.tally.called_with(args, kwargs, batch_size_of)
            if self.state == WARMING and self.autocast is None:
                self.autocast = surroundings.autocast_now(self.torch, "cuda" if self.on_cuda else "cpu")
        self.clock.enter(_FORWARD)

    def _called(self, module: Any, *_: Any) -> None:
        if self.roots.is_root(module):
            self.clock.leave(_FORWARD)

    def _backward(self, instance: Any, args: Any, kwargs: Any) -> None:
        if get_ident() == self.clock.thread:
            self.losses.backward(instance, args, kwargs)
        self.clock.enter(_BACKWARD)

    def _backward_done(self, *_: Any) -> None:
        self.clock.leave(_BACKWARD)

    def _scaled(self, scaler: Any, args: Any, kwargs: Any, result: Any) -> None:
        if scaler.is_enabled():
            self.grad_scaler = True
            self.losses.scaled(scaler, args, kwargs, result)

    # The optimizer

    def _optimizer_made(self, *_: Any) -> None:
        self.optimizers_made += 1
        self._say()

    def _enter_optimizer(self, *_: Any) -> None:
        self.clock.enter(_OPTIMIZER)

    def _leave_optimizer(self, *_: Any) -> None:
        self.clock.leave(_OPTIMIZER)

    def _stepping(self, optimizer: Any) -> None:
        if self.state == STARTING:
            self._first_step(optimizer)
        if get_ident() != self.clock.thread:
            return
        self.steps.optimizer_begins(optimizer)
        if not any(one is optimizer for one in self.optimizers):
            self.optimizers.append(optimizer)
        self.losses.stepping = True
        self.clock.enter(_OPTIMIZER)

    def _stepped(self, optimizer: Any, _: Any) -> None:
        if get_ident() != self.clock.thread:
            return
        self.losses.stepping = False
        self.clock.leave(_OPTIMIZER)
        self._optimizer_ended(optimizer)

    def _optimizer_ended(self, optimizer: Any) -> None:
        self.loaders.stepped()
        self.losses.optimizer_ended()
        self.tally.optimizer_ended()
        self.steps.optimizer_ended(optimizer, self.losses.backwards, self._event())

    def _scaler_stepped(self, scaler: Any, args: Any, kwargs: Any, _: Any) -> None:
        """A scaler that found infinities skips the optimizer's step; to the user it was a step all the same."""
        optimizer = args[0] if args else kwargs.get("optimizer")
        if self.state == STARTING:
            self._first_step(optimizer)
        if get_ident() == self.clock.thread and not self.steps.has_stepped(optimizer):
            self.tally.skipped += 1
            self._optimizer_ended(optimizer)

    def _event(self) -> Any:
        if not self.on_cuda or self.state != TIMING or self.torch.cuda.is_current_stream_capturing():
            return None
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _first_step(self, optimizer: Any) -> None:
        """Now it is known which thread trains and on which device."""
        self.state = WARMING
        if get_ident() != self.clock.thread:
            self.clock.move_to(get_ident())
        self.on_cuda = any(one.is_cuda for group in optimizer.param_groups for one in group["params"])
        self.rank, self.world_size = rank_and_world(self.torch)
        if not self.session.full:
            self.stopper = Stopper(self.folder, self.rank, self.world_size, self.process_ends)
            self.stopper.install()

    # Collecting garbage, and the user's own sections

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.clock.enter(_GARBAGE)
        else:
            self.clock.leave(_GARBAGE)

    def enter_span(self, name: str) -> None:
        if get_ident() == self.clock.thread:
            self._open_spans.append(perf_counter())
            self.clock.enter(self.clock.phase(SPAN_PREFIX + name))

    def leave_span(self, name: str) -> None:
        if get_ident() != self.clock.thread or not self._open_spans:
            return
        self.clock.leave(self.clock.phase(SPAN_PREFIX + name))
        row = self.spans.setdefault(name, [0, 0.0])
        row[0] += 1
        row[1] += perf_counter() - self._open_spans.pop()

    # The end of a step

    def _step_closed(self, boundary: Boundary) -> None:
        self.losses.close_step()
        self.tally.close_step()
        last, self._last = self._last, boundary
        seconds = (boundary.at - last.at) / 1e9 if last else perf_counter() - self._born
        if self.state == WARMING:
            self._warmed(seconds, boundary)
        elif self.state == TIMING:
            self._timed(boundary)
        elif self.state == LOOKING:
            self._looked()
        if perf_counter() - self._said > SAY_SECONDS:
            self._say()
            self._flush_sometimes()

    def _warmed(self, seconds: float, boundary: Boundary) -> None:
        if not self.roots.tops:
            self.roots.search(p for one in self.optimizers for group in one.param_groups for p in group["params"])
        else:
            self.roots.settle()
        if self.syncs is None:
            self._open_tensors()
        self.tally.warm(boundary, self.loaders.counts())
        over = self.warmup.over(seconds)
        searching = self.session.warmup is None and not self.roots.settled and self.warmup.steps < 12
        if over and not searching:
            self._begin_timing(boundary)

    def _open_tensors(self) -> None:
        self.syncs = Syncs(self.clock, self.on_cuda)
        self.copies = Copies(self.clock, self.syncs)
        self.seams.syncing.subscribe(self.syncs.before, self.syncs.after)
        self.seams.copying.subscribe(self.copies.before, self.copies.after)
        self._tensors = open_tensors(self.seams, self.on_cuda)
        self.seams.ledger.later(self._tensors.close)

    def _begin_timing(self, boundary: Boundary) -> None:
        self._enter_state(TIMING)
        warmup = Warmup(steps=self.warmup.steps, seconds=perf_counter() - self._born, settled=self.warmup.settled)
        self.tally.begin(boundary, self.loaders.counts(), warmup)
        self.spans.clear()
        if self.syncs is not None and self.copies is not None:
            self.syncs.clear()
            self.copies.clear()

    def _timed(self, boundary: Boundary) -> None:
        if not self.roots.settled:
            self.roots.settle()
        self.tally.add(boundary)
        if enough(self.tally.steps, self.tally.seconds, self.session.steps) or self._out_of_time():
            self._end_timing()

    def _end_timing(self) -> None:
        self.tally.end(self.loaders.counts(), self.spans)
        self.losses.keeping = False
        self._tensors.close()
        self._enter_state(LOOKING)
        if self.on_cuda and self.syncs is not None:
            self.syncs.freeze()
            self._indexing = open_indexing(self.seams)
            self.seams.ledger.later(self._indexing.close)
        self.lines = LineSampler(self.clock)
        self.lines.start()
        self.tally.look_steps = 0

    def _looked(self) -> None:
        self.tally.look_steps += 1
        if self.tracer is None:
            self._looked_at_lines()
        else:
            self.tracer.steps += 1
            if self.tracer.steps >= TRACE_STEPS or self._in_state(TRACE_SECONDS):
                self.seams.guard.run("tracing", self.tracer.stop)
                self._done()

    def _looked_at_lines(self) -> None:
        long_enough = self._in_state(LINES_SECONDS) and self.tally.look_steps >= LINES_STEPS
        if not long_enough and not self._in_state(4 * LINES_SECONDS) and not self._out_of_time():
            return
        assert self.lines is not None
        self.lines.stop()
        if self._indexing is not None:
            self._indexing.close()
            self.tally.indexing_steps = self.tally.look_steps
        if self.on_cuda or self.session.trace:
            self._begin_trace()
        else:
            self._done()

    def _begin_trace(self) -> None:
        name = f"hotlap_{self.rank}.{os.getpid()}.pt.trace.json"
        self.tracer = Tracer(self.torch, self.folder / "trace" / name, self.on_cuda, self.session.trace)
        self._state_since = perf_counter()
        if self.seams.guard.run("tracing", self._start_tracer) is None:
            self.tracer = None
            self._done()

    def _start_tracer(self) -> bool:
        assert self.tracer is not None
        self.tracer.start()
        return True

    def _done(self) -> None:
        self._enter_state(DONE)
        self._write(complete=True)
        self.seams.close()
        if self.stopper is not None:
            self.stopper.decide()

    # Telling

    def process_ends(self) -> None:
        """The program is over, before or after we were done with it."""
        if self.state == DONE:
            return
        self.ending = True
        self.steps.close()
        if self.state == DONE:  # that was the last step it needed
            return
        if self.lines is not None:
            self.lines.stop()
        if self.tracer is not None:
            self.seams.guard.run("tracing", self.tracer.stop)
        if self.state == WARMING:
            self.tally.make_do_with_warmup()
        if self.state in (WARMING, TIMING):
            self.tally.end(self.loaders.counts(), self.spans)
        self._write(complete=False)
        self.state = DONE
        self.seams.close()

    def _write(self, complete: bool) -> None:
        part = part_of(self, complete)
        final = self.folder / f"part-{os.getpid()}.json"
        draft = final.with_suffix(".tmp")
        draft.write_text(to_json(part), encoding="utf-8")
        draft.replace(final)
        self._last_flush = perf_counter()

    def _flush_sometimes(self) -> None:
        """A killed process leaves at least this."""
        if self.state in (WARMING, TIMING) and perf_counter() - self._last_flush > FLUSH_SECONDS:
            self._write(complete=False)

    def _say(self) -> None:
        self._said = perf_counter()
        fraction = 0.0
        if self.state == TIMING:
            fraction = progress(self.tally.steps, self.tally.seconds, self.session.steps)
        elif self.state in (LOOKING, DONE):
            fraction = 1.0
        batches = sum(seen.batches for seen in self.loaders.seen)
        self._progress.write(
            Progress(
                self.state,
                self.rank,
                fraction,
                self.steps.optimizer_steps,
                batches,
                self.losses.backwards,
                self.optimizers_made,
                self.loaders.made,
            )
        )

    def optimizer_records(self) -> tuple[Any, ...]:
        return tuple(describe_optimizer(one) for one in self.optimizers)

    def _enter_state(self, state: int) -> None:
        self.state = state
        self._state_since = perf_counter()

    def _in_state(self, seconds: float) -> bool:
        return perf_counter() - self._state_since >= seconds

    def _out_of_time(self) -> bool:
        return time() - self.session.started >= self.session.max_seconds
