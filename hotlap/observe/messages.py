"""Reports from the agent to the watching process: a few numbers often, everything at the end and at intervals."""

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
        self._reported = 0.0
        self._flushed = perf_counter()

    def report_if_due(self) -> None:
        """Report if it is time to, after the tape was read. A killed process leaves at least what was flushed."""
        known, now = self._known, perf_counter()
        if known.state == STARTING or now - self._reported > SAY_SECONDS:
            self.report()
        if known.state in (WARMING, TIMING) and now - self._flushed > FLUSH_SECONDS:
            self.write(complete=False)

    def write(self, complete: bool) -> None:
        """Write the part. A full disk must not keep the program alive; the watcher notices the missing part."""
        self._flushed = perf_counter()
        text = to_json(part_of(self._known, complete))
        final = self._known.folder / f"part-{os.getpid()}.json"
        draft = final.with_suffix(".tmp")
        try:
            private.write_text(draft, text)
            draft.replace(final)
        except OSError as error:
            if final.exists():  # an older part would be taken for the whole
                self._known.seams.guard.failed("writing the observation", error)

    def report(self) -> None:
        known = self._known
        self._reported = perf_counter()
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
