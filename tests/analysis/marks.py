"""Heats of marked places, for tests; programs mark a place with `mark("name")`."""

from __future__ import annotations

import ast
import textwrap

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.frequency.hotness import Hotness
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse import flow
from hotlap.analysis.queries.code import Code


def heats(**programs: str) -> dict[str, Heat]:
    """The heat of every `mark("name")` in the files."""
    trees = {name: ast.parse(textwrap.dedent(text)) for name, text in programs.items()}
    packages = {name.replace("__", "."): name for name in programs}
    summaries = [flow.read(trees[name], f"{module}.py", module, "") for module, name in packages.items()]
    hotness = Hotness(Project(summaries))
    found = {}
    for module, name in packages.items():
        code = Code(f"{module}.py", textwrap.dedent(programs[name]), trees[name], hotness)
        for call in code.calls("mark"):
            assert isinstance(call.args[0], ast.Constant)
            found[call.args[0].value] = code.heat(call)
    return found
