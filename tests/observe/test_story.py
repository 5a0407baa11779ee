"""Phases, steps, batches, losses and syncs are read from a tape. Times are hand-written nanoseconds."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hotlap.observe import tape as t
from hotlap.observe.loaders import EVALUATION as EVALUATES
from hotlap.observe.loaders import TRAIN, LoaderCounts, Loaders
from hotlap.observe.losses import Losses
from hotlap.observe.steps import Boundary
from hotlap.observe.story import Story
from hotlap.observe.syncs import Copies, CopyKey, SyncKey, Syncs
from hotlap.observe.tally import Tally
from hotlap.patch.seams import Entry
from hotlap.records.observation import (
    BACKWARD,
    COPY,
    DATA,
    EVALUATION,
    FORWARD,
    GARBAGE,
    OPTIMIZER,
    PHASES,
    REST,
    SYNC,
)

HERE, ELSEWHERE = 1, 2  # threads
TRAINING, CHECKING, OTHER = 71, 72, 73  # iterators
A = 81  # an optimizer
LINE = SyncKey(sys._getframe().f_code, 1, "item", None)


class Reader:
    def __init__(self) -> None:
        self.loaders, self.losses, self.tally = Loaders(), Losses(torch), Tally()
        self.story = Story(0, HERE, self.loaders, self.losses, self.tally)
        self.boundaries: list[Boundary] = []
        self.story.on_step = self.boundaries.append

    def read(self, *entries: tuple[Any, ...]) -> None:
        """Read entries given as (kind, time), (kind, time, note) or (kind, time, note, thread)."""
        self.story.read([entry(*fields) for fields in entries])

    def spent(self, now: int) -> dict[str, int]:
        clock = self.story.clock
        clock.lap(now)
        return {name: total for name, total in zip(clock.names, clock.totals, strict=True) if total}

    def losses_told(self) -> tuple[float, ...]:
        return self.losses.values(may_wait=False)

    def loader(self, iterator: int, samples: int = 5) -> LoaderCounts:
        """A loader of batches of two that was iterated before the tape begins; its weak reference may die."""
        seen = LoaderCounts(DataLoader(TensorDataset(torch.arange(float(samples))), batch_size=2))
        self.loaders.seen.append(seen)
        self.loaders.iterated(seen, iterator)
        return seen

    def watch_syncs(self, on_cuda: bool) -> Syncs:
        self.story.syncs = Syncs(on_cuda)
        self.story.syncs.watching, self.story.syncs.timing = not on_cuda, on_cuda
        return self.story.syncs


def entry(kind: int, at: int, note: Any = None, thread: int = HERE) -> Entry:
    return kind, at, thread, note


@pytest.fixture
def reader() -> Reader:
    return Reader()


# Phases


def test_each_part_of_a_step_is_its_phase(reader):
    reader.read(
        (t.FETCH, 10, TRAINING),
        (t.FETCHED, 30, (TRAINING, 2)),
        (t.CALL, 35, (False, 2)),
        (t.COLLECT, 40),
        (t.COLLECTED, 43),
        (t.CALLED, 65),
        (t.DIFFERENTIATE, 70, 0.5),
        (t.DIFFERENTIATED, 110),
        (t.STEP, 110, A),
        (t.STEPPED, 120, A),
    )
    expected = {DATA: 20, FORWARD: 27, GARBAGE: 3, BACKWARD: 40, OPTIMIZER: 10, REST: 20}
    assert reader.spent(120) == expected
    reader.story.close_step()
    (boundary,) = reader.boundaries
    assert boundary.at == 120
    assert dict(zip(PHASES, boundary.totals, strict=True)) == {**dict.fromkeys(PHASES, 0), **expected}


def test_other_threads_are_ignored(reader):
    reader.read(
        (t.CALL, 0, (False, 2)),
        (t.FETCH, 1, TRAINING, ELSEWHERE),
        (t.CALL, 2, (True, 0), ELSEWHERE),
        (t.DIFFERENTIATE, 2, 0.5, ELSEWHERE),
        (t.STEPPED, 3, A, ELSEWHERE),
        (t.SYNC_BEGINS, 3, None, ELSEWHERE),
        (t.CALLED, 4, None, ELSEWHERE),
        (t.SPAN, 4, "theirs", ELSEWHERE),
    )
    assert reader.story.clock.current == FORWARD
    assert reader.spent(5) == {FORWARD: 5}
    assert reader.losses.backwards == reader.story.steps.optimizer_steps == 0


def test_a_thread_found_to_train_is_followed_from_then_on(reader):
    reader.read((t.FETCH, 0, TRAINING))
    reader.story.thread = ELSEWHERE
    reader.story.clock.reset(10)
    reader.read((t.CALL, 10, None, ELSEWHERE), (t.FETCHED, 12, None, HERE), (t.CALLED, 19, None, ELSEWHERE))
    assert reader.spent(19) == {FORWARD: 9}


def test_pauses_are_subtracted_from_the_time(reader):
    reader.read((t.CALL, 10), (t.CALLED, 20), (t.STEP, 20, A), (t.STEPPED, 30, A))
    reader.read((t.PAUSE, 30, 1000, 0), (t.CALL, 1035), (t.CALLED, 1045), (t.STEP, 1045, A), (t.STEPPED, 1050, A))
    reader.read((t.PAUSE, 1050, 500, 0), (t.FETCH, 1560, TRAINING))
    assert [boundary.at for boundary in reader.boundaries] == [30, 50]
    assert reader.spent(60) == {REST: 25, FORWARD: 20, OPTIMIZER: 15}


def test_a_tape_may_be_read_in_pieces():
    tape = [(t.FETCH, 5, TRAINING), (t.SYNC_BEGINS, 6), (t.SYNC_ENDS, 8, LINE), (t.FETCHED, 9), (t.SPAN, 9, "x")]
    whole, pieces = Reader(), Reader()
    whole.read(*tape)
    for event in tape:
        pieces.read(event)
    assert whole.spent(12) == pieces.spent(12) == {REST: 5, DATA: 2, SYNC: 2, "span:x": 3}


def test_a_loader_read_inside_another_leaves_the_outer_one_loading(reader):
    """A dataset may iterate a DataLoader: the end of iter() is then on the tape twice, and counts once."""
    inner = reader.loader(OTHER)
    reader.read((t.FETCH, 0, TRAINING), (t.ITERATE, 2, inner.role), (t.ITERATED, 4), (t.ITERATED, 5, (inner, OTHER)))
    reader.read((t.FETCHED, 10))
    assert reader.story.clock.current == REST
    assert reader.spent(10) == {DATA: 10}


# Steps


def loop(actions: str) -> Reader:
    """Read b as a requested batch, l as forward and backward, a capital as a step of that optimizer (L is LBFGS)."""
    reader, tape, now = Reader(), [], 0
    for action in actions.replace(" ", ""):
        now += 10
        if action == "b":
            tape += [(t.FETCH, now, TRAINING), (t.FETCHED, now + 1)]
        elif action == "l":
            tape += backward(now)
        else:
            inner = [event for time in (1, 3, 5) for event in backward(now + time)] if action == "L" else []
            tape += [(t.STEP, now, ord(action)), *inner, (t.STEPPED, now + 9, ord(action))]
    reader.read(*tape)
    return reader


def backward(at: int) -> list[tuple[Any, ...]]:
    return [(t.DIFFERENTIATE, at, float(at)), (t.DIFFERENTIATED, at + 1)]


def backwards(actions: str) -> list[int]:
    """The number of backward calls so far at the end of each step."""
    return [boundary.backwards for boundary in loop(actions).boundaries]


def test_a_plain_loop_has_one_step_per_batch():
    assert backwards("blA blA blA b") == [1, 2, 3]
    assert [boundary.at for boundary in loop("blA blA b").boundaries] == [39, 69]


def test_a_step_is_known_to_have_ended_only_when_the_next_begins():
    assert backwards("blA") == []
    assert backwards("blA b") == [1]


def test_a_loop_without_a_loader_has_one_step_per_optimizer_step():
    assert backwards("lA lA lA lA") == [1, 2, 3]
    assert loop("lA lA lA").losses_told() == (10.0, 30.0), "the backward before it was told belongs to the next"


def test_accumulated_micro_batches_are_one_step():
    assert backwards("bl bl bl blA bl bl bl blA b") == [4, 8]
    assert loop("bl blA b").losses_told() == (30.0,)


def test_the_two_optimizers_of_a_gan_are_one_step():
    assert backwards("blDlG blDlG b") == [2, 4]
    assert backwards("lDlG lDlG lD") == [2, 4], "without a loader"
    assert loop("blDlG b").losses_told() == (60.0,)


def test_five_critic_steps_on_a_batch_each_are_five_steps():
    """Each batch that the critic steps on is a step; the step of the generator joins the last of five."""
    assert backwards(("blC" * 4 + "blClG") * 2 + "b") == [1, 2, 3, 4, 6, 7, 8, 9, 10, 12]


def test_five_critic_steps_on_one_batch_are_five_steps():
    assert backwards("blClClClClClG b") == [1, 2, 3, 4, 6]


def test_lbfgs_evaluates_several_times_inside_one_step_and_its_first_loss_counts():
    reader = loop("bL bL b")
    assert [boundary.backwards for boundary in reader.boundaries] == [3, 6]
    assert reader.losses_told() == (21.0, 41.0)


def test_two_optimizers_with_different_periods_make_one_step_per_batch():
    assert backwards("blA blAB blA blAB b") == [1, 2, 3, 4]


def test_closing_when_no_step_is_pending_does_nothing():
    reader = loop("b b blA b b")
    reader.story.close_step()
    assert len(reader.boundaries) == reader.story.steps.closed == 1


def test_the_event_recorded_after_the_step_comes_with_it(reader):
    reader.read((t.STEP, 0, A), (t.STEPPED, 1, (A, "event")), (t.FETCH, 2, TRAINING))
    assert reader.boundaries[0].event == "event"


def test_a_step_that_the_scaler_skipped_is_a_step_to_the_user(reader):
    for start in (0, 100, 200):
        reader.read((t.FETCH, start, TRAINING), (t.FETCHED, start + 1), *backward(start + 2))
        if start != 100:
            reader.read((t.STEP, start + 5, A), (t.STEPPED, start + 7, A))
        reader.read((t.SCALER_STEPPED, start + 8, A))
    reader.story.close_step()
    assert [boundary.at for boundary in reader.boundaries] == [7, 108, 207]
    assert reader.tally.skipped == 1
    assert len(reader.losses_told()) == 3


def test_skipped_steps_are_distinguished_without_a_loader_too(reader):
    skipped, taken = (0, 100, 300), (200, 400)
    for start in sorted(skipped + taken):
        reader.read(*backward(start))
        if start in taken:
            reader.read((t.STEP, start + 5, A), (t.STEPPED, start + 7, A))
        reader.read((t.SCALER_STEPPED, start + 8, A))
    reader.story.close_step()
    assert [boundary.at for boundary in reader.boundaries] == [8, 108, 207, 308, 407]
    assert reader.tally.skipped == 3


# Loaders


def test_the_training_loader_is_known_from_the_first_step(reader):
    train = reader.loader(TRAINING)
    reader.read((t.FETCH, 0, TRAINING), (t.FETCHED, 1, (TRAINING, 2)), (t.STEP, 2, A), (t.STEPPED, 3, A))
    assert (train.role, train.batches, train.samples) == (TRAIN, 1, 2)


def test_a_loader_is_known_once_it_is_iterated(reader):
    train = reader.loader(OTHER)
    reader.read((t.ITERATE, 0, train.role), (t.ITERATED, 4), (t.ITERATED, 5, (train, TRAINING)))
    reader.read((t.FETCH, 5, TRAINING), (t.FETCHED, 6, (TRAINING, 2)), (t.FETCH, 7, TRAINING))
    reader.read((t.FETCHED, 8, (TRAINING, None)))
    assert (train.batches, train.samples) == (1, 2)
    assert reader.spent(8) == {DATA: 6, REST: 2}


def test_a_whole_evaluation_counts_as_evaluation_from_the_second_time_on(reader):
    train, check = reader.loader(TRAINING), reader.loader(CHECKING)
    training = [(t.FETCH, 0, TRAINING), (t.FETCHED, 10, (TRAINING, 2)), (t.STEP, 10, A), (t.STEPPED, 20, A)]
    first = [(t.FETCH, 20, CHECKING), (t.FETCHED, 30, (CHECKING, 2)), (t.CALL, 30, (True, 0)), (t.CALLED, 50)]
    reader.read(*training, *first)
    assert (train.role, check.role) == (TRAIN, EVALUATES)
    assert reader.spent(60) == {DATA: 20, OPTIMIZER: 10, EVALUATION: 30}, "its first batch was for nobody knew whom"
    reader.read((t.FETCH, 60, TRAINING), (t.FETCHED, 65, (TRAINING, 2)))
    reader.read((t.ITERATE, 65, check.role), (t.ITERATED, 70), (t.ITERATED, 71, (check, CHECKING)))
    reader.read((t.FETCH, 71, CHECKING), (t.FETCHED, 80, (CHECKING, 2)))
    assert reader.spent(80) == {DATA: 25, OPTIMIZER: 10, EVALUATION: 45}


def test_training_resumes_when_its_loader_is_iterated_again(reader):
    """Restarting its workers is a cost of the training, not of the evaluation before."""
    train = reader.loader(TRAINING)
    train.role = TRAIN
    reader.read((t.CALL, 0, (True, 0)), (t.CALLED, 10), (t.ITERATE, 10, TRAIN), (t.ITERATED, 40))
    assert reader.spent(40) == {EVALUATION: 10, DATA: 30}


def test_training_resumes_when_the_model_is_called_in_training_mode(reader):
    reader.read((t.CALL, 0, (True, 0)), (t.CALLED, 10), (t.CALL, 15), (t.CALLED, 20))
    assert reader.spent(20) == {EVALUATION: 15, FORWARD: 5}


def test_batches_that_were_not_inspected_have_the_predicted_size(reader):
    train, other = reader.loader(TRAINING, samples=5), reader.loader(OTHER, samples=3)
    for at in range(0, 40, 10):
        reader.read((t.FETCH, at, TRAINING), (t.FETCHED, at + 5))
    assert (train.batches, train.samples) == (3, 5), "two, two, one, and the end"
    reader.read((t.FETCH, 50, OTHER), (t.FETCHED, 55))
    assert (other.batches, other.samples) == (1, 2)
    reader.read((t.ITERATE, 60, train.role), (t.ITERATED, 61), (t.ITERATED, 62, (train, TRAINING)))
    reader.read((t.FETCH, 70, TRAINING), (t.FETCHED, 75))
    assert (train.batches, train.samples) == (4, 7)


def test_without_a_loader_the_first_call_of_a_step_gives_its_samples(reader):
    for start, size in ((0, 16), (100, 8)):
        reader.read((t.CALL, start, (False, size)), (t.CALLED, start + 1), (t.CALL, start + 2, (False, 99)))
        reader.read((t.CALLED, start + 3), (t.STEP, start + 4, A), (t.STEPPED, start + 5, A))
    reader.story.close_step()
    assert reader.tally._call_sizes == [16, 8]


def test_without_a_loader_the_micro_batches_of_an_accumulation_are_added_up(reader):
    for at in (0, 10, 20, 30):
        reader.read((t.CALL, at, (False, 12)), (t.CALLED, at + 1))
        reader.read((t.DIFFERENTIATE, at + 2, None), (t.DIFFERENTIATED, at + 3))
    reader.read((t.STEP, 40, A), (t.STEPPED, 41, A))
    reader.story.close_step()
    assert reader.tally._call_sizes == [48]


# Syncs and copies


def counted(syncs: Syncs) -> tuple[int, float]:
    """The number of calls and their milliseconds in total."""
    if not syncs.on_cuda:
        syncs.optimizer_stepped()
    rows = syncs.rows(steps=1, optimizer_steps_a_step=1.0)
    return sum(row.calls for row in rows), sum(row.ms_per_step for row in rows)


@pytest.mark.parametrize("on_cuda", [False, True])
def test_the_time_of_a_sync_is_subtracted_from_the_phase_around_it(reader, on_cuda):
    syncs = reader.watch_syncs(on_cuda)
    reader.read((t.CALL, 0), (t.SYNC_BEGINS, 1_000_000), (t.SYNC_ENDS, 3_000_000, LINE), (t.CALLED, 4_000_000))
    assert reader.spent(4_000_000) == {FORWARD: 2_000_000, SYNC: 2_000_000}
    assert counted(syncs) == (1, 2.0)


def test_only_the_outermost_of_nested_syncs_counts(reader):
    syncs = reader.watch_syncs(on_cuda=True)
    reader.read(
        (t.SYNC_BEGINS, 0),
        (t.SYNC_BEGINS, 1_000_000),
        (t.SYNC_BEGINS, 2_000_000),
        (t.SYNC_ENDS, 3_000_000, LINE),
        (t.SYNC_ENDS, 4_000_000, LINE),
        (t.SYNC_ENDS, 5_000_000, LINE._replace(kind="print")),
        (t.SYNC_BEGINS, 6_000_000),
        (t.SYNC_ENDS, 7_000_000, LINE),
    )
    assert reader.spent(7_000_000) == {SYNC: 6_000_000, REST: 1_000_000}
    rows = syncs.rows(steps=1, optimizer_steps_a_step=1.0)
    assert {row.kind: (row.calls, row.ms_per_step) for row in rows} == {"print": (1, 5.0), "item": (1, 1.0)}


def test_a_call_that_does_not_wait_is_not_counted(reader):
    syncs = reader.watch_syncs(on_cuda=True)
    reader.read((t.SYNC_BEGINS, 0), (t.SYNC_ENDS, 3, None), (t.SYNC_ENDS, 4, LINE))
    assert counted(syncs) == (0, 0)


@pytest.mark.parametrize("inside", [[], [(t.SPAN, 5, "augment")]], ids=["directly", "in a span"])
def test_on_cpu_a_datasets_own_code_does_not_sync_whatever_the_models_device(reader, inside):
    syncs = reader.watch_syncs(on_cuda=False)
    reader.read((t.FETCH, 0, TRAINING), *inside, (t.SYNC_BEGINS, 10), (t.SYNC_ENDS, 20, LINE), (t.FETCHED, 30))
    assert counted(syncs) == (0, 0)
    assert SYNC not in reader.spent(30)
    reader.read((t.SYNC_BEGINS, 30), (t.SYNC_ENDS, 40, LINE))
    assert counted(syncs)[0] == 1


def test_on_cuda_a_dataset_that_waits_for_the_device_is_reported(reader):
    syncs = reader.watch_syncs(on_cuda=True)
    reader.read((t.FETCH, 0, TRAINING), (t.SYNC_BEGINS, 10), (t.SYNC_ENDS, 20, LINE), (t.FETCHED, 30))
    assert counted(syncs)[0] == 1
    assert reader.spent(30) == {DATA: 20, SYNC: 10}


def test_syncs_count_only_while_they_are_watched(reader):
    syncs = reader.story.syncs = Syncs(on_cuda=False)
    for watching in (None, True, False):
        if watching is not None:
            reader.read((t.WATCH, 0, watching))
        reader.read((t.SYNC_BEGINS, 0), (t.SYNC_ENDS, 1, LINE), (t.STEP, 1, A), (t.STEPPED, 2, A))
    (row,) = syncs.rows(steps=0, optimizer_steps_a_step=1.0)
    assert (row.calls, row.per_step) == (1, 1.0)


def test_a_copy_is_timed_and_counted(reader):
    copies = reader.story.copies = Copies()
    copies.timing = True
    key = CopyKey(LINE.code, 1, pinned=True, blocking=False)
    reader.read((t.COPY_BEGINS, 0), (t.COPY_ENDS, 2_000_000, (key, 64)), (t.COPY_BEGINS, 5_000_000))
    reader.read((t.COPY_ENDS, 6_000_000, None))
    (row,) = copies.rows(steps=1)
    assert (row.bytes_per_step, row.ms_per_step) == (64, 2.0)
    assert reader.spent(6_000_000) == {COPY: 3_000_000, REST: 3_000_000}


# Spans


def test_spans_are_phases_and_include_everything_inside_them(reader):
    second = 1_000_000_000
    reader.read(
        (t.SPAN, 0, "outer"),
        (t.SPAN, 1 * second, "inner"),
        (t.CALL, 2 * second),
        (t.CALLED, 4 * second),
        (t.SPANNED, 5 * second, "inner"),
        (t.SPANNED, 6 * second, "outer"),
        (t.SPAN, 6 * second, "inner"),
        (t.SPANNED, 7 * second, "inner"),
    )
    assert reader.spent(7 * second) == {"span:outer": 2 * second, "span:inner": 3 * second, FORWARD: 2 * second}
    assert reader.story.spans == {"outer": [1, 6.0], "inner": [2, 5.0]}


def test_a_span_that_began_before_the_tape_is_not_reported(reader):
    reader.read((t.SPANNED, 5, "work"))
    assert reader.story.spans == {}
    assert reader.spent(5) == {REST: 5}


# The phase under way


@pytest.mark.parametrize(
    ("read", "unread", "phase"),
    [
        ([], [], REST),
        ([(t.CALL, 0)], [], FORWARD),
        ([], [(t.CALL, 0)], FORWARD),
        ([], [(t.CALL, 0), (t.CALLED, 1)], REST),
        ([(t.CALL, 0)], [(t.CALLED, 1)], REST),
        ([(t.SPAN, 0, "epoch"), (t.FETCH, 0, OTHER)], [(t.FETCHED, 1)], "span:epoch"),
        ([(t.SPAN, 0, "epoch")], [(t.SPANNED, 1, "epoch")], REST),
        ([(t.CALL, 0)], [(t.SPAN, 1, "attention")], "span:attention"),
        ([(t.CALL, 0)], [(t.SYNC_BEGINS, 1), (t.SYNC_ENDS, 2, LINE)], FORWARD),
        ([(t.CALL, 0)], [(t.CALLED, 1, None, ELSEWHERE), (t.FETCH, 1, OTHER, ELSEWHERE)], FORWARD),
        ([(t.CALL, 0)], [(t.PAUSE, 1, 5, 0), (t.WATCH, 1, True)], FORWARD),
        ([(t.FETCH, 0, OTHER)], [(t.ITERATE, 0, "unknown"), (t.ITERATED, 1), (t.ITERATED, 1, (None, 0))], DATA),
        ([(t.CALL, 0, (True, 0))], [], EVALUATION),
        ([], [(t.CALL, 0, (True, 0)), (t.CALLED, 1)], EVALUATION),
        ([(t.CALL, 0, (True, 0)), (t.CALLED, 1)], [(t.FETCH, 2, TRAINING)], DATA),
        ([(t.CALL, 0, (True, 0)), (t.CALLED, 1)], [(t.CALL, 2)], FORWARD),
        ([], [(t.FETCH, 2, CHECKING)], EVALUATION),
        ([], [(t.ITERATE, 2, EVALUATES)], EVALUATION),
    ],
)
def test_the_phase_under_way_is_known_before_the_tape_is_read(reader, read, unread, phase):
    reader.loader(TRAINING).role, reader.loader(CHECKING).role = TRAIN, EVALUATES
    reader.read(*read)
    before = list(reader.story.clock.names), list(reader.story.clock.totals)
    assert reader.story.phase_now([entry(*fields) for fields in unread]) == phase
    assert before == (reader.story.clock.names, reader.story.clock.totals), "looking changes nothing"
