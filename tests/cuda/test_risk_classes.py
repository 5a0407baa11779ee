"""Each entry on a GPU changes only what its risk class allows, in trainings that draw random numbers everywhere."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from catalog.classes import assert_in_class, band_of
from catalog.drawing import TRAININGS, TrainingResult

import hotlap
from hotlap import catalog
from hotlap.records.plan import Risk

pytestmark = pytest.mark.cuda

ENTRIES = catalog.entries()
ALONE = [name for name in ENTRIES if name not in ("compile", "allocator")]  # the one has a test of its own, below
VALUES = {"activation-checkpointing": "always", "threads": "2", "loader-prefetch": "4"}
# These entries concern what the trainings do not have: scattered recurrent weights, large layers, a
# start method beside graphs, a loop that waits for its loss, more cores.
NOT_HERE = (
    "recurrent", "norm-kernels", "loader-start-method", "early-read", "backward-thread",
    "loader-workers",
)  # fmt: skip


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Raise errors of entries, and compute cuDNN's products in full float32."""
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield
    hotlap.disable()


@pytest.fixture
def deterministic(monkeypatch):
    """Make kernels sum in the same order each time."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@cache
def plain(title: str, deterministic: bool) -> TrainingResult:
    """The plain training; the key includes determinism, which changes the bits of the result."""
    return TRAININGS[title]("cuda")


@cache
def band(title: str, deterministic: bool):
    return band_of(plain(title, deterministic), [TRAININGS[title]("cuda", nudge=pattern) for pattern in (1, 2, 3)])


def requested(name: str) -> str:
    return f"{name}={VALUES[name]}" if name in VALUES else name


def compared(name: str, deterministic: bool) -> dict[str, str]:
    became = {}
    for title, training in TRAININGS.items():
        if training.only == "cpu":
            continue
        expected, most = plain(title, deterministic), band(title, deterministic)
        if deterministic:
            assert training("cuda").losses == expected.losses, f"{title} is another one each time"
        with hotlap.enable(None, with_=[requested(name)]) as enabled:
            ours = training("cuda")
            (became[title],) = (f"{outcome.status}: {outcome.why}" for outcome in enabled.outcomes)
        assert_in_class(ENTRIES[name].risk, ours, expected, most, f"{name} on {title} ({became[title]})")
    return became


def has_applied(became: dict[str, str]) -> bool:
    return any(status.startswith(("applied", "withdrawn")) for status in became.values())


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", [name for name in ALONE if ENTRIES[name].risk is Risk.EXACT])
def test_an_exact_entry_changes_nothing(name):
    became = compared(name, deterministic=True)
    assert has_applied(became) or name in NOT_HERE, became


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("name", [name for name in ALONE if ENTRIES[name].risk is not Risk.EXACT])
def test_a_rounding_entry_draws_the_same_random_numbers(name):
    became = compared(name, deterministic=False)
    assert has_applied(became) or name in NOT_HERE, became


DROPPED = ("a CNN with dropout and dropped planes", "an MLP with noise, RReLU and gumbel", "attention with dropout")


@pytest.mark.parametrize("title", DROPPED)
def test_compiled_code_draws_the_same_random_numbers(title):
    torch._dynamo.reset()
    with hotlap.enable(None, with_=["compile"]) as enabled:
        ours = TRAININGS[title]("cuda")
        (outcome,) = enabled.outcomes
    assert outcome.status in ("applied", "withdrawn"), outcome.why
    assert_in_class(Risk.ROUNDING, ours, plain(title, False), band(title, False), f"compile: {outcome.why}")


def test_channels_last_works_with_dropped_planes_and_features():
    with hotlap.enable(None, with_=["channels-last"]) as enabled:
        TRAININGS["a CNN with dropped planes and a dropped head"]("cuda")
        (outcome,) = enabled.outcomes
    assert outcome.status == "applied", outcome.why
