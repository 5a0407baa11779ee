"""What the engine benchmarks record of their runs, and how the results are rendered."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hotlap.bench.surroundings import Surroundings
from hotlap.records.observation import Machine

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MACHINE = Machine(
    cpu="test cpu", cores=2, memory_mb=1024.0, system="Linux", gpu=None, gpus=0, python="3.12", torch="2.13", cuda=None,
    cudnn=None, versions={},
)  # fmt: skip


@pytest.fixture
def engine_arms(monkeypatch):
    for folder in ("engine", "recurrent", "render"):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    import engine_arms

    here = Surroundings(machine=MACHINE, versions={"torch": "2.13"}, cuda=False)
    monkeypatch.setattr(engine_arms, "look", lambda device: (here, "cpu"))
    yield engine_arms
    del sys.modules["engine_arms"]


def filled(engine_arms, path, engine="same"):
    record = engine_arms.Record(path, "engine-start", "small", "cpu")
    for number, arm in engine_arms.by_turns(record.rounds(3)):
        seconds = 8.0 if arm == "naive" else 0.5
        record.add({"round": number, "arm": arm, "seconds": [seconds], "result": engine if arm == "engine" else "same"})
    return record


def test_arms_take_turns_and_every_sample_is_saved(engine_arms, tmp_path):
    record = filled(engine_arms, tmp_path / "start.json")
    saved = json.loads((tmp_path / "start.json").read_text())
    arms = [sample["arm"] for sample in saved["samples"]]
    assert arms == ["naive", "engine", "engine", "naive", "naive", "engine"]
    assert saved["summary"]["seconds"] == {"naive": 8.0, "engine": 0.5}
    assert saved["summary"]["times_faster"]["value"] == 16.0
    assert saved["machine"]["cpu"] == "test cpu"
    assert record.summary_line().endswith("16x [16, 16] (asked: 10x), same results")


def test_continues_only_an_earlier_run_of_the_same_size(engine_arms, tmp_path):
    path = tmp_path / "start.json"
    filled(engine_arms, path)
    record = filled(engine_arms, path)
    assert sorted({sample["round"] for sample in record.samples}) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(SystemExit, match=r"start.json holds another size; choose another --out"):
        engine_arms.Record(path, "engine-start", "tiny", "cpu")


def test_differing_results_are_shown(engine_arms, tmp_path):
    record = filled(engine_arms, tmp_path / "results" / "machine" / "2026-01-01-engine-start.json", engine="other")
    assert record.summary_line().endswith("results DIFFER")
    import render_engine

    page = "\n".join(render_engine.section(tmp_path))
    assert "| 2 cores of test cpu | small, 3 rounds |" in page
    assert "| 8 s | 500 ms | 16 [16, 16] | 10 | **differ** |" in page
    assert "Files judged" not in page
    assert render_engine.section(tmp_path / "nothing") == []


def timed(kind, batch, cudnn, ours):
    point = {"kind": kind, "batch": batch, "steps": 400, "hidden": 64, "layers": 1, "features": 3}
    return {
        "point": point, "name": f"{kind} B{batch} T400 H64 L1 I3", "variant": "cuda:tile", "speedup": cudnn / ours,
        "ms": {"cudnn": [cudnn], "ours": [ours]}, "tried_ms": {}, "bytes": {"cudnn": 100, "ours": 40},
        "error": {"cudnn": 2e-4, "ours": 1e-4}
    }  # fmt: skip


def test_the_recurrent_page_shows_speedups_and_the_worst_shape(monkeypatch, tmp_path):
    for folder in ("engine", "recurrent", "render"):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    import recurrent
    import render_recurrent

    points = [timed("lstm", 200, 4.0, 2.0), timed("gru", 200, 8.0, 1.0), timed("lstm", 8192, 9.0, 10.0)]
    points.append({**timed("gru", 8192, 9.0, 10.0), "variant": "cudnn"})
    call = {"date": "2026-11-16T03:01:38.27", "command": "benchmarks/recurrent/recurrent.py"}
    about = {"gpu": "a GPU", "calls": [call]}
    about |= {"machine": "x86_64", "python": "3.12", "torch": "2.11", "cudnn": 91900}
    (tmp_path / "results" / "a").mkdir(parents=True)
    path = tmp_path / "results" / "a" / "2026-11-16-recurrent-grid.json"
    failed = {"gru B1 T1 H1 L1 I1": "by cudnn: an error", "gru B2 T1 H1 L1 I1": "by cudnn: an error"}
    content = {"about": about, "points": points, "failed": failed, "summary": recurrent.summary(points)}
    path.write_text(json.dumps(content))
    assert render_recurrent.section(tmp_path / "nothing") == []
    text = "\n".join(render_recurrent.section(tmp_path))
    assert "### 4 shapes on a GPU" in text
    assert "| kind | lstm: 1.34, gru: 2.68 |" in text
    assert "Left to cuDNN, which is faster there: 1 of 4" in text
    assert "Not measured: gru B1 T1 H1 L1 I1, gru B2 T1 H1 L1 I1, by cudnn: an error." in text
    assert "Least: 0.90 (lstm B8192 T400 H64 L1 I3)" in text
    assert "slower than cuDNN by more than 3 %: 1." in text
    assert "| layers | 1: 1.90 |" in text
    render_recurrent.draw_missing(tmp_path)
    assert "times as fast as cuDNN" in path.with_suffix(".svg").read_text()


def test_kernels_are_listed_by_name_and_in_order(monkeypatch, constants):
    for folder in ("engine", "recurrent", "render"):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    import engine_kernels

    def event(start, length, stream, name, cat="kernel"):
        return {"ts": start, "dur": length, "name": name, "cat": cat, "args": {"stream": stream}}

    events = [event(20, 5, 7, "gemm"), event(10, 4, 7, "gemm"), event(12, 6, 8, "copy", "gpu_memcpy")]
    kernels = engine_kernels.kernels_of({"traceEvents": [*events, {"name": "aten::mm", "cat": "cpu_op", "ts": 1}]})
    assert [kernel.start for kernel in kernels] == [10, 12, 20]
    assert engine_kernels.by_name(kernels)[0].split() == ["0.01", "ms", "2", "×", "4.50", "µs", "gemm"]
    assert engine_kernels.longest_idle(kernels)[0].split() == ["0.01", "ms", "idle", "2.0", "µs", "before", "gemm"]
    constants(engine_kernels, IN_A_ROW=2)
    assert [line.split() for line in engine_kernels.in_a_row(kernels)] == [
        ["0.0", "µs", "idle", "0.0", "6.0", "µs", "stream", "8", "copy"],
        ["8.0", "µs", "idle", "2.0", "5.0", "µs", "stream", "7", "gemm"],
    ]


def test_the_table_of_kills_says_what_was_lost_and_whether_a_result_differs(engine_arms, tmp_path):
    import render_engine

    def killed(way, equal):
        kills = [
            {"saved": 5, "trained": 8, "half_written": True},
            {"saved": 9, "trained": 9, "half_written": False},
        ]
        return {"way": way, "kills": kills, "equal": equal}

    machine = {"cores": 2, "cpu": "test cpu", "torch": "2.13"}
    found = {"date": "today", "machine": machine, "checkpoint_every_steps": {"ddp": 1, "fsdp": 4}}
    found["runs"] = [killed("ddp", [True, True]), killed("fsdp", [True, False])]
    (tmp_path / "results" / "here").mkdir(parents=True)
    (tmp_path / "results" / "here" / "day-engine-kill.json").write_text(json.dumps(found))
    page = "\n".join(render_engine.section(tmp_path))
    assert "| whole | 2 | 1 | 3 | 1 | the same |" in page
    assert "| shared out | 2 | 4 | 3 | – | **differ** |" in page
