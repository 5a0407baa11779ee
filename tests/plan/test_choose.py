"""What is applied for which words on the command line, and what is refused."""

from __future__ import annotations

import pytest

from hotlap.errors import NoDevice, UnknownOptimization
from hotlap.plan import needs
from hotlap.plan.choose import NOTHING, Changes, automatic, risk_of, variables
from hotlap.plan.enable_arguments import named
from hotlap.records.plan import Choice, Plan, Risk

pytestmark = pytest.mark.usefixtures("catalogue")


def names(plan: Plan) -> list[str]:
    return [choice.name for choice in plan.choices]


def test_a_risk_is_all_that_changes_no_more_and_never_the_recipe():
    assert names(automatic(Risk.EXACT)) == ["early", "exact"]
    assert names(automatic(Risk.ROUNDING)) == ["early", "exact", "fused"]
    assert names(automatic(Risk.NUMERIC)) == ["early", "exact", "fused", "half"]
    assert "bigger-batch" not in names(automatic(Risk.TRAINING))


def test_safe_and_fast_are_other_words_for_a_risk_and_must_not_contradict_one():
    assert risk_of("safe", None) is risk_of("safe", Risk.EXACT) is Risk.EXACT
    assert risk_of("fast", None) is Risk.ROUNDING
    assert risk_of("plan.json", Risk.NUMERIC) is Risk.NUMERIC
    assert risk_of(None, None) is None
    with pytest.raises(UnknownOptimization, match="--plan safe means --risk exact, not numeric; leave one of them out"):
        risk_of("safe", Risk.NUMERIC)


def test_of_two_that_exclude_each_other_a_plan_takes_the_first_and_an_asked_one_goes_before():
    assert names(Changes(["graphs"], []).of(automatic(Risk.ROUNDING))) == ["early", "exact", "graphs"]


def test_asked_for_alone_means_nothing_else():
    plan = Changes(["X103=b", "half"], []).of(NOTHING)
    assert plan.choices == (Choice(name="fused", value="b", asked=True), Choice(name="half", asked=True))
    assert plan.title == "asked for"


def test_a_plan_can_be_added_to_and_taken_from():
    plan = Changes(["early=3", "bigger_batch", "MANUAL"], ["exact"]).of(automatic(Risk.EXACT))
    assert names(plan) == ["early", "bigger-batch", "manual"]
    assert plan.choices[0].value == "3"


def test_inside_a_program_the_words_mean_the_same():
    def chosen(*plan: str | None, risk=None, **more: list[str]) -> list[str]:
        words = {"with_": [], "without": [], **more}
        return [one.name for one in named(plan[0] if plan else ..., risk, **words)]

    assert chosen() == chosen("safe") == chosen(risk="exact") == ["early", "exact"]
    assert chosen("fast") == chosen(risk="rounding") == ["early", "exact", "fused"]
    assert chosen(risk="numeric", without=["early"]) == ["exact", "fused", "half"]
    assert chosen(None, with_=["half"]) == ["half"]
    for plan, risk, says in [("safe", "numeric", "leave one"), (None, "exact", "leave one"), (..., "wild", "'wild'")]:
        with pytest.raises(UnknownOptimization, match=says):
            named(plan, risk, [], [])


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
        Changes(with_, without)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_variables_the_user_has_set_stay():
    chosen = automatic(Risk.EXACT).choices
    assert variables(chosen, {"THREADS": "7"}) == {"OTHER": "1"}
    assert variables(chosen, {}) == {"THREADS": "2", "OTHER": "1"}


def test_asked_for_what_needs_a_gpu_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(needs, "DRIVERS", ("/dev/no-such-driver",))
    with pytest.raises(NoDevice, match="graphs needs a GPU") as refused:
        needs.refuse_unmet(Changes(["graphs"], []).asked, {})
    assert refused.value.exit_code == 67
    needs.refuse_unmet(automatic(Risk.EXACT).choices, {})


def test_a_gpu_hidden_by_the_user_is_none(monkeypatch):
    monkeypatch.setattr(needs, "DRIVERS", ("/dev/null",))
    assert needs.may_have_gpu({})
    assert needs.may_have_gpu({"CUDA_VISIBLE_DEVICES": "0"})
    assert not needs.may_have_gpu({"CUDA_VISIBLE_DEVICES": ""})
