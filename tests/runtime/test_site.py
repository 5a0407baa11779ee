"""A site stands between an entry and the user's program: it attributes errors, makes each call once, and undoes all."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from hotlap.catalog.entry import Entry
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.records.plan import Risk
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site


class Machine:
    """This class belongs to the program."""

    calls = 0

    def work(self, number, factor=1):
        Machine.calls += 1
        if number < 0:
            raise ValueError("below zero")
        return number * factor


@pytest.fixture(autouse=True)
def fresh():
    Machine.calls = 0


def site_of(strict: bool = False) -> Site:
    entry = Entry(code="X101", title="", risk=Risk.EXACT, apply=lambda site: None, detect=lambda seen: None)
    seams = Seams(torch, Guard(strict=strict))
    return Site("planted", entry.code, None, torch, seams, RootDiscovery(seams))


@pytest.fixture
def site():
    made = site_of()
    yield made
    made.close()


def pass_on(original, instance, args, kwargs):
    return original(*args, **kwargs)


def test_a_stand_in_may_change_arguments_and_result(site):
    site.replace(Machine, "work", lambda original, instance, args, kwargs: original(args[0] + 1, factor=10) + 1)
    assert Machine().work(2) == 31
    assert Machine.calls == 1


def test_a_module_level_function_has_no_instance(site):
    import math

    seen = []
    site.replace(math, "floor", lambda original, instance, args, kwargs: seen.append(instance) or original(*args))
    assert math.floor(2.5) == 2
    assert seen == [None]


def test_calls_that_do_not_concern_the_entry_bypass_it(site):
    seen = []

    def twice(original, instance, args, kwargs):
        seen.append(instance)
        return 2 * original(*args, **kwargs)

    ours = Machine()
    site.replace(Machine, "work", twice, concerns=lambda machine: machine is ours)
    assert (Machine().work(3), ours.work(3)) == (3, 6)
    assert seen == [ours]


def test_a_call_of_unknown_relevance_bypasses_the_entry(site):
    site.replace(Machine, "work", lambda original, *given: 0, concerns=lambda machine: 1 / 0)
    assert Machine().work(3) == 3


def test_a_users_error_passes_through_and_the_entry_stays(site):
    site.replace(Machine, "work", pass_on)
    site.applied("it works")
    with pytest.raises(ValueError, match="below zero"):
        Machine().work(-1)
    assert Machine.calls == 1
    assert site.outcome.status == "applied"


def test_an_entry_that_fails_before_the_call_is_withdrawn_and_the_call_still_runs(site):
    def fails(original, instance, args, kwargs):
        raise RuntimeError("planted")

    site.replace(Machine, "work", fails)
    site.applied("it works")
    assert Machine().work(2, factor=3) == 6
    assert Machine.calls == 1
    assert site.outcome.status == "withdrawn"
    assert "RuntimeError: planted" in site.outcome.why
    assert Machine().work(4) == 4


def test_an_entry_that_fails_after_the_call_does_not_repeat_it(site):
    def fails(original, instance, args, kwargs):
        original(*args, **kwargs)
        raise RuntimeError("planted")

    site.replace(Machine, "work", fails)
    assert Machine().work(2) == 2
    assert Machine.calls == 1
    assert site.outcome.status == "withdrawn"


def test_an_entry_that_fails_on_a_users_error_lets_that_error_through(site):
    def fails(original, instance, args, kwargs):
        try:
            return original(*args, **kwargs)
        finally:
            raise RuntimeError("planted")

    site.replace(Machine, "work", fails)
    with pytest.raises(ValueError, match="below zero"):
        Machine().work(-1)
    assert Machine.calls == 1
    assert site.outcome.status == "withdrawn"


def test_a_call_that_fails_because_of_the_entry_is_repeated_unchanged(site):
    def bends(original, instance, args, kwargs):
        try:
            return original(-1)
        except ValueError as error:
            raise RuntimeError("it does not bend") from error

    site.replace(Machine, "work", bends)
    assert Machine().work(5) == 5
    assert site.outcome.status == "withdrawn"


def test_ctrl_c_during_a_call_is_not_a_failure_of_the_entry(site):
    def interrupted(original, instance, args, kwargs):
        raise KeyboardInterrupt

    site.replace(Machine, "work", interrupted)
    site.applied("it works")
    with pytest.raises(KeyboardInterrupt):
        Machine().work(1)
    assert site.outcome.status == "applied"


def test_a_failing_subscriber_withdraws_only_its_entry():
    failing, other = site_of(), site_of()
    other.seams = failing.seams
    seen = []
    failing.before(failing.seams.backward, lambda *_: 1 / 0)
    other.before(other.seams.backward, lambda *call: seen.append(call))
    failing.seams.backward.around(lambda: None, None, (), {})
    failing.seams.backward.around(lambda: None, None, (), {})
    assert failing.outcome.status == "withdrawn"
    assert "ZeroDivisionError" in failing.outcome.why
    assert len(seen) == 2


def test_strict_mode_raises_an_entrys_error():
    site = site_of(strict=True)
    site.stand_in(site.seams.backward, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        site.seams.backward.around(lambda: None, None, (), {})


def test_two_stand_ins_nest_and_can_be_removed_in_any_order():
    outer, inner = site_of(), site_of()
    before = dict(vars(Machine))
    inner.replace(Machine, "work", lambda original, instance, args, kwargs: original(*args) + 1)
    outer.replace(Machine, "work", lambda original, instance, args, kwargs: original(*args) * 10)
    assert Machine().work(1) == 20
    inner.close()
    assert Machine().work(1) == 10
    outer.close()
    assert {name: value for name, value in vars(Machine).items() if name != "calls"} == {
        name: value for name, value in before.items() if name != "calls"
    }


def test_an_applied_outcome_stays_reported():
    site = site_of()
    assert site.outcome.status == "no effect"
    assert site.outcome.why == "never triggered in these steps"
    site.refused("too big")
    assert (site.outcome.status, site.outcome.why) == ("refused", "too big")
    site.applied("one of two")
    site.no_effect("the other is fast already")
    site.refused("and a third too big")
    assert (site.outcome.status, site.outcome.why) == ("applied", "one of two")
    site.withdraw("it failed")
    site.applied("again")
    assert (site.outcome.status, site.outcome.why) == ("withdrawn", "it failed")


@dataclass
class Unhashable:
    number: int


def test_first_sight_is_by_identity_even_for_unhashable_or_equal_objects(site):
    first, twin = Unhashable(1), Unhashable(1)
    assert site.first_sight(first)
    assert not site.first_sight(first)
    assert site.first_sight(twin)
