"""Scan results are cached by content; a cached result is right or it is not used."""

from __future__ import annotations

import threading

import pytest

from hotlap import scanning, store
from hotlap.records.scan_finding import Scan
from hotlap.scanning import cache
from tests.scan.command import PROGRAM, TWO, scan


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from helper import note\n" + PROGRAM.replace("total += loss.item()", "note(loss)")
    )
    (tmp_path / "helper.py").write_text("def note(value):\n    return value.item()\n")
    return tmp_path


@pytest.fixture
def scans(spied):
    """A list that grows by one with every real scan."""
    return spied(scanning, "scan")


def test_an_unchanged_tree_is_not_scanned_again(scans):
    first = scan(*TWO)
    assert scan(*TWO) == first
    assert len(scans) == 1
    assert scan(*TWO, "--no-cache") == first
    assert len(scans) == 2


def test_a_change_of_one_file_changes_what_is_found_in_another(project, scans):
    assert "helper.py:2" in scan(*TWO)[1]
    (project / "train.py").write_text("import torch\n")
    assert scan(*TWO)[0] == 0
    assert len(scans) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda project: (project / "new.py").write_text("x = 1\n"),
        lambda project: (project / "helper.py").rename(project / "other.py"),
        lambda project: (project / "helper.py").unlink(),
        lambda project: (project / "helper.py").write_text("def note(value):\n    return value.item() \n"),
        lambda project: (project / "pyproject.toml").write_text("[tool.hotlap]\npedantic = true\n"),
    ],
)
def test_any_relevant_change_causes_a_new_scan(project, scans, change):
    scan(*TWO)
    change(project)
    scan(*TWO)
    assert len(scans) == 2


def test_each_selection_of_rules_is_cached_separately(scans):
    scan("--select", "H101")
    assert "H201" in scan("--select", "H201")[1]
    assert len(scans) == 2


def test_other_files_of_the_project_invalidate_the_result(project, scans):
    (project / "pyproject.toml").write_text("")
    assert scan("helper.py", *TWO)[0] == 1
    (project / "train.py").write_text("import torch\n")
    assert scan("helper.py", *TWO)[0] == 0


@pytest.mark.parametrize("rubbish", [b"", b"{", b'{"findings": 3}', b"\xff\xfe", b"null"])
def test_damaged_results_are_computed_again(project, scans, rubbish):
    first = scan(*TWO)
    (saved,) = (store.home() / "scan").glob("*.json")
    saved.write_bytes(rubbish)
    assert scan(*TWO) == first
    assert len(scans) == 2
    assert scan(*TWO) == first
    assert len(scans) == 2


def test_an_unwritable_cache_stops_nothing(project):
    store.root().mkdir(exist_ok=True)
    store.home().write_text("a file where the folder should be")
    assert scan(*TWO)[0] == 1


def test_the_cache_is_bounded_in_number_and_size(tmp_path, monkeypatch):
    for number in range(30):
        cache.save(tmp_path / "few", f"{number}", Scan(()))
    assert len(list((tmp_path / "few").glob("*.json"))) == 16
    assert cache.load(tmp_path / "few", "29") == Scan(())
    monkeypatch.setattr(cache, "_MAX_BYTES", 100)
    for number in range(5):
        cache.save(tmp_path / "small", f"{number}", Scan(()))
    assert [path.name for path in (tmp_path / "small").glob("*.json")] == ["4.json"]


def test_concurrent_saves_leave_whole_results(project):
    folder = project / "kept"

    def save() -> None:
        for number in range(20):
            cache.save(folder, f"{number % 3}", Scan(()))

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in folder.iterdir()) == ["0.json", "1.json", "2.json"]
    assert all(cache.load(folder, name) == Scan(()) for name in "012")


def test_all_cores_find_what_one_finds(project, monkeypatch):
    from hotlap.analysis.parse import files
    from hotlap.scanning import FindingFilter, crew

    monkeypatch.setattr(crew, "_MIN_PARALLEL_BYTES", 0)
    sources, _ = files.discover(["."])
    wanted = FindingFilter(select=("H101", "H201"))
    assert crew.scan(sources, wanted, cores=3) == crew.scan(sources, wanted, cores=1)
    monkeypatch.setattr(crew, "_MAX_TREE_BYTES", 0)  # no room for trees: parsed again
    assert crew.scan(sources, wanted, cores=1) == crew.scan(sources, wanted, cores=2)


def test_a_process_that_is_killed_costs_time_and_no_findings(project, monkeypatch):
    import os

    from hotlap.analysis.parse import files
    from hotlap.scanning import FindingFilter, crew

    sources, _ = files.discover(["."])
    expected = crew.scan(sources, FindingFilter(), cores=1)
    monkeypatch.setattr(crew, "_MIN_PARALLEL_BYTES", 0)
    monkeypatch.setattr(crew, "_work", lambda line, work: os._exit(9))
    assert crew.scan(sources, FindingFilter(), cores=2) == expected
