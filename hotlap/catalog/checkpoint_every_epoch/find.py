"""Weights written to disk, or copied whole, every epoch or batch while the device waits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.names.modules import argument
from hotlap.analysis.parse.terms import ACCELERATOR, MODULE, STATE, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import loaders
from hotlap.analysis.queries.code import Code, Definition, keyword, last_name
from hotlap.analysis.queries.programs import is_test
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence, Frequency

WORDS = ("torch.save", "save(", "deepcopy", "state_dict", "save_pretrained", "save_checkpoint", "save_state")
_OFTEN = (Frequency.EPOCH, Frequency.BATCH, Frequency.SAMPLE)
_BETTER_TIMES = "each time the result improves"
_BETTER = ("best", "improv", "better")


def find(code: Code) -> Iterator[Found]:
    if is_test(code.path) or not code.trains():
        return
    for call in _writes(code):
        if _is_often(code, call):
            heat = _heat(code, call)
            sure = heat.maybes < 2 and not _when_improved(code, call)
            yield Found(
                call,
                f"`{shown(call, 40)}` writes a checkpoint {heat.frequency.value}, and training waits for it",
                "write every few epochs, or from a thread after one copy to the host",
                heat=heat,
                confidence=Confidence.MEDIUM if sure else Confidence.LOW,
            )
    for node, whole in _copies(code):
        if _is_often(code, node):
            improved, often = _when_improved(code, node), _heat(code, node).frequency.value
            yield Found(
                node,
                f"`{shown(node, 40)}` makes a second set of weights {_BETTER_TIMES if improved else often}",
                "copy into tensors that are kept: best[name].copy_(tensor)",
                confidence=Confidence.LOW if improved or whole else Confidence.MEDIUM,
            )


def _writes(code: Code) -> Iterator[ast.Call]:
    for call in code.calls("save"):
        known = isinstance(call.func, ast.Attribute) and _kind(code, call) == ACCELERATOR
        if (known or code.full_name(call.func) == "torch.save") and call.args and _holds_weights(code, call):
            yield call
    for call in code.calls("save_pretrained", "save_state", "save_checkpoint"):
        if isinstance(call.func, ast.Attribute) and not code.project.targets(code.term(call.func), code.path):
            kind = _kind(code, call)
            if kind in (MODULE, ACCELERATOR) or _is_trainer(call):
                yield call


def _holds_weights(code: Code, call: ast.Call) -> bool:
    """A model, a state dict or something with one in it; not what is written to memory."""
    scope = code.function(call)
    if scope is not None and "BytesIO" in ast.unparse(scope):
        return False
    first = call.args[0]
    return _is_handed_weights(code, first) if isinstance(first, ast.Starred) else _has_weights(code, first, call)


def _is_handed_weights(code: Code, given: ast.expr) -> bool:
    """`torch.save(*args)`, or an argument: those who call the function give a state dict, in whatever file they are."""
    known = code.reference(given)
    function = code.function(given)
    if known is None or function is None:
        return False
    if isinstance(given, ast.Starred):
        named = isinstance(given.value, ast.Name) and function.args.vararg is not None
        place = len(function.args.args) if named and given.value.id == function.args.vararg.arg else -1  # type: ignore[attr-defined, union-attr]
    else:
        names = [one.arg for one in function.args.args]
        place = names.index(given.id) if isinstance(given, ast.Name) and given.id in names else -1
    name = given.id if isinstance(given, ast.Name) else ""
    shift = 1 if code.project.function(known).owner else 0
    every = [(path, argument(call, place - shift, name)) for path, call in code.project.callers.get(known, ())]
    return place >= 0 and any(_is_weights(code, code.project.answer(one, path)) for path, one in every if one)


def _is_weights(code: Code, held: Term) -> bool:
    if isinstance(held, tuple) and held[0] in ("dict", "list", "tuple", "join"):
        return any(_is_weights(code, one) for one in held[1:])
    return code.simple(held) in (MODULE, STATE)


def _has_weights(code: Code, given: ast.expr, call: ast.Call, deep: int = 0) -> bool:
    if "state_dict" in ast.unparse(given) or code.kind(given) in (MODULE, STATE) or _names_model(given):
        return True
    held = code.term(given)
    if isinstance(held, tuple) and held[0] == "dict" and held[1] in (MODULE, STATE):
        return True
    if not isinstance(given, ast.Name) or deep > 2:
        return isinstance(given, ast.Call) and deep < 2 and _returns_weights(code, given)
    function = code.function(call)
    made = [one for one in loaders.assigned(code, given.id) if code.function(one) is function]
    if function is not None and any(_puts_weights(one, given.id) for one in walk(function)):
        return True
    if made:
        return any(_has_weights(code, one, call, deep + 1) for one in made)
    if function is None or given.id not in [one.arg for one in function.args.args]:
        return False
    names = [one.arg for one in function.args.args]
    number = names.index(given.id) - (1 if names[0] == "self" and given.id != "self" else 0)
    handed = [one.args[number] for one in code.calls(function.name) if len(one.args) > number]
    handed += [one for caller in code.calls(function.name) if (one := keyword(caller, given.id)) is not None]
    if any(_has_weights(code, one, code.parents[one], deep + 1) for one in handed):  # type: ignore[arg-type]
        return True
    return _is_handed_weights(code, given)


def _puts_weights(node: ast.AST, name: str) -> bool:
    """`package["model"] = model.state_dict()`, `package.update({"model": model.state_dict()})`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        kept = node.func.value
        return isinstance(kept, ast.Name) and kept.id == name and "state_dict" in ast.unparse(node)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
        return False
    held = node.targets[0].value
    return isinstance(held, ast.Name) and held.id == name and "state_dict" in ast.unparse(node.value)


def _names_model(given: ast.expr) -> bool:
    """A dictionary with an entry for the model or the optimizer."""
    keys = [one.value for one in given.keys if isinstance(one, ast.Constant)] if isinstance(given, ast.Dict) else []
    return any(key in ("model", "net", "optimizer", "weights", "params", "generator") for key in keys)


def _returns_weights(code: Code, given: ast.Call) -> bool:
    """A function of this file that puts a state dict together."""
    return any(
        isinstance(one, Definition) and one.name == last_name(given.func) and "state_dict" in ast.unparse(one)
        for one in code.nodes(ast.FunctionDef)
    )


def _kind(code: Code, call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return code.kind(call.func.value)


def _is_trainer(call: ast.Call) -> bool:
    """`self.trainer.save_checkpoint(…)`: Lightning's."""
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr == "save_checkpoint" and last_name(call.func.value) == "trainer"


def _copies(code: Code) -> Iterator[tuple[ast.expr, bool]]:
    """Copies of a state dict, and of a whole model."""
    for call in code.calls("deepcopy"):
        if code.full_name(call.func) == "copy.deepcopy" and len(call.args) == 1:
            given = call.args[0]
            if (_is_state(given) or code.kind(given) == STATE) and not _is_worked_with(code, call):
                yield call, False
            elif code.kind(given) == MODULE and _is_put_aside(code, call):
                yield call, any(_compares(code, test) for test in _tests(code, call))
    for node in code.nodes(ast.DictComp):
        assert isinstance(node, ast.DictComp)
        over = node.generators[0].iter
        named = isinstance(over, ast.Call) and last_name(over.func) == "items" and isinstance(over.func, ast.Attribute)
        if named and _is_state(over.func.value) and _is_copied(node.value):  # type: ignore[attr-defined]
            yield node, False


def _is_put_aside(code: Code, call: ast.Call) -> bool:
    """`best = copy.deepcopy(model)`, when something has improved; other copies are there to be worked with."""
    statement = code.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    same = ast.unparse(statement.targets[0]) == ast.unparse(call.args[0])
    better = any(_compares(code, test) for test in _tests(code, call))
    return not same and (better or _is_put_back(code, call, statement.targets[0]))


def _is_put_back(code: Code, call: ast.Call, target: ast.expr) -> bool:
    """`self.model = best`, after the loop."""
    scope = code.function(call)
    return scope is not None and any(
        isinstance(one, ast.Assign)
        and ast.unparse(one.targets[0]) == ast.unparse(call.args[0])
        and ast.unparse(one.value) == ast.unparse(target)
        for one in walk(scope)
    )


def _is_worked_with(code: Code, call: ast.Call) -> bool:
    """Weights of before, which an algorithm needs: they are indexed or iterated over in the same function."""
    statement = code.statement(call)
    scope = code.function(call)
    if not isinstance(statement, ast.Assign) or scope is None or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name
        for node in walk(scope)
    )


def _is_state(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "state_dict"


def _is_copied(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) and last_name(one.func) in ("clone", "cpu", "deepcopy") for one in walk(node))


def _is_often(code: Code, node: ast.AST) -> bool:
    heat = _heat(code, node)
    return heat.frequency in _OFTEN and heat.side is not Side.LOAD and (heat.hot or not heat.rarely)


def _heat(code: Code, node: ast.AST) -> Heat:
    """Every epoch, where somebody calls its function as often, and others now and then between batches."""
    heat, known = code.heat(node), code.reference(node)
    if heat.frequency is not Frequency.RARE or known is None or any(_tests(code, node)):
        return heat
    calls = [code.hotness.at(one, call.stack) for one, call in code.hotness.callers.get(known, ())]
    return next((one for one in calls if one is not None and one.frequency is Frequency.EPOCH and not one.rarely), heat)


def _when_improved(code: Code, node: ast.AST) -> bool:
    """Behind a comparison that says the result is better than before, here or where its function is called."""
    if any(_compares(code, test) for test in _tests(code, node)):
        return True
    function = code.function(node)
    if function is None or any(code.loops(node)):
        return False
    calls = [one for one in code.calls(function.name) if _is_often(code, one)]
    if not calls:
        return _when_asked(code, node)
    return all(any(_compares(code, test) for test in _tests(code, one)) for one in calls)


def _when_asked(code: Code, node: ast.AST) -> bool:
    """Everybody who calls its function, in other files, does so behind some condition."""
    known = code.reference(node)
    heats = [code.hotness.at(one, call.stack) for one, call in code.hotness.callers.get(known, ())] if known else []
    often = [one for one in heats if one is not None and one.frequency in _OFTEN and not one.rarely]
    return all(one.maybes for one in often) if often else bool(code.heat(node).maybes)


def _tests(code: Code, node: ast.AST) -> Iterator[ast.expr]:
    """What must be true for it; of the other branch nothing is known."""
    inner = node
    for outer in code.ancestors(node):
        if isinstance(outer, Definition):
            return
        if isinstance(outer, ast.If) and inner not in outer.orelse:
            yield outer.test
        inner = outer


def _is_counter(code: Code, node: ast.expr) -> bool:
    """What a loop around it counts: `epoch > 0` is no result."""
    return isinstance(node, ast.Name) and any(
        isinstance(loop, ast.For) and any(isinstance(one, ast.Name) and one.id == node.id for one in walk(loop.target))
        for loop in code.loops(node)
    )


def _compares(code: Code, test: ast.expr) -> bool:
    for node in walk(test):
        ordered = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE)
        if ordered and not _is_counter(code, node.left):  # type: ignore[attr-defined]
            return True
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if any(word in name.lower() for word in _BETTER):
            return True
        if isinstance(node, ast.Name) and _raised_when_better(code, node):
            return True
    return False


def _raised_when_better(code: Code, flag: ast.Name) -> bool:
    """`save = False; if accuracy > best: save = True`."""
    made = [one for one in loaders.assigned(code, flag.id) if code.function(one) is code.function(flag)]
    plain = [one for one in made if isinstance(one, ast.Constant) and one.value is True]
    if any(isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Lt | ast.Gt) for one in made):
        return True
    return any(
        isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE)
        for one in plain
        for test in _tests(code, one)
        for part in walk(test)
    )
