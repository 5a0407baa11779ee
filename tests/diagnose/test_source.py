"""A measured cost and the pattern in the source become one finding."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from hotlap import scanning
from hotlap.diagnose import diagnose
from hotlap.records.codec import from_json
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.scan_finding import Scan, ScanFinding
from hotlap.report import as_json, html, markdown, terminal
from hotlap.workflows import profile as workflow
from tests.observations import TRAIN, hot_line, input_bound, observation, on_cuda, sync, sync_bound

PROGRAM = """\
import torch

def train(model, loader, optimizer):
    for x, y in loader:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        print(
            loss.item(),
        )
"""


def scanned(line: int, code: str = "H201", name: str = "item-in-loop", **overrides) -> ScanFinding:
    values = {
        "code": code, "name": name, "path": TRAIN, "line": line, "column": 9, "end_line": line, "end_column": 20,
        "message": "`loss.item()` waits", "repair": "add up on the device", "frequency": "every batch",
        "confidence": "high", "applicability": "safe", "hints": {"for": "its fix"},
    }  # fmt: skip
    return ScanFinding(**values | overrides)


def slow_sync(line: int = 41):
    return observation(shares={"sync": 0.5, "forward": 0.5}, syncs=(sync(line=line, ms_per_step=5.0),))


def drawn(seen, diagnosis) -> str:
    console = Console(file=io.StringIO(), width=400)
    terminal(seen, diagnosis, console)
    return " ".join(console.file.getvalue().split())


def test_a_measured_line_and_a_scanned_one_become_one_finding():
    seen = slow_sync()
    found = diagnose(seen, Scan((scanned(41), scanned(60))))
    (finding,) = [finding for finding in found.findings if finding.code == "sync-in-loop"]
    assert finding.ms_per_step == pytest.approx(5.0)
    assert finding.advice == "add up on the device (hotlap scan --fix --select H201 repairs it)"
    assert "in the source: H201 item-in-loop" in finding.evidence
    assert [scan.line for scan in finding.scanned] == [41]
    assert [written.finding.line for written in found.written] == [60]


def test_a_call_over_several_lines_matches_on_any_of_them():
    found = diagnose(slow_sync(43), Scan((scanned(41, end_line=44),)))
    assert not found.written
    assert diagnose(slow_sync(45), Scan((scanned(41, end_line=44),))).written


def test_a_pattern_in_another_file_does_not_match_the_line():
    found = diagnose(slow_sync(), Scan((scanned(41, path="/elsewhere/train.py"),)))
    assert not any(finding.scanned for finding in found.findings)


def test_a_pattern_too_cheap_for_a_finding_still_has_its_measured_time():
    seen = observation(syncs=(sync(line=41, ms_per_step=0.01),), hot_lines=(hot_line("rest", 50, ms_per_step=0.2),))
    found = diagnose(seen, Scan((scanned(41), scanned(50), scanned(70))))
    assert [(written.finding.line, written.ms_per_step) for written in found.written] == [
        (50, 0.2),
        (41, 0.01),
        (70, None),
    ]


def test_advice_about_the_whole_program_joins_the_finding_it_concerns():
    workers = scanned(5, "D101", "loader-workers", repair="set num_workers", applicability="unsafe")
    found = diagnose(input_bound(), Scan((workers,)))
    (finding,) = [finding for finding in found.findings if finding.code == "data-wait"]
    assert finding.advice.endswith(" (the loader is made in train.py:5)"), (
        "the number of workers is the one that fits what was measured"
    )
    assert finding.advice.startswith(
        next(unscanned.advice for unscanned in diagnose(input_bound()).findings if unscanned.code == finding.code)
    )
    slow_sample = scanned(31, "D301", "read-in-getitem", frequency="every sample", applicability="display-only")
    (finding,) = [
        finding for finding in diagnose(input_bound(), Scan((slow_sample,))).findings if finding.code == "data-wait"
    ]
    assert finding.scanned[0].code == "D301"


@pytest.mark.parametrize("scenario", [observation, on_cuda, sync_bound, input_bound])
def test_an_empty_scan_changes_nothing(scenario):
    assert diagnose(scenario(), Scan(())) == diagnose(scenario())


def test_every_format_shows_source_findings_and_the_record_reads_back():
    seen = slow_sync()
    found = diagnose(seen, Scan((scanned(41), scanned(60, message="`b.item()` waits"))))
    page = markdown(seen, found)
    for text in (drawn(seen, found), page.replace("\\", ""), html(seen, found, "run")):
        assert "in the source: H201 item-in-loop" in text
        assert "Also in the source" in text
        assert "b.item()" in text
    data = json.loads(as_json(seen, found))["diagnosis"]
    found_in_source = next(finding for finding in data["findings"] if finding["code"] == "sync-in-loop")
    assert found_in_source["scanned"][0]["code"] == "H201"
    assert from_json(Diagnosis, json.dumps(data), "test") == found


def test_the_script_and_the_observed_files_are_scanned_but_no_library(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "lib.py").write_text(PROGRAM)
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "theirs.py").write_text(PROGRAM)
    seen = replace(
        slow_sync(), directory=str(tmp_path), command=("python", "train.py", "--lr", "0.1", "x" * 5000),
        syncs=tuple(sync(file=str(tmp_path / name), line=9) for name in ("own/lib.py", "site-packages/theirs.py")),
    )  # fmt: skip
    found = scanning.scan_program(seen)
    assert {finding.path for finding in found.findings} == {
        str(tmp_path / "train.py"),
        str(tmp_path / "own" / "lib.py"),
    }
    by_module = replace(seen, command=("python", "-m", "own.lib"), syncs=())
    assert {finding.path for finding in scanning.scan_program(by_module).findings} == {str(tmp_path / "own" / "lib.py")}
    assert scanning.scan_program(replace(seen, command=("python",), syncs=())) == Scan(())


def test_the_settings_of_the_project_apply_to_a_profile_too(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "pyproject.toml").write_text('[tool.hotlap]\nselect = ["H201"]\n')
    seen = replace(slow_sync(), directory=str(tmp_path), command=("python", "train.py"), syncs=())
    assert {finding.code for finding in scanning.scan_program(seen).findings} == {"H201"}


def test_a_scan_that_fails_does_not_harm_the_profile(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "pyproject.toml").write_text("[tool.hotlap\n")
    seen = replace(slow_sync(), directory=str(tmp_path), command=("python", "train.py"))
    found = workflow._diagnosis(seen)
    assert found.findings == diagnose(seen).findings
    assert "scanning it failed" in found.unknowns[-1]
    monkeypatch.setattr(scanning, "scan_program", None)
    assert workflow._diagnosis(seen).verdict == diagnose(seen).verdict
