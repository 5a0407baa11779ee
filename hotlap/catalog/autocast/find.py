"""Finds training in full precision on a GPU. One finding per program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse import features
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.terms import MODULE, TENSOR
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.mappings import assigned
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("backward(", "step(", "Trainer(", "train_", "training")
TESTS = False


def find(code: Code) -> Iterator[Found]:
    where = programs.advised(code)
    if where is None or not where.lacks(features.AUTOCAST, features.RECURRENT, features.COMMAND_LINE):
        return
    hints = _hints(code, where)
    yield Found(
        where.node,
        "the program trains in float32: nothing in it asks for half precision",
        'run the model under torch.autocast("cuda", dtype=torch.bfloat16), or set the precision of the trainer',
        Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
        heat=where.heat,
        confidence=None if where.lacks(features.LAUNCHED) else Confidence.LOW,  # its launcher may ask for it
        hints=hints,
    )


def _hints(code: Code, where: programs.AdvicePlace) -> dict[str, str]:
    """Return the one statement `outputs = model(inputs)` of the loop, if all of the model can run in half precision."""
    names = programs.models_called(code, where.node)
    if len(names) != 1 or not programs.before_training(code, where) or not where.lacks(features.NO_HALF):
        return {}
    runs = [call for call in walk(where.node) if isinstance(call, ast.Call) and last_name(call.func) == names[0]]
    statement = code.statement(runs[0])
    if len(runs) != 1 or not isinstance(statement, ast.Assign) or statement.value is not runs[0]:
        return {}
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name) or not _gives_tensor(code, runs[0]):
        return {}
    return {"statement": position_of(statement, code.lines), "name": target.id}


def _gives_tensor(code: Code, call: ast.Call) -> bool:
    """Return whether the model is a layer, or a class of the project whose forward pass returns one tensor."""
    term = code.term(call.func)
    parts = set(term[1:]) - {MODULE} if isinstance(term, tuple) and term[0] == "join" else {term}
    found = code.project.class_of(parts.pop(), code.path) if len(parts) == 1 else None
    if found is None:
        return term == MODULE and code.kind(call) == TENSOR and _is_layer(code, call.func)
    method = code.project.method(found[0], found[1], "forward")
    if method is None:
        return False
    return code.project.answer(code.project.function(method).returns, method.path) == TENSOR


def _is_layer(code: Code, model: ast.expr) -> bool:
    """Match a name that the file sets once, to a layer of torch."""
    made = assigned(code, model.id) if isinstance(model, ast.Name) else []
    while len(made) == 1 and isinstance(made[0], ast.Call) and last_name(made[0].func) in ("to", "cuda", "train"):
        made = [made[0].func.value] if isinstance(made[0].func, ast.Attribute) else []
    return len(made) == 1 and isinstance(made[0], ast.Call) and code.full_name(made[0].func).startswith("torch.nn.")
