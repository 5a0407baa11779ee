"""hotlap report finds the run, the format and the output, and gives one clear line when it cannot."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest

from hotlap import store
from hotlap.diagnose import diagnose
from tests.observations import input_bound
from tests.report import tunings

COMMAND = ("python", "train.py")


@pytest.fixture
def typed(monkeypatch, tmp_path, command_line):
    """Types `hotlap report …` and returns the exit code, stdout and stderr."""
    monkeypatch.setenv("HOTLAP_DIR", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    return lambda *words, verb="report": command_line(verb, *words)


def profile(root: Path) -> store.Run:
    run = store.create(COMMAND, root / "kept")
    run.save("observation", input_bound())
    run.save("diagnosis", diagnose(input_bound()))
    return run


@pytest.fixture
def tune(tmp_path) -> store.Run:
    run = profile(tmp_path)
    run.save("tuning", tunings.small())
    return run


def test_the_report_is_shown_in_the_terminal_without_a_format(typed, tune):
    code, out, _ = typed()
    assert code == 0
    assert out.startswith("Proven 2.40 times as fast")


def test_html_goes_into_the_run_folder_and_its_path_is_printed(typed, tune):
    code, out, _ = typed("--html")
    assert code == 0
    assert Path(out.strip()) == tune.folder / "report.html"
    assert (tune.folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_markdown_and_json_go_to_stdout(typed, tune):
    assert typed("--markdown")[1].startswith("### Proven 2.40 times as fast")
    assert json.loads(typed("--json")[1])["report"]["state"] == "faster"


def test_show_reports_a_tune_or_a_profile(typed, tune, tmp_path):
    assert typed(tune.id, verb="show")[1].startswith("Proven 2.40 times as fast")
    assert typed("--markdown", tune.id, verb="show")[1].startswith("### Proven 2.40 times as fast")
    assert json.loads(typed("--json", tune.id, verb="show")[1])["report"]["state"] == "faster"
    alone = profile(tmp_path)
    assert set(json.loads(typed("--json", alone.id, verb="show")[1])) == {"observation", "diagnosis"}
    code, _, page = typed("--json", "--markdown", verb="show")
    assert (code, "exclude each other" in page) == (2, True)


@pytest.mark.parametrize(("file", "start"), [("a/b.html", "<!doctype html>"), ("b.md", "### Proven"), ("c.json", "{")])
def test_the_suffix_of_the_file_determines_the_format(typed, tune, tmp_path, file, start):
    assert typed("--output", file)[0] == 0
    assert (tmp_path / file).read_text(encoding="utf-8").startswith(start)


def test_a_dash_stands_for_stdout(typed, tune):
    assert typed("--html", "--output", "-")[1].startswith("<!doctype html>")
    assert not (tune.folder / "report.html").exists()


def test_a_profile_has_its_own_pages(typed, tmp_path):
    run = profile(tmp_path)
    assert typed(run.id)[1].startswith("Input-bound")
    assert typed(run.id, "--markdown")[1].startswith("### Input-bound")
    assert set(json.loads(typed(run.id, "--json")[1])) == {"observation", "diagnosis"}
    assert "<h1>Input-bound" in typed(run.id, "--html", "--output", "-")[1]


def test_a_tune_without_its_profile_still_has_a_report(typed, tune):
    (tune.folder / "observation.json").unlink()
    (tune.folder / "diagnosis.json").unlink()
    code, out, _ = typed(tune.id, "--markdown")
    assert code == 0
    assert "The profile of the baseline was not saved" in out


def test_open_writes_the_page_and_opens_the_browser(typed, tune, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    assert typed("--open")[0] == 0
    assert opened == [(tune.folder / "report.html").resolve().as_uri()]


def test_a_missing_browser_is_reported_with_the_path_of_the_page(typed, tune, answering):
    answering(webbrowser, open=False)
    code, _, err = typed("--open")
    assert code == 1
    assert err == f"hotlap: could not open a browser; the report is in {tune.folder / 'report.html'}\n"


class TestOneClearLine:
    def test_rejects_an_unknown_run(self, typed, tune):
        code, _, err = typed("nonsense")
        assert (code, err) == (72, f"hotlap: no run named nonsense; the newest is {tune.id}; list them: hotlap runs\n")

    def test_reports_that_there_are_no_runs(self, typed):
        code, _, err = typed()
        assert code == 72
        assert err.startswith("hotlap: no runs in ")

    def test_rejects_a_run_without_records(self, typed, tmp_path):
        run = store.create(COMMAND, tmp_path / "kept")
        code, _, err = typed(run.id)
        assert code == 72
        assert err.startswith(f"hotlap: {run.folder} holds no result, since it ended too early; choose another")

    @pytest.mark.parametrize("name", ["tuning", "observation", "diagnosis"])
    @pytest.mark.parametrize("text", ["{", '{"schema": 1}', '{"schema": 99}', "[]"])
    def test_rejects_a_damaged_record(self, typed, tune, name, text):
        (tune.folder / f"{name}.json").write_text(text)
        code, _, err = typed("--html")
        assert code == 74
        assert err.count("\n") == 1
        assert f"{name}.json" in err

    def test_reports_a_record_that_cannot_be_read(self, typed, tune):
        (tune.folder / "tuning.json").unlink()
        (tune.folder / "tuning.json").mkdir()
        code, _, err = typed("--html")
        assert code == 74
        assert err == f"hotlap: {tune.folder}/tuning.json is a folder, not a file; run the command again\n"

    def test_reports_an_unwritable_output(self, typed, tune, tmp_path):
        (tmp_path / "taken").write_text("a file")
        code, _, err = typed("--html", "--output", "taken/report.html")
        assert code == 73
        assert err.startswith("hotlap: cannot write taken/report.html (")
        assert err.endswith("choose another place: --output FILE\n")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--html", "--json"), "--html and --json exclude each other"),
            (("--output", "report.txt"), "report.txt does not tell the format; add --html, --markdown or --json\n"),
            (("--open", "--markdown"), "--open needs an HTML file"),
            (("--open", "--output", "-"), "--open needs an HTML file"),
        ],
    )
    def test_rejects_wrong_usage(self, typed, tune, words, message):
        code, _, err = typed(*words)
        assert code == 2
        assert message in err
