import pytest

from hotlap.loading import state


@pytest.fixture(autouse=True)
def patient(constants) -> None:
    """All that a dataset reads is checked, even on a busy machine: no entry refuses because that takes long."""
    constants(state, ALWAYS=60.0, LEAST_SECONDS=60.0)
