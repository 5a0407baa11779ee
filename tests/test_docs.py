"""What README and docs say can be followed: links lead somewhere, and each command is one that hotlap knows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from hotlap.cli import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
SYNOPSIS = re.compile(r"[\[…|]")  # of options: not a command to type


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}"


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                typed = re.sub(r"\s{2,}.*| +#.*", "", line.removeprefix("$ "))
                if typed.startswith("hotlap ") and not SYNOPSIS.search(typed):
                    found.append((page.name, shlex.split(typed)[1:]))
    return found


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda one: one if isinstance(one, str) else " ".join(one))
def test_every_command_is_one_that_is_known(page, words):
    verb, *rest = words
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, f"{page}: hotlap {verb}"
    command.make_parser(click.Context(command, info_name=verb, **command.context_settings)).parse_args(rest)
