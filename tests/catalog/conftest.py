import pytest

from hotlap.loading import state


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a dataset reads is checked, even on a busy machine: no entry refuses because that takes long."""
    monkeypatch.setattr(state, "ALWAYS", 60.0)
    monkeypatch.setattr(state, "LEAST_SECONDS", 60.0)
