"""The HTML page is one file that loads nothing, is accessible, and cannot be broken by user text."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from hotlap.diagnose import diagnose
from hotlap.report import html, tuned_html
from hotlap.report.shared.html_style import COLOURS, PAIRS
from tests import observations
from tests.report import tunings
from tests.report.test_tune_drawn import SCENARIOS

PROFILES = (
    observations.observation,
    observations.input_bound,
    observations.sync_bound,
    observations.launch_bound,
    observations.two_ranks,
    observations.partial,
    observations.not_a_number,
)
VOID = {"meta", "br", "img", "input", "link", "hr"}
LOADS = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"}


class Parsed(HTMLParser):
    """Collects every element with its attributes and text, and fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self) -> str:
        return " ".join(" ".join(data for tag, data in self.words if tag != "style").split())


def tuned(made, profiled: bool = True) -> str:
    seen = observations.input_bound() if profiled else None
    return tuned_html(made, seen, diagnose(seen) if seen else None)


def profiled(seen) -> str:
    return html(seen, diagnose(seen), "20260102-030405-train")


EVERY_PAGE = [
    *(pytest.param(lambda scenario=scenario: tuned(scenario()), id=scenario.__name__) for scenario in SCENARIOS),
    *(
        pytest.param(lambda observed=observed: profiled(observed()), id=f"profile-{observed.__name__}")
        for observed in PROFILES
    ),
]


@pytest.mark.parametrize("make", EVERY_PAGE)
class TestEveryPage:
    def test_the_page_is_well_formed_and_loads_nothing(self, make):
        text = make()
        parsed = Parsed(text)
        assert text.startswith("<!doctype html>")
        assert not {tag for tag, _ in parsed.elements} & {"script", "link", "img", "iframe", "object", "embed"}
        assert not [name for _, attributes in parsed.elements for name in attributes if name in LOADS]
        assert not [name for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
        assert not re.search(r"url\(|@import|@font-face", text)
        (policy,) = [meta for meta in parsed.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
        assert "default-src 'none'" in policy["content"]

    def test_the_page_is_accessible(self, make):
        parsed = Parsed(make())
        assert parsed.all("html")[0]["lang"] == "en"
        levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
        names = [heading["id"] for heading in parsed.all("h2")]
        assert len(names) == len(set(names))
        assert [section["aria-labelledby"] for section in parsed.all("section")] == names
        assert all(header.get("scope") in ("col", "row") for header in parsed.all("th"))
        assert len(parsed.all("table")) == len(parsed.all("caption"))
        pictures = [picture for picture in parsed.all("svg") if picture.get("role") == "img"]
        assert all(picture["aria-label"] for picture in pictures)

    def test_the_page_contains_only_printable_text(self, make):
        text = make()
        text.encode("utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", text.replace("\n", ""))
        assert not re.search(r"(?<!=)\bNone\b", Parsed(text).text())


class TestTune:
    def test_the_first_screen_says_what_was_measured_the_result_and_what_to_type(self):
        first = tuned(tunings.faster()).partition("Step time, before and after")[0]
        for part in (
            "python train.py --epochs 3",
            "AMD EPYC 9354, 8 cores",
            "torch 2.8.0",
            "Proven 2.40 times as fast",
            "95\u00a0% interval 2.36–2.44",
            "hotlap run python train.py --epochs 3",
        ):
            assert part in first, part

    def test_where_nothing_won_the_first_screen_says_where_the_time_goes(self):
        first = tuned(tunings.no_speedup()).partition("Step time, before and after")[0]
        assert "of each step waits for data" in first
        assert "data-wait (data.py:31)" in first

    def test_a_rule_that_many_rows_share_is_told_once(self):
        text = tuned(tunings.large())
        assert text.count("<small>losses bit-equal") <= 1

    def test_every_part_of_the_report_is_there(self):
        headings = re.findall(r"<h2[^>]*>(.*?)</h2>", tuned(tunings.faster()))
        assert headings == [
            "What to type next",
            "Step time, before and after",
            "What was tried",
            "What was compared",
            "Loss",
            "Where the time went",
            "At full length",
            "Reproduce it",
            "Measured on",
        ]

    def test_every_interval_is_drawn_and_written(self):
        parsed = Parsed(tuned(tunings.faster()))
        labels = [picture["aria-label"] for picture in parsed.all("svg") if picture.get("class") == "forest"]
        assert "stacked 2.02× [1.99–2.05]; alone 2.05× [2.02–2.08]" in labels
        assert "alone 0.61× [0.59–0.63]" in labels
        assert labels.count("nothing was measured") == 2
        for written in ("2.02×", "1.99–2.05", "alone 2.05×", "0.59–0.63"):
            assert written in parsed.text()

    def test_the_noise_band_stands_behind_every_row(self):
        rows = re.findall(r'<tr role="row".*?</tr>', tuned(tunings.faster()), re.DOTALL)[1:]
        assert len(rows) == 12
        assert all('class="noise"' in row for row in rows)
        assert 'class="noise"' not in tuned(tunings.one_process_each()).split("<tbody")[1].split("</tbody>")[0]

    def test_only_a_proven_speedup_has_the_accent(self):
        assert 'class="figures proven"' in tuned(tunings.faster())
        assert 'class="figures proven"' not in tuned(tunings.inconclusive())

    def test_states_are_words_not_only_colours(self):
        text = Parsed(tuned(tunings.faster())).text()
        for state in ("kept", "left out", "inconclusive", "rejected", "failed", "no evidence", "not reached"):
            assert state in text

    def test_a_gap_in_a_curve_is_drawn_as_a_gap(self):
        (before, after) = re.findall(
            r'<path class="curve-[01]" d="(M[\d][^"]*L[^"]*)"/>', tuned(tunings.not_a_number())
        )
        assert (before.count("M"), after.count("M")) == (1, 2)

    def test_missing_parts_say_why(self):
        text = Parsed(tuned(tunings.just_begun(), profiled=False)).text()
        for why in (
            "No optimisation has been tried.",
            "No step of the baseline has been measured yet.",
            "The profile of the baseline was not saved",
            "No loss was seen",
            "the final trial against the baseline has not ended",
        ):
            assert why in text

    def test_a_large_tune_stays_small_and_whole(self):
        text = tuned(tunings.large(entries=30, steps=2000))
        assert len(text.encode()) < 1_000_000
        shown = Parsed(text).text()
        assert all(f"made-up-{i:02}" in shown and f"reason number {i}" in shown for i in range(30))
        curves = re.findall(r'class="curve-[01]" d="(M[^"]*L[^"]*)"', text)
        assert len(curves) == 2
        assert all(len(re.findall("[ML]", curve)) <= 160 for curve in curves)

    def test_user_text_is_escaped(self):
        text = tuned(tunings.hostile())
        assert "<script" not in text
        assert "<img" not in text
        shown = Parsed(text).text()
        assert "<script>alert(1)</script>" in shown
        assert "\"'><img src=x onerror=alert(1)>" in shown


class TestAppearance:
    @pytest.mark.parametrize("which", [0, 1], ids=["light", "dark"])
    @pytest.mark.parametrize(("ink", "ground"), PAIRS)
    def test_text_has_enough_contrast(self, ink, ground, which):
        assert contrast(COLOURS[ink][which], COLOURS[ground][which]) >= 4.5

    @pytest.mark.parametrize("which", [0, 1], ids=["light", "dark"])
    def test_neighbouring_parts_of_a_step_differ_in_grey(self, which):
        usual = ("data", "copy", "forward", "backward", "optimizer", "sync", "garbage", "rest")
        for left, right in itertools.pairwise(usual):
            assert contrast(COLOURS[left][which], COLOURS[right][which]) >= 1.15, (left, right)

    @pytest.mark.parametrize("which", [0, 1], ids=["light", "dark"])
    def test_lines_in_pictures_have_enough_contrast(self, which):
        assert contrast(COLOURS["mark"][which], COLOURS["noise"][which]) >= 3.0
        assert contrast(COLOURS["accent"][which], COLOURS["noise"][which]) >= 3.0

    def test_dark_mode_and_print_have_styles(self):
        text = tuned(tunings.faster())
        assert "@media screen and (prefers-color-scheme:dark)" in text  # print is always light
        assert "@media print" in text
        assert "tabular-nums" in text

    def test_every_used_colour_is_defined(self):
        used = set(re.findall(r"var\(--([\w-]+)\)", tuned(tunings.faster())))
        assert used <= set(COLOURS)


def contrast(first: str, second: str) -> float:
    """The contrast as WCAG 2 defines it."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
