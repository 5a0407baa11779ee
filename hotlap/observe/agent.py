"""The observer inside the user's process: makes the seams write a tape, reads it at intervals, and requests the stop.

    warming up → measuring → looking closer → done

While measuring, the tape is mostly only written. It is read at the end, or every second or so, and the time of reading
is subtracted from the results. Nothing of hotlap is left in the process once the observer is done.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from threading import get_ident
from time import perf_counter, perf_counter_ns, time
from typing import Any

from hotlap.observe import span, surroundings
from hotlap.observe import tape as t
from hotlap.observe.agent_state import AgentState
from hotlap.observe.backwards import Backwards
from hotlap.observe.batch_sizes import resize_batches
from hotlap.observe.feed import feed_one_batch
from hotlap.observe.followed import FOLLOW_SECONDS
from hotlap.observe.loaders import batch_size_of, called_with
from hotlap.observe.look import LINES_SECONDS, LINES_STEPS, TRACE_SECONDS
from hotlap.observe.messages import Messages
from hotlap.observe.models import SequenceFirst
from hotlap.observe.ranks import rank_and_world
from hotlap.observe.sampled_seams import SampledSeams
from hotlap.observe.steps import Boundary
from hotlap.observe.stop import Stopper
from hotlap.observe.syncs import Copies, Syncs
from hotlap.observe.window import ENOUGH, MOST_STEPS, enough
from hotlap.patch.ledger import Ledger
from hotlap.patch.seams import Seams
from hotlap.patch.tensors import open_indexing, open_tensors
from hotlap.records.observation import Warmup
from hotlap.records.progress import DONE, LOOKING, STARTING, TIMING, WARMING
from hotlap.records.session import Session

LONGEST_TAPE = 200_000  # entries; a longer tape is read early
READ_EVERY = 1.0  # seconds


def start(torch: Any, session: Session, seams: Seams) -> Any:
    """Start the agent, once torch is imported; the function returned is called when the process ends."""
    agent = Agent(torch, session, seams)
    agent.subscribe()
    return agent.process_ends


class Agent(AgentState):
    def __init__(self, torch: Any, session: Session, seams: Seams) -> None:
        super().__init__(torch, session, seams)
        self.story.on_step = self._step_closed
        self.story.on_error = seams.guard.failed
        self.stopper: Stopper | None = None
        self._tensors: Ledger | None = None
        self._born = perf_counter()
        self._state_since = self._born
        self._last: Boundary | None = None
        self._longest_tape = 0
        self._is_sequence_first = SequenceFirst()
        self.sampled_seams = SampledSeams(self)
        self.backwards = Backwards(seams, self.entries, self.trains, self.step_ends)
        self._read_in = 1  # optimizer steps until the tape is read
        self._countdown = 1
        self.messages = Messages(self)

    def subscribe(self) -> None:
        seams, tape = self.seams, self.entries.append
        seams.loader_made.subscribe(after=self._loader_made)
        seams.optimizer_made.subscribe(after=self._optimizer_made)
        seams.scaling.subscribe(after=self._scaled)
        seams.calling.subscribe(before=self._first_calls)
        seams.iterating.write_to(tape, t.ITERATE, t.ITERATED, self._iterating, None)
        seams.iterating.subscribe(after=self._iterated)
        seams.fetching.write_to(tape, t.FETCH, t.FETCHED, None, self._fetched)
        seams.backward.write_to(tape, t.DIFFERENTIATE, t.DIFFERENTIATED, self.losses.note)
        seams.backward.glance = t.LOSS
        seams.calling.write_to(tape, t.CALL, t.CALLED, self._calling)
        seams.stepping.write_to(tape, t.STEP, t.STEPPED)
        seams.stepping.follow_up = self._after_step
        seams.stepping.subscribe(before=self._know)
        seams.scaled_step.subscribe(after=self._scaler_stepped)
        self.backwards.begin()
        if self.session.ceiling:
            feed_one_batch(seams)
        if self.session.resized:
            resize_batches(self.torch, seams, *self.session.resized)
        gc.callbacks.append(self._collecting)
        seams.ledger.later(lambda: gc.callbacks.remove(self._collecting))
        span.record_to(self)
        seams.ledger.later(lambda: span.record_to(None))

    # Details of a call for the tape. These run in the user's step, so each does as little as possible.

    def _iterating(self, loader: Any, args: Any, kwargs: Any) -> str:
        return self.loaders.of_loader(loader).role

    def _iterated(self, loader: Any, args: Any, kwargs: Any, iterator: Any) -> None:
        note = self.loaders.of_loader(loader), id(iterator), self.torch.is_grad_enabled()
        self.entries.append((t.ITERATED, perf_counter_ns(), get_ident(), note))

    def _fetched(self, iterator: Any, batch: Any) -> tuple[int, int | None]:
        if len(self.entries) > self._longest_tape and get_ident() == self.story.thread:
            self._catch_up()  # before the first step, or in a long evaluation
        return id(iterator), None if batch is None else batch_size_of(batch)

    def _calling(self, module: Any, args: Any, kwargs: Any) -> tuple[bool, int]:
        if not module.training and not self.torch.is_grad_enabled():
            return True, 0
        known = self.loaders.seen or self._is_sequence_first(module)
        return False, 0 if known else called_with([*args, *kwargs.values()])

    def _after_step(self) -> None:
        """Run after the optimizer step that was waited for: switch the sampling, read the tape, or both."""
        if get_ident() != self.story.thread:
            return
        self._read_in -= self._countdown
        self.sampled_seams.passed(self._countdown)
        if self._read_in <= 0:
            self._read_now()
        self._countdown = min(self._read_in, self.sampled_seams.due_in or self._read_in)
        self.seams.stepping.countdown = self._countdown

    def step_ends(self) -> None:
        """End a step made without an optimizer, which no countdown counts."""
        self._countdown = 1
        self._after_step()

    def _read_now(self) -> None:
        now = self.sampled_seams.reading_since = perf_counter_ns()
        self._read_in = 1
        self._catch_up()
        if self.state == TIMING:
            self._read_later(READ_EVERY)
        self.sampled_seams.reading_since = None
        self.entries.append((t.PAUSE, now, 0, perf_counter_ns() - now))

    def _read_later(self, seconds: float) -> None:
        """Schedule the next reading by a number of steps: steps count down instead of looking at the clock."""
        steps = int(seconds / max(1e-5, self.warmup.typical))
        if self.session.steps:
            steps = min(steps, self.session.steps - self.tally.steps + 1)
        self._read_in = max(1, min(steps, MOST_STEPS))

    def _catch_up(self) -> None:
        """Read what is on the tape; entries that other threads add meanwhile stay for the next time."""
        entries = self.entries[:]
        del self.entries[: len(entries)]
        self.story.read(entries)
        self.messages.report_if_due()

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 0:  # frequent and short
            return
        kind = t.COLLECT if phase == "start" else t.COLLECTED
        self.entries.append((kind, perf_counter_ns(), get_ident(), None))

    def enter_span(self, name: str) -> None:
        self.entries.append((t.SPAN, perf_counter_ns(), get_ident(), name))

    def leave_span(self, name: str) -> None:
        self.entries.append((t.SPANNED, perf_counter_ns(), get_ident(), name))

    # Rarer events

    def _loader_made(self, *_: Any) -> None:
        self.loaders.made += 1
        self.messages.report()

    def _optimizer_made(self, *_: Any) -> None:
        self.optimizers_made += 1
        self.backwards.end()
        self.messages.report()

    def _scaled(self, scaler: Any, args: Any, kwargs: Any, result: Any) -> None:
        if scaler.is_enabled():
            self.grad_scaler = True
            self.losses.scaled(scaler, args, kwargs, result)

    def _scaler_stepped(self, scaler: Any, args: Any, kwargs: Any, _: Any) -> None:
        optimizer = args[0] if args else kwargs.get("optimizer")
        self._know(optimizer)
        self.entries.append((t.SCALER_STEPPED, perf_counter_ns(), get_ident(), id(optimizer)))

    def _first_calls(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note, while warming up, which roots are called and under which autocast."""
        self.roots.called(module)
        if self.autocast is None:
            self.autocast = surroundings.autocast_now(self.torch, "cuda" if self.on_cuda else "cpu")

    def _know(self, optimizer: Any) -> None:
        """Note, while warming up, which optimizers exist."""
        self.optimizers[id(optimizer)] = optimizer
        self.trains(weight for group in optimizer.param_groups for weight in group["params"])

    def trains(self, parameters: Iterable[Any]) -> None:
        """Learn from the first trained parameters which thread trains, and on which device."""
        if self.state != STARTING:
            return
        self.state = WARMING
        self.parameters = list(parameters)
        self._longest_tape = LONGEST_TAPE
        if get_ident() != self.story.thread:
            self.story.thread = get_ident()
            self.story.clock.reset(perf_counter_ns())
        self.on_cuda = any(parameter.is_cuda for parameter in self.parameters)
        self.losses.on_host = not self.on_cuda
        self.rank, self.world_size = rank_and_world(self.torch)
        if not self.session.full:
            self.stopper = Stopper(self.folder, self.rank, self.world_size, self.process_ends)
            self.stopper.install()

    # The end of a step

    def _step_closed(self, boundary: Boundary) -> None:
        last, self._last = self._last, boundary
        seconds = (boundary.at - last.at) / 1e9 if last else perf_counter() - self._born
        if self.state == WARMING:
            self._warmed(seconds, boundary)
        elif self.state == TIMING:
            self._timed(boundary)
        elif self.state == LOOKING:
            self._looked()

    def _warmed(self, seconds: float, boundary: Boundary) -> None:
        if not self.roots.tops:
            groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
            self.roots.search([*self.parameters, *(weight for group in groups for weight in group["params"])])
        else:
            self.roots.settle()
        if self.story.syncs is None:
            self._prepare_tensors()
        self.tally.warm(boundary, self.loaders.counts())
        over = self.warmup.over(seconds)
        searching = self.session.warmup is None and not self.roots.settled and self.warmup.steps < 12
        if self._out_of_time():
            self._make_do()
            self._done()
        elif over and not searching:
            self._begin_timing(boundary)

    def _make_do(self) -> None:
        self.tally.make_do_with_warmup()  # nothing else was measured
        self.tally.end(self.loaders.counts(), self.story.spans)

    def _watch_tensors(self, opened: Ledger) -> Ledger:
        """Count syncs from here on, until _unwatch_tensors."""
        self.seams.ledger.later(opened.close)
        self.entries.append((t.WATCH, perf_counter_ns(), self.story.thread, True))
        return opened

    def _unwatch_tensors(self) -> None:
        if self._tensors is not None:
            self._tensors.close()
            self._tensors = None
            self.entries.append((t.WATCH, perf_counter_ns(), self.story.thread, False))

    def _prepare_tensors(self) -> None:
        syncs, copies, tape = Syncs(self.on_cuda), Copies(), self.entries.append
        self.story.syncs, self.story.copies = syncs, copies
        self.seams.syncing.write_to(tape, t.SYNC_BEGINS, t.SYNC_ENDS, result=syncs.note)
        self.seams.copying.write_to(tape, t.COPY_BEGINS, t.COPY_ENDS, result=copies.note)
        self._tensors = self._watch_tensors(open_tensors(self.seams, self.on_cuda))

    def _time_tensors(self, timing: bool) -> None:
        if self.story.syncs is not None and self.story.copies is not None:
            self.story.syncs.timing = self.story.copies.timing = timing

    def _begin_timing(self, boundary: Boundary) -> None:
        self._enter_state(TIMING)
        warmup = Warmup(steps=self.warmup.steps, seconds=perf_counter() - self._born, settled=self.warmup.settled)
        self.tally.begin(boundary, self.loaders.counts(), warmup)
        self.story.spans.clear()
        self._time_tensors(True)
        if not self.on_cuda:
            self._unwatch_tensors()
        self._shorten_calls()
        self.seams.stepping.unsubscribe(self._know)
        if self.loaders.predictable():
            self.seams.fetching.result = None
        self.losses.stop_copying()
        self.sampled_seams.begin()
        self._read_later(ENOUGH[0][0])

    def _shorten_calls(self) -> None:
        """Stop attending to calls of the root, which allows the faster path to the tape."""
        if self.roots.settled:
            self.seams.calling.unsubscribe(self._first_calls)
            self.seams.calling.attended = not self.loaders.seen  # without a loader, only the call shows the batch size

    def _timed(self, boundary: Boundary) -> None:
        if not self.roots.settled:
            self.roots.settle()
            self._shorten_calls()
        self.tally.add(boundary)
        if enough(self.tally.steps, self.tally.seconds, self.session.steps) or self._out_of_time():
            self._end_timing()

    def _end_timing(self) -> None:
        self.tally.end(self.loaders.counts(), self.story.spans)
        self.losses.keeping = False
        self._time_tensors(False)
        self._unwatch_tensors()
        self._enter_state(LOOKING)
        self.sampled_seams.end()
        self.seams.stepping.result = None
        self.seams.stepping.subscribe(before=self._know)
        opened = open_indexing(self.seams) if self.on_cuda else open_tensors(self.seams, False)
        self._tensors = self._watch_tensors(opened)
        self.seams.guard.run("sampling lines", self._begin_lines)
        self.tally.look_steps = 0

    def _begin_lines(self) -> None:
        self.look.at_lines(self.story.thread, lambda: self.story.phase_now(self.entries[:]))

    def _looked(self) -> None:
        self.tally.look_steps += 1
        if self.look.following:
            self._followed_lines()
        elif self.look.tracer is None:
            self._looked_at_lines()
        elif not self.look.tracing or self.look.traced_enough() or self._in_state(TRACE_SECONDS):
            self.seams.guard.run("tracing", self.look.stop)
            self._follow_lines()

    def _follow_lines(self) -> None:
        """Follow the lines that run, unless the program goes on afterwards: its variables would live longer."""
        ends = not (self.session.full or self.session.ceiling)
        if not (ends and self.seams.guard.run("following lines", self.look.at_every_line)):
            self._done()
        self._state_since = perf_counter()

    def _followed_lines(self) -> None:
        if self.look.followed_enough() or self._in_state(FOLLOW_SECONDS):
            self.look.stop()
            self._done()

    def _looked_at_lines(self) -> None:
        is_long = self._in_state(LINES_SECONDS) and self.tally.look_steps >= LINES_STEPS
        if not (is_long or self._in_state(4 * LINES_SECONDS) or self._out_of_time()):
            return
        self.look.stop()
        self._unwatch_tensors()
        if (self.on_cuda or self.session.trace) and self.seams.guard.run("tracing", self._begin_trace):
            self._state_since = perf_counter()
        else:
            self._follow_lines()

    def _begin_trace(self) -> bool:
        name = f"hotlap_{self.rank}.{os.getpid()}.pt.trace.json"
        return self.look.at_kernels(self.torch, self.folder / "trace" / name, self.on_cuda, self.session.trace)

    def _done(self) -> None:
        self._enter_state(DONE)
        self.messages.write(complete=True)
        self._leave()
        if self.stopper is not None:
            self.stopper.decide()

    def process_ends(self) -> None:
        """Write what was observed so far if the program ends before the observer is done."""
        if self.state == DONE:
            return
        self.ending = True
        self._catch_up()
        self.story.close_step()
        if self.state == DONE:  # that was the last step needed
            return
        self.seams.guard.run("tracing", self.look.stop)
        if self.state == WARMING:
            self._make_do()
        elif self.state == TIMING:
            self.tally.end(self.loaders.counts(), self.story.spans)
        self.messages.write(complete=False)
        self.state = DONE
        self._leave()

    def _leave(self) -> None:
        """Close, and release everything of the user's: a model kept alive costs memory."""
        self.seams.close()
        self.optimizers.clear()
        self.parameters.clear()
        self.roots.forget()

    def _enter_state(self, state: int) -> None:
        self.state = state
        self._state_since = perf_counter()
        self.messages.report()

    def _in_state(self, seconds: float) -> bool:
        return perf_counter() - self._state_since >= seconds

    def _out_of_time(self) -> bool:
        return time() - self.session.started >= self.session.max_seconds
