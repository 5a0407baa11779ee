"""Claims measured in rounds: programs take turns, and each figure compares epochs of the same round."""

from __future__ import annotations

import math
import os
import random
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace

import psutil
import pytest

from hotlap.judge.ratio import Ratio
from tests.bench.benches import lines_of, run_of
from tests.test_claims import BENCHMARKS, BOOK, claim_of, record_of, session, shown, taken  # isort: split

import claims
import claims_book
import claims_record
import claims_rounds
import render_claims
from claims_record import NAIVE, NAIVE_AGAIN, Claims, Taken

__all__ = ["session"]  # a fixture


TOY = """
import multiprocessing, os, sys, threading, time

def note(what):
    with open(DATA + "/notes.txt", "a") as file:
        file.write(what + "\\n")

def epoch_line(number):
    print(f"epoch {number}  loss 1.0  rmse 0.1  seconds 0.01", flush=True)

words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
DATA, MODE = words["--data"], words.get("--mode", "naive")
if __name__ == "__main__":
    note(f"{MODE} pid {os.getpid()}")
    print("train 10 samples  valid 1 samples", flush=True)
    for number in range(1, int(words["--epochs"]) + 1):
        note(f"{MODE} begins {number}")
        if (MODE, number) == ("dies", 2):
            sys.exit("boom")
        if (MODE, number) == ("hangs", 2):
            time.sleep(600)
        if MODE == "works" and number == 2:
            for way in ("fork", "spawn", "forkserver"):
                worker = multiprocessing.get_context(way).Process(target=epoch_line, args=(number,))
                worker.start()
                worker.join()
                note(f"{MODE} {way} {worker.exitcode}")
            thread = threading.Thread(target=epoch_line, args=(number,))
            thread.start()
            thread.join()
        time.sleep(0.02)
        note(f"{MODE} ends {number}")
        print("valid_seconds 0.5", flush=True)
        epoch_line(number)
    print("final rmse 0.1 target 0.2 reached", flush=True)
    time.sleep(600 if MODE == "stays" else 0)
"""


@pytest.fixture
def toys(session, tmp_path, monkeypatch):
    """A session whose changes do not train but note their turns in notes.txt."""
    monkeypatch.setenv("PYTHONPATH", str(claims.AT_START))
    (tmp_path / "workloads" / "toy").mkdir(parents=True)
    (tmp_path / "workloads" / "toy" / "naive.py").write_text(TOY)
    changes = {name: toy(name) for name in ("one", "two", "three", "dies", "hangs", "stays", "works")}
    task = claims_book.Task(name="toy", epochs={"tiny": 3}, edits=())
    book = claims_book.Book(reports={}, does_not_follow={}, tasks={"toy": task}, changes=changes, claims=())
    return replace(session, book=book, place=tmp_path / "workloads", max_seconds=60.0)


def toy(name: str) -> claims_book.Change:
    return claims_book.Change(
        name=name, workload="toy", arguments={"": ("--mode", name)}, edits=(), together=(), against=None, undone=False,
        not_on={},
    )  # fmt: skip


def toy_record(*blocks: tuple[str, ...], **more) -> Claims:
    return record_of(blocks=blocks, epochs={"toy": 4}, repeats=1, method="rounds", **more)


def notes(session: claims.Session, *words: str) -> list[list[str]]:
    """The lines of notes.txt whose second field is one of the words."""
    found = [line.split() for line in (session.out.parent / "notes.txt").read_text().splitlines()]
    return [fields for fields in found if fields[1] in words]


def endings(record: Claims) -> dict[str, str]:
    return {entry.run.arm: entry.run.ended for entry in record.taken}


def test_one_arm_trains_at_a_time_and_the_order_rotates(toys):
    record = claims_rounds.perform(toys, toy_record(("one", "two", "three")))
    assert set(endings(record).values()) == {"trained"}
    turns = [note for note in notes(toys, "begins", "ends") if note[2] != "1"]
    assert all(begins[::2] == ends[::2] for begins, ends in zip(turns[::2], turns[1::2], strict=True))
    assert [turn[0] for turn in turns[::2]] == [
        "naive", "one", "naive", "two", "three",
        "one", "naive", "two", "three", "naive",
        "naive", "two", "three", "naive", "one",
    ]  # fmt: skip
    assert {entry.run.arm for entry in record.taken} == {NAIVE, NAIVE_AGAIN, "one", "two", "three"}
    assert claims_record.load(toys.out) == record
    assert claims_rounds.blocks_left(record) == []


def test_an_arm_that_dies_or_hangs_is_recorded_as_broken_and_the_others_continue(toys):
    record = claims_rounds.perform(replace(toys, max_seconds=4.0), toy_record(("dies", "hangs", "stays")))
    assert endings(record) == {
        NAIVE: "trained", NAIVE_AGAIN: "trained", "dies": "failed", "hangs": "time limit", "stays": "time limit"
    }  # fmt: skip
    whys = {entry.run.arm: entry.run.why for entry in record.taken}
    assert whys["dies"] == "exit code 1: boom"
    assert whys["hangs"] == "start, an epoch or end took more than 0.0667 min, the limit of --max-minutes"
    assert claims_rounds.blocks_left(record) == []


def test_workers_and_other_threads_never_wait_for_a_turn(toys):
    record = claims_rounds.perform(toys, toy_record(("works",)))
    assert set(endings(record).values()) == {"trained"}
    assert notes(toys, "fork", "spawn", "forkserver") == [
        ["works", "fork", "0"], ["works", "spawn", "0"], ["works", "forkserver", "0"]
    ]  # fmt: skip


def test_a_process_continues_when_nobody_gives_turns_any_more(toys, tmp_path):
    with tempfile.TemporaryDirectory(prefix="hotlap-") as folder, socket.socket(socket.AF_UNIX) as door:
        address = f"{folder}/turns"  # pytest's folders are too deep for the path of a socket
        door.bind(address)
        door.listen()
        words = [sys.executable, toys.place / "toy" / "naive.py", "--data", tmp_path, "--epochs", "3"]
        environment = {**os.environ, claims_rounds.ADDRESS: address}
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        line, _ = door.accept()
        assert line.recv(1)
        assert notes(toys, "begins") == [["naive", "begins", "1"]]
        line.close()
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "final rmse 0.1 target 0.2 reached"


def test_an_interruption_ends_all_processes_and_keeps_finished_blocks(toys, monkeypatch):
    wait, waits = claims_rounds.Seat.wait, []

    def interrupted(seat, until):
        waits.append(seat)
        if len(waits) == 20:  # in the second block: the first has 15
            raise KeyboardInterrupt
        wait(seat, until)

    monkeypatch.setattr(claims_rounds.Seat, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        claims_rounds.perform(toys, toy_record(("one",), ("two",), ("three",)))
    record = claims_record.load(toys.out)
    assert [entry.run.arm for entry in record.taken] == [NAIVE, NAIVE_AGAIN, "one"]
    assert claims_rounds.blocks_left(record) == [1, 2]
    assert not any(psutil.pid_exists(int(pid)) for _, _, pid in notes(toys, "pid"))
    assert claims_rounds.ADDRESS not in os.environ


def test_resuming_runs_the_remaining_blocks_and_repeats_those_where_naive_broke(toys, capsys):
    late = claims_rounds.perform(replace(toys, minutes=-1.0), toy_record(("one",), ("two",)))
    assert late.taken == ()
    assert "2 blocks are left; continue with --resume" in capsys.readouterr().err
    runs = [run_of("toy", arm, 0, lines_of([1.0], [1.0])) for arm in (NAIVE, NAIVE_AGAIN, "one")]
    broken = {arm: [replace(run, ended="failed") if run.arm == arm else run for run in runs] for arm in ("one", NAIVE)}
    left = {
        arm: claims_rounds.blocks_left(replace(late, taken=tuple(Taken(block=0, run=run) for run in some)))
        for arm, some in broken.items()
    }
    assert left == {"one": [1], NAIVE: [0, 1]}


def test_rejects_mixing_rounds_with_runs_one_by_one():
    with pytest.raises(claims.Refused, match="method one by one, but here it is rounds"):
        claims.resumed(record_of("lstm-item"), record_of("lstm-item", method="rounds"), 1, BOOK)


def test_rounds_exclude_changes_they_cannot_measure():
    assert "lstm-frames" not in [change.name for change in claims.chosen(BOOK, "cpu", None, "rounds")]
    with pytest.raises(claims.Refused, match="lstm-frames is about startup or host-memory"):
        claims.chosen(BOOK, "cpu", ["lstm-frames"], "rounds")
    found = claims.chosen(BOOK, "cpu", ["leak", "battery_fnn"], "rounds")
    assert list(dict.fromkeys(change.workload for change in found)) == ["leak", "battery_fnn"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--repeats", "2"], "leave out --repeats"),
        (["--epochs", "2"], "--rounds needs --epochs 3 or more"),
    ],
)
def test_rejects_rounds_that_could_show_nothing(capsys, arguments, words):
    with pytest.raises(SystemExit):
        claims.main(["--device", "cpu", "--rounds", "--out", "result.json", *arguments])
    assert words in capsys.readouterr().err


def rounds_of(change: str, factor: float, luck: float = 1.0, noise: float = 0.02, block: int = 0) -> tuple[Taken, ...]:
    """Nine epochs on a machine that slows down steadily; the second process of naive is slower by `luck`."""
    chance = random.Random(block)
    drift = [30.0] + [2.0 * 1.1**number for number in range(8)]
    times = {NAIVE: 1.0, NAIVE_AGAIN: luck, BOOK.changes[change].against or change: 1.0, change: 1 / factor}
    workload = BOOK.changes[change].workload
    runs = []
    for arm, times_as_long in times.items():
        seconds = [pace * times_as_long * math.exp(chance.gauss(0, noise)) for pace in drift]
        printed = tuple(line for printed_line in lines_of(seconds, [1.0] * 9) for line in _with_seconds(printed_line))
        runs.append(run_of(workload, arm, 0, printed))
    return tuple(Taken(block=block, run=run) for run in runs)


def _with_seconds(line):
    """The line, preceded for an epoch by its validation time, which is three times the training time."""
    if not line.text.startswith("epoch "):
        return (line,)
    seconds = 3 * float(line.text.split()[-1])
    return replace(line, text=f"valid_seconds {seconds}"), line


def rounds_record(change: str, *args, **more) -> Claims:
    names = [BOOK.changes[change].against, change] if BOOK.changes[change].against else [change]
    return record_of(*names, share=2, method="rounds", taken=rounds_of(change, *args, **more))


@pytest.mark.parametrize("measure", ["training", "valid_seconds"])
def test_rounds_recover_the_factor_although_the_machine_drifts(measure):
    names = [name for name in BOOK.changes if name.startswith("lstm-")]
    runs = [run for block, name in enumerate(names) for run in rounds_of(name, 1.05, block=block)]
    record = record_of(*names, method="rounds", taken=tuple(runs))
    claims_of = [claim_of("lstm-item", measured_by=name, measure=measure) for name in names]
    found = [claims_record.figure(record, claim, BOOK) for claim in claims_of]
    assert all(figure.ratio.high / figure.ratio.low < 1.12 for figure in found)
    assert sum(not figure.ratio.low <= 1.05 <= figure.ratio.high for figure in found) <= 2
    assert all(figure.first_epoch is None for figure in found)


def test_without_noise_rounds_give_the_exact_factor():
    for name, factor in (("lstm-item", 1.25), ("bloom-compile", 0.8)):
        ratio = claims_record.figure(rounds_record(name, factor, noise=0.0), claim_of(name), BOOK).ratio
        assert (ratio.low, ratio.value, ratio.high) == pytest.approx((factor,) * 3)
    undone = claims_record.figure(
        rounds_record("leak-channels-first", 0.5, noise=0.0), claim_of("leak-channels-first"), BOOK
    )
    assert undone.ratio.value == pytest.approx(2.0)


def test_a_difference_between_two_processes_of_naive_widens_every_interval():
    calm, lucky = (
        claims_record.figure(rounds_record("lstm-item", 1.05, luck=luck), claim_of("lstm-item"), BOOK).ratio
        for luck in (1.0, 1.2)
    )
    assert lucky.low < 0.9 < calm.low
    spread = claims_record.luck(rounds_record("lstm-item", 1.05, luck=1.2, noise=0.001), "training")
    assert spread.deviation == pytest.approx(math.log(1.2) / math.sqrt(2), rel=0.01)
    assert spread.freedom == 1


def test_the_interval_of_device_memory_reflects_how_much_two_naive_runs_differ():
    def with_memory(taken: Taken, mb: float) -> Taken:
        line = replace(taken.run.lines[0], text=f"device_mb {mb}")
        return replace(taken, run=replace(taken.run, lines=(*taken.run.lines, line)))

    def ratio(*peaks: float) -> Ratio:
        runs = rounds_of("lstm-item", 1.0)
        record = record_of("lstm-item", method="rounds", taken=tuple(map(with_memory, runs, peaks)))
        return claims_record.figure(record, claim_of("lstm-item", measure="device-memory"), BOOK).ratio

    same, other = ratio(300.0, 300.0, 200.0), ratio(300.0, 330.0, 200.0)
    assert (same.low, same.value, same.high) == pytest.approx((1.5, 1.5, 1.5))
    assert other.low < 1.5 < other.high


def test_start_up_and_host_memory_are_not_taken_from_rounds(tmp_path):
    name = "leak-spawn"
    seconds = {"naive": [9.0, 4.0, 4.0], name: [20.0, 2.0, 2.0]}
    alone = record_of(name, date="2026-01-01", taken=taken(name, seconds))
    rounds = replace(rounds_record(name, 1.0), date="2026-01-02")
    startup = claim_of(name, measure="startup")
    assert claims_record.figure(rounds, startup, BOOK) is None
    files = ("laptop/2026-01-01-claims.json", alone), ("laptop/2026-01-02-claims-rounds.json", rounds)
    page = shown(tmp_path, *files)
    cells = [line.split(" | ")[5] for line in page.splitlines() if line.startswith("| 6: workers by spawn")]
    assert cells[0].startswith(
        ("1.00 [", "0.99 [", "1.01 [")
    )  # the factor of training, which the older result gives as 2.00
    assert cells[0].endswith("; first epoch 9 → 20 s")  # rounds do not measure it
    assert cells[1] == "1.00 [1.00, 1.00] no gain shown"


def test_the_page_shows_how_naive_compares_with_itself_in_rounds(tmp_path):
    record = rounds_record("lstm-item", 1.05, luck=1.1, noise=0.0)
    page = shown(tmp_path, ("laptop/2026-01-02-claims.json", record))
    assert "`python claims.py`. Naive against itself: battery_lstm 0.91 [0.91, 0.91]. Raw: [" in page


def test_results_without_a_method_are_read_as_one_by_one():
    for path in (BENCHMARKS / "results").glob(render_claims.RESULTS):
        if '"method"' not in path.read_text(encoding="utf-8"):
            record = claims_record.load(path)
            assert record.method == "one by one"
            assert claims_record.controls(record) == []
