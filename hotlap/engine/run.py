"""One training under way: where it is, what it has seen, and what happens between its steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from hotlap.engine import processor
from hotlap.engine.best import direction, judge, rank, require_direction, watch, why_over
from hotlap.engine.checkpoints import BEST, LAST, Writer, best_name, every_name
from hotlap.engine.choice import Mode
from hotlap.engine.errors import BadRecipe
from hotlap.engine.evaluation import inferring
from hotlap.engine.frozen_modules import FrozenModules
from hotlap.engine.guard import Guard
from hotlap.engine.loss_readout import Looks, LossRows
from hotlap.engine.metrics import read
from hotlap.engine.optimizers import LearningRates, begin_momenta, require_dense
from hotlap.engine.parts import Parts
from hotlap.engine.recipe import Phase
from hotlap.engine.records import EpochRecord, History, StepRecord
from hotlap.engine.recurrent import reset_state
from hotlap.engine.resident_steps import ResidentSteps
from hotlap.engine.run_state import Position, load_into, state_of
from hotlap.engine.schedule import Rates
from hotlap.engine.seam import Resident
from hotlap.engine.sharded_checkpoints import ShardedWriter, with_shards
from hotlap.engine.streamed_steps import StreamedSteps
from hotlap.engine.under_way import UnderWay
from hotlap.engine.update import Average, Tally, Update


class Run:
    def __init__(self, parts: Parts) -> None:
        self.parts, self.recipe = parts, parts.recipe
        self.place = Position()
        self.tally = Tally(parts.geometry.windows, parts.device)
        self.looks = Looks(self.tally)
        self.average = Average(parts.model, parts.recipe.ema) if parts.recipe.ema is not None else None
        checkpoints = parts.recipe.checkpoints
        self.writer = None if checkpoints is None else self._writer(Path(checkpoints.folder))
        self.guard = self._guard()
        self.is_over = False
        self.usual = processor.present()
        self.freezing = FrozenModules(parts.model)
        self._prepared = 0.0
        self.view = UnderWay(self)
        self.outdated: list[int] = []  # epochs no longer among the best
        self.epochs_before = 0  # trained by an earlier process
        self._failure_reported = False  # that a checkpoint could not be written

    def _writer(self, folder: Path) -> Writer | None:
        processes = self.parts.processes
        if processes is not None and processes.shards:
            return ShardedWriter(folder, processes)
        return Writer(folder) if processes is None or processes.is_first else None

    def _guard(self) -> Guard:
        return Guard(self.recipe.nan_guard, self.place, self.writer, self.parts.processes)

    # Before the steps

    def prepare(self) -> None:
        """Raise before the first step whatever can be known to be wrong."""
        for phase in self.parts.phases:
            self.freezing.enter(phase)
            self._rates(phase)
            if not any(
                parameter.requires_grad for group in self.parts.optimizer.param_groups for parameter in group["params"]
            ):
                raise BadRecipe(f"a phase freezes {', '.join(phase.frozen)}: nothing is left to train; freeze less")
            require_dense(self.parts.model, self.parts.optimizer, self.recipe.clip or self.recipe.clip_value)
        require_direction(self.parts)
        if self.writer is not None:
            self.writer.prepare()

    def prepared(self) -> tuple[None, dict[str, Any]]:
        """Prepare, in the form that several processes do alike."""
        self.prepare()
        return None, {}

    def resume(self, state: dict[str, Any], path: Path) -> None:
        state = with_shards(state, path, self.parts.model, self.parts.optimizer)
        self.place = load_into(self, state, path)
        self.guard = self._guard()
        self.epochs_before = len(self.place.epochs)
        if self.writer is not None:
            self.writer.last_good = path
        epochs = sum(phase.epochs for phase in self.parts.phases)
        why = why_over(self.place, self.recipe.patience, self.parts.callbacks.names, epochs)
        self.is_over = why is not None
        if why is not None:
            self.parts.say(f"nothing to train: {why}")
        else:
            self.parts.say(f"resumed from {path}: epoch {self.place.epoch + 1}, its step {self.place.window + 1}")

    def foresee(self) -> None:
        """Say how much lies ahead, for the display."""
        now, place, geometry = self.parts.log.now, self.place, self.parts.geometry
        now.epochs = sum(phase.epochs for phase in self.parts.phases)
        now.rows_ahead = (now.epochs - place.epoch) * geometry.rows - place.window * geometry.window_rows

    def phases_left(self) -> Iterator[tuple[Phase, range]]:
        first = 0
        for phase in self.parts.phases:
            epochs = range(first, first + phase.epochs)
            if self.place.epoch < epochs.stop and not self.is_over:
                yield phase, epochs
            first = epochs.stop

    def enter(self, phase: Phase, epochs: range) -> None:
        """Set what is trained and how fast; release the graphs of another phase."""
        parts, place = self.parts, self.place
        self.leave()
        self.freezing.enter(phase)
        begins = place.epoch == epochs.start and place.window == 0
        if begins and phase.fresh_optimizer:
            parts.optimizer.state.clear()
        parts.optimizer.zero_grad(set_to_none=True)  # leftovers would be applied, even where frozen
        begin_momenta(parts.optimizer)
        self.rates = self._rates(phase)
        self.rates.load(place.schedule if not begins else {})
        self.phase_start, self.phase_end = epochs.start, epochs.stop
        self.learning = LearningRates(parts.optimizer, parts.geometry.windows, self.rates.vary, parts.device)
        self.steps = self._steps()
        self.steps.steps_ahead = (epochs.stop - place.epoch) * parts.geometry.windows - place.window
        wanted = None if begins else self._wanted()
        processor.use(self.usual if wanted is None else wanted.way)  # also for the tail, and to evaluate
        if not begins:
            self.steps.primed, self.steps.wanted = place.primed, wanted

    def _rates(self, phase: Phase) -> Rates:
        own, recipe = self.parts.base_rates, self.recipe
        base = own if phase.learning_rate is None else (phase.learning_rate,) * len(own)
        windows = self.parts.geometry.windows
        return Rates(base, phase.schedule or recipe.schedule, recipe.warmup, phase.epochs, windows)

    def _steps(self) -> ResidentSteps | StreamedSteps:
        parts = self.parts
        update = Update(
            parts.forward, parts.optimizer, self.learning, self.tally, self.recipe.clip, parts.scaler, self.average,
            parts.train_metrics, parts.processes, self.recipe.clip_value, parts.interrupts,
        )  # fmt: skip
        if not update.parameters:
            raise BadRecipe("no parameter of the optimizer is left to train; freeze less")
        common = (update, parts.model, parts.geometry, self.recipe, parts.recorder, parts.say, parts.processes)
        if hasattr(parts.train, "gather"):
            return ResidentSteps(cast(Resident, parts.train), *common)
        return StreamedSteps(parts.train, *common)

    def _wanted(self) -> Mode | None:
        """Return the mode that a resumed run was trained in: a compiled step rounds differently."""
        mode = self.place.mode
        return None if mode is None else mode.within(self.parts.recorder is not None, self.recipe.compile != "off")

    def leave(self) -> None:
        if hasattr(self, "steps"):
            self.steps.close()
            del self.steps

    def begin(self, epoch: int) -> None:
        """Set order and learning rates of the epoch: device work, not waited for."""
        first = self.place.window
        self.place.epoch = epoch
        self.started, self._prepared = time.perf_counter(), self.steps.prepare_seconds
        self.table = self.rates.table(epoch - self.phase_start) * self.place.rate_scale
        self.learning.begin(self.table, first)
        self.steps.begin(epoch, first)
        self.looks.begin(first)
        if first == 0:
            reset_state(self.parts.model)
            for metric in self.parts.train_metrics.values():
                metric.reset()
        now = self.parts.log.now
        now.epoch, now.steps, now.step = epoch + 1, self.parts.geometry.windows, first

    def windows_left(self) -> range:
        return range(self.place.window, self.parts.geometry.windows)

    # Between steps

    def due(self, window: int) -> bool:
        """Return whether anything besides the next step is due after this window."""
        now = self.parts.log.now
        now.step, now.rows = window + 1, now.rows + self.parts.geometry.window_rows
        every, checkpoints = self.recipe.log_every, self.recipe.checkpoints
        saves = checkpoints is not None and checkpoints.steps is not None and (window + 1) % checkpoints.steps == 0
        return (window + 1) % every == 0 or saves or self._is_signalled()

    def _is_signalled(self) -> bool:
        """Return whether a signal came, to any of several processes: those know it on a CPU after the step."""
        sent = self.steps.update.sum_of_all
        return self.parts.interrupts.received is not None if sent is None else sent.signalled

    def pause(self, window: int) -> None:
        done, checkpoints = window + 1, self.recipe.checkpoints
        self.place.window = done
        self._count_averaged(done)
        if self._is_interrupted(done):
            self.interrupted()
        if (
            checkpoints is not None
            and checkpoints.steps is not None
            and done % checkpoints.steps == 0
            and done < self.parts.geometry.windows
        ):
            self._report(self.looks.rest(done))  # HOST SYNC: a checkpoint of a broken state would be worth nothing
            self.guard.weights(self.steps.update.parameters, done)
            self.save([LAST])
        elif (seen := self._arrived(done)) is not None:
            self._report(seen)

    def _is_interrupted(self, done: int) -> bool:
        """Return whether a signal came; all of several processes agree on it."""
        interrupts, processes = self.parts.interrupts, self.parts.processes
        looks = done % self.recipe.log_every == 0 or done == self.parts.geometry.windows
        if processes is not None and (looks or self._is_signalled()):
            interrupts.received = processes.highest(interrupts.received or 0) or None
            return interrupts.received is not None
        return interrupts.received is not None and processes is None

    def _count_averaged(self, done: int) -> None:
        if self.average is not None:
            self.average.updates = self.place.steps + done

    def _arrived(self, done: int) -> LossRows | None:
        if self.parts.processes is not None:  # which wait for each other here anyway, and look alike
            return self.looks.rest(done) if done % self.recipe.log_every == 0 else None
        seen = self.looks.poll()
        if done % self.recipe.log_every == 0:
            self.looks.ask(done)
        return seen or self.looks.poll()

    def interrupted(self) -> None:
        """Save everything between two steps, then let Ctrl-C do what it always does."""
        self.require_finite(self.place.window)  # HOST SYNC: the last one
        if self.recipe.checkpoints is not None:
            self.save([LAST])
        if self.writer is not None:
            self.writer.drain()
            why = self.writer.failed.get(LAST)
            saved = f"the state is in {self.writer.folder / LAST}; continue with resume=True"
            self.parts.say(f"interrupted: {saved if why is None else f'{why}; last good: {self.writer.last_good}'}")
        self.parts.interrupts.pass_on()

    def require_finite(self, done: int) -> None:
        """Raise if losses or weights are broken after so many steps of the epoch. HOST SYNC."""
        self.guard.losses(self.looks.all(done))
        self.guard.weights(self.steps.update.parameters, done)

    def _report(self, seen: LossRows) -> None:
        self.guard.losses(seen)
        step = self.place.steps + seen.first + len(seen.rows)
        named = dict(zip(self.tally.names, seen.rows[-1], strict=True))
        self.parts.log.now.loss = named["loss"]
        record = StepRecord(self.place.epoch + 1, step, named.pop("loss"), named)
        self.parts.log.put(record)
        self._call(record)

    def _call(self, record: StepRecord | EpochRecord) -> bool:
        """Call the callbacks; return whether one of them asked to stop and none had before."""
        callbacks, before = self.parts.callbacks, self.place.stopped_by
        callbacks.call(record, self.view)
        self.place.stopped_by = before or callbacks.stopped_by
        return self.place.stopped_by != before

    def _has_stopped(self, record: EpochRecord) -> bool:
        """Call the callbacks; return whether one asked to stop, which all processes then know."""
        stopped, processes = self._call(record), self.parts.processes
        if processes is not None:
            stopped, self.place.stopped_by = processes.from_first(lambda: (stopped, self.place.stopped_by))
        return stopped

    # After the steps

    def read_losses(self) -> dict[str, float]:
        """HOST SYNC: the epoch's only one. Return the mean over the rows of each loss by name."""
        geometry = self.parts.geometry
        self._meanwhile()
        self._count_averaged(geometry.windows)
        seen = self.looks.all(geometry.windows)
        self.seconds = time.perf_counter() - self.started - (self.steps.prepare_seconds - self._prepared)
        self.guard.losses(seen)
        self.guard.weights(self.steps.update.parameters, geometry.windows)
        counts = [sum(geometry.sizes(window)) for window in range(geometry.windows)]
        columns = zip(*seen.rows, strict=True)
        return {
            name: sum(value * count for value, count in zip(column, counts, strict=True)) / geometry.rows
            for name, column in zip(self.tally.names, columns, strict=True)
        }

    def _meanwhile(self) -> None:
        """Do what can be done while the device still works on this epoch."""
        if self.place.epoch + 1 < self.phase_end:
            self.steps.foresee(self.place.epoch + 1)
        if self.writer is not None:
            self.writer.go_on()

    def evaluate(self) -> dict[str, float]:
        """HOST SYNC: one, where the metrics are read. Uses the averaged weights if there are any."""
        parts = self.parts
        if parts.processes is not None:
            parts.processes.spread(parts.model.buffers())
        if parts.valid is None and parts.own_evaluation is None:
            return {}
        reset_state(parts.model)
        with contextlib.nullcontext() if self.average is None else self.average.in_place():
            scores = {} if parts.valid is None else parts.evaluation(parts.valid, parts.device)
            if parts.own_evaluation is not None:
                with inferring(parts.model):
                    scores |= {name: float(value) for name, value in parts.own_evaluation(parts.model).items()}
        return scores if parts.processes is None else parts.processes.from_first(lambda: scores)

    def end(self, epoch: int, losses: dict[str, float]) -> None:
        """Evaluate, save checkpoints, send records, and decide whether the training continues."""
        started = time.perf_counter()
        scores = self.evaluate()
        place, windows = self.place, self.parts.geometry.windows
        place.steps += windows
        record = EpochRecord(
            epoch=epoch + 1,
            loss=losses.pop("loss"),
            scores=scores,
            seconds=self.seconds,
            evaluation_seconds=time.perf_counter() - started,
            prepare_seconds=self.steps.prepare_seconds - self._prepared,
            rows=self.parts.geometry.rows,
            steps=place.steps,
            learning_rate=float(self.table[0, -1]),
            losses=losses,
            train_scores=read(self.parts.train_metrics, self.parts.processes),
        )
        place.epochs.append(record)
        place.epoch, place.window = epoch + 1, 0
        better = self._judge(record)
        self._keep(epoch, better)
        self.parts.log.put(record)
        if self._has_stopped(record) and self.recipe.checkpoints is not None:
            self.save([LAST])  # again: a resumed run must know of the stop
        self.is_over = self.is_over or place.stopped_by is not None
        if self._is_interrupted(windows):
            self.interrupted()

    def _judge(self, record: EpochRecord) -> bool:
        """Return whether this epoch is the best so far; end the training when patience runs out."""
        values = {"loss": record.loss, **record.scores}
        name = self.recipe.monitor or next(iter(record.scores), "loss")
        if name not in values:
            raise BadRecipe(f"monitor={name!r} is not a score; use one of {', '.join(values)}")
        self.rates.epoch_ended(values[name])
        higher = direction(self.parts, name)
        if higher is None:
            return False
        watch(self.place, f"{'highest' if higher else 'lowest'} {name}", self.parts.say)
        better = judge(self.place, record.epoch, values[name], higher, self.recipe.min_delta)
        count = 0 if self.recipe.checkpoints is None else int(self.recipe.checkpoints.best)
        self.outdated = rank(self.place, record.epoch, values[name], higher, count) if count > 1 else []
        if self.recipe.patience is not None and self.place.idle >= self.recipe.patience:
            self.is_over = self.place.stopped_early = True
        return better

    def _keep(self, epoch: int, better: bool) -> None:
        checkpoints = self.recipe.checkpoints
        if checkpoints is None:
            return
        names = [LAST]
        if checkpoints.best and better:
            names.append(BEST)
        if any(ranked == epoch + 1 for _, ranked in self.place.ranking):
            names.append(best_name(epoch + 1))
        if checkpoints.every is not None and (epoch + 1) % checkpoints.every == 0:
            names.append(every_name(epoch + 1))
        self.save(names, [best_name(dropped) for dropped in self.outdated])

    def save(self, names: Sequence[str], outdated: Sequence[str] = ()) -> None:
        state = state_of(self)  # in every process: they share what is saved
        if self.writer is None:
            return
        self.writer.put(state, names, outdated)
        if self.writer.failed and not self._failure_reported:
            self._failure_reported = True
            self.parts.say(f"{next(iter(self.writer.failed.values()))}; the training continues")

    def history(self) -> History:
        place = self.place
        mode = self.steps.mode if hasattr(self, "steps") else None
        return History(tuple(place.epochs), str(mode or Mode()), place.stopped_early, place.best_epoch)

    def close(self) -> None:
        """Restore what the user had: what may be trained, and learning rates as numbers."""
        self.leave()
        del self.view  # which refers back: workers of a loader would stay until garbage is collected
        self.freezing.leave()
        for group, rate in zip(self.parts.optimizer.param_groups, self.parts.base_rates, strict=True):
            group["lr"] = rate
