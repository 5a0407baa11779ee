"""How many values of an entry are tried, with and without the sampler."""

from __future__ import annotations

from hotlap.plan import search as room
from hotlap.plan.search import EachOne, TpeSearch, says_thinned, search, thinned


def test_a_few_values_are_all_tried_and_many_are_sampled():
    few = search(["1", "2", "4"])
    assert list(few.values()) == ["1", "2", "4"]

    many = search([str(number) for number in range(40)])
    looked = []
    for value in many.values():
        looked.append(int(value))
        many.tell(value, -abs(int(value) - 20))
    assert isinstance(many, TpeSearch)
    assert 3 <= len(looked) == len(set(looked)) <= 6


def test_without_the_sampler_a_few_values_are_spread_over_the_range_with_a_notice(monkeypatch):
    import builtins

    ordinary = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest: _absent(ordinary, name, *rest))
    values = [str(number) for number in range(9)]

    assert isinstance(search(values), EachOne)
    assert thinned(values) == ["0", "2", "4", "6", "8"]
    assert "pip install 'hotlap[tune]'" in says_thinned(values)
    assert says_thinned(values[: room.HANDFUL]) is None


def _absent(ordinary, name, *rest):
    if name == "optuna":
        raise ImportError(name)
    return ordinary(name, *rest)
