"""Finds the file and definition that a dotted name of the project means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from hotlap.analysis.names.classes import Classes
from hotlap.analysis.names.modules import importable, shared
from hotlap.analysis.parse.facts import Summary
from hotlap.analysis.parse.terms import Term


class Names(Classes):
    def __init__(self, summaries: Iterable[Summary]) -> None:
        super().__init__({summary.path: summary for summary in summaries})
        self.canonical = {summary.module: summary.path for summary in self.files.values()}
        self.modules = importable(self.files.values())
        self._tops = frozenset(name.partition(".")[0] for name in self.modules)
        self._by_star: dict[str, dict[str, str]] = {}

    def _is_own(self, name: str) -> bool:
        """Return whether a name may be defined in the project."""
        return name[0] == "@" or name.partition(".")[0] in self._tops

    def module_file(self, name: str, origin: str) -> str | None:
        """Return the scanned file that an import means: the nearest file that may be imported by this name."""
        if name[0] == "@":
            return self.canonical.get(name[1:])
        paths = self.modules.get(name)
        if not paths:
            return None
        if len(paths) == 1:
            return paths[0]
        return max(paths, key=lambda path: (shared(path, origin), -path.count("/")))

    def definition(self, name: str, origin: str, deep: int = 0) -> tuple[str, str] | None:
        """Return where a dotted name is defined in the project: file and qualified name."""
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1) if self._is_own(name) else ():
            path = self.module_file(".".join(parts[:cut]), origin)
            if path is not None:
                return self._in_file(path, parts[cut:], deep) or self._within_package(parts)
        return self._within_package(parts)

    def _within_package(self, parts: Sequence[str]) -> tuple[str, str] | None:
        """Resolve `from package import Trainer` to the package's only class of that name if no re-export is visible."""
        known = self._files_of.get(parts[-1])
        if known is None:
            return None
        package = "." + ".".join(parts[:-1]) + "."
        found = [path for path in known if package in f".{self.files[path].module}."]
        return (found[0], parts[-1]) if len(found) == 1 and len(parts) > 1 else None

    @cached_property
    def _files_of(self) -> dict[str, list[str]]:
        """The files that define a class, by its name."""
        found: dict[str, list[str]] = defaultdict(list)
        for path, summary in self.files.items():
            for name in summary.classes:
                found[name].append(path)
        return found

    def _in_file(self, path: str, parts: Sequence[str], deep: int) -> tuple[str, str] | None:
        summary, qualified = self.files[path], ".".join(parts)
        if qualified in summary.functions or qualified in summary.classes:
            return path, qualified
        term = summary.names.get(parts[0])
        if isinstance(term, tuple) and term[0] == "name" and deep < 6:
            return self.definition(".".join([term[1], *parts[1:]]), path, deep + 1)
        if isinstance(term, tuple) and term[0] == "def":
            return path, ".".join([term[1], *parts[1:]])
        where = self._starred(path).get(parts[0]) if deep < 6 else None
        return None if where is None else self._in_file(where, parts, deep + 1)

    def _starred(self, path: str) -> dict[str, str]:
        """Return the names that `from … import *` brings, and their files. Cached: packages re-export thousands."""
        if path in self._by_star:
            return self._by_star[path]
        found = self._by_star[path] = {}  # set early, as files import each other
        for star in self.files[path].names:
            there = self.module_file(star[1:], path) if star[0] == "*" else None
            if there is None or there == path:
                continue
            summary = self.files[there]
            for name in (*summary.classes, *summary.functions, *summary.names):
                if name and name[0] != "*" and "." not in name:  # "" is the module itself
                    found.setdefault(name, there)
            for name, where in list(self._starred(there).items()):
                found.setdefault(name, where)
        return found

    def _place(self, term: Term, origin: str) -> tuple[str, str] | None:
        if isinstance(term, tuple) and term[0] == "def":
            return origin, term[1]
        if isinstance(term, tuple) and term[0] == "name":
            return self.definition(term[1], origin)
        return None
