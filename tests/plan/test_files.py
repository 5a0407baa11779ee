"""A plan file applies only what its signature and the risk allow, and a malformed file costs one line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hotlap.errors import PlanUnusable
from hotlap.plan import files, saved_plan, signature
from hotlap.plan.enable_arguments import named
from hotlap.records import private
from hotlap.records.codec import to_json
from hotlap.records.plan import Choice, Circumstances, Plan, Risk

pytestmark = pytest.mark.usefixtures("catalogue")
COMMAND = ("python", "train.py")
ALL = ("early", "fused", "half", "bigger-batch", "manual")


@pytest.fixture
def keys(tmp_path, monkeypatch) -> Path:
    """The folder of the key, beside the project."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    folder = tmp_path / "state"
    private.make_folder(folder)
    return folder


def proven(*names: str, **more) -> Plan:
    found = Circumstances(command=COMMAND, source=saved_plan.source_hash(COMMAND), torch="2.13", hardware="2 cores")
    choices = tuple(Choice(name=name, asked=True) for name in names)
    return replace(Plan(schema=1, title="tune", choices=choices, proven=found, origin=saved_plan.origin()), **more)


def written(path: Path, plan: Plan) -> Path:
    private.make_folder(path.parent)
    private.write_text(path, to_json(plan))
    return path


def names(allowed: files.PlanWithinBounds) -> list[str]:
    return [choice.name for choice in allowed.plan.choices]


# What a file may claim


@pytest.mark.parametrize(
    ("risk", "applied"),
    [
        (None, ["early"]),
        (Risk.EXACT, ["early"]),
        (Risk.ROUNDING, ["early", "fused"]),
        (Risk.NUMERIC, ["early", "fused", "half"]),
    ],
)
@pytest.mark.parametrize("claims", ["nothing", "proven", "signed by another key", "changed since"])
def test_a_plan_file_without_the_users_signature_applies_only_what_the_risk_allows(claims, risk, applied, keys):
    plan = proven(*ALL)
    if claims == "nothing":
        plan = replace(plan, proven=None, origin=None)
    elif claims == "signed by another key":
        private.make_folder(keys / "other")
        plan = signature.signed(plan, keys / "other")
    elif claims == "changed since":
        plan = replace(signature.signed(proven("early"), keys), choices=plan.choices)
    path = written(keys / "plan.json", plan)
    allowed = files.given(path, risk, COMMAND, keys)

    assert names(allowed) == applied
    assert not any(choice.asked for choice in allowed.plan.choices)
    assert allowed.plan.proven is None
    lines = {line.split(" ")[0]: line for line in allowed.lines}
    assert set(lines) == set(ALL) - set(applied)
    assert lines["manual"].endswith("a plan file cannot turn it on; request it: --with manual")
    assert lines["bigger-batch"].endswith("request it: --with bigger-batch")
    if "half" in lines:
        assert lines["half"].endswith("its risk is numeric; allow it: --risk numeric")


def test_an_entry_that_is_not_applied_is_named(keys):
    path = written(keys / "plan.json", Plan(schema=1, title="", choices=(Choice(name="manual", asked=True),)))
    text = json.loads(path.read_text())
    text["choices"][0]["value"] = None
    assert files.given(path, None).lines[0].endswith("--with manual")


def test_a_plan_proven_by_the_user_is_applied_in_full_unless_a_risk_caps_it(keys):
    path = written(keys / "plan.json", signature.signed(proven("early", "half", "manual"), keys))
    allowed = files.given(path, None, COMMAND, keys)

    assert (names(allowed), allowed.lines) == (["early", "half", "manual"], ())
    assert all(choice.asked for choice in allowed.plan.choices)
    assert allowed.plan.proven is not None
    capped = files.given(path, Risk.EXACT, COMMAND, keys)
    assert names(capped) == ["early", "manual"]
    assert capped.lines[0].startswith("half of the plan")


def test_enable_treats_no_plan_as_proven(keys, capsys):
    path = written(keys / "plan.json", signature.signed(proven("early", "half"), keys))
    assert [choice.name for choice in named(str(path), None, [], [])] == ["early"]
    assert capsys.readouterr().err.startswith("hotlap: half of the plan")


@pytest.mark.parametrize("way", ["given", "found"])
def test_a_plan_proven_for_another_command_is_replaced_by_safe_with_a_notice(way, keys):
    path = written(keys / "plan.json", signature.signed(proven("half"), keys))
    other = (*COMMAND, "--lr", "1")
    allowed = files.given(path, None, other, keys) if way == "given" else files.found(path, other, keys)
    assert names(allowed) == ["early", "exact"]
    (line,) = allowed.lines
    assert "was proven for another command (python train.py); running with the plan 'safe' instead" in line


# The key


def test_the_key_is_made_once_and_is_secret(keys):
    plan = proven("early")
    assert signature.existing(keys) is None
    assert signature.signed(plan, keys) == signature.signed(plan, keys)
    assert (keys / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in keys.iterdir()] == ["key"]


@pytest.mark.parametrize("harm", ["readable", "link", "short", "missing", "folder of all"])
def test_a_key_that_others_may_know_is_not_trusted_and_is_replaced(harm, keys):
    path = written(keys / "plan.json", signature.signed(proven("half"), keys))
    key = keys / "key"
    if harm == "readable":
        key.chmod(0o644)
    elif harm == "link":
        key.rename(keys / "moved")
        key.symlink_to(keys / "moved")
    elif harm == "short":
        private.write_text(key, "")
    elif harm == "missing":
        key.unlink()
    else:
        keys.chmod(0o777)
    assert names(files.given(path, None, COMMAND, keys)) == []
    keys.chmod(0o700)
    again = written(keys / "again.json", signature.signed(proven("half"), keys))
    if harm != "folder of all":
        assert names(files.given(path, None, COMMAND, keys)) == [], "the old signature is worth nothing"
    assert names(files.given(again, None, COMMAND, keys)) == ["half"]


def test_a_run_folder_from_a_repository_is_not_accepted_as_a_tune(keys, tmp_path):
    for name in ("mine", "theirs"):
        private.make_folder(tmp_path / name)
    signature.mark(tmp_path / "mine", keys)
    signature.refuse_unmarked(tmp_path / "mine", keys)
    with pytest.raises(private.Unfit, match="theirs was not started by your own hotlap tune"):
        signature.refuse_unmarked(tmp_path / "theirs", keys)
    (tmp_path / "mine" / signature.MARK).rename(tmp_path / "theirs" / signature.MARK)
    with pytest.raises(private.Unfit, match="started by somebody else"):
        signature.refuse_unmarked(tmp_path / "theirs", keys)


# A plan that is found automatically


@pytest.fixture
def plan_file(keys) -> Path:
    """A signed plan file that is applied automatically until a test changes it."""
    path = written(keys / "project" / "plans" / "plan.json", signature.signed(proven("half"), keys))
    assert names(files.found(path, COMMAND, keys)) == ["half"]
    return path


def refused(path: Path, keys: Path) -> str:
    allowed = files.found(path, COMMAND, keys)
    assert names(allowed) == ["early", "exact"]
    (line,) = allowed.lines
    assert "\n" not in line
    assert "running with the plan 'safe' instead" in line
    return line


def test_a_missing_plan_prints_nothing(keys):
    assert files.found(keys / "project" / "plans" / "plan.json", COMMAND, keys) is None


def test_an_unsigned_plan_is_rejected_and_the_line_says_how_to_use_it(plan_file, keys):
    written(plan_file, proven("early"))
    assert f"was not proven by your own hotlap tune; running with the plan 'safe' instead; to use it anyway: --plan {plan_file}" in refused(plan_file, keys)  # fmt: skip # noqa: E501


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_rejects_a_plan_that_others_can_write(mode, level, plan_file, keys):
    place = [plan_file, *plan_file.parents][level]
    place.chmod(place.stat().st_mode | mode)
    assert f"others can write {place}; type: chmod go-w {place}" in refused(plan_file, keys)
    place.chmod(0o700)


def test_rejects_a_plan_of_another_user(plan_file, keys, answering, constants):
    answering(os, getuid=4321)
    constants(private, ROOT=4322)
    assert "belongs to another user" in refused(plan_file, keys)


def strange(path: Path, kind: str) -> None:
    text = path.read_text()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        private.write_text(path.with_name("real.json"), text)
        path.symlink_to("real.json")
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    elif kind == "link in a circle":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        private.write(path, STRANGE[kind](text))


STRANGE = {
    "empty": lambda text: b"",
    "truncated": lambda text: text[:40].encode(),
    "no text": lambda text: b"\xff\xfe\x00",
    "a list": lambda text: b"[]",
    "deep": lambda text: b"[" * 100_000,
    "a huge number": lambda text: b'{"schema": ' + b"9" * 10_000 + b"}",
    "wrong types": lambda text: b'{"schema": 1, "title": 3, "choices": {}}',
    "wrong values": lambda text: b'{"schema": 1, "title": "", "choices": [{"name": "early", "value": "99"}]}',
    "unknown field": lambda text: text.replace('"title"', '"tilte": 1, "title"').encode(),
    "unknown field of a choice": lambda text: text.replace('"name"', '"always": true, "name"').encode(),
    "unknown entry": lambda text: text.replace('"half"', '"gone"').encode(),
    "newer": lambda text: text.replace('"schema": 1', '"schema": 99').encode(),
    "twice": lambda text: b'{"schema": 1, "title": "", "choices": [{"name": "half"}, {"name": "half"}]}',
    "exclusive": lambda text: b'{"schema": 1, "title": "", "choices": [{"name": "fused"}, {"name": "graphs"}]}',
}
KINDS = ["pipe", "folder", "link", "dangling link", "link in a circle", "device", "huge", *STRANGE]


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_plan_costs_one_line_and_the_safe_plan_applies(kind, plan_file, keys):
    strange(plan_file, kind)
    refused(plan_file, keys)


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_plan_that_was_named_is_a_one_line_error(kind, plan_file, keys):
    strange(plan_file, kind)
    with pytest.raises(PlanUnusable) as error:
        files.given(plan_file, None, COMMAND, keys)
    assert "\n" not in str(error.value)
    assert str(plan_file) in str(error.value)
    assert error.value.exit_code == 79


@pytest.mark.parametrize("kind", ["a file", "a pipe"])
def test_a_file_in_place_of_the_plans_folder_costs_one_line(kind, plan_file, keys):
    plan_file.unlink()
    plan_file.parent.rmdir()
    os.mkfifo(plan_file.parent) if kind == "a pipe" else plan_file.parent.touch()
    assert "Not a directory" in refused(plan_file, keys)
