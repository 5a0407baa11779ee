"""What the report of a tune says in every format."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from hotlap.diagnose import diagnose
from hotlap.records.plan import Outcome
from hotlap.records.trial import TrialStage
from hotlap.records.verdict import Check, Decision, PaysOff
from hotlap.report.shared.figures import clean, duration, ratio
from hotlap.report.tune import html as html_tune
from hotlap.report.tune import markdown as tune_markdown
from hotlap.report.tune import terminal as tune_terminal
from hotlap.report.tune.axis import axis
from hotlap.report.tune.figures import spelled
from hotlap.report.tune.page import tune_page
from hotlap.report.tune.parts import FAILED, INCONCLUSIVE, KEPT, LEFT_OUT, PENDING, REJECTED, Interval
from tests.observations import input_bound
from tests.report import tunings
from tests.report.tunings import choice, gate, noise, sample, speed, tried, tuning


def page_of(made, profiled: bool = True):
    seen = input_bound() if profiled else None
    return tune_page(made, seen, diagnose(seen) if seen else None)


def row(page, name: str):
    (found,) = [row for row in page.rows if row.name == name]
    return found


class TestSentence:
    def test_a_proven_speedup_is_stated_with_its_evidence(self):
        assert page_of(tunings.faster()).sentence == (
            "Proven 2.40 times as fast with 2 optimisations over 70 steps, and harmless: "
            "losses inside the baseline's own band, 3 seeds."
        )

    def test_what_was_compared_is_listed_once(self):
        made = tunings.faster()
        final = made.speedup
        why = "the losses are the same; also compared: weights, metric"
        proven = replace(final, gate=replace(final.gate, why=why))
        details = page_of(replace(made, speedup=proven)).details
        assert "The losses are the same." in details
        assert not any("also compared" in detail for detail in details)

    def test_reports_that_there_is_no_speedup(self):
        page = page_of(tunings.no_speedup())
        assert page.state == "no speed-up"
        assert page.sentence == (
            "No speed-up: of 6 optimisations tried, none is proven faster and harmless; 1 could not be judged."
        )

    def test_inconclusive_is_not_a_speedup(self):
        page = page_of(tunings.inconclusive())
        assert page.state == "inconclusive"
        assert page.sentence.startswith("Inconclusive: the 2 optimisations kept together measured 1.03×, but ")
        assert "6 more processes on each side would settle it." in page.details

    def test_a_stack_that_failed_in_the_final_trial_is_not_a_speedup(self):
        assert page_of(tunings.fallen_apart()).sentence.startswith("No speed-up: the optimisations kept one by one")

    def test_an_unfinished_tune_says_how_to_resume(self):
        page = page_of(tunings.unfinished())
        assert page.sentence == "Not finished: 3 optimisations tried, none kept so far."
        assert any("hotlap tune --resume" in detail for detail in page.details)

    def test_the_speed_of_an_unfinished_tune_is_not_a_verdict(self):
        half = replace(tunings.faster(), finished=False)
        assert page_of(half).state == "not finished"
        assert "Proven" not in page_of(half).sentence

    def test_a_tune_without_candidates_says_so(self):
        assert page_of(tuning(())).sentence == "No speed-up: nothing was tried."

    def test_what_was_proven_as_one_set_and_fell_later_is_not_called_untried(self):
        ran, judged = tunings.final(1.3)
        fallen = replace(judged, decision=Decision.REJECT, stage=TrialStage.LASTING, why="it becomes slower later")
        page = page_of(tuning((tunings.noise(), (replace(ran, entry=None), fallen))))
        assert page.sentence == "No speed-up: what was tried together is not kept; it becomes slower later."
        assert "Step" not in {figure.label for figure in page.figures}, "nothing is kept that would change it"

    def test_a_set_that_could_not_be_judged_is_inconclusive_and_says_how_to_go_on(self):
        ran, judged = tunings.final(1.3)
        unclear = replace(judged, decision=Decision.INCONCLUSIVE, why="too noisy to show 2 %")
        page = page_of(tuning((tunings.noise(), (replace(ran, entry=None), unclear))))
        assert page.sentence == "Inconclusive: what was tried together could not be judged; too noisy to show 2 %."
        assert page.next_steps[0].what == "Measure longer"

    def test_a_gate_that_did_not_pass_is_never_called_harmless(self):
        made = tunings.faster()
        odd = replace(made.speedup, gate=gate(None))
        assert "harmless" not in page_of(replace(made, speedup=odd)).sentence

    def test_entries_left_out_for_lack_of_time_are_listed(self):
        late = tuple((name, "no budget left: it needs about 145 s more") for name in ("a", "b"))
        page = page_of(replace(tunings.faster(), not_tried=(*late, ("c", "the training uses no GPU"))))
        assert "2 optimisations not tried for lack of time: give a larger --budget." in page.details
        assert page.not_tried.rows == (
            ("no budget left: it needs about 145 s more", "a, b"),
            ("the training uses no GPU", "c"),
        )

    def test_an_entry_that_could_not_be_judged_is_inconclusive(self):
        assert page_of(tunings.one_process_each()).sentence == (
            "Inconclusive: the one optimisation tried could not be judged."
        )

    def test_a_missing_noise_trial_is_reported(self):
        assert any("no noise band" in detail for detail in page_of(tunings.one_process_each()).details)

    def test_a_busy_machine_is_reported(self):
        tuning = tunings.faster()
        assert not any("too noisy" in detail for detail in page_of(tuning).details)
        first, *rest = tuning.verdicts
        loud = replace(first, speed=replace(first.speed, noise_high=1.5))
        details = page_of(replace(tuning, verdicts=(loud, *rest))).details
        assert any("identical runs may differ by 1.50×. Let nothing else run" in detail for detail in details)


class TestRows:
    def test_every_outcome_has_its_own_state(self):
        page = page_of(tunings.faster())
        assert {row.name: row.state for row in page.rows} == {
            "loader-workers=4": KEPT,
            "fused-optimizer": KEPT,
            "loader-workers=2": LEFT_OUT,
            "channels-last": INCONCLUSIVE,
            "compile=default": REJECTED,
            "gc-pauses": REJECTED,
            "threads=2": REJECTED,
            "autocast=bfloat16": REJECTED,
            "resident-data": FAILED,
            "whole-batch-fetch": FAILED,
        }

    def test_kept_entries_come_first_in_the_order_of_the_plan(self):
        made = tunings.faster()
        turned = page_of(replace(made, kept=made.kept[::-1]))
        assert [row.name for row in turned.rows[:2]] == ["fused-optimizer", "loader-workers=4"]

    def test_both_trials_are_shown_and_the_stacked_one_decides(self):
        compared = row(page_of(tunings.faster()), "compile=default")
        assert (compared.alone.ratio, compared.stacked.ratio, compared.shown.ratio) == (1.09, 0.97, 0.97)
        assert compared.why == "on top of what is kept it gains nothing"

    def test_the_last_verdict_of_a_trial_counts(self):
        first, again = (
            tried(0, "tf32", None, 1.2, decision, why)
            for decision, why in ((Decision.INCONCLUSIVE, "too few"), (Decision.REJECT, "after all no"))
        )
        page = page_of(tuning((first, again)))
        assert [(row.state, row.why) for row in page.rows] == [(REJECTED, "after all no")]

    def test_a_value_that_lost_to_another_is_left_out_and_names_the_winner(self):
        assert row(page_of(tunings.faster()), "loader-workers=2").why.endswith(
            "but the plan has loader-workers=4 instead"
        )

    def test_a_failed_entry_says_how_its_process_ended(self):
        assert row(page_of(tunings.faster()), "resident-data").notes == ("out of memory: tried to allocate 2.1 GiB",)

    def test_an_inconclusive_entry_says_what_it_needs(self):
        notes = row(page_of(tunings.faster()), "channels-last").notes
        assert notes == (
            "needs 5 more processes on each side",
            "the smallest speed-up this sample could show is 1.07×",
            "its check for harm needs 2 more",
        )

    def test_notes_do_not_repeat_the_reason(self):
        why = "1.03 × as fast: too noisy to show 2 %, needs 5 more processes on each side"
        found = tried(
            0, "tf32", None, 1.03, Decision.INCONCLUSIVE, why, speed=speed(1.03, 0.06, more=900, more_as_measured=5)
        )
        assert row(page_of(tuning((found,))), "tf32").notes == (
            "the smallest speed-up this sample could show is 1.01×",
        )

    def test_an_unfinished_trial_is_pending(self):
        ran, _ = tried(0, "tf32", None, 1.2, Decision.KEEP, "")
        page = page_of(tuning((noise(),), trials=(ran,), finished=False))
        assert row(page, "tf32").state == PENDING

    def test_an_entry_kept_without_a_trial_of_its_own_is_shown(self):
        assert row(page_of(tuning((), kept=(choice("tf32"),))), "tf32").why == (
            "part of the plan, without a trial of its own"
        )

    def test_an_optimisation_without_effect_says_so(self):
        idle = Outcome(name="tf32", code="C101", status="no effect", why="no matrix product on a GPU")
        ran = (sample(0, "base", 38.0), sample(1, "new", 38.0, outcomes=(idle,)))
        page = page_of(tuning((tried(0, "tf32", None, 1.0, Decision.REJECT, "no faster", samples=ran),)))
        assert row(page, "tf32").notes == ("no effect: no matrix product on a GPU",)

    def test_a_warmup_that_never_pays_off_is_reported(self):
        never = PaysOff(extra_seconds=25.0, steps=None, seconds=None)
        page = page_of(tuning((tried(0, "compile", None, 0.9, Decision.REJECT, "slower", pays_off=never),)))
        assert row(page, "compile").notes == ("it takes 25.0 s longer to get up to speed, which is never won back",)


class TestStepBars:
    def test_both_bars_come_from_the_final_trial(self):
        bars = page_of(tunings.faster()).bars
        assert bars.before_ms == pytest.approx(38.0, rel=0.01)
        assert bars.after_ms == pytest.approx(38.0 / 2.4, rel=0.01)
        assert bars.after_low < bars.after_ms < bars.after_high

    def test_parts_add_up_to_the_measured_step(self):
        bars = page_of(tunings.faster()).bars
        assert sum(segment.ms for segment in bars.segments) == pytest.approx(bars.before_ms)

    def test_a_missing_profile_is_reported(self):
        page = page_of(tunings.faster(), profiled=False)
        assert not page.bars.segments
        assert "profile of the baseline was not saved" in page.bars.note
        assert "not saved" in page.no_time

    def test_without_a_final_trial_the_bars_come_from_the_trial_that_proved_the_plan(self):
        made = tunings.faster()
        alone = next(
            verdict for verdict in made.verdicts if verdict.decision == Decision.KEEP and verdict.stage == "alone"
        )
        trials = tuple(trial for trial in made.trials if trial.stage != "final")
        verdicts = tuple(verdict for verdict in made.verdicts if verdict.stage != "final")
        page = page_of(replace(made, trials=trials, verdicts=verdicts, kept=made.kept[:1], speedup=alone))
        assert page.bars.after_ms == pytest.approx(page.bars.before_ms / alone.speed.ratio, rel=0.05)
        assert "in the trial that proved it" in page.bars.note

    def test_without_a_plan_there_is_no_second_bar(self):
        bars = page_of(tunings.no_speedup()).bars
        assert bars.before_ms == pytest.approx(38.0, rel=0.01)
        assert bars.after_ms is None
        assert "Nothing is kept" in bars.note

    def test_a_broken_process_is_not_part_of_the_mean(self):
        made = tunings.faster()
        slow = replace(sample(99, "new", 900.0), ended="crashed", why="boom")
        final = replace(made.trials[-1], samples=(*made.trials[-1].samples, slow))
        page = page_of(replace(made, trials=(*made.trials[:-1], final)))
        assert page.bars.after_ms == pytest.approx(38.0 / 2.4, rel=0.01)
        assert ("99", "final", "new", "crashed", "boom") in page.broken.rows


class TestLosses:
    def test_the_band_spans_all_processes_of_the_baseline(self):
        losses = page_of(tunings.faster()).losses
        own = [
            sample.losses
            for trial in tunings.faster().trials
            for sample in trial.samples
            if sample.ended == "measured" and (sample.arm == "base" or trial.stage == TrialStage.NOISE)
        ]
        assert losses.low == tuple(min(values) for values in zip(*own, strict=True))
        assert losses.high == tuple(max(values) for values in zip(*own, strict=True))

    def test_long_curves_are_thinned_to_their_means(self):
        losses = page_of(tunings.large(steps=2000)).losses
        assert len(losses.steps) <= 160
        assert losses.last == 1999
        first = [
            sample.losses[: losses.steps[1]] for sample in tunings.large().trials[-1].samples if sample.arm == "base"
        ]
        means = [sum(losses) / len(losses) for losses in first]
        assert losses.curves[0].values[0] == pytest.approx(sum(means) / len(means))

    def test_losses_equal_bit_for_bit_are_reported(self):
        made = tunings.faster()
        equal = tuple(
            replace(sample, losses=tunings.losses(70, sample.seed_shift)) for sample in made.trials[-1].samples
        )
        page = page_of(replace(made, trials=(*made.trials[:-1], replace(made.trials[-1], samples=equal))))
        assert "All 210 pairs of losses at the same step and seed are equal bit for bit." in page.losses.facts

    def test_the_largest_difference_of_losses_is_reported(self):
        ran = (
            sample(0, "base", 38.0, losses=(3.0, 2.0, 1.0)),
            sample(1, "new", 20.0, losses=(3.0, 2.25, 1.0)),
        )
        last = replace(tunings.final()[0], samples=ran)
        page = page_of(tuning(((last, tunings.final()[1]),)))
        assert (
            "Of 3 pairs of losses at the same step and seed the two furthest apart differ by 0.25." in page.losses.facts
        )

    def test_only_seeds_of_both_arms_are_compared(self):
        ran = (
            sample(0, "base", 38.0, losses=(3.0, 2.0)),
            sample(1, "base", 38.0, losses=(9.0, 9.0), seed_shift=5),
            sample(2, "new", 20.0, losses=(3.0, 2.0)),
        )
        page = page_of(tuning(((replace(tunings.final()[0], samples=ran), tunings.final()[1]),)))
        assert page.losses.curves[0].values == page.losses.curves[1].values == (3.0, 2.0)

    def test_a_loss_that_is_not_finite_is_a_gap_and_is_reported(self):
        losses = page_of(tunings.not_a_number()).losses
        assert losses.curves[1].values[30] is None
        assert losses.curves[1].values[29] is not None
        assert "The loss after was not finite, first at step 31." in losses.facts

    def test_without_losses_there_is_no_curve(self):
        losses = page_of(tunings.one_process_each()).losses
        assert not losses.curves
        assert losses.facts == ("No loss was seen, so there is no curve.",)

    def test_the_metric_is_listed_by_seed(self):
        (table,) = [table for table in page_of(tunings.faster()).losses.tables if "val_acc" in table.title]
        assert table.rows[1] == ("+1", "0.914", "0.9144")
        assert table.note == "higher is better"


class TestFullLength:
    def test_a_known_length_is_given_with_its_interval(self):
        length = page_of(tunings.faster()).length
        assert length.facts[0].startswith("The whole run has 200,000 steps: 1 h 1")
        assert "won back after 605 steps (9.6 s)" in length.facts[1]
        (only,) = length.table.rows
        assert only[:2] == ("200,000", "2 h 7 min")

    def test_the_time_after_includes_the_longer_warmup(self):
        made = tunings.faster(full_steps=100)
        (only,) = page_of(made).length.table.rows
        assert only[1:3] == ("3.8 s", "15.0 s")
        assert any("does not pay" in fact for fact in page_of(made).length.facts)

    def test_an_unknown_length_is_reported(self):
        length = page_of(tunings.faster(full_steps=None)).length
        assert "not known" in length.facts[0]
        assert len(length.table.rows) == 4

    def test_without_a_plan_there_is_no_table_of_lengths(self):
        assert page_of(tunings.no_speedup()).length.table is None


class TestCommands:
    def test_the_tune_command_has_every_requested_option(self):
        made = tunings.faster(asked=tunings.asked(steps=80, minimum=1.05))
        (line,) = [command.line for command in page_of(made).commands if command.what == "Tune again"]
        assert line == (
            "hotlap tune --budget 600s --risk numeric --min-effect 5% --steps 80 --metric 'val_acc: ([0-9.]+)' "
            "--higher-is-better python train.py --epochs 3"
        )

    def test_the_run_command_is_given_short_and_spelled_out(self):
        lines = [command.line for command in page_of(tunings.faster()).commands]
        assert "hotlap run python train.py --epochs 3" in lines
        assert "hotlap run --with loader-workers=4 --with fused-optimizer python train.py --epochs 3" in lines

    def test_without_a_plan_there_is_no_run_command(self):
        assert not any("hotlap run" in command.line for command in page_of(tunings.no_speedup()).commands)

    def test_the_footer_says_where_it_was_measured(self):
        footer = dict(page_of(tunings.faster()).footer)
        assert footer["seeds"] == "as written, +1, +2"
        assert footer["source"].startswith("0123456789abcdef")
        assert footer["versions"] == "python 3.11.7, torch 2.8.0, hotlap 0.1.0"
        assert footer["machine"].startswith("AMD EPYC 9354")

    def test_the_footer_says_whether_the_baseline_repeats_itself(self):
        tuning = tunings.faster()
        plain = replace(tuning.trials[0].samples[0], choices=(), nudge=0.0, losses=(1.0, 0.5))
        other, nudged = replace(plain, losses=(1.0, 0.6)), replace(plain, losses=(9.0, 9.0), nudge=1e-6)

        def answer(*samples):
            made = replace(tuning, trials=(replace(tuning.trials[0], samples=samples),))
            return dict(page_of(made).footer)["repeats itself"]

        assert answer(plain, plain, nudged) == "yes, bit for bit (1 run repeated a seed)"
        assert answer(plain, plain, other).startswith("no: 1 of 2 runs")
        assert answer(plain, nudged, replace(other, seed_shift=1)).startswith("not known")

    def test_limits_are_part_of_the_tune_command(self):
        tuning = tunings.faster()
        limited = replace(tuning, asked=replace(tuning.asked, memory_mb=16384.0, device_mb=500.0))
        lines = {command.what: command.line for command in page_of(limited).commands}
        assert "--memory 16384M --device-memory 500M" in lines["Tune again"]


class TestAxis:
    def test_the_axis_is_logarithmic(self):
        drawn = axis([Interval(4.0, 3.0, 5.0), Interval(0.25, 0.2, 0.3)], 1.02)
        assert drawn.at(1.0) - drawn.at(0.5) == pytest.approx(drawn.at(2.0) - drawn.at(1.0))

    @pytest.mark.parametrize("ratio", [0.004, 0.5, 0.99, 1.0, 1.3, 7.0, 90.0, 5000.0])
    def test_the_ratio_one_is_always_on_the_axis_and_a_tick(self, ratio):
        drawn = axis([Interval(ratio, ratio * 0.9, ratio * 1.1)], 1.02)
        assert 0 < drawn.at(1.0) < 1
        assert 1.0 in drawn.ticks()
        assert 2 <= len(drawn.ticks()) <= 8
        assert 0 <= drawn.at(ratio) <= 1

    def test_values_that_are_not_finite_are_left_out(self):
        assert math.isfinite(axis([Interval(math.inf, 0.0, math.nan)], 1.02).high)


class TestFigures:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.0123, "12 ms"),
            (9.6, "9.6 s"),
            (59.99, "1 min"),
            (250, "4 min 10 s"),
            (3599.7, "1 h"),
            (7620, "2 h 7 min"),
            (86_399, "1 d"),
            (273_600, "3 d 4 h"),
            (None, "–"),
            (math.inf, "–"),
        ],
    )
    def test_durations_have_the_unit_a_person_would_use(self, seconds, text):
        assert duration(seconds) == text

    def test_ratios_have_three_digits(self):
        assert [ratio(value) for value in (0.004, 0.61, 1.0, 9.999, 12.34, 250.0)] == [
            "0.004", "0.61", "1.00", "10.0", "12.3", "250",
        ]  # fmt: skip

    def test_a_missing_interval_is_reported(self):
        assert spelled(Interval(1.9, None, None)) == "1.90× (no interval)"

    def test_invisible_characters_are_spelled_out(self):
        assert clean("a\x1b[31mb\x00\n c\u202e") == "a\\x1b[31mb\\x00 c\\u202e"

    def test_a_speed_without_an_interval_is_accepted(self):
        assert page_of(tuning((tried(0, "tf32", None, 1.2, Decision.REJECT, "", speed=speed(1.2, low=None)),)))


class TestCoverage:
    def tuned(self):
        checks = (
            Check(name="losses", passed=True, why="every loss is the same"),
            Check(name="printed lines", passed=True, why="9 compared, equal", left_out=("number 2 of took # s",)),
        )
        whole = tunings.faster(files=("/w/tokenizer.json was overwritten in a trial; it is \x1b[31mput back",))
        speedup = replace(whole.speedup, gate=replace(whole.speedup.gate, checks=checks))
        return replace(whole, speedup=speedup)

    def test_comparisons_are_a_table_with_the_margin_of_memory(self):
        table = page_of(self.tuned()).compared
        assert [row[:2] for row in table.rows] == [("losses", "same"), ("printed lines", "same")]
        assert "200 MB" in table.note

    def test_what_was_not_covered_is_listed(self):
        sentences = page_of(self.tuned()).not_covered
        assert sentences[0] == "Anything after 70 steps: the budget did not cover a longer run; give a larger --budget."
        assert "Left out because it varies within the baseline: printed lines: number 2 of took # s." in sentences
        assert page_of(tunings.no_speedup()).not_covered == ()

    def test_every_format_says_what_was_not_covered_and_which_files_were_restored(self):
        page = page_of(self.tuned())
        terminal = Console(width=200, file=io.StringIO())
        tune_terminal.draw(page, terminal)
        for text in (terminal.file.getvalue(), tune_markdown.draw(page), html_tune.draw(page)):
            assert "Anything after 70 steps" in text
            assert "tokenizer.json was overwritten" in text
            assert "\x1b[31m" not in text
