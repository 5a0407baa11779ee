"""Tells which file an import may mean, and what a name alone reveals."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

from hotlap.analysis.parse.facts import Call, Summary
from hotlap.analysis.parse.terms import DATASET, LOADER, UNKNOWN, Term

_NEVER_OURS = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "pandas", "tqdm", "wandb"}


EVERYDAY = frozenset(  # methods that many libraries have, so that the project's own is no better guess
    "add append apply backward build call clear close compute copy count create decode dump encode eval execute "
    "extend fit flush format forward from_pretrained gather generate get get_loader index info init insert item items "
    "join keys load log make map mean next open parse plot pop predict prepare print process push put read reduce "
    "register release remove render replace reset result run sample save score search send set setup size sort split "
    "start state_dict step stop sum test to train transform update validate values view wait warning write".split()
)


def importable(summaries: Iterable[Summary]) -> dict[str, list[str]]:
    """Map the names that an import may use to files. As in Python, names start at a folder that is not a package."""
    every = list(summaries)
    packages = {package.module for package in every if package.package}
    found: dict[str, list[str]] = defaultdict(list)
    for summary in every:
        parts = summary.module.split(".")
        for start in range(len(parts)):
            if ".".join(parts[:start]) in packages or parts[start] in _NEVER_OURS:
                continue
            found[".".join(parts[start:])].append(summary.path)
    return found


def argument(call: Call, number: int, name: str) -> Term | None:
    for word, term in call.keywords:
        if word == name:
            return term
    return call.arguments[number] if 0 <= number < len(call.arguments) else None


def is_object(term: Term) -> bool:
    if isinstance(term, tuple) and term[0] == "join":
        return all(is_object(part) for part in term[1:])
    return isinstance(term, tuple) and term[0] in ("instance", "class", "function", "name")


def by_shape(name: str) -> Term:
    """Judge a class of an unknown library by the end of its name, where torch users follow a convention."""
    last = name.rsplit(".", 1)[-1]
    if last.endswith("DataLoader"):
        return LOADER
    return DATASET if last.endswith("Dataset") else UNKNOWN


def shared(path: str, origin: str) -> int:
    """Return how many folders two files have in common."""
    count = 0
    for folder, origin_folder in zip(path.split("/")[:-1], origin.split("/")[:-1], strict=False):
        if folder != origin_folder:
            break
        count += 1
    return count
