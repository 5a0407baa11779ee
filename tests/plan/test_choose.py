"""Which entries the options of the command line select, and which options are rejected."""

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


def test_a_risk_includes_everything_up_to_it_but_never_the_recipe():
    assert names(automatic(Risk.EXACT)) == ["early", "exact"]
    assert names(automatic(Risk.ROUNDING)) == ["early", "exact", "fused"]
    assert names(automatic(Risk.NUMERIC)) == ["early", "exact", "fused", "half"]
    assert "bigger-batch" not in names(automatic(Risk.TRAINING))


def test_safe_and_fast_stand_for_a_risk_and_must_not_contradict_another():
    assert risk_of("safe", None) is risk_of("safe", Risk.EXACT) is Risk.EXACT
    assert risk_of("fast", None) is Risk.ROUNDING
    assert risk_of("plan.json", Risk.NUMERIC) is Risk.NUMERIC
    assert risk_of(None, None) is None
    with pytest.raises(UnknownOptimization, match="--plan safe means --risk exact, not numeric; remove one of them"):
        risk_of("safe", Risk.NUMERIC)


def test_a_requested_entry_displaces_the_one_it_excludes():
    assert names(Changes(["graphs"], []).of(automatic(Risk.ROUNDING))) == ["early", "exact", "graphs"]


def test_requested_entries_alone_bring_nothing_else():
    plan = Changes(["X103=b", "half"], []).of(NOTHING)
    assert plan.choices == (Choice(name="fused", value="b", asked=True), Choice(name="half", asked=True))
    assert plan.title == "asked for"


def test_entries_can_be_added_to_and_removed_from_a_plan():
    plan = Changes(["early=3", "bigger_batch", "MANUAL"], ["exact"]).of(automatic(Risk.EXACT))
    assert names(plan) == ["early", "bigger-batch", "manual"]
    assert plan.choices[0].value == "3"


def test_arguments_of_enable_mean_the_same_as_the_options():
    def chosen(*plan: str | None, risk=None, **more: list[str]) -> list[str]:
        words = {"with_": [], "without": [], **more}
        return [choice.name for choice in named(plan[0] if plan else ..., risk, **words)]

    assert chosen() == chosen("safe") == chosen(risk="exact") == ["early", "exact"]
    assert chosen("fast") == chosen(risk="rounding") == ["early", "exact", "fused"]
    assert chosen(risk="numeric", without=["early"]) == ["exact", "fused", "half"]
    assert chosen(None, with_=["half"]) == ["half"]
    for plan, risk, says in [("safe", "numeric", "remove one"), (None, "exact", "remove one"), (..., "wild", "'wild'")]:
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
        (["fused=c"], [], "'c' is not one of a, b"),
        (["exact=1"], [], "it takes no value"),
        (["fused", "graphs"], [], "fused and graphs exclude each other; remove one of them"),
        (["fused", "fused=a"], [], "fused is requested twice"),
        (["fused"], ["X103"], "fused is both in --with and in --without"),
    ],
)
def test_rejects_invalid_entries_in_one_line(with_, without, says):
    with pytest.raises(UnknownOptimization) as refused:
        Changes(with_, without)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_variables_set_by_the_user_are_not_changed():
    chosen = automatic(Risk.EXACT).choices
    assert variables(chosen, {"THREADS": "7"}) == {"OTHER": "1"}
    assert variables(chosen, {}) == {"THREADS": "2", "OTHER": "1"}


def test_rejects_a_requested_entry_that_needs_a_missing_gpu(constants):
    constants(needs, DRIVERS=("/dev/no-such-driver",))
    with pytest.raises(NoDevice, match="graphs needs a GPU") as refused:
        needs.refuse_unmet(Changes(["graphs"], []).asked, {})
    assert refused.value.exit_code == 67
    needs.refuse_unmet(automatic(Risk.EXACT).choices, {})


def test_a_gpu_hidden_by_the_user_counts_as_missing(constants):
    constants(needs, DRIVERS=("/dev/null",))
    assert needs.may_have_gpu({})
    assert needs.may_have_gpu({"CUDA_VISIBLE_DEVICES": "0"})
    assert not needs.may_have_gpu({"CUDA_VISIBLE_DEVICES": ""})
