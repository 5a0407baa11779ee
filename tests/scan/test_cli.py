"""hotlap scan: what it prints, what it changes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hotlap.cli import cli
from tests.scan.command import PROGRAM, TWO, scan


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def test_findings_come_with_place_reason_evidence_and_repair():
    code, text = scan("train.py", *TWO)
    assert code == 1
    assert text == (
        "H101 throttled-cleanup (high severity): remove it: torch reuses freed memory and waits where it must\n"
        "  train.py:10:9 `torch.cuda.empty_cache()` waits for the device and frees memory that the next batch needs "
        "again, every batch (fixable with --fix)\n"
        "    every batch: train.py:5 training loop (high confidence)\n"
        "H201 item-in-loop (medium severity): add up on the device, and read `total` once after the loop\n"
        "  train.py:9:18 `loss.item()` waits for the device every batch (fixable with --fix)\n"
        "    every batch: train.py:5 training loop (high confidence)\n"
        "2 findings in 1 file; 2 fixable with --fix.\n"
    )


def test_places_with_the_same_remedy_are_one_block_and_long_chains_show_their_ends(project):
    calls = "".join(f"def f{number}(x):\n    return f{number + 1}(x)\n\n\n" for number in range(3))
    read = "def f3(x):\n    print(x.mean().item(), x.sum().item())\n\n\n"
    loop = (
        "def train(model, loader):\n    for x in loader:\n        y = model(x)\n        y.backward()\n        f0(y)\n"
    )
    (project / "train.py").write_text("import torch\n\n\n" + calls + read + loop)
    text = scan("train.py", "--select", "H201")[1]
    assert text.count("H201 item-in-loop") == 1
    assert "2 places" in text
    assert "train.py:21 training loop → 3 calls between → train.py:13 calls f3" in text


def test_nothing_found_is_success(project):
    (project / "train.py").write_text("x = 1\n")
    assert scan() == (0, "Nothing found in 1 file.\n")


def test_a_folder_without_python_is_success_with_a_warning(project):
    (project / "train.py").rename(project / "train.txt")
    code, text = scan()
    assert code == 0
    assert "hotlap: warning: no Python file or notebook in ." in text
    assert "Nothing found in 0 files." in text


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_terminal_gets_lines_of_its_width_broken_between_words(columns, monkeypatch):
    unbroken = scan("train.py", *TWO)[1]
    monkeypatch.setenv("COLUMNS", str(columns))
    code, text = scan("train.py", *TWO)
    assert code == 1
    assert max(map(len, text.splitlines())) <= columns
    assert text.split() == unbroken.split()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["--select", "X999"], "no rule is called X999"),
        (["--baseline", "no.json", "train.py"], "--baseline no.json --write-baseline"),
        (["--unsafe"], "--unsafe needs --fix or --diff"),
        (["--fix", "--write-baseline"], "repair first, then write the baseline"),
        (["--statistics", "--format", "sarif"], "--format text or json"),
    ],
)
def test_usage_errors_exit_with_code_two(arguments, why):
    code, text = scan(*arguments)
    assert code == 2
    assert why in text


def test_rules_are_chosen_by_code_beginning_and_name():
    assert "H101" not in scan("--select", "H2")[1]
    assert "H201" not in scan("--select", "throttled-cleanup")[1]
    assert "H201" not in scan("--ignore", "H201,D1")[1]
    assert scan(*TWO, "--ignore", "item-in-loop", "--ignore", "H101")[0] == 0


def test_a_comment_silences_one_line(project):
    text = PROGRAM.replace("loss.item()", "loss.item()  # hotlap: ignore[H201]")
    (project / "train.py").write_text(text.replace("empty_cache()", "empty_cache()  # hotlap: ignore"))
    assert scan(*TWO)[0] == 0
    (project / "train.py").write_text(PROGRAM.replace("loss.item()", "loss.item()  # hotlap: ignore[H101]"))
    assert "H201" in scan()[1]


def test_reads_the_settings_of_the_project(project):
    (project / "pyproject.toml").write_text('[tool.hotlap]\nignore = ["H101"]\nexclude = ["old"]\n')
    (project / "old").mkdir()
    (project / "old" / "train.py").write_text(PROGRAM)
    text = scan(*TWO)[1]
    assert "H101" not in text
    assert "1 finding in 1 file" in text
    (project / "pyproject.toml").write_text("[tool.hotlap]\nselekt = []\n")
    code, text = scan()
    assert code == 2
    assert "selekt" in text
    (project / "pyproject.toml").write_text("[tool.hotlap\n")
    assert scan()[0] == 2


def test_a_baseline_hides_old_findings_even_when_lines_move(project):
    assert scan("--write-baseline", "--baseline", "known.json")[0] == 0
    (project / "train.py").write_text("# moved\n" + PROGRAM)
    assert scan("--baseline", "known.json")[0] == 0
    (project / "train.py").write_text(PROGRAM.replace("return total", "    print(loss.item())\n    return total"))
    code, text = scan("--baseline", "known.json", "--select", "H2")
    assert code == 1
    assert "1 finding " in text
    (project / "known.json").write_text("{}")
    assert scan("--baseline", "known.json")[0] == 2


def test_fix_writes_the_file_and_diff_does_not(project):
    code, text = scan("--diff")
    assert code == 1
    assert "-        torch.cuda.empty_cache()" in text
    assert (project / "train.py").read_text() == PROGRAM
    (project / "train.py").chmod(0o640)
    assert scan("--fix")[0] == 0
    fixed = (project / "train.py").read_text()
    assert "total = float(total)" in fixed
    assert (project / "train.py").stat().st_mode & 0o777 == 0o640
    assert scan("--fix")[0] == 0
    assert (project / "train.py").read_text() == fixed
    code, text = scan("--diff")
    assert (code, text.partition(";")[0]) == (0, "Nothing to repair safely")
    assert [path.name for path in project.iterdir()] == ["train.py"]


def test_a_fix_that_would_break_the_file_is_not_made(project, answering):
    from hotlap.analysis.edits.place import Tree

    answering(Tree, code="def broken(:\n")
    assert scan("--fix")[0] == 1
    assert (project / "train.py").read_text() == PROGRAM


def test_prints_github_annotations_json_markdown_and_counts():
    text = scan("--format", "github", *TWO)[1]
    assert text.startswith("::warning file=train.py,line=9,endLine=9,col=18,endColumn=29,title=H201 item-in-loop::")
    record = json.loads(scan("--format", "json", *TWO)[1])
    assert [finding["code"] for finding in record["findings"]] == ["H201", "H101"]
    assert record["findings"][0]["why"][0]["text"] == "training loop"
    assert "| `train.py:9` | H201 item-in-loop:" in scan("--format", "markdown", *TWO)[1]
    assert "     1  H201  item-in-loop\n" in scan("--statistics")[1]
    assert json.loads(scan("--statistics", "--format", "json", *TWO)[1])[0]["count"] == 1


def test_one_file_is_judged_with_the_rest_of_its_project(project):
    (project / "pyproject.toml").write_text("")
    (project / "helper.py").write_text("def note(value):\n    print(value.item())\n")
    (project / "train.py").write_text(
        "from helper import note\n" + PROGRAM.replace("total += loss.item()", "note(loss)")
    )
    text = scan("helper.py")[1]
    assert "helper.py:2:11 `value.item()`" in text
    assert "train.py:6 training loop" in text
    assert "train.py:11" not in text


def test_a_file_in_no_project_is_judged_with_what_is_beside_it(project):
    (project / "parts").mkdir()
    (project / "parts" / "__init__.py").write_text("")
    (project / "parts" / "helper.py").write_text("def note(value):\n    return value.item()\n")
    (project / "train.py").write_text(
        "from parts.helper import note\n" + PROGRAM.replace("total += loss.item()", "note(loss)")
    )
    assert "helper.py:2:" in scan("parts/helper.py", "train.py", *TWO)[1]
    assert "H201" not in scan("train.py", *TWO)[1]
    (project / "note.py").write_text("def note(value):\n    return value.item()\n")
    (project / "train.py").write_text("from note import note\n" + PROGRAM.replace("total += loss.item()", "note(loss)"))
    assert "train.py:6 training loop" in scan("note.py", *TWO)[1]


def test_only_uncertain_findings_need_pedantic(project):
    (project / "train.py").write_text(
        "import torch\nfor epoch in range(9):\n    loss = model(x)\n    loss.backward()\n    print(loss.item())\n"
    )
    assert scan("--select", "H201")[0] == 0
    assert scan("--select", "H201", "--pedantic")[0] == 1


def test_preview_rules_need_preview_or_their_name(project):
    (project / "train.py").write_text(
        "import torch\nloader = torch.utils.data.DataLoader(data, batch_size=4, non_blocking=True)\n"
    )
    assert "D201" not in scan("--select", "D")[1]
    for named in (("--select", "D", "--preview"), ("--select", "D201"), ("--select", "loader-rejects")):
        assert "D201 loader-rejects" in scan(*named)[1]
    (project / "pyproject.toml").write_text("[tool.hotlap]\npreview = true\n")
    assert "D201 loader-rejects" in scan("--select", "D")[1]
    assert scan("--select", "nothing")[0] == 2


def test_help_and_scan_import_neither_torch_nor_the_other_verbs():
    code = (
        "import sys; from hotlap.cli import main; sys.argv = ['hotlap', *sys.argv[1:]]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, 'hotlap.workflows' in sys.modules, 'libcst' in sys.modules)"
    )
    for arguments in (["--help"], ["scan", "train.py"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "False False False", done.stderr


def test_the_list_of_verbs_matches_their_help():
    for name, verb in cli.verbs.items():
        command = cli.get_command(None, name)
        assert command is not None
        first = " ".join((command.help or "").split())
        assert first.startswith(verb.help.rstrip(".")), name


def test_explain_and_list_know_the_rules():
    assert "H201" in CliRunner().invoke(cli, ["list"]).output
    assert "item-in-loop (H201)" in CliRunner().invoke(cli, ["explain", "h201"]).output


def test_the_hook_for_pre_commit_runs_scan():
    text = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    assert "entry: hotlap scan" in text
    assert "types: [python]" in text
