"""Every page and view, as text, is the one in `committed/`, so that a change to one is seen where it is reviewed.

`python -m pytest tests/report/test_as_committed.py --commit-views` writes them anew.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from hotlap import report
from hotlap.diagnose import diagnose
from hotlap.records.decisions import BlockTrial, Decisions
from hotlap.report.run import decisions
from tests import observations
from tests.report import tunings

COMMITTED = Path(__file__).with_name("committed")
TRIALS = tuple(
    BlockTrial(
        names=names, on_top_of=(), at_step=at, without=(0.0069, 0.0071), with_=(0.0019, 0.0021), ratio=ratio,
        low=None if ratio is None else 0.9 * ratio, high=None if ratio is None else 1.1 * ratio, kept=kept, cost=0.03,
        why="the time budget ended first",
    )
    for names, at, ratio, kept in (
        (("resident-data", "gc-pauses"), 40, 3.5, True), (("fused-optimizer",), 80, 0.98, False),
        (("threads",), 120, None, False),
    )
)  # fmt: skip
DECIDED = Decisions(
    schema=1, pid=7, on=("resident-data", "gc-pauses"), tried=TRIALS, after=0.002, ratio=3.5, remembered=False,
    is_main=True, steps=900, seconds=4.2, spent=0.09, is_over=True,
    command=("/usr/bin/python", "train.py", "--lr", "0.1"), machine="2 cores, x86_64, torch 2.13.0",
)  # fmt: skip


def profile(made: Callable[[], object]) -> Callable[[Console], None]:
    def draw(console: Console) -> None:
        seen = made()
        report.terminal(seen, diagnose(seen), console)

    return draw


def tune(draw: Callable[..., None], made: Callable[[], object]) -> Callable[[Console], None]:
    seen = observations.input_bound()
    return lambda console: draw(made(), seen, diagnose(seen), console)


VIEWS = {
    "profile-input-bound": profile(observations.input_bound),
    "profile-sync-bound": profile(observations.sync_bound),
    "profile-launch-bound": profile(observations.launch_bound),
    "profile-two-ranks": profile(observations.two_ranks),
    "tune-ending-faster": tune(report.tune_ending, tunings.faster),
    "tune-ending-no-speedup": tune(report.tune_ending, tunings.no_speedup),
    "tune-ending-inconclusive": tune(report.tune_ending, tunings.inconclusive),
    "tune-faster": tune(report.tuned_terminal, tunings.faster),
    "run-decided": lambda console: decisions.terminal(DECIDED, (), console),
}
PHONE = 40


@pytest.fixture
def as_committed(request):
    def compare(name: str, text: str) -> None:
        file = COMMITTED / f"{name}.txt"
        lines = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if request.config.getoption("--commit-views"):
            COMMITTED.mkdir(exist_ok=True)
            file.write_text(lines, encoding="utf-8")
        assert lines == file.read_text(encoding="utf-8"), "to accept it: see the docstring of this file"

    return compare


@pytest.mark.parametrize("width", [PHONE, 80, 120])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_in_a_terminal(name, width, as_committed):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    VIEWS[name](console)
    as_committed(f"{name}-{width}", console.file.getvalue())


class Words(HTMLParser):
    """The words of a page with its headings, one element a line, without its style and pictures' coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag, attrs) -> None:
        self.hidden += tag == "style"
        if tag in ("h1", "h2", "h3"):
            self.lines.append("")

    def handle_endtag(self, tag) -> None:
        self.hidden -= tag == "style"

    def handle_data(self, data) -> None:
        if not self.hidden and (words := " ".join(data.split())):
            self.lines.append(words)


@pytest.mark.parametrize("made", [tunings.faster, tunings.no_speedup], ids=lambda made: made.__name__)
def test_the_page_of_a_tune(made, as_committed):
    seen = observations.input_bound()
    as_committed(f"page-tune-{made.__name__}", words_of(report.tuned_html(made(), seen, diagnose(seen))))


def test_the_page_of_a_profile(as_committed):
    seen = observations.input_bound()
    as_committed("page-profile", words_of(report.html(seen, diagnose(seen), "20260102-030405-train")))


def words_of(page: str) -> str:
    words = Words()
    words.feed(page)
    return "\n".join(words.lines)
