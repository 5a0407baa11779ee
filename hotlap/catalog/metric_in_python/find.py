"""Metrics computed by Python or by sklearn for every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.parse.terms import MODULE, TEXT
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.element_work import counts, is_sequential, reads_elements
from hotlap.analysis.queries.elements import ElementLoop, element_loops
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import only_shows
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence

WORDS = ("for ", "sklearn", "bleu")
PREVIEW = True  # ten of its eighteen findings in code that nobody here knew were false or arguable
SEVERITY = "high"
ONLY_HOT = True
_LIBRARIES = ("sklearn.metrics.", "seqeval.metrics.", "skimage.metrics.")
_TRANSLATION = ("nltk.translate.bleu_score.corpus_bleu", "sacrebleu.corpus_bleu")
_OTHER = ("check_", "make_", "get_")  # these compute no metric


def find(code: Code) -> Iterator[Found]:
    yield from _by_library(code)
    counted = list(_by_counting(code))
    yield from counted
    counted_nodes = {found.node for found in counted}
    yield from (found for found in _by_comparing(code) if found.node not in counted_nodes)


def _by_library(code: Code) -> Iterator[Found]:
    for call in code.all_calls():
        name = code.full_name(call.func)
        if not name.startswith(_LIBRARIES + _TRANSLATION) or last_name(call.func).startswith(_OTHER):
            continue
        if _is_hot(code, call) and not _is_nested(code, call):
            yield Found(
                call,
                f"`{shown(call)}` copies every batch to the host to compute a metric there",
                "count on the device (torchmetrics, or sums of comparisons), or compute it once, after the loop",
            )


def _is_hot(code: Code, node: ast.AST) -> bool:
    heat = code.heat(node)
    return heat.hot and heat.side is not Side.LOAD


def _is_nested(code: Code, call: ast.Call) -> bool:
    parent = code.parent(call)
    return isinstance(parent, ast.Call) and code.full_name(parent.func).startswith(_LIBRARIES)


def _by_counting(code: Code) -> Iterator[Found]:
    for element_loop in element_loops(code):
        if not _is_hot(code, element_loop.loop.body[0]) or only_shows(element_loop.loop.body):
            continue
        names = counts(element_loop)
        if is_sequential(element_loop):
            continue
        if names or _scores_rows(code, element_loop):
            yield Found(
                element_loop.loop.iter,
                f"`{names[0]}` is counted element by element in Python"
                if names
                else f"the rows of `{shown(element_loop.arrays[0], 40)}` are scored one by one in Python",
                "count on the whole tensor: (predicted == target).sum(), torch.bincount for a confusion matrix",
                heat=code.heat(element_loop.loop),
                confidence=None if names else Confidence.MEDIUM,
            )


def _by_comparing(code: Code) -> Iterator[Found]:
    """Yield `if guessed[i] == wanted[i]: hits += 1` for every batch, whatever the sequences are."""
    for loop in code.nodes(ast.For):
        assert isinstance(loop, ast.For)
        if not _is_hot(code, loop.body[0]) or only_shows(loop.body):
            continue
        name = next(_hits(code, loop), "")
        if name:
            yield Found(
                loop.iter,
                f"`{name}` is counted element by element in Python",
                "count on the whole tensor: (predicted == target).sum(), torch.bincount for a confusion matrix",
                heat=code.heat(loop),
                confidence=Confidence.MEDIUM,
            )


def _hits(code: Code, loop: ast.For) -> Iterator[str]:
    sources = _sources(loop)
    for node in (inner for statement in loop.body for inner in walk(statement)):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        if not isinstance(node.test.ops[0], ast.Eq | ast.NotEq):
            continue
        sides = [_source(side, sources) for side in (node.test.left, node.test.comparators[0])]
        if "" in sides or sides[0] == sides[1] or any(code.kind(operand) == TEXT for operand in walk(node.test)):
            continue
        for statement in node.body:
            if (
                isinstance(statement, ast.AugAssign)
                and isinstance(statement.value, ast.Constant)
                and statement.value.value == 1
            ):
                yield ast.unparse(statement.target)


def _sources(loop: ast.For) -> dict[str, str]:
    """Return, for each name in the body, the sequence it is an element of: by zip, or by an index."""
    found: dict[str, str] = {}
    if not isinstance(loop.iter, ast.Call):
        return found
    if last_name(loop.iter.func) == "zip" and isinstance(loop.target, ast.Tuple):
        for target, sequence in zip(loop.target.elts, loop.iter.args, strict=False):
            if isinstance(target, ast.Name):
                found[target.id] = ast.unparse(sequence)
    elif last_name(loop.iter.func) == "range" and isinstance(loop.target, ast.Name):
        found[loop.target.id] = ""
        for statement in loop.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                found[statement.targets[0].id] = _source(statement.value, found)
    return found


def _source(node: ast.expr, sources: dict[str, str]) -> str:
    """Return the sequence that an expression is an element of, or ""."""
    for inner in walk(node):
        if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Name) and inner.slice.id in sources:
            return ast.unparse(inner.value)
        if isinstance(inner, ast.Name) and sources.get(inner.id):
            return sources[inner.id]
    return ""


def _scores_rows(code: Code, element_loop: ElementLoop) -> bool:
    """Tell whether rows become Python numbers, and results of a function of the program on them are collected."""
    if code.heat(element_loop.loop.body[0]).side is not Side.EVALUATE or not reads_elements(element_loop):
        return False
    nodes = [node for statement in element_loop.loop.body for node in walk(statement)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(code.callee_kind(call) == MODULE for call in calls):
        return False
    gathered = [call.args[0] for call in calls if last_name(call.func) == "append" and call.args]
    gathered += [node.value for node in nodes if isinstance(node, ast.AugAssign)]
    return any(isinstance(value, ast.Call) and _is_own(code, value) for value in gathered)


def _is_own(code: Code, call: ast.Call) -> bool:
    term = code.term(call.func)
    return isinstance(term, tuple) and term[0] == "function"
