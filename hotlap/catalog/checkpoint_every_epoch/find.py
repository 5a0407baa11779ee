"""Finds weights written to disk, or copied whole, every epoch or batch while the device waits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.names.modules import argument
from hotlap.analysis.parse.terms import ACCELERATOR, MODULE, STATE, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import loaders
from hotlap.analysis.queries.code import Code, Definition, keyword, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence, Frequency

WORDS = ("torch.save", "save(", "deepcopy", "state_dict", "save_pretrained", "save_checkpoint", "save_state")
TESTS = False
PREVIEW = True  # twenty of its fifty findings in code that nobody here knew were false or arguable
_OFTEN = (Frequency.EPOCH, Frequency.BATCH, Frequency.SAMPLE)
_BETTER_TIMES = "each time the result improves"
_BETTER = ("best", "improv", "better")


def find(code: Code) -> Iterator[Found]:
    if not code.trains():
        return
    for call in _writes(code):
        if _is_often(code, call):
            heat = _heat(code, call)
            sure = heat.maybes < 2 and not _when_improved(code, call)
            yield Found(
                call,
                f"`{shown(call, 40)}` writes a checkpoint {heat.frequency}, and training waits for it",
                "write every few epochs, or from a thread after one copy to the host",
                heat=heat,
                confidence=Confidence.MEDIUM if sure else Confidence.LOW,
            )
    for node, whole in _copies(code):
        if _is_often(code, node):
            improved, often = _when_improved(code, node), _heat(code, node).frequency
            yield Found(
                node,
                f"`{shown(node, 40)}` makes a second set of weights {_BETTER_TIMES if improved else often}",
                "copy into tensors that exist already: best[name].copy_(tensor)",
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
    """Whether a model, a state dict or something containing one is saved, and not to memory."""
    scope = code.function(call)
    if scope is not None and "BytesIO" in ast.unparse(scope):
        return False
    first = call.args[0]
    return _receives_weights(code, first) if isinstance(first, ast.Starred) else _has_weights(code, first, call)


def _receives_weights(code: Code, given: ast.expr) -> bool:
    """Whether callers in any file pass a state dict to the function, which saves `*args` or one of its arguments."""
    known = code.reference(given)
    function = code.function(given)
    if known is None or function is None:
        return False
    if isinstance(given, ast.Starred):
        named = isinstance(given.value, ast.Name) and function.args.vararg is not None
        place = len(function.args.args) if named and given.value.id == function.args.vararg.arg else -1  # type: ignore[attr-defined, union-attr]
    else:
        names = [parameter.arg for parameter in function.args.args]
        place = names.index(given.id) if isinstance(given, ast.Name) and given.id in names else -1
    name = given.id if isinstance(given, ast.Name) else ""
    shift = 1 if code.project.function(known).owner else 0
    passed = [(path, argument(call, place - shift, name)) for path, call in code.project.callers.get(known, ())]
    return place >= 0 and any(
        _is_weights(code, code.project.answer(argument_value, path))
        for path, argument_value in passed
        if argument_value
    )


def _is_weights(code: Code, held: Term) -> bool:
    if isinstance(held, tuple) and held[0] in ("dict", "list", "tuple", "join"):
        return any(_is_weights(code, element) for element in held[1:])
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
    values = [value for value in loaders.assigned(code, given.id) if code.function(value) is function]
    if function is not None and any(_puts_weights(inner, given.id) for inner in walk(function)):
        return True
    if values:
        return any(_has_weights(code, value, call, deep + 1) for value in values)
    if function is None or given.id not in [parameter.arg for parameter in function.args.args]:
        return False
    names = [parameter.arg for parameter in function.args.args]
    number = names.index(given.id) - (1 if names[0] == "self" and given.id != "self" else 0)
    passed = [caller.args[number] for caller in code.calls(function.name) if len(caller.args) > number]
    passed += [value for caller in code.calls(function.name) if (value := keyword(caller, given.id)) is not None]
    if any(_has_weights(code, value, code.parents[value], deep + 1) for value in passed):  # type: ignore[arg-type]
        return True
    return _receives_weights(code, given)


def _puts_weights(node: ast.AST, name: str) -> bool:
    """Whether it is `name["model"] = model.state_dict()` or `name.update({"model": model.state_dict()})`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        container = node.func.value
        return isinstance(container, ast.Name) and container.id == name and "state_dict" in ast.unparse(node)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
        return False
    held = node.targets[0].value
    return isinstance(held, ast.Name) and held.id == name and "state_dict" in ast.unparse(node.value)


def _names_model(given: ast.expr) -> bool:
    """Whether it is a dictionary with an entry for the model or the optimizer."""
    keys = [key.value for key in given.keys if isinstance(key, ast.Constant)] if isinstance(given, ast.Dict) else []
    return any(key in ("model", "net", "optimizer", "weights", "params", "generator") for key in keys)


def _returns_weights(code: Code, given: ast.Call) -> bool:
    """Whether a function of this file is called that puts a state dict together."""
    return any(
        isinstance(function, Definition)
        and function.name == last_name(given.func)
        and "state_dict" in ast.unparse(function)
        for function in code.nodes(ast.FunctionDef)
    )


def _kind(code: Code, call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return code.kind(call.func.value)


def _is_trainer(call: ast.Call) -> bool:
    """Whether it is Lightning's `self.trainer.save_checkpoint(…)`."""
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr == "save_checkpoint" and last_name(call.func.value) == "trainer"


def _copies(code: Code) -> Iterator[tuple[ast.expr, bool]]:
    """Yield copies of weights, and whether each is of a whole model and behind a comparison."""
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
    """Whether it is `best = copy.deepcopy(model)` after an improvement; other copies are made to be worked with."""
    statement = code.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    same = ast.unparse(statement.targets[0]) == ast.unparse(call.args[0])
    better = any(_compares(code, test) for test in _tests(code, call))
    return not same and (better or _is_put_back(code, call, statement.targets[0]))


def _is_put_back(code: Code, call: ast.Call, target: ast.expr) -> bool:
    """Whether the copy is put back, as in `self.model = best` after the loop."""
    scope = code.function(call)
    return scope is not None and any(
        isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == ast.unparse(call.args[0])
        and ast.unparse(statement.value) == ast.unparse(target)
        for statement in walk(scope)
    )


def _is_worked_with(code: Code, call: ast.Call) -> bool:
    """Whether an algorithm needs the copied weights: they are indexed in the same function."""
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
    return any(
        isinstance(inner, ast.Call) and last_name(inner.func) in ("clone", "cpu", "deepcopy") for inner in walk(node)
    )


def _is_often(code: Code, node: ast.AST) -> bool:
    heat = _heat(code, node)
    return heat.frequency in _OFTEN and heat.side is not Side.LOAD and (heat.hot or not heat.rarely)


def _heat(code: Code, node: ast.AST) -> Heat:
    """Return the heat of a node: every epoch if one caller of its function is as hot, even if others are rare."""
    heat, known = code.heat(node), code.reference(node)
    if heat.frequency is not Frequency.RARE or known is None or any(_tests(code, node)):
        return heat
    calls = [code.hotness.at(path, call.stack) for path, call in code.hotness.callers.get(known, ())]
    return next(
        (
            caller_heat
            for caller_heat in calls
            if caller_heat is not None and caller_heat.frequency is Frequency.EPOCH and not caller_heat.rarely
        ),
        heat,
    )


def _when_improved(code: Code, node: ast.AST) -> bool:
    """Whether it is behind a comparison that shows an improvement, here or where its function is called."""
    if any(_compares(code, test) for test in _tests(code, node)):
        return True
    function = code.function(node)
    if function is None or any(code.loops(node)):
        return False
    calls = [call for call in code.calls(function.name) if _is_often(code, call)]
    if not calls:
        return _when_conditional(code, node)
    return all(any(_compares(code, test) for test in _tests(code, call)) for call in calls)


def _when_conditional(code: Code, node: ast.AST) -> bool:
    """Whether all callers of its function, in other files, call it behind some condition."""
    known = code.reference(node)
    heats = [code.hotness.at(path, call.stack) for path, call in code.hotness.callers.get(known, ())] if known else []
    often = [heat for heat in heats if heat is not None and heat.frequency in _OFTEN and not heat.rarely]
    return all(heat.maybes for heat in often) if often else bool(code.heat(node).maybes)


def _tests(code: Code, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the conditions that must be true for a node; an `else` branch yields none."""
    inner = node
    for outer in code.ancestors(node):
        if isinstance(outer, Definition):
            return
        if isinstance(outer, ast.If) and inner not in outer.orelse:
            yield outer.test
        inner = outer


def _is_counter(code: Code, node: ast.expr) -> bool:
    """Whether it is the counter of a loop around it: `epoch > 0` is not a result."""
    return isinstance(node, ast.Name) and any(
        isinstance(loop, ast.For)
        and any(isinstance(target, ast.Name) and target.id == node.id for target in walk(loop.target))
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
    """Whether a flag is set by a comparison, as in `save = False; if accuracy > best: save = True`."""
    values = [value for value in loaders.assigned(code, flag.id) if code.function(value) is code.function(flag)]
    plain = [value for value in values if isinstance(value, ast.Constant) and value.value is True]
    if any(isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.Lt | ast.Gt) for value in values):
        return True
    return any(
        isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE)
        for value in plain
        for test in _tests(code, value)
        for inner in walk(test)
    )
