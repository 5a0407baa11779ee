"""What the agent tells the process that watches: a few numbers often, all it knows at the end and now and then."""

from __future__ import annotations

import os
from time import perf_counter
from typing import TYPE_CHECKING

from hotlap.observe.summary import part_of
from hotlap.observe.window import progress
from hotlap.records import private
from hotlap.records.codec import to_json
from hotlap.records.progress import DONE, LOOKING, STARTING, TIMING, WARMING, Progress, ProgressWriter

if TYPE_CHECKING:
    from hotlap.observe.agent import Agent

SAY_SECONDS, FLUSH_SECONDS = 0.2, 10.0


class Telling:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._progress = ProgressWriter(agent.folder / f"progress-{os.getpid()}.bin")
        self._said = 0.0
        self._flushed = perf_counter()

    def sometimes(self) -> None:
        """Called after the tape was read. A killed process leaves at least what was flushed."""
        agent, now = self._agent, perf_counter()
        if agent.state == STARTING or now - self._said > SAY_SECONDS:
            self.say()
        if agent.state in (WARMING, TIMING) and now - self._flushed > FLUSH_SECONDS:
            self.write(complete=False)

    def write(self, complete: bool) -> None:
        """A disk that is full must not keep the program from being ended; who watches misses the part and says so."""
        self._flushed = perf_counter()
        text = to_json(part_of(self._agent, complete))
        final = self._agent.folder / f"part-{os.getpid()}.json"
        draft = final.with_suffix(".tmp")
        try:
            private.write_text(draft, text)
            draft.replace(final)
        except OSError as error:
            if final.exists():  # an older part would pass for the whole
                self._agent.seams.guard.failed("keeping the observation", error)

    def say(self) -> None:
        agent = self._agent
        self._said = perf_counter()
        self._progress.write(
            Progress(
                state=agent.state,
                rank=agent.rank,
                fraction=self._fraction(),
                steps=agent.story.steps.optimizer_steps,
                batches=sum(seen.batches for seen in agent.loaders.seen),
                backwards=agent.losses.backwards,
                optimizers=agent.optimizers_made,
                loaders=agent.loaders.made,
            )
        )

    def _fraction(self) -> float:
        agent = self._agent
        if agent.state == TIMING:
            return progress(agent.tally.steps, agent.tally.seconds, agent.session.steps)
        return 1.0 if agent.state in (LOOKING, DONE) else 0.0
