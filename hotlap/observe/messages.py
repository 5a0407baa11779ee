"""What the agent tells the process that watches: a few numbers often, all it knows at the end and now and then."""

from __future__ import annotations

import os
from time import perf_counter

from hotlap.observe.agent_state import AgentState
from hotlap.observe.summary import part_of
from hotlap.observe.window import progress
from hotlap.records import private
from hotlap.records.codec import to_json
from hotlap.records.progress import DONE, LOOKING, STARTING, TIMING, WARMING, Progress, ProgressWriter

SAY_SECONDS, FLUSH_SECONDS = 0.2, 10.0


class Messages:
    def __init__(self, known: AgentState) -> None:
        self._known = known
        self._progress = ProgressWriter(known.folder / f"progress-{os.getpid()}.bin")
        self._said = 0.0
        self._flushed = perf_counter()

    def sometimes(self) -> None:
        """Called after the tape was read. A killed process leaves at least what was flushed."""
        known, now = self._known, perf_counter()
        if known.state == STARTING or now - self._said > SAY_SECONDS:
            self.say()
        if known.state in (WARMING, TIMING) and now - self._flushed > FLUSH_SECONDS:
            self.write(complete=False)

    def write(self, complete: bool) -> None:
        """A disk that is full must not keep the program from being ended; who watches misses the part and says so."""
        self._flushed = perf_counter()
        text = to_json(part_of(self._known, complete))
        final = self._known.folder / f"part-{os.getpid()}.json"
        draft = final.with_suffix(".tmp")
        try:
            private.write_text(draft, text)
            draft.replace(final)
        except OSError as error:
            if final.exists():  # an older part would pass for the whole
                self._known.seams.guard.failed("keeping the observation", error)

    def say(self) -> None:
        known = self._known
        self._said = perf_counter()
        self._progress.write(
            Progress(
                state=known.state,
                rank=known.rank,
                fraction=self._fraction(),
                steps=known.story.steps.optimizer_steps,
                batches=sum(seen.batches for seen in known.loaders.seen),
                backwards=known.losses.backwards,
                optimizers=known.optimizers_made,
                loaders=known.loaders.made,
            )
        )

    def _fraction(self) -> float:
        known = self._known
        if known.state == TIMING:
            return progress(known.tally.steps, known.tally.seconds, known.session.steps)
        return 1.0 if known.state in (LOOKING, DONE) else 0.0
