import shutil
from collections.abc import Iterator

import pytest

from hotlap.kernels.recurrent import plans
from tests.kernels.recurrent import emulating


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run all kernels of this test on the CPU, thread by thread."""
    if shutil.which(emulating.COMPILER) is None:
        pytest.skip("needs a C++ compiler")
    emulating.on_cpu(monkeypatch)
    yield
    plans.planned.cache_clear()
