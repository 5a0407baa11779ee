"""Defines the interface between the scanner and its rules.

A rule is a file `find.py` in its folder of the catalog, loaded by path: it may import `hotlap.analysis` and
`hotlap.records`, but neither torch nor the run-time half beside it. It defines

    WORDS = ("empty_cache", "synchronize")      files with none of these words are not shown to the rule
    ONLY_HOT = True                             (optional) skip files in which nothing runs every batch
    TESTS = False                               (optional) skip files of tests
    PREVIEW = True                              (optional) use it only with --preview
    SEVERITY = "high"                           (optional) how much time it usually takes; "medium" otherwise
    def find(code: Code) -> Iterator[Found]:    yields the findings in one file

`code` answers the rule's questions: `code.calls("item")` are the calls by last name, `code.heat(node)` says how often
a node runs and why, `code.kind(node)` what it is ("tensor", "loader", …), `code.full_name(node)` what a name means
after imports ("torch.cuda.empty_cache"). A rule yields `Found` with the node, one sentence that says what is slow, one
that says what to do, and whether its fix is safe, unsafe, or display-only. If it is unsure, it yields nothing, or a
finding with `Confidence.LOW`, which only --pedantic shows.

A rule with a fix has a file `fix.py` beside it:

    def fix(place: Place) -> None               registers the changes at one finding

Code, title and text come from `card.md`: `# name (CODE)`, then `**Title.**`. The rule must find its *Example*, must
stay silent on its *Use instead*, and the fix must turn the one into the other exactly. `tests/scan/test_cards.py` tries
all of them; `tests/scan/corpus/<name>.md` holds what must be found and what must not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.queries.code import Code
from hotlap.records.scan_finding import Applicability, Confidence, Severity


@dataclass(frozen=True)
class Found:
    node: ast.AST
    message: str
    repair: str
    applicability: Applicability = Applicability.DISPLAY_ONLY
    heat: Heat | None = None  # if it differs from the heat of the node
    confidence: Confidence | None = None  # if it is lower than that of the heat
    hints: dict[str, str] = field(default_factory=dict)  # for fix.py


@dataclass(frozen=True)
class Rule:
    code: str
    name: str
    title: str
    words: tuple[str, ...]
    find: Callable[[Code], Iterator[Found]]
    only_hot: bool = False  # skip files in which nothing runs every batch
    tests: bool = True  # looks at files of tests too
    preview: bool = False  # used only with --preview, or if selected by its own code or name
    severity: Severity = Severity.MEDIUM
