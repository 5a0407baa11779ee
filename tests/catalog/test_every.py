"""These tests hold for every entry of the catalogue. Entries are discovered, so a new one needs no change here."""

from __future__ import annotations

import gc
import re
import sys
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch
from harness import bare, warm

import hotlap
from hotlap import catalog
from hotlap.catalog.entry import OneOf, Stage, WholeNumber
from hotlap.records.plan import Expectation, Risk
from tests import observations
from tests.catalog.loops import KINDS, Trained, left_as_found, train

ROOT = Path(__file__).parents[2]
ENTRIES = catalog.entries()
CLOSE = {Risk.EXACT: 0.0, Risk.ROUNDING: 1e-4, Risk.NUMERIC: 0.05, Risk.TRAINING: float("inf")}
SEEN = [
    observations.observation(), observations.on_cuda(), observations.input_bound(), observations.sync_bound(),
    observations.launch_bound(), observations.two_ranks(), observations.partial(), observations.not_a_number(),
]  # fmt: skip


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Errors of entries are raised, not contained."""
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@pytest.fixture
def quick_compiler(monkeypatch):
    """Dynamo is real, but its graphs run as they are, without minutes of C++ compilation."""
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs, **_: graph)


@cache
def plain(kind) -> Trained:
    return train(kind)


def assert_alike(trained: Trained, kind, names) -> None:
    risk = max((ENTRIES[name].risk for name in names), key=lambda level: level.rank)
    expected = plain(kind)
    if risk is Risk.EXACT:
        assert trained.losses == expected.losses, f"{names} on {kind.__name__}"
    else:
        assert trained.losses == pytest.approx(expected.losses, rel=CLOSE[risk]), f"{names} on {kind.__name__}"
    assert trained.random == expected.random, f"{names} on {kind.__name__} changed the random numbers"


# What an entry states about itself


def test_codes_are_unique_and_start_with_the_kind():
    codes = [entry.code for entry in ENTRIES.values()]
    assert sorted(set(codes)) == sorted(codes)
    assert all(re.fullmatch(r"[DCH]1\d\d", code) for code in codes), codes


@pytest.mark.parametrize("name", ENTRIES)
def test_the_card_names_code_title_and_risk(name):
    entry, card = ENTRIES[name], catalog.card(name)
    assert card.startswith(f"# {name} ({entry.code})\n")
    assert f"**{entry.title}.**" in card
    assert f"Risk: {entry.risk}" in card
    assert "## When it does nothing" in card
    assert "## What it changes" in card
    for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        compile(block, name, "exec")


@pytest.mark.parametrize("name", ENTRIES)
def test_conflicts_name_entries_that_exist(name):
    assert ENTRIES[name].conflicts <= set(ENTRIES)
    assert name not in ENTRIES[name].conflicts


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_are_found_by_name_and_code(name):
    assert catalog.name_of(name) == catalog.name_of(ENTRIES[name].code) == name
    assert catalog.name_of(name.replace("-", "_")) == catalog.name_of(ENTRIES[name].code.lower()) == name


def test_naming_an_entry_imports_nothing_that_reads_source(tmp_path):
    program = (
        "import sys; from hotlap.catalog import name_of; assert name_of('H102'); "
        "print([name for name in sys.modules if name.startswith(('hotlap.analysis', 'hotlap.catalog.patterns'))])"
    )
    assert bare([sys.executable, "-c", program], tmp_path).stdout == "[]\n"


@pytest.mark.parametrize("name", ENTRIES)
def test_estimated_gains_are_shares_or_absent(name):
    for seen in SEEN:
        expected = ENTRIES[name].detect(seen)
        if expected is not None:
            assert isinstance(expected, Expectation)
            assert 0 <= expected.most <= 1
            assert expected.why


@pytest.mark.parametrize("name", ENTRIES)
def test_requested_environment_variables_are_text(name):
    entry = ENTRIES[name]
    if entry.environment is not None:
        variables = entry.environment(None, {})
        assert all(isinstance(part, str) for pair in variables.items() for part in pair)


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.values is not None])
def test_rejects_values_out_of_range(name):
    values = ENTRIES[name].values
    good = values.names if isinstance(values, OneOf) else (str(values.low), str(values.high))
    bad = ("", "nonsense", "-1") if isinstance(values, OneOf) else ("", "x", "-1", "1.5", str(values.high + 1))
    assert isinstance(values, OneOf | WholeNumber)
    assert [str(ENTRIES[name].parse(text)) for text in good] == list(good)
    for text in bad:
        with pytest.raises(ValueError):
            ENTRIES[name].parse(text)


# What an entry does


@pytest.mark.parametrize("name", ENTRIES)
def test_each_entry_alone_trains_alike_and_leaves_no_trace(name, request):
    """Only the first model is really compiled; with --all, each is."""
    for kind in KINDS:
        if kind is not KINDS[0] and not request.config.getoption("--all"):
            request.getfixturevalue("quick_compiler")
        plain(kind)
        with left_as_found():
            with hotlap.enable(None, with_=[name]) as enabled:
                trained = train(kind)
            (outcome,) = enabled.outcomes
            assert outcome.status in ("applied", "no effect", "refused"), outcome.why
            assert outcome.why
        assert_alike(trained, kind, [name])
        assert train(kind).losses == plain(kind).losses, "what follows is as before"


def test_entries_come_after_others_of_their_own_stage():
    names = list(ENTRIES)
    assert [ENTRIES[name].stage for name in names] == sorted(entry.stage for entry in ENTRIES.values())
    for name, entry in ENTRIES.items():
        for before in entry.after:
            assert ENTRIES[before].stage is entry.stage
            assert names.index(before) < names.index(name)


@contextmanager
def fresh(pair):
    """Resets Dynamo and unfreezes the collector: gc-pauses leaves a collector alone that the tests have frozen."""
    if "compile" in pair:
        torch._dynamo.reset()  # Dynamo gives up on code that was compiled too often
    if "gc-pauses" in pair:
        gc.unfreeze()
    yield
    gc.freeze()


def possible_here(name: str) -> bool:
    return ENTRIES[name].device is None or torch.cuda.is_available()


THE_SAME_THINGS = (
    {Stage.DATASET, Stage.BATCH, Stage.LOADER},
    {Stage.SETTINGS, Stage.MODEL, Stage.COMPILED, Stage.CAPTURED},
    {Stage.PROCESS, Stage.LOOP},
)


def can_meet(*pair: str) -> bool:
    """Return whether both work on the data, both on what is computed, or both on the process and the loop."""
    return any({ENTRIES[name].stage for name in pair} <= stages for stages in THE_SAME_THINGS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("quick_compiler")
def test_every_compatible_pair_trains_alike(kind, pytestconfig):
    """Each pair that works on the same things trains one of the models in turn; with --all, every pair trains each.

    Entries that need a GPU never start without one, so they are left out there.
    """
    on_all = pytestconfig.getoption("--all")
    pairs = [pair for pair in combinations(filter(possible_here, ENTRIES), 2) if on_all or can_meet(*pair)]
    for number, pair in enumerate(pairs):
        if not on_all and number % len(KINDS) != KINDS.index(kind):
            continue
        if not catalog.in_conflict(*pair):
            with fresh(pair), hotlap.enable(None, with_=list(pair)) as enabled:
                trained = train(kind)
            assert not [outcome for outcome in enabled.outcomes if outcome.status == "withdrawn"], enabled
            assert_alike(trained, kind, pair)


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.ROUNDING, Risk.NUMERIC])
def test_each_risk_class_trains_as_exactly_as_it_claims(risk):
    from hotlap.plan.choose import automatic

    names = [choice.name for choice in automatic(risk).choices]
    for kind in KINDS:
        with left_as_found(), hotlap.enable(risk=risk, at_once=True):
            trained = train(kind)
        assert_alike(trained, kind, names)


# What an entry leaves in files

LOAD = """
import sys, torch
from pathlib import Path
from tests.catalog import loops
for path in sorted(Path(sys.argv[1]).glob("*.pt")):
    kept = torch.load(path, weights_only=False)
    kind = type(kept["model"])
    fresh = kind()
    fresh.load_state_dict(kept["state"], strict=True)
    optimizer = torch.optim.AdamW(fresh.parameters(), lr=1e-2)
    optimizer.load_state_dict(kept["optimizer"])
    inputs = torch.ones(4, *loops.SHAPES[kind])
    kept["model"].eval(), fresh.eval()
    assert torch.equal(kept["model"](inputs), fresh(inputs)), path
    fresh(inputs).sum().backward()
    optimizer.step()
    print(path.stem, kind.__name__)
assert not any(name.split(".")[0] == "hotlap" for name in sys.modules), "loading imported hotlap"
"""


@pytest.mark.usefixtures("quick_compiler")
def test_checkpoints_load_with_and_without_each_entry(tmp_path):
    expected = []
    for kind in KINDS:
        without = plain(kind).model.state_dict()
        for name in filter(possible_here, ENTRIES):
            with hotlap.enable(None, with_=[name]):
                trained = train(kind)
                state = trained.model.state_dict()
                assert list(state) == list(without), name
                checkpoint = {"model": trained.model, "state": state, "optimizer": trained.optimizer.state_dict()}
                torch.save(checkpoint, tmp_path / f"{name}.{kind.__name__}.pt")
                trained.model.load_state_dict(without, strict=True)
                state_again = trained.model.state_dict()
                assert all(torch.equal(state_again[key], without[key]) for key in without), f"loaded under {name}"
            expected.append(f"{name}.{kind.__name__} {kind.__name__}")
    (tmp_path / "load.py").write_text(LOAD)
    loaded = warm([sys.executable, str(tmp_path / "load.py"), str(tmp_path)], tmp_path, PYTHONPATH=str(ROOT))
    assert loaded.code == 0, loaded.stderr
    assert sorted(loaded.stdout.splitlines()) == sorted(expected)
