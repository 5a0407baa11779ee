"""README and docs can be followed: every link leads somewhere, and hotlap knows every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import torch

from hotlap.cli import cli
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seam, Seams

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "workloads").glob("*/README.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
SYNOPSIS = re.compile(r"[\[…|]")  # marks of a synopsis, which is not a command to type


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
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


@pytest.mark.parametrize(
    ("page", "words"), commands(), ids=lambda part: part if isinstance(part, str) else " ".join(part)
)
def test_every_command_is_valid(page, words):
    verb, *rest = words
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, f"{page}: hotlap {verb}"
    command.make_parser(click.Context(command, info_name=verb, **command.context_settings)).parse_args(rest)


ROOMS = {path.name for path in (ROOT / "hotlap").iterdir() if path.is_dir()}
PATH = re.compile(r"`([a-z_]+(?:/[a-z_]+)+(?:\.\w+|/)?)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_file_exists(page):
    for name in PATH.findall(page.read_text(encoding="utf-8")):
        if "overlapped_checkpoints" in name:  # the example of a file that the reader creates
            continue
        if name.partition("/")[0] in {"hotlap", "tests", "scripts", "docs", "benchmarks", "workloads", "examples"}:
            assert (ROOT / name).exists(), f"{page.name} names {name}"
        elif name.partition("/")[0] in ROOMS:
            assert (ROOT / "hotlap" / name).exists(), f"{page.name} names {name}"


def test_the_table_of_seams_matches_the_code():
    """When this fails, copy the expected table into docs/design.md."""
    seams = {name: seam for name, seam in vars(Seams(torch, Guard())).items() if isinstance(seam, Seam)}
    users: dict[str, list[str]] = {name: [] for name in seams}
    for folder in sorted((ROOT / "hotlap" / "catalog").iterdir()):
        source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
        source = source.replace("when_made(", "seams.loader_made(")  # of hotlap/runtime/loader_arguments.py
        for name in set(re.findall(r"\bseams\.(\w+)", source)) & set(users):
            users[name].append(folder.name.replace("_", "-"))
    rows = [
        f"| `{name}` | {seam.name} | {', '.join(users[name]) or 'none: it is observed'} |"
        for name, seam in seams.items()
    ]
    table = "\n".join(["| seam | when | entries at work there |", "|---|---|---|", *rows])
    assert table in (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), table
