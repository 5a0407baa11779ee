"""hotlap.span marks a section of the user's code."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hotlap
from hotlap.observe import span as span_module


class Recorder:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def enter_span(self, name: str) -> None:
        self.heard.append(f"{name} <")

    def leave_span(self, name: str) -> None:
        self.heard.append(f"{name} >")


@pytest.fixture
def recorder():
    recorder = Recorder()
    span_module.record_to(recorder)
    yield recorder
    span_module.record_to(None)


def test_a_section_may_contain_another(recorder):
    with hotlap.span("outer"), hotlap.span("inner"):
        pass
    assert recorder.heard == ["outer <", "inner <", "inner >", "outer >"]


def test_a_decorated_function_keeps_its_name_and_its_result(recorder):
    @hotlap.span("work")
    def double(x: int, *, by: int = 2) -> int:
        """Twice."""
        return x * by

    assert double(2, by=3) == 6
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert recorder.heard == ["work <", "work >"]


def test_an_exception_passes_through_and_ends_the_section(recorder):
    with pytest.raises(KeyError), hotlap.span("work"):
        raise KeyError
    assert recorder.heard == ["work <", "work >"]


def test_recording_that_begins_inside_a_section_does_not_see_it():
    recorder = Recorder()
    with hotlap.span("work"):
        span_module.record_to(recorder)
    assert recorder.heard == []
    with hotlap.span("work"):
        span_module.record_to(None)
    assert recorder.heard == ["work <", "work >"], "what was begun is ended"


def test_nothing_happens_when_nothing_records():
    with hotlap.span("work") as nothing:
        assert nothing is None
    assert hotlap.span("work")(len)([1, 2]) == 2


def test_importing_hotlap_imports_neither_torch_nor_anything_else_heavy():
    code = "import sys, hotlap; print(sorted({'torch', 'numpy', 'rich', 'click', 'wrapt'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
