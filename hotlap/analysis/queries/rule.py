"""The seam between the scanner and its rules.

A rule is a file `find.py` in its folder of the catalogue, loaded by path: it may import `hotlap.analysis` and
`hotlap.records`, never torch nor the run-time half beside it. It defines

    WORDS = ("empty_cache", "synchronize")      files with none of these words are not shown to the rule
    ONLY_HOT = True                             (optional) nothing to find where nothing runs every batch
    def find(code: Code) -> Iterator[Found]:    what it found in one file

`code` answers what the rule asks: `code.calls("item")` are the calls by last name, `code.heat(node)` says how often a
node runs and why, `code.kind(node)` what it is ("tensor", "loader", …), `code.full_name(node)` what a name means after
imports ("torch.cuda.empty_cache"). A rule yields `Found` with the node, one sentence that says what is slow, one that
says what to do, and whether its fix is safe, unsafe, or only shown. Where it cannot tell, it yields nothing, or
something with `Confidence.LOW`, which is shown with --pedantic only.

Where the rule repairs itself there is a file `fix.py` beside it:

    def fix(place: Place) -> None               changes `place.module`, a libcst tree, at one finding

Code, title and text come from `card.md`: `# name (CODE)`, then `**Title.**`. Its *Example* must be found, its *Use
instead* must be silent, and exactly what the fix makes of the example. `tests/scan/test_cards.py` tries all of them;
`tests/scan/corpus/<name>.md` holds what must be found and what must not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.queries.code import Code
from hotlap.records.scan_finding import Applicability, Confidence


@dataclass(frozen=True)
class Found:
    node: ast.AST
    message: str
    repair: str
    applicability: Applicability = Applicability.DISPLAY_ONLY
    heat: Heat | None = None  # where it is not the heat of the node
    confidence: Confidence | None = None  # lower than that of the heat
    hints: dict[str, str] = field(default_factory=dict)  # for fix.py


@dataclass(frozen=True)
class Rule:
    code: str
    name: str
    title: str
    words: tuple[str, ...]
    find: Callable[[Code], Iterator[Found]]
    only_hot: bool = False  # nothing to find in a file of which nothing runs every batch
