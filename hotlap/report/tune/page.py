"""The report of a tune as one page, shared by all output formats."""

from __future__ import annotations

from hotlap.records.diagnosis import Diagnosis
from hotlap.records.observation import Observation
from hotlap.records.trial import TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.report.profile.page import Page, page
from hotlap.report.shared.figures import clean
from hotlap.report.tune import coverage as tune_coverage
from hotlap.report.tune import facts as tune_facts
from hotlap.report.tune import words as tune_words
from hotlap.report.tune.arms import interval, verdict_of
from hotlap.report.tune.length import length
from hotlap.report.tune.losses import losses
from hotlap.report.tune.parts import Interval, TunePage
from hotlap.report.tune.rows import rows


def tune_page(tuning: TuneRecord, observation: Observation | None, diagnosis: Diagnosis | None) -> TunePage:
    tried = rows(tuning)
    state, sentence = tune_words.state_and_sentence(tuning, tried)
    time = page(observation, diagnosis) if observation is not None and diagnosis is not None else None
    return TunePage(
        run=clean(tuning.run),
        state=state,
        sentence=sentence,
        details=(*tune_words.details(tuning, sentence), *_where_instead(tuning, time)),
        figures=tuple(tune_words.figures(tuning, tried)),
        bars=tune_facts.bars(tuning, observation),
        before_after=tune_facts.before_after(tuning),
        rows=tried,
        noise=_noise(tuning),
        together=interval(tuning.speedup.speed if tuning.speedup else None),
        minimum=tuning.asked.minimum,
        not_tried=tune_facts.not_tried(tuning),
        losses=losses(tuning),
        time=time,
        no_time=_why_no_time(observation, diagnosis),
        length=length(tuning),
        next_steps=tuple(tune_facts.next_steps(tuning, state)),
        commands=tuple(tune_facts.commands(tuning)),
        broken=tune_facts.broken_processes(tuning),
        compared=tune_coverage.compared(tuning),
        not_covered=tune_coverage.not_covered(tuning),
        files=tuple(map(clean, tuning.files)),
        footer=tuple(tune_facts.footer(tuning)),
    )


def _where_instead(tuning: TuneRecord, time: Page | None) -> tuple[str, ...]:
    """Return where the time goes, and the first advice, where nothing is kept: what matters then."""
    if tuning.kept or not tuning.finished or time is None:
        return ()
    return (" ".join((time.sentence, *time.advice[:1])),)


def _noise(tuning: TuneRecord) -> Interval | None:
    found = verdict_of(tuning, TrialStage.NOISE)
    return interval(found.speed if found else None)


def _why_no_time(observation: Observation | None, diagnosis: Diagnosis | None) -> str:
    if observation is None:
        return "The profile of the baseline was not saved, so where its time went is not known."
    return "" if diagnosis else "The profile of the baseline was not diagnosed, so where its time went is not known."
