"""The rules of `hotlap scan`: every folder of the catalogue with a find.py, loaded without its run-time half."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from hotlap.analysis.queries.rule import Rule
from hotlap.records.scan_finding import Severity

if TYPE_CHECKING:
    from hotlap.analysis.edits.place import Place

FOLDER = Path(__file__).parent
_HEADING = re.compile(r"# (?P<name>\S+) \((?P<code>[A-Z]\d+)\)\n\n\*\*(?P<title>.+?)\.?\*\*", re.DOTALL)


@dataclass(frozen=True)
class Pattern:
    """What the heading of a card declares."""

    code: str
    name: str
    title: str


@dataclass(frozen=True)
class Precision:
    """How many of a rule's findings in code that nobody had seen were judged true, false and arguable."""

    true: int
    false: int
    arguable: int

    @property
    def share(self) -> float | None:
        """The share of true findings among those that are not arguable; None if all of them are."""
        return self.true / (self.true + self.false) if self.true + self.false else None

    @property
    def strict_share(self) -> float:
        """The same if every arguable finding were false."""
        return self.true / (self.true + self.false + self.arguable)


@cache
def precision() -> Mapping[str, Precision]:
    """Return the measured precision of the rules by code, without the rules that nobody measured."""
    text = (FOLDER / "precision.json").read_text(encoding="utf-8")
    return MappingProxyType({code: Precision(**counts) for code, counts in json.loads(text).items()})


@cache
def rules() -> Mapping[str, Rule]:
    """Return the rules by code. Each costs reading one small file; torch and run-time halves are not imported."""
    found: dict[str, Rule] = {}
    for path in sorted(FOLDER.glob("*/find.py")):
        about, module = pattern(path.parent), _load(path)
        found[about.code] = Rule(
            about.code,
            about.name,
            about.title,
            tuple(module.WORDS),
            module.find,
            only_hot=getattr(module, "ONLY_HOT", False),
            tests=getattr(module, "TESTS", True),
            preview=getattr(module, "PREVIEW", False),
            severity=Severity(getattr(module, "SEVERITY", Severity.MEDIUM)),
        )
    return MappingProxyType(dict(sorted(found.items())))


def name_of(text: str) -> str | None:
    """Return the name of the rule that `text` means, given as a name or a code, or None."""
    wanted = text.lower().replace("_", "-")
    return next((rule.name for rule in rules().values() if wanted in (rule.code.lower(), rule.name)), None)


def pattern(folder: Path) -> Pattern:
    heading = _HEADING.match((folder / "card.md").read_text(encoding="utf-8"))
    if heading is None:
        raise ValueError(f"{folder / 'card.md'} must begin with '# name (CODE)' and '**Title.**'")
    return Pattern(heading["code"], heading["name"], " ".join(heading["title"].split()))


def fix_of(name: str) -> Callable[[Place], None] | None:
    """Return the function that repairs a finding of this rule, or None if it has no automatic repair."""
    path = FOLDER / name.replace("-", "_") / "fix.py"
    return _load(path).fix if path.exists() else None


@cache
def _load(path: Path) -> ModuleType:
    """Import the file as a module of its own: importing it from its package would import the run-time half."""
    name = f"hotlap.catalog._{path.stem}_{path.parent.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
