"""README and docs can be followed: every link leads somewhere, and hotlap knows every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import torch

from hotlap import errors
from hotlap.cli import cli
from hotlap.cli.compare import WrongUsage
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seam, Seams

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "benchmarks" / "README.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "workloads").glob("*/README.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`(hotlap [^`]+)`")
SYNOPSIS = re.compile(r"[\[…|]")  # marks of a synopsis, which is not a command to type
WORDS = 1200  # that a reader with five minutes reads


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
    """Every command to type, in a block, or within a sentence, where what it is about may be left out."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in FENCE.findall(text):
            for line in block.splitlines():
                typed = re.sub(r"\s{2,}.*| +#.*", "", line.removeprefix("$ "))
                if typed.startswith("hotlap ") and not SYNOPSIS.search(typed):
                    found.append((page.name, shlex.split(typed)[1:]))
        for typed in INLINE.findall(FENCE.sub("", text)):
            if not SYNOPSIS.search(typed):
                found.append((page.name, shlex.split(typed)[1:]))
    return found


@pytest.mark.parametrize(
    ("page", "words"), commands(), ids=lambda part: part if isinstance(part, str) else " ".join(part)
)
def test_every_command_is_valid(page, words):
    verb, *rest = words
    if verb.startswith("-"):
        assert verb in {name for option in cli.params for name in (*option.opts, "--help")}, f"{page}: hotlap {verb}"
        return
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, f"{page}: hotlap {verb}"
    context = click.Context(command, info_name=verb, **command.context_settings)
    values, left, _ = command.make_parser(context).parse_args(rest)
    assert "--help" in rest or left == [], f"{page}: {left} of hotlap {' '.join(words)}"
    for option in command.params:
        if isinstance(option, click.Option) and isinstance(value := values.get(option.name), str):
            option.type_cast_value(context, value)


@pytest.mark.parametrize("verb", cli.verbs)
def test_every_verb_has_a_page_that_the_index_names(verb):
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [ROOT / "docs" / name for name in re.findall(r"\((\w[\w-]*\.md)\)", index)]
    assert any(f"\nhotlap {verb}" in page.read_text(encoding="utf-8") for page in pages)


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"]({page.name})" in index or page.name == "README.md", page.name


def test_the_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= WORDS


def test_every_exit_code_is_documented():
    codes = {errors.INTERNAL_ERROR, errors.INTERRUPTED, 0, 1, 2, WrongUsage.exit_code}
    codes |= {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)}
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8"), re.M)
    assert sorted(codes) == [int(row) for row in rows]


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
