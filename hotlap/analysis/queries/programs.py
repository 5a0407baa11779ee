"""Groups files into programs: which run together, and the one place where advice for all of them is given."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.frequency.hotness import Hotness, LoopKind
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse import features
from hotlap.analysis.parse.facts import Function, Summary
from hotlap.analysis.parse.files import is_test
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.terms import MODULE, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, last_name
from hotlap.records.scan_finding import Confidence, Frequency, Step

_TRAINERS = ("lightning.", "pytorch_lightning.", "lightning_fabric.", "transformers.", "trl.", "sentence_transformers.")

_MENTIONED = {  # features that many libraries offer without using them
    features.AUTOCAST,
    features.COMPILE,
    features.CONVOLUTION,
    features.CONVOLUTION_2D,
    features.NETWORK,
    features.RECURRENT,
}


class Anchor(NamedTuple):
    """A place where a file trains: it makes a framework's trainer, or a loop makes backward passes."""

    rank: int
    path: str
    line: int


class Programs:
    def __init__(self, hotness: Hotness) -> None:
        self.hotness, self.project = hotness, hotness.project
        self._families: dict[str, frozenset[str]] = {}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The files that each file imports from."""
        return {path: self._imported(summary) - {path} for path, summary in self.project.files.items()}

    def _imported(self, summary: Summary) -> set[str]:
        found = set()
        for name in _names(summary):
            place = self.project.definition(name, summary.path)
            path = place[0] if place else self.project.module_file(name, summary.path) if name else None
            if path is not None:
                found.add(path)
        return found

    @cached_property
    def _importers(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for path, imported in self.imports.items():
            if not is_test(path):
                for target in imported:
                    found[target].add(path)
        return found

    def _roots(self, path: str) -> frozenset[str]:
        """Return the scripts that a file is part of: files that can be run, or that nobody imports."""
        found, seen, waiting = set(), {path}, [path]
        while waiting:
            current = waiting.pop()
            if features.SCRIPT in self.project.files[current].uses or not self._importers.get(current):
                found.add(current)
                continue
            waiting += self._importers[current] - seen
            seen |= self._importers[current]
        return frozenset(found or seen)  # a package whose files import each other

    def family(self, path: str) -> frozenset[str]:
        """Return the files that may run together with one: those that import it, and all that these import."""
        known = self._families.get(path)
        if known is None:
            spine = _reached([path], self._importers)
            known = self._families[path] = frozenset(_reached(spine, self.imports))
        return known

    def mentions(self, path: str, feature: str) -> bool:
        """Return whether any file that may run together with this one uses a feature."""
        return any(feature in self.project.files[near].uses for near in self.family(path))

    def own_mentions(self, path: str, feature: str) -> bool:
        """Return whether a script or what it imports uses a feature; of a library file, whoever may run with it."""
        if features.SCRIPT not in self.project.files[path].uses:
            return self.mentions(path, feature)
        return any(feature in self.project.files[near].uses for near in _reached([path], self.imports))

    @cached_property
    def anchors(self) -> dict[str, Anchor]:
        """The first place in each file that trains."""
        found: dict[str, Anchor] = {}
        for reference, function in self.project.functions():
            for rank, line in self._places(reference, function):
                anchor = Anchor(rank, reference.path, line)
                if not is_test(reference.path) and (reference.path not in found or anchor < found[reference.path]):
                    found[reference.path] = anchor
        return found

    def _places(self, reference: Reference, function: Function) -> Iterator[tuple[int, int]]:
        for number, kind in enumerate(self.hotness.kinds.get(reference, ())):
            heat = self.hotness.at(reference, (number,)) if kind >= LoopKind.BATCH_LIKELY else None
            if heat is not None and heat.hot and heat.side is Side.TRAIN and self._updates(reference, number):
                yield 1, function.loops[number].line
        for call in function.calls if self._names_trainers else ():
            if self._is_trainer(call.callee, reference.path):
                yield 0, call.line

    @cached_property
    def _names_trainers(self) -> bool:
        """Whether any file has the word at all."""
        return any(features.TRAINER in summary.uses for summary in self.project.files.values())

    def _updates(self, reference: Reference, number: int) -> bool:
        """Return whether the file, or what the loop calls, steps an optimizer; a backward pass alone is no training."""
        function = self.project.function(reference)
        paths = {reference.path}
        for call in function.calls:
            if number in call.stack:
                paths |= {target.path for target in self.project.targets(call.callee, reference.path)}
        return any(features.STEPS in self.project.files[path].uses for path in paths)

    def _is_trainer(self, callee: Term, path: str) -> bool:
        """Match a framework's trainer."""
        answer = self.project.answer(callee, path)
        if not isinstance(answer, tuple):
            return False
        if answer[0] == "name":
            return str(answer[1]).startswith(_TRAINERS) and str(answer[1]).endswith("Trainer")
        if answer[0] == "class":
            names = self.project.base_names(answer[1], self.project.files[answer[1]].classes[answer[2]])
            return any(name.startswith(_TRAINERS) and name.endswith("Trainer") for name in names)
        return False

    @cached_property
    def speakers(self) -> dict[str, tuple[Anchor, frozenset[str]]]:
        """For each program its first anchor, by file, with the features that the program uses."""
        found: dict[str, tuple[Anchor, frozenset[str]]] = {}
        spoken: set[str] = set()
        for anchor in sorted(self.anchors.values()):
            roots = self._roots(anchor.path)
            if not roots & spoken:
                found[anchor.path] = (anchor, self._uses(anchor.path))
            spoken |= roots
        return found

    def _uses(self, path: str) -> frozenset[str]:
        """Return the features mentioned by the file, its importers, and what those import, at most two imports deep: a
        library that can do something is not a program that does it."""
        spine = _reached([path], self._importers)
        near = spine | {imported for path in spine for imported in self.imports[path]}
        far = near | {imported for path in near for imported in self.imports[path]}
        words = {word for path in near for word in self.project.files[path].uses}
        return frozenset(words | {word for path in far - near for word in self.project.files[path].uses - _MENTIONED})


def _names(summary: Summary) -> Iterator[str]:
    """Yield the full names that a file mentions."""
    for key, term in summary.names.items():
        if isinstance(term, tuple) and term[0] == "name":
            yield key[1:] if key[0] == "*" else term[1]
    for function in summary.functions.values():
        for call in function.calls:
            callee = call.callee
            while isinstance(callee, tuple) and callee[0] in ("attr", "call"):
                callee = callee[1]
            if isinstance(callee, tuple) and callee[0] == "name":
                yield callee[1]


def _reached(start: Iterable[str], edges: dict[str, set[str]]) -> set[str]:
    found, waiting = set(start), list(start)
    while waiting:
        for target in edges.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


_KNOWN: WeakKeyDictionary[Hotness, Programs] = WeakKeyDictionary()


def of(code: Code) -> Programs:
    found = _KNOWN.get(code.hotness)
    if found is None:
        found = _KNOWN[code.hotness] = Programs(code.hotness)
    return found


class AdvicePlace(NamedTuple):
    """The place in a file to give advice at, and the features that its program uses."""

    node: ast.AST
    uses: frozenset[str]
    heat: Heat

    def lacks(self, *names: str) -> bool:
        return not any(name in self.uses for name in names)


def advised(code: Code) -> AdvicePlace | None:
    """Return the place for advice if this file represents a program that, by its source, trains on a GPU."""
    found = of(code).speakers.get(code.path)
    if found is None:
        return None
    anchor, uses = found
    if features.CPU_ONLY in uses or (anchor.rank and not {features.CUDA, features.STEPS} <= uses):
        return None  # a framework uses the GPU by itself
    node = _node(code, anchor)
    if node is None or code.heat(node).frequency is Frequency.NEVER:
        return None
    text = "trains here" if anchor.rank else "the framework trains here"
    heat = Heat(Frequency.BATCH, Confidence.MEDIUM, Side.TRAIN, (Step(code.path, anchor.line, text),))
    return AdvicePlace(node, uses, heat)


def _node(code: Code, anchor: Anchor) -> ast.AST | None:
    if anchor.rank == 0:
        return next((call for call in code.all_calls() if call.lineno == anchor.line and _is_class(call)), None)
    for loop in code.nodes(ast.For, ast.AsyncFor, ast.While):
        first = loop.test if isinstance(loop, ast.While) else loop.iter  # type: ignore[attr-defined]
        if first.lineno == anchor.line:
            return loop
    return None


def _is_class(call: ast.Call) -> bool:
    return last_name(call.func)[:1].isupper()


def before_training(code: Code, where: AdvicePlace) -> dict[str, str]:
    """Return where a setting can be made once: before the outermost loop of the training, or before the trainer is
    made. Empty if the file does not import torch by that name."""
    imported = any(
        alias.name == "torch" and alias.asname is None
        for node in code.nodes(ast.Import)
        if isinstance(node, ast.Import)
        for alias in node.names
    )
    if not imported:
        return {}
    loops = [where.node, *code.loops(where.node)] if isinstance(where.node, Repeated) else []
    return {"before": position_of(loops[-1] if loops else code.statement(where.node), code.lines)}


def models_called(code: Code, loop: ast.AST) -> list[str]:
    """Return the names of the modules that a training loop calls with one argument, without losses, which get two."""
    names = [
        call.func.id
        for call in walk(loop)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and len(call.args) == 1
        and code.kind(call.func) == MODULE
        and call.func.id not in code.stored(loop)
    ]
    return list(dict.fromkeys(names))
