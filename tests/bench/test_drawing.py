"""A result is drawn as table, Markdown and picture, and committed results are drawn as a page."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hotlap.bench import markdown, plot, record
from hotlap.bench.summary import summarize
from hotlap.cli.bench import Progress, left_text, show
from hotlap.errors import PackageMissing
from tests.bench.benches import bench_of, lines_of, run_of, usual_bench

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def render():
    if str(BENCHMARKS / "render") not in sys.path:
        sys.path.append(str(BENCHMARKS / "render"))  # it imports its neighbours
    spec = importlib.util.spec_from_file_location("render_of_benchmarks", BENCHMARKS / "render" / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_terminal_shows_every_arm_and_every_broken_run():
    text = io.StringIO()
    show(usual_bench(), Console(file=text, width=200, highlight=False))
    shown = text.getvalue()
    (limit,) = [line for line in shown.splitlines() if "limit" in line and "sun" not in line][:1]
    assert "2.00 [" in limit
    assert shown.count(" moon ") == 1, "a workload is named once"
    assert "broken: sun accelerate, seed 0: exit code 3: a <bug> | a *star*" in shown


def test_markdown_has_a_line_for_every_row_and_names_machine_versions_and_command():
    page = markdown.page(usual_bench(), "result.svg")
    assert "![Speed against naive](result.svg)" in page
    assert "- 2026-01-01T00:00:00+00:00, `OMP_NUM_THREADS=1 hotlap bench`" in page
    assert "2 cores of test cpu" in page
    assert "torch 2.13" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(usual_bench().summary)
    assert len({row.count(" | ") for row in rows}) == 1
    assert r"a \<bug> \| a \*star\*" in page


def test_the_picture_has_a_bar_with_its_value_for_every_ratio(tmp_path):
    written = plot.draw(usual_bench(), tmp_path / "result.json")
    assert [path.name for path in written] == ["result.png", "result.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert written[0].stat().st_size > 5000
    text = written[1].read_text()
    assert text.count("2.00×") == 2
    assert all(name in text for name in ("moon", "sun", "limit", "95 % intervals"))


def test_the_same_result_gives_the_same_file(tmp_path):
    for name in ("one.json", "two.json"):
        plot.draw(usual_bench(), tmp_path / name)
    for kind in plot.FORMATS:
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_nothing_is_drawn_when_nothing_can_be_compared(tmp_path):
    assert plot.draw(bench_of(run_of("sun", "naive", 0, lines_of([1.0], [1]))), tmp_path / "result.json") == []
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PackageMissing, match=r"pip install 'hotlap\[bench\]'"):
        plot.draw(usual_bench(), tmp_path / "result.json")


def test_progress_names_the_run_and_what_is_left():
    progress = Progress(total=4)
    runs = (run_of("sun", "naive", 0, (), seconds=30.0),)
    waiting = [("sun", "limit", 1), ("sun", "naive", 1)]
    text = progress.text(("sun", "limit", 0), runs, waiting, 3, 12.0)
    assert text == "2/4 sun limit seed 0, epoch 3 done, 12 s; about 78 s left"
    assert progress.text(("sun", "naive", 0), (), waiting, 0, 1.0).endswith("starting, 1 s; time left unknown")


def test_the_time_left_has_the_unit_a_person_would_use():
    assert [left_text(seconds) for seconds in (59.6, 600.0, 9000.0)] == [
        "about 60 s left",
        "about 10 min left",
        "about 2.5 h left",
    ]


def test_without_a_terminal_every_finished_run_is_one_line(capsys):
    progress = Progress(total=2)
    trained = run_of("sun", "naive", 0, (), seconds=30.0)
    progress.running(trained.key, (), [], 1, 1.0)
    progress.ended(trained, (trained,), [("sun", "limit", 0)])
    broken = run_of("sun", "limit", 0, (), ended="failed", why="exit code 1: boom", errors=("where", "boom"))
    progress.ended(broken, (trained, broken), [])
    assert capsys.readouterr().err == (
        "1/2 sun naive seed 0: trained, 30.0 s; about 30 s left\n"
        "2/2 sun limit seed 0: broken, exit code 1: boom, 20.0 s\n"
        "    where\n"
        "    boom\n"
    )


def test_the_committed_page_is_rendered_from_the_committed_results(render):
    assert (BENCHMARKS / "README.md").read_text(encoding="utf-8") == render.page(BENCHMARKS)


def test_committed_benches_have_a_picture_and_a_summary_of_their_raw_lines():
    for path in sorted((BENCHMARKS / "results").glob("*/*-bench*.json")):
        bench = record.load(path)
        is_drawn = path.with_suffix(".svg").exists()
        assert is_drawn or not any(row.ratio for row in bench.summary), path.name  # a single arm has no ratio to draw
        again = summarize(bench.choice, bench.tasks, bench.runs)
        for saved, made in zip(bench.summary, again, strict=True):
            assert (saved.workload, saved.arm, saved.qualities) == (made.workload, made.arm, made.qualities)
            assert saved.samples_per_second == pytest.approx(made.samples_per_second)
            assert (saved.ratio and saved.ratio.value) == pytest.approx(made.ratio and made.ratio.value)


def test_the_page_shows_benches_and_overheads_of_every_machine(render, tmp_path):
    folder = tmp_path / "results" / "laptop"
    folder.mkdir(parents=True)
    record.save(usual_bench(), folder / "2026-01-01-bench.json")
    overhead = json.loads(next((BENCHMARKS / "results").glob("*/*-overhead.json")).read_text())
    overhead["machine"] |= {"gpu": None, "cores": 64, "cpu": "Z80"}
    (folder / "2026-01-01-overhead.json").write_text(json.dumps(overhead))
    render.draw_missing(tmp_path)
    page = render.page(tmp_path)
    assert "![Speed against naive](results/laptop/2026-01-01-bench.svg)" in page
    assert (folder / "2026-01-01-bench.svg").exists()
    assert "| moon | limit |" in page
    assert "| 64 cores of Z80 |" in page


def test_the_page_shows_how_reliable_the_prover_is(render, tmp_path):
    folder = tmp_path / "results" / "laptop"
    folder.mkdir(parents=True)
    common = {"date": "2026-01-01", "machine": {"cpu": "Z80", "cores": 64, "python": "3", "torch": "2"}}
    alike = {
        "tunes": 200, "trials_alone": 1200, "share_of_trials_called_faster": 0.04,
        "share_of_tunes_that_end_faster": 0.02,
    }  # fmt: skip
    planted = [
        {"effect": 1.05, "per_arm": count, "found": found, "promised_mean": 0.5}
        for count, found in ((2, 0.4), (4, 1.0))
    ]
    change = {
        "change": "dropout off", "workload": "leak", "added": "", "risk": "rounding", "passed": False, "why": "a | b",
        "as it should be": True,
    }  # fmt: skip
    slipped = change | {"passed": True, "as it should be": False}
    kill = {"under_way": "observing", "recorded_samples": 7}
    results = {
        "prover": {"alike": {"busy": alike}, "spread_between_processes": {"busy": 0.35}, "planted": planted},
        "prover-harm": {"harmful": [change, slipped], "harmless": [], "out of reach": []},
        "prover-kill": {
            "tunes": [{"kills": [kill, kill]}], "tunes_with_the_same_plan": 1, "samples_lost": 0, "processes_left": 0,
        },
    }  # fmt: skip
    for name, found in results.items():
        (folder / f"2026-01-01-{name}.json").write_text(json.dumps(common | found))
    page = render.page(tmp_path)

    assert "| busy | 35 % | 200 | 4 % of 1,200 | **2 %** |" in page
    assert "| 5 % | 40 % (promised 50 %) | 100 % (promised 50 %) |" in page
    assert "| dropout off | leak | rounding | rejected | a \\| b |" in page
    assert "| dropout off | leak | rounding | kept **wrong** | a \\| b |" in page
    assert "| 2 | 1 | 1 | 0 of 14 | 0 |" in page
    assert "| observing | 2 |" in page
    assert "64 cores of Z80, torch 2, Python 3, 2026-01-01. Raw: [2026-01-01-prover-kill.json]" in page


def test_the_page_shows_what_every_arm_learned_with_every_seed(render, tmp_path):
    folder = tmp_path / "results" / "here"
    benched, later = (
        bench_of(*(run_of("moon", arm, seed, lines_of([1.0, 1.0], [0.5, metric])) for arm, seed, metric in runs))
        for runs in ([("naive", 0, 0.2), ("engine", 0, 0.1)], [("engine", 1, 0.3), ("naive", 0, 0.15)])
    )
    record.save(benched, folder / "2026-01-01-bench.json")
    record.save(replace(later, date="2026-01-02T00:00:00+00:00"), folder / "2026-01-02-quality.json")

    page = render.page(tmp_path)

    assert "| size | workload | target | naive | engine |" in page
    assert "| tiny | moon | rmse 0.25 | 0.1500 | 0.1000, 0.3000 *missed* |" in page
    assert "[2026-01-02-quality.json](results/here/2026-01-02-quality.json)" in page
    assert page.count("### Bench on") == 1, "its speeds mean nothing"
