"""Finds optimizers that update one parameter tensor after another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.features import MOVES, UNFUSED
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code, last_name, spread
from hotlap.analysis.queries.loaders import loader
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence, Frequency, Step

WORDS = ("optim",)
TESTS = False
_FUSED = frozenset(("Adam", "AdamW", "SGD", "Adagrad"))
_GAINS_MOST = frozenset(("Adam", "AdamW"))
_CHOSEN = frozenset(("fused", "foreach", "capturable", "differentiable"))
_LOADING = ("load", "restore", "resume")
_DEVICE = re.compile(r"\bcuda\b|\bdevice\b|Accelerator|Trainer|Fabric")


def find(code: Code) -> Iterator[Found]:
    made = sorted(code.calls(*_FUSED), key=lambda call: call.lineno)
    if not made or not (code.project_uses(MOVES) or _DEVICE.search(code.text)) or not code.trains():
        return
    for call in made:
        if _is_plain(code, call) and not _is_less_usual(code, call):
            short = ast.unparse(call.func).rsplit(".", 1)[-1]
            yield Found(
                call,
                f"{short} updates the parameters with several kernels per tensor",
                "update them together: fused=True",
                Applicability.UNSAFE if _is_sure(code, call, short) else Applicability.DISPLAY_ONLY,
                Heat(
                    Frequency.BATCH,
                    Confidence.MEDIUM,
                    Side.TRAIN,
                    (Step(code.path, call.lineno, "its step runs every batch"),),
                ),
            )


def _is_sure(code: Code, call: ast.Call, short: str) -> bool:
    """Return whether a fused step certainly exists: Adagrad lacks one on GPUs, sparse and complex values anywhere."""
    return not spread(call) and short != "Adagrad" and not programs.of(code).mentions(code.path, UNFUSED)


def _is_plain(code: Code, call: ast.Call) -> bool:
    name = code.full_name(call.func)
    if not name.startswith("torch.optim.") or code.heat(call).frequency is Frequency.NEVER:
        return False
    if _is_second_choice(code, call) or _is_only_loaded(code, call):
        return False
    given = loader(code, call)
    return (given.complete or _forwards_options(code, call)) and not any(word in _CHOSEN for word in given.settings)


def _is_second_choice(code: Code, call: ast.Call) -> bool:
    """Match the optimizer that a program falls back on, or makes beside one of the same function that is fused."""
    if any(isinstance(outer, ast.ExceptHandler) for outer in code.ancestors(call)):
        return True
    function = code.function(call)
    return function is not None and any(
        (isinstance(node, ast.keyword) and node.arg == "fused")
        or (isinstance(node, ast.Constant) and node.value == "fused")
        for node in walk(function)
    )


def _is_only_loaded(code: Code, call: ast.Call) -> bool:
    """Match an optimizer that is made to read a checkpoint: it is passed on for that, and never used otherwise."""
    statement, scope = code.parent(call), code.function(call) or code.tree
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return False
    used = [
        code.parent(node)
        for node in walk(scope)
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load)
        if (code.function(node) or code.tree) is scope
    ]
    return bool(used) and all(isinstance(user, ast.Call) and last_name(user.func).startswith(_LOADING) for user in used)


def _is_less_usual(code: Code, call: ast.Call) -> bool:
    """Match SGD and Adagrad where a name chooses the optimizer, and another branch has Adam, which gains most."""
    if ast.unparse(call.func).rsplit(".", 1)[-1] in _GAINS_MOST:
        return False
    choices = [outer for outer in code.ancestors(code.statement(call)) if isinstance(outer, ast.If)]
    return bool(choices) and any(
        isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in _GAINS_MOST
        for node in walk(choices[-1])
    )


def _forwards_options(code: Code, call: ast.Call) -> bool:
    """Whether it is `Adam(params, lr, **options)`, with the function's own options, in a project without `fused`."""
    function = code.function(call)
    rest = function.args.kwarg.arg if function is not None and function.args.kwarg is not None else ""
    spreads = [word.value for word in call.keywords if word.arg is None]
    forwarded = all(isinstance(value, ast.Name) and value.id == rest for value in spreads)
    return bool(spreads) and forwarded and not code.project_uses("fused")
