"""The claims of the five reports: which change each one measures, how it is measured, and the page rendered from it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from hotlap.bench import workloads
from hotlap.judge.ratio import Ratio
from tests.bench.benches import lines_of, run_of
from tests.bench.conftest import MACHINE

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS / "claims"))  # the modules import their neighbours
import claims  # noqa: E402
import claims_book  # noqa: E402
import claims_record  # noqa: E402
import render_claims  # noqa: E402
from claims_record import Claims, Taken  # noqa: E402

PLACE = workloads.folder()
BOOK = claims_book.read()


@pytest.fixture
def session(tmp_path, answering):
    answering(claims.data, make=tmp_path)
    out = tmp_path / "result.json"
    return claims.Session(book=BOOK, place=PLACE, out=out, minutes=None, max_seconds=None)


def record_of(*names: str, share: int = 1, **more) -> Claims:
    changes = [BOOK.changes[name] for name in names]
    tasks = sorted({change.workload for change in changes})
    usual = {
        "schema": 1, "benchmark": "claims", "date": "2026-01-01T00:00:00+00:00", "command": "python claims.py",
        "machine": MACHINE, "versions": {"torch": "2.13"}, "environment": {}, "device": "cpu", "size": "tiny",
        "repeats": 2, "epochs": dict.fromkeys(tasks, 3), "host_memory": "PSS",
        "sources": dict.fromkeys(tasks, "0"),
        "changes": {change.name: BOOK.fingerprint(change, "cpu", "tiny") for change in changes},
        "blocks": tuple(claims.blocks_of(changes, share)), "taken": (),
    }  # fmt: skip
    return Claims(**(usual | more))


def taken(change: str, seconds: dict[str, list[float]], **more) -> tuple[Taken, ...]:
    """Two runs of naive and two of the change, with these seconds per epoch."""
    workload = BOOK.changes[change].workload
    runs = [
        run_of(workload, arm, repeat, lines_of([second * (1 + 0.001 * repeat) for second in epochs], [1.0] * 3), **more)
        for repeat in range(2)
        for arm, epochs in seconds.items()
    ]
    return tuple(Taken(block=0, run=run) for run in runs)


def claim_of(change: str, **more):
    found = next(claim for claim in BOOK.claims if claim.measured_by == change)
    return replace(found, **more)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_change_applies_to_the_current_workloads_and_gives_valid_python(device):
    for change in BOOK.changes.values():
        files: dict[str, str] = {}
        for edit in BOOK.edits(change, change.workload, device):
            before = files.get(edit.file) or (PLACE / change.workload / edit.file).read_text(encoding="utf-8")
            files[edit.file] = claims_book.edited(before, edit)
        for text in files.values():
            ast.parse(text)
        own = [*change.edits, *change.together, *change.arguments.get("", change.arguments.get("report", ()))]
        assert own, f"{change.name} changes nothing"


def test_every_change_belongs_to_a_claim_or_to_another_change():
    used = {claim.measured_by for claim in BOOK.claims}
    used |= {name for change in BOOK.changes.values() for name in change.together}
    assert set(BOOK.changes) <= used


def test_every_report_has_claims_and_every_claim_says_why_in_a_sentence():
    assert {claim.report for claim in BOOK.claims} == set(BOOK.reports)
    for claim in BOOK.claims:
        assert claim.why.endswith("."), claim.change


def test_runs_of_naive_and_of_a_change_are_interleaved_a_b_b_a():
    keys = claims.schedule(record_of("lstm-item", "leak-fused"), BOOK)
    assert [(block, arm, seed) for block, (_, arm, seed) in keys] == [
        (0, "naive", 0), (0, "lstm-item", 0), (0, "lstm-item", 1), (0, "naive", 1),
        (1, "naive", 0), (1, "leak-fused", 0), (1, "leak-fused", 1), (1, "naive", 1),
    ]  # fmt: skip


def test_a_block_holds_changes_of_one_workload_and_the_change_they_are_compared_with():
    names = ("leak-fused", "leak-inplace", "leak-spawn", "bloom-loader", "bloom-compile")
    assert claims.blocks_of([BOOK.changes[name] for name in names], 2) == [
        ("leak-fused", "leak-inplace"),
        ("leak-spawn",),
        ("bloom-loader", "bloom-compile"),
    ]
    chosen = claims.chosen(BOOK, "cpu", ["bloom-compile"])
    assert [change.name for change in chosen] == ["bloom-loader", "bloom-compile"]


def test_a_run_trains_a_changed_copy_and_leaves_the_workload_alone(session):
    seen = {}

    def run(arm, key, folder, on_line):
        source = (arm.place / key[0] / "naive.py").read_text(encoding="utf-8")
        seen[len(seen)] = (source, arm.arguments(0, "DATA", "OUT"))
        return run_of(*key, lines_of([1.0, 1.0, 1.0], [1.0] * 3))

    original = (PLACE / "battery_lstm" / "naive.py").read_text(encoding="utf-8")
    result = claims.perform(session, record_of("lstm-item", "lstm-batch", repeats=1, share=2), run)
    (naive, _), (item, _), (batch, words) = seen[0], seen[1], seen[2]
    assert "valid_seconds" in naive
    assert "loss_val" not in naive
    assert "loss_val = loss.item()" in item
    assert batch == naive
    assert words[-4:] == ["--epochs", "3", "--batch-size", "82"]
    assert [entry.run.arm for entry in result.taken] == ["naive", "lstm-item", "lstm-batch"]
    assert (PLACE / "battery_lstm" / "naive.py").read_text(encoding="utf-8") == original


def test_an_interruption_keeps_every_finished_run_and_resuming_repeats_broken_runs(session):
    planned = ["trained", "failed", "stop"]

    def run(arm, key, folder, on_line):
        outcome = planned.pop(0)
        if outcome == "stop":
            raise KeyboardInterrupt
        return run_of(*key, lines_of([1.0], [1.0]), ended=outcome)

    with pytest.raises(KeyboardInterrupt):
        claims.perform(session, record_of("lstm-item"), run)
    record = claims_record.load(session.out)
    assert [(entry.run.arm, entry.run.ended) for entry in record.taken] == [
        ("naive", "trained"),
        ("lstm-item", "failed"),
    ]
    left = claims.waiting_in(claims.resumed(record, record_of("lstm-item"), 1, BOOK), BOOK)
    assert [key[1:] for _, key in left] == [("lstm-item", 0), ("lstm-item", 1), ("naive", 1)]
    assert str(Path.home()) not in session.out.read_text()


def test_a_broken_run_is_recorded_without_folders_of_the_machine(session):
    errors = (f'File "{sys.prefix}/lib/torch/nn.py"', f"{tempfile.gettempdir()}/torchinductor/a.py: boom")

    def run(arm, key, folder, on_line):
        return run_of(*key, (), ended="failed", why=f"exit code 1: {errors[1]}", errors=errors)

    (broken, *_) = claims.perform(session, record_of("lstm-item", repeats=1), run).taken
    assert broken.run.errors == ('File "PYTHON/lib/torch/nn.py"', "TMP/torchinductor/a.py: boom")
    assert broken.run.why == "exit code 1: TMP/torchinductor/a.py: boom"


def test_no_run_starts_after_the_time_limit(session, capsys):
    result = claims.perform(replace(session, minutes=-1.0), record_of("lstm-item"), lambda *_: pytest.fail("it ran"))
    assert result.taken == ()
    assert "4 runs are left; continue with --resume" in capsys.readouterr().err


def test_resuming_adds_new_changes_and_measures_edited_changes_again():
    old = taken("lstm-item", {"naive": [1.0] * 3, "lstm-item": [1.0] * 3})
    before = record_of("lstm-item", taken=old, changes={"lstm-item": "something else"})
    after = claims.resumed(before, record_of("lstm-item", "leak-fused"), 1, BOOK)
    assert after.blocks == ((), ("lstm-item",), ("leak-fused",))
    assert {entry.run.arm for entry in after.taken} == {"naive"}
    assert len(claims.waiting_in(after, BOOK)) == 8


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"machine": replace(MACHINE, cores=64)}, "cores"),
        ({"versions": {"torch": "3"}}, "torch 2.13, but here it is 3"),
        ({"size": "small"}, "size tiny, but here it is small"),
        ({"epochs": {"battery_lstm": 9}}, "epochs of battery_lstm 3, but here it is 9"),
        ({"sources": {"battery_lstm": "1"}}, "scripts of battery_lstm 0, but here it is 1"),
    ],
)
def test_resuming_rejects_runs_that_cannot_be_compared(more, words):
    with pytest.raises(claims.Refused, match=words):
        claims.resumed(record_of("lstm-item"), record_of("lstm-item", **more), 1, BOOK)


def test_only_files_that_naive_uses_decide_whether_runs_can_be_compared(tmp_path):
    place = claims_book.make(PLACE, "leak", [], tmp_path / "workloads")
    before = claims_book.source(place, "leak")
    (place / "leak" / "fast.py").write_text("another = 1")
    (place / "leak" / "limit.py").write_text("another = 1")
    assert claims_book.source(place, "leak") == before
    for name in ("leak/naive.py", "leak/evaluation.py", "cache.py"):
        path = place / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text + "# other\n", encoding="utf-8")
        assert claims_book.source(place, "leak") != before, name
        path.write_text(text, encoding="utf-8")


def test_the_factor_is_before_over_after_without_the_first_epoch():
    seconds = {"naive": [9.0, 4.0, 4.0], "lstm-item": [20.0, 2.0, 2.0]}
    found = claims_record.figure(record_of("lstm-item", taken=taken("lstm-item", seconds)), claim_of("lstm-item"), BOOK)
    assert found.ratio.value == pytest.approx(2.0)
    assert found.ratio.low < 2.0 < found.ratio.high
    assert found.first_epoch == (9.0, 20.0)
    assert not found.stale


def test_a_change_that_undoes_what_naive_does_has_its_factor_inverted():
    name = "leak-channels-first"
    seconds = {"naive": [1.0, 2.0, 2.0], name: [1.0, 3.0, 3.0]}
    found = claims_record.figure(record_of(name, taken=taken(name, seconds)), claim_of(name), BOOK)
    assert found.ratio.value == pytest.approx(1.5)


def test_start_up_memory_and_printed_seconds_are_read_from_the_same_runs():
    run = run_of("leak", "naive", 0, lines_of([1.0, 1.0], [1.0, 1.0]), peak_device_mb=9000.0)
    texts = ("segment_seconds 5  file_seconds 7", "segment_seconds 2  file_seconds 7", "device_mb 300")
    printed = [replace(run.lines[0], text=text) for text in texts]
    run = replace(run, lines=(*run.lines, *printed))
    read = {name: [run.seconds for run in claims_record.works(run, name)] for name in
            ("startup", "host-memory", "device-memory", "segment_seconds", "file_seconds")}  # fmt: skip
    assert read == {
        "startup": [9.0],
        "host-memory": [100.0],
        "device-memory": [300.0],
        "segment_seconds": [2.0],
        "file_seconds": [7.0],
    }


def test_a_run_bound_to_some_cores_counts_only_those():
    given = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    program = "import os; print(os.cpu_count())"
    if given is not None:
        program = f"import os; os.sched_setaffinity(0, {{{given}}}); print(os.cpu_count())"
    environment = {**os.environ, "PYTHONPATH": str(claims.AT_START)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(1 if given is not None else os.cpu_count())]


def test_a_training_whose_loss_becomes_nan_is_not_called_faster():
    runs = taken("lstm-item", {"naive": [1.0] * 3, "lstm-item": [1.0] * 3})
    lost = replace(runs[1].run, lines=tuple(replace(line, text=line.text.replace("loss 1.0", "loss nan"))
                                            for line in runs[1].run.lines))  # fmt: skip
    record = record_of("lstm-item", taken=(runs[0], replace(runs[1], run=lost), *runs[2:]))
    assert claims_record.figure(record, claim_of("lstm-item"), BOOK).broken == "the loss became nan"


@pytest.mark.parametrize(
    ("interval", "factor", "words"),
    [
        ((1.04, 1.08), (1.05, 1.10), "as claimed"),
        ((0.98, 1.08), (1.05, 1.10), "too uncertain"),
        ((0.99, 1.01), (1.05, 1.10), "no gain shown"),
        ((1.01, 1.02), (1.05, 1.10), "less than claimed"),
        ((1.20, 1.30), (1.05, 1.10), "more than claimed"),
        ((0.80, 0.90), (1.05, 1.10), "a loss"),
        ((0.98, 1.02), (1.00, 1.01), "as claimed"),
        ((0.53, 1.78), (1.00, 1.01), "too uncertain"),
        ((0.95, 1.05), (0.83, 0.91), "less loss than claimed"),
        ((0.60, 0.70), (0.83, 0.91), "more loss than claimed"),
        ((1.01, 1.02), None, "a gain"),
        ((None, None), (1.05, 1.10), "too few samples to judge"),
    ],
)
def test_the_verdict_follows_from_the_interval(interval, factor, words):
    value = Ratio(value=1.0, low=interval[0], high=interval[1], resampled="runs")
    assert render_claims.verdict(value, claim_of("lstm-item", factor=factor)) == words


def test_a_change_of_the_training_is_never_a_gain_and_a_part_is_not_judged_against_the_whole():
    value = Ratio(value=2.0, low=1.9, high=2.1, resampled="runs")
    assert render_claims.verdict(value, claim_of("lstm-lookback")) == "other training"
    small = Ratio(value=1.02, low=1.01, high=1.03, resampled="runs")
    assert render_claims.verdict(small, claim_of("notes-cache")) == "a gain"


def shown(tmp_path: Path, *records: tuple[str, Claims]) -> str:
    for name, record in records:
        claims_record.save(record, tmp_path / "results" / name)
    return render_claims.page(tmp_path, BOOK)


def test_the_page_shows_the_measurement_beside_the_claim(tmp_path):
    seconds = {"naive": [9.0, 4.0, 4.0], "lstm-item": [20.0, 2.0, 2.0]}
    record = record_of("lstm-item", taken=taken("lstm-item", seconds))
    page = shown(tmp_path, ("laptop/2026-01-01-claims.json", record))
    (row,) = [line for line in page.splitlines() if line.startswith("| `.item()` once") and "(LSTM)" in line]
    cells = [cell.strip() for cell in row.split(" | ")]
    assert cells[3] == "1.05–1.10"
    assert cells[4] == "not measured yet"
    assert cells[5].startswith("2.00 [")
    assert cells[5].endswith("more than claimed; first epoch 9 → 20 s")
    assert not cells[6].startswith("expected")
    assert "2 CPU cores, size tiny" in page
    assert "pooled over all programs of a result" in page
    assert "(../benchmarks/results/laptop/2026-01-01-claims.json)" in page


def test_the_page_shows_the_newest_result_and_not_one_of_an_edited_change(tmp_path):
    def result(date: str, fast: float, **more) -> Claims:
        seconds = {"naive": [4.0] * 3, "lstm-item": [fast] * 3}
        return record_of("lstm-item", date=date, taken=taken("lstm-item", seconds), **more)

    old, new = result("2026-01-01", 2.0), result("2026-01-02", 1.0)
    page = shown(tmp_path, ("laptop/2026-01-01-claims.json", old), ("laptop/2026-01-02-claims.json", new))
    assert "| 4.00 [" in page
    assert "| 2.00 [" not in page
    stale = result("2026-01-03", 1.0, changes={"lstm-item": "something else"})
    page = shown(tmp_path, ("laptop/2026-01-03-claims.json", stale))
    assert "measured with another change than claims.toml has now: measure again" in page
    assert "| 4.00 [" not in page


def test_the_page_shows_why_a_run_broke(tmp_path):
    runs = taken("lstm-item", {"naive": [1.0] * 3})
    broken = run_of("battery_lstm", "lstm-item", 0, (), ended="failed", why="exit code 1: boom | bang")
    record = record_of("lstm-item", taken=(*runs, Taken(block=0, run=broken)))
    assert r"| broke: exit code 1: boom \| bang |" in shown(tmp_path, ("laptop/2026-01-01-claims.json", record))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "lstm-itme"], "no change or workload of that name"),
        (["--only", "lstm-autotuner"], "lstm-autotuner is not measured on cpu: cuDNN is for GPUs"),
    ],
)
def test_rejects_what_cannot_be_measured_before_anything_runs(tmp_path, capsys, arguments, words):
    assert claims.main(["--device", "cpu", "--out", str(tmp_path / "result.json"), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_existing_result_is_not_overwritten(tmp_path, capsys):
    out = tmp_path / "result.json"
    out.write_text("mine")
    assert claims.main(["--device", "cpu", "--out", str(out), "--only", "lstm-item"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "training"', 'kind = "speed"', "kind 'speed'"),
        ('by = "lstm-item"', 'by = "lstm-itme"', "measured by 'lstm-itme'"),
        ('by = "lstm-item"', "", "needs either `by` or `not_measured`"),
        ("undone = true", "undnoe = true", "undnoe"),
        ('against = "bloom-loader"', 'against = "bloom-laoder"', "names bloom-laoder, which is not there"),
    ],
)
def test_reports_a_mistake_in_claims_toml(tmp_path, old, new, words):
    wrong = tmp_path / "claims.toml"
    wrong.write_text(claims_book.BOOK.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(claims_book.BookWrong, match=words):
        claims_book.read(wrong)


def test_rejects_an_edit_that_no_longer_applies():
    edit = claims_book.Edit(file="naive.py", old="a", new="b", times=1)
    with pytest.raises(claims_book.BookWrong, match=r"naive\.py contains this text 2 times, not 1 times"):
        claims_book.edited("a a", edit)


def test_the_committed_page_is_rendered_from_the_committed_results():
    assert render_claims.PAGE.read_text(encoding="utf-8") == render_claims.page(BENCHMARKS, BOOK)


def test_committed_results_contain_no_folder_of_their_machine():
    for path in (BENCHMARKS / "results").glob(render_claims.RESULTS):
        assert "/tmp/" not in path.read_text(encoding="utf-8")
        assert "/home/" not in path.read_text(encoding="utf-8")
