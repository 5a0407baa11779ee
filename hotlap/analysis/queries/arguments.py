"""Tells what the arguments of functions are: who passes them, host or device, and which names hold parts of them."""

from __future__ import annotations

import ast

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.modules import argument
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import BATCH, DEVICE, MODULE, TENSOR, TENSORS, UNKNOWN, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition

_DEEPEST = 3  # callers of callers
_SETTINGS = frozenset(  # objects that hold settings; their `device` is the chosen one, not that of a tensor
    "self args cfg config conf opt opts option options hparams hps params settings flags accelerator fabric trainer "
    "engine runner learner ctx".split()
)


def arguments(function: Definition) -> set[str]:
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    rest = {parameter.arg for parameter in (function.args.vararg, function.args.kwarg) if parameter is not None}
    return {parameter.arg for parameter in every} - {"self", "cls"} | rest


def taken(function: Definition) -> set[str]:
    """Return the names that hold parts of the arguments: `x, y = batch`, `image = batch["image"]`."""
    given, found = arguments(function), set[str]()
    for node in walk(function):
        if isinstance(node, ast.Assign) and begins_with(node.value, given | found):
            found |= {part.id for target in node.targets for part in walk(target) if isinstance(part, ast.Name)}
    return found - given


def begins_with(value: ast.expr, names: set[str]) -> bool:
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(begins_with(part, names) for part in value.elts)
    while isinstance(value, ast.Subscript | ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) and value.id in names


def is_chosen(code: Code, place: ast.expr | None) -> bool:
    """Match a device that somebody chose, such as `.cuda()` or `self.device`, but not another tensor's, `x.device`."""
    if isinstance(place, ast.Attribute):
        base = place.value
        name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
        kind = code.kind(base)
        return kind == MODULE or (name.lower().lstrip("_") in _SETTINGS and kind not in TENSORS)
    if isinstance(place, ast.Name) and code.kind(place) == DEVICE:
        return not _is_of_tensor(code, place)
    return place is None or isinstance(place, ast.Name | ast.Constant)


def _is_of_tensor(code: Code, place: ast.Name) -> bool:
    """Return whether the name was set to the device of a tensor: `device = x.device`."""
    function = code.function(place)
    return function is not None and any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Attribute)
        and any(isinstance(target, ast.Name) and target.id == place.id for target in node.targets)
        and not is_chosen(code, node.value)
        for node in walk(function)
    )


def by_callers(code: Code, name: ast.Name) -> set[str]:
    """Return the kinds of values that callers of the enclosing function pass for this argument."""
    function = code.function(name)
    known = code.reference(name)
    if function is None or known is None:
        return set()
    facts = code.project.function(known)
    if name.id not in facts.parameters:
        return set()
    return _given(code, known, facts.parameters.index(name.id), 0)


def _given(code: Code, known: Reference, number: int, deep: int) -> set[str]:
    facts = code.project.function(known)
    place = number - 1 if facts.owner and not is_static(facts) else number
    place = place if number < len(facts.parameters) - facts.named else -1
    found: set[str] = set()
    for path, call in code.project.callers.get(known, ()):
        given = argument(call, place, facts.parameters[number])
        if given is not None:
            found |= _kinds(code, given, path, deep)
    return found


def _kinds(code: Code, term: Term, path: str, deep: int) -> set[str]:
    """Return all kinds a term may be: a batch moved to the device on one branch is still a batch on the other."""
    if isinstance(term, tuple) and term[0] == "join":
        return {kind for part in term[1:] for kind in _kinds(code, part, path, deep)}
    if isinstance(term, tuple) and term[0] == "param" and deep < _DEEPEST:
        found = _given(code, Reference(path, term[1]), term[2], deep + 1)
        if found:
            return found
    return {code.simple(code.project.answer(term, path))}


def to_model(code: Code, call: ast.Call, name: ast.Name, kind: str) -> bool:
    """Match `x = x.to(device)` in a forward pass, where x is an argument that comes straight from the loader."""
    function = code.function(name)
    if function is None or name.id not in arguments(function) or kind not in (UNKNOWN, TENSOR):
        return False
    if _is_set_before(code, function, name):
        return False
    kinds = by_callers(code, name)
    if BATCH in kinds:
        return True
    device = call.args[0] if call.args else next((word.value for word in call.keywords if word.arg == "device"), None)
    if function.name != "forward" or kinds - {UNKNOWN} or isinstance(device, ast.Constant):
        return False
    return is_chosen(code, device) and code.trains() and not is_placed_before(code, name)


def _is_set_before(code: Code, function: Definition, name: ast.Name) -> bool:
    """Return whether the name is set to something else on the way here; the opposite branch does not count."""
    choices = [outer for outer in code.ancestors(name) if isinstance(outer, ast.If)]
    instead = [
        statement
        for choice in choices
        if any(part.lineno <= name.lineno <= (part.end_lineno or 0) for part in choice.orelse)
        for statement in choice.body
    ]
    return any(
        isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Store)
        and node.lineno < name.lineno
        and not any(part.lineno <= node.lineno <= (part.end_lineno or 0) for part in instead)
        for node in walk(function)
    )  # fmt: skip


def is_placed_before(code: Code, name: ast.Name) -> bool:
    """Return whether Lightning has placed the batch: it moves those of its modules before any hook sees them."""
    known: Reference | None = code.reference(name)
    owner = code.project.files[code.path].classes.get(code.project.function(known).owner) if known else None
    return owner is not None and any("lightning" in base.lower() for base in code.project.base_names(code.path, owner))
