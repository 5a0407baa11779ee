"""What is applied for which words on the command line, and what is refused."""

from __future__ import annotations

import json

import pytest

from hotlap import catalog
from hotlap.catalog.entry import Entry, OneOf, WholeNumber
from hotlap.errors import NoDevice, PlanUnusable, UnknownOptimization
from hotlap.model.codec import to_json
from hotlap.model.plan import Choice, Circumstances, Plan, Risk
from hotlap.plan import choose as room
from hotlap.plan import needs
from hotlap.plan.choose import automatic, choose, variables

PROVEN = Circumstances(command=("python",), source="0", torch="2.13", hardware="2 cores")


def entry(code, risk, **more) -> Entry:
    return Entry(code=code, title=code, risk=risk, apply=lambda site: None, detect=lambda seen: None, **more)


@pytest.fixture(autouse=True)
def catalogue(monkeypatch):
    """A catalogue of seven, so that these tests do not change with the real one."""
    found = {
        "early": entry("X101", Risk.EXACT, order=10, values=WholeNumber(1, 8)),
        "exact": entry("X102", Risk.EXACT, environment=lambda value, environ: {"THREADS": "2", "OTHER": "1"}),
        "fused": entry("X103", Risk.ROUNDING, conflicts=frozenset({"graphs"}), values=OneOf(("a", "b"))),
        "graphs": entry("X104", Risk.ROUNDING, device="cuda"),
        "half": entry("X105", Risk.NUMERIC),
        "bigger-batch": entry("X106", Risk.TRAINING),
        "manual": entry("X107", Risk.EXACT, automatic=False, order=90),
    }
    for module in (catalog, room, needs):
        monkeypatch.setattr(module, "entries", lambda: found)
    return found


def names(plan: Plan) -> list[str]:
    return [choice.name for choice in plan.choices]


def test_safe_is_what_changes_no_number_and_fast_adds_rounding():
    assert names(automatic("safe")) == ["early", "exact"]
    assert names(automatic("fast")) == ["early", "exact", "fused"]


def test_of_two_that_exclude_each_other_a_plan_takes_the_first_and_an_asked_one_goes_before():
    assert names(choose("fast", ["graphs"], [])) == ["early", "exact", "graphs"]


def test_asked_for_alone_means_nothing_else():
    plan = choose(None, ["X103=b", "half"], [])
    assert plan.choices == (Choice(name="fused", value="b", asked=True), Choice(name="half", asked=True))
    assert plan.title == "asked for"


def test_a_plan_can_be_added_to_and_taken_from():
    plan = choose("safe", ["early=3", "bigger_batch", "MANUAL"], ["exact"])
    assert names(plan) == ["early", "bigger-batch", "manual"]
    assert plan.choices[0].value == "3"


@pytest.mark.parametrize(
    ("with_", "without", "says"),
    [
        (["fussed"], [], "no optimisation is called fussed; did you mean fused"),
        ([], ["fussed"], "did you mean fused"),
        (["bigr"], [], "did you mean bigger-batch?"),
        (["batc=2"], [], "did you mean bigger-batch?"),
        (["amp"], [], "no optimisation is called amp; see them all: hotlap list"),
        (["x109"], [], "did you mean X10"),
        (["zzzzzz"], [], "see them all: hotlap list"),
        (["h201"], [], "item-in-loop is found in the source, not applied to a run; see: hotlap explain item-in-loop"),
        (["early=0"], [], "'0' is not a whole number from 1 to 8; see: hotlap explain early"),
        (["early=nine"], [], "'nine' is not a whole number from 1 to 8"),
        (["early="], [], "'' is not a whole number"),
        (["fused=c"], [], "'c' is none of a, b"),
        (["exact=1"], [], "it takes no value"),
        (["fused", "graphs"], [], "fused and graphs exclude each other; leave one of them out"),
        (["fused", "fused=a"], [], "fused is asked for twice"),
        (["fused"], ["X103"], "fused is both in --with and in --without"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(with_, without, says):
    with pytest.raises(UnknownOptimization) as refused:
        choose("safe", with_, without)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def written(path, *choices: Choice, **more) -> str:
    path.write_text(to_json(Plan(schema=1, title="tune 1", choices=choices, **more)))
    return str(path)


def test_a_plan_is_read_from_a_file_and_is_no_longer_proven_once_changed(tmp_path):
    file = written(tmp_path / "p.json", Choice(name="half"), Choice(name="early", value="2"), proven=PROVEN)
    plan = choose(file, [], [])
    assert names(plan) == ["early", "half"]
    assert plan.proven == PROVEN
    assert choose(file, ["exact"], []).proven is None
    assert choose(file, [], ["half"]).proven is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot read the plan"),
        ("", "char 0)); make it again with hotlap tune; or use --plan safe"),
        ('{"schema": 1, "tit', "is not valid JSON"),
        ("\udcff", "cannot read the plan"),
        ("[]", "is not a record of hotlap"),
        ('{"schema": 1}', "is not a record of hotlap"),
        ('{"schema": 99, "title": "", "choices": []}', "schema 99, this hotlap reads up to 1; upgrade"),
        (json.dumps({"schema": 1, "title": "", "choices": [{"name": "gone"}]}), "names gone, which this hotlap"),
        (json.dumps({"schema": 1, "title": "", "choices": [{"name": "early", "value": "99"}]}), "not a whole number"),
        (json.dumps({"schema": 1, "title": "", "choices": [{"name": "fused"}, {"name": "graphs"}]}), "exclude each"),
        (json.dumps({"schema": 1, "title": "", "choices": [{"name": "half"}, {"name": "half"}]}), "asked for twice"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_used_is_refused_in_one_line(text, says, tmp_path):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(PlanUnusable) as refused:
        choose(str(path), [], [])
    assert says in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 79


def test_variables_the_user_has_set_stay():
    chosen = choose("safe", [], []).choices
    assert variables(chosen, {"THREADS": "7"}) == {"OTHER": "1"}
    assert variables(chosen, {}) == {"THREADS": "2", "OTHER": "1"}


def test_asked_for_what_needs_a_gpu_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(needs, "DRIVERS", ("/dev/no-such-driver",))
    with pytest.raises(NoDevice, match="graphs needs a GPU") as refused:
        needs.refuse_unmet(choose(None, ["graphs"], []).choices, {})
    assert refused.value.exit_code == 67
    needs.refuse_unmet([Choice(name="graphs")], {})  # brought along by a plan: it says itself that it has no effect
    needs.refuse_unmet(choose("safe", [], []).choices, {})


def test_a_gpu_hidden_by_the_user_is_none(monkeypatch):
    monkeypatch.setattr(needs, "DRIVERS", ("/dev/null",))
    assert needs.may_have_gpu({})
    assert needs.may_have_gpu({"CUDA_VISIBLE_DEVICES": "0"})
    assert not needs.may_have_gpu({"CUDA_VISIBLE_DEVICES": ""})
