"""Finds thread counts set in the environment after the libraries that read them were loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.queries.code import Code, keyword, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence, Frequency, Step

WORDS = ("_NUM_THREADS", "_MAXIMUM_THREADS")
TESTS = False
PREVIEW = True  # it found nothing in 146 repositories that nobody here knew
_VARIABLES = frozenset(
    "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS NUMEXPR_MAX_THREADS BLIS_NUM_THREADS "
    "VECLIB_MAXIMUM_THREADS".split()
)
_READERS = frozenset(("torch", "numpy", "scipy", "pandas", "sklearn", "torchvision", "lightning", "pytorch_lightning"))
_NUMEXPR = frozenset(("pandas", "numexpr"))
_FORKS = ("Process(", ".spawn(", "multiprocessing.Pool", "mp.Pool", "ProcessPool", "ray.init")
_RUNS = ("subprocess.", "os.system", "os.exec", "os.spawn")


def find(code: Code) -> Iterator[Found]:
    if any(word in code.text for word in _FORKS):
        return
    for node, variable, value in _settings(code):
        loaded = _loaded(code, variable) if variable in _VARIABLES and not _is_inherited(code, node) else None
        if loaded is not None and _is_later(code, node, loaded) and code.heat(node).frequency is not Frequency.NEVER:
            yield _found(code, node, variable, value, loaded)


def _is_inherited(code: Code, node: ast.stmt) -> bool:
    """Return whether the same function runs another program, which inherits the variable."""
    here = code.function(node)
    return any(code.full_name(call.func).startswith(_RUNS) for call in code.all_calls() if code.function(call) is here)


def _loaded(code: Code, variable: object) -> ast.stmt | None:
    """Return the first module-level import of a library that reads the variable when it is loaded."""
    readers = _NUMEXPR if str(variable).startswith("NUMEXPR") else _READERS
    for statement in code.tree.body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module or ""]
        else:
            continue
        if any(name.split(".")[0] in readers for name in names):
            return statement
    return None


def _settings(code: Code) -> Iterator[tuple[ast.stmt, object, ast.expr]]:
    for node in code.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and _is_environment(code, target.value):
            yield node, getattr(target.slice, "value", None), node.value
    for call in code.calls("setdefault", "putenv"):
        known = code.full_name(call.func) in ("os.environ.setdefault", "os.putenv")
        if known and len(call.args) == 2 and isinstance(code.parent(call), ast.Expr):
            yield code.statement(call), getattr(call.args[0], "value", None), call.args[1]


def _is_environment(code: Code, node: ast.expr) -> bool:
    return code.full_name(node) == "os.environ"


def _is_later(code: Code, node: ast.stmt, loaded: ast.stmt) -> bool:
    """Return whether the node runs after that import; functions run once the imports of their file are done."""
    return code.function(node) is not None or node.lineno > loaded.lineno


def _found(code: Code, node: ast.stmt, variable: object, value: ast.expr, loaded: ast.stmt) -> Found:
    count = _count(value)
    fixable = bool(count) and variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") and _has_torch(code)
    fixable = fixable and isinstance(node, ast.Assign) and len(node.targets) == 1
    return Found(
        node,
        f"{variable} is set after line {loaded.lineno} has loaded the library that reads it, so it has no effect here",
        f"torch.set_num_threads({count})" if fixable else "set it before the first import, or in the shell",
        Applicability.UNSAFE if fixable else Applicability.DISPLAY_ONLY,
        Heat(Frequency.ONCE, _confidence(variable), Side.TRAIN, (Step(code.path, loaded.lineno, "loaded here"),)),
        hints={"count": count, "statement": position_of(node, code.lines)} if fixable else {},
    )


def _confidence(variable: object) -> Confidence:
    """Return medium confidence for MKL, which may read its variable when it is first used."""
    return Confidence.MEDIUM if variable == "MKL_NUM_THREADS" else Confidence.HIGH


def _count(value: ast.expr) -> str:
    """Return the expression for the number in `"4"` or `str(count)`, else an empty string."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.isdigit():
        return value.value if value.value != "0" else ""
    if isinstance(value, ast.Call) and last_name(value.func) == "str" and len(value.args) == 1:
        inner = value.args[0]
        return ast.unparse(inner) if keyword(value, "encoding") is None and _is_simple(inner) else ""
    return ""


def _is_simple(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) or (isinstance(node, ast.Constant) and type(node.value) is int)


def _has_torch(code: Code) -> bool:
    """Return whether the file has a module-level `import torch`."""
    return any(
        isinstance(statement, ast.Import)
        and any(name.name == "torch" and name.asname is None for name in statement.names)
        for statement in code.tree.body
    )
