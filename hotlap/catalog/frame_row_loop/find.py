"""Frames processed row by row in Python: apply, iterrows, itertuples, and loops over the row numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.parse.terms import MODULE
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, is_constant, keyword, last_name
from hotlap.analysis.queries.frames import has_pandas, is_frame, is_grouped, is_series, may_be_frame
from hotlap.analysis.queries.reads import READS
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import mentions, only_shows, prepares
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

LoopNode = ast.For | ast.comprehension
WORDS = (".iterrows", ".itertuples", ".apply(", ".applymap(", ".map(", ".iloc[", ".loc[", ".at[", ".iat[")
SEVERITY = "high"
_SLOW = frozenset(
    "open read_text read_bytes imread load urlopen get post request urlretrieve sleep run system check_output copy "
    "copyfile copy2 move symlink save imwrite to_csv dump mkdir makedirs exists download generate invoke".split()
)
_PLAIN_FUNCTIONS = frozenset(
    ("len", "int", "float", "bool", "str", "abs", "round", "tuple", "list", "set", "max", "min", "sum")
)


def find(code: Code) -> Iterator[Found]:
    if not has_pandas(code) and "frame" not in code.text.lower():
        return
    yield from _row_iterations(code)
    yield from _row_functions(code)
    yield from _row_lookups(code)


def _found(
    code: Code, node: ast.expr, message: str, repair: str, confidence: Confidence | None, **more: object
) -> Found:
    heat = code.heat(node)
    hints = more.get("hints")
    return Found(
        node,
        message,
        repair,
        Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
        heat=Heat(heat.frequency, Confidence.HIGH, heat.side, heat.why),
        confidence=confidence,
        hints=hints if isinstance(hints, dict) else {},
    )


# for _, row in frame.iterrows()


def _row_iterations(code: Code) -> Iterator[Found]:
    for call in code.calls("iterrows", "itertuples"):
        if not isinstance(call.func, ast.Attribute) or is_grouped(call.func.value) or not prepares(code, call):
            continue
        body = _body(code, call)
        if body is None or only_shows(body) or _is_short(call.func.value) or _is_group(code, call.func.value):
            continue
        slow = call.func.attr == "iterrows"
        yield _found(
            code,
            call,
            f"`{shown(call)}` creates {'a Series' if slow else 'a tuple'} for every row",
            "work on whole columns, or loop over frame[name].to_numpy()",
            Confidence.LOW if _waits(body) else None if slow else Confidence.MEDIUM,
        )


def _is_group(code: Code, node: ast.expr) -> bool:
    """Recognise `for key, group in frame.groupby(…)`: a group has few rows."""
    names = {inner.id for inner in walk(node) if isinstance(inner, ast.Name)}
    return any(
        isinstance(loop, ast.For)
        and any(isinstance(inner, ast.Call) and last_name(inner.func) == "groupby" for inner in walk(loop.iter))
        and mentions(loop.target, names)
        for loop in code.loops(node)
    )


def _body(code: Code, call: ast.Call) -> list[ast.stmt] | None:
    """Return the statements that process the rows."""
    for outer in code.ancestors(call):
        if isinstance(outer, ast.For | ast.AsyncFor) and any(node is call for node in walk(outer.iter)):
            return outer.body
        if isinstance(outer, ast.stmt):
            return [outer]
    return None


def _is_short(node: ast.expr) -> bool:
    """Recognise results with few rows: `frame.head(5)`, a sample, or counts."""
    return isinstance(node, ast.Call) and last_name(node.func) in (
        "head",
        "tail",
        "sample",
        "value_counts",
        "nlargest",
        "describe",
        "agg",
    )


def _waits(body: list[ast.stmt]) -> bool:
    """Tell whether a statement takes far longer than the row: a file, a server, another program."""
    return any(
        isinstance(node, ast.Call) and last_name(node.func) in _SLOW and not _is_get(node)
        for statement in body
        for node in walk(statement)
    )


def _is_get(call: ast.Call) -> bool:
    """Recognise `row.get("name", default)`, but not `requests.get`."""
    return (
        last_name(call.func) == "get"
        and isinstance(call.func, ast.Attribute)
        and last_name(call.func.value) != "requests"
    )


# frame["x"].apply(lambda value: …)


def _row_functions(code: Code) -> Iterator[Found]:
    for call in code.calls("apply", "map", "applymap"):
        if not isinstance(call.func, ast.Attribute) or not call.args or not _is_of_pandas(code, call, call.func):
            continue
        function = call.args[0]
        if (
            not _is_python(code, function, call.func.attr == "map")
            or is_grouped(call.func.value)
            or not prepares(code, call)
        ):
            continue
        vectorised = _vectorised(code, call, function)
        waits = isinstance(function, ast.Lambda) and _waits([ast.Expr(function.body)])
        yield _found(
            code,
            call,
            f"`{shown(call)}` calls a Python function for every row",
            f"work on the whole column: {vectorised}" if vectorised else _advice(function),
            Confidence.LOW
            if waits or READS.get(code.full_name(function))
            else None
            if vectorised
            else Confidence.MEDIUM,
            hints={"within": "yes" if _is_within(code, call) else ""} if vectorised else {},
        )


def _is_of_pandas(code: Code, call: ast.Call, function: ast.Attribute) -> bool:
    base = function.value
    if keyword(call, "subset") is not None or code.kind(base) == MODULE or not may_be_frame(code, base):
        return False
    axis = keyword(call, "axis") or (call.args[1] if function.attr == "apply" and len(call.args) > 1 else None)
    if function.attr == "apply" and isinstance(axis, ast.Constant):
        return axis.value in (1, "columns") and keyword(call, "engine") is None
    series = is_series(code, base) or _is_written_back(code, call, base)
    if function.attr == "applymap":
        return True
    if function.attr == "map":
        return bool(series) and (is_frame(code, base) or isinstance(base, ast.Subscript))
    return bool(series)


def _is_written_back(code: Code, call: ast.Call, base: ast.expr) -> bool:
    """Recognise `data.loc[:, NAME] = data[NAME].apply(…)`, which only a frame supports."""
    statement = code.parent(call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or not isinstance(base, ast.Subscript):
        return False
    columns = target.slice.elts[-1:] if isinstance(target.slice, ast.Tuple) else []
    located = isinstance(target.value, ast.Attribute) and target.value.attr == "loc"
    same = located and ast.unparse(target.value.value) == ast.unparse(base.value)  # type: ignore[attr-defined]
    return same and any(ast.unparse(column) == ast.unparse(base.slice) for column in columns)


def _is_python(code: Code, function: ast.expr, mapped: bool) -> bool:
    """Accept lambdas, functions of the program and builtins; a library function may be vectorised."""
    if isinstance(function, ast.Lambda):
        return True
    name = code.full_name(function)
    if name:
        return name in _PLAIN_FUNCTIONS or not name.startswith(("numpy.", "pandas.", "torch."))
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
        return True  # "".join
    if isinstance(function, ast.Call):
        return last_name(function.func) == "partial"
    term = code.term(function)
    if isinstance(function, ast.Name | ast.Attribute) and not term:
        return not mapped  # from somewhere else: apply takes only functions, map also dictionaries
    return isinstance(term, tuple) and term[0] in ("function", "class", "instance")


def _advice(function: ast.expr) -> str:
    text = ast.unparse(function)
    if ".split" in text or ".lower" in text or ".strip" in text or ".replace" in text or "len" in text:
        return "use the column's .str methods, or a comprehension over .tolist()"
    return "work on the whole column; what must stay in Python runs faster as a comprehension over .tolist()"


def _vectorised(code: Code, call: ast.Call, function: ast.expr) -> str:
    """Return the same arithmetic on the whole column, `column * 2`, or "" if it is not plain. Rounding may differ."""
    if not isinstance(function, ast.Lambda) or len(call.args) != 1 or call.keywords or last_name(call.func) != "apply":
        return ""
    assert isinstance(call.func, ast.Attribute)
    arguments = function.args
    plain = len(arguments.args) == 1 and not (
        arguments.defaults or arguments.vararg or arguments.kwarg or arguments.kwonlyargs
    )
    if not plain or is_series(code, call.func.value) is not True or not is_frame(code, call.func.value):
        return ""
    name = arguments.args[0].arg
    if not _is_arithmetic(function.body, name) or isinstance(function.body, ast.Name):
        return ""
    simple = isinstance(call.func.value, ast.Name | ast.Subscript | ast.Attribute)
    if not simple or not _occurs_once(function.body, name):
        return ""
    return ast.unparse(function.body).replace(name, ast.unparse(call.func.value))


def _is_within(code: Code, call: ast.Call) -> bool:
    """Tell whether the call is part of a larger expression, so that its replacement needs parentheses."""
    parent = code.parent(call)
    return not isinstance(parent, ast.Assign | ast.Return | ast.AnnAssign | ast.keyword | ast.Call)


def _occurs_once(body: ast.expr, name: str) -> bool:
    words = [node.id for node in walk(body) if isinstance(node, ast.Name)]
    return words == [name] and ast.unparse(body).count(name) == 1


def _is_arithmetic(node: ast.expr, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_arithmetic(node.operand, name)
    if isinstance(node, ast.Compare):
        return (
            len(node.ops) == 1
            and isinstance(node.ops[0], ast.Gt | ast.GtE | ast.Lt | ast.LtE)
            and all(_is_arithmetic(operand, name) for operand in (node.left, *node.comparators))
        )
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return False
    divides = isinstance(node.op, ast.Div) and (not isinstance(node.right, ast.Constant) or not node.right.value)
    return not divides and _is_arithmetic(node.left, name) and _is_arithmetic(node.right, name)


# for i in range(len(frame)): frame.iloc[i]


def _row_lookups(code: Code) -> Iterator[Found]:
    seen: set[LoopNode] = set()
    for node in code.nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if not isinstance(node.value, ast.Attribute | ast.Subscript) or code.heat(node).hot:
            continue
        loop = next((around for around in _loops_around(code, node) if _is_row(code, node, around)), None)
        body = loop.body if isinstance(loop, ast.For) else [code.statement(node)]
        if loop is None or loop in seen or not prepares(code, node) or only_shows(body):
            continue
        seen.add(loop)
        if _is_few(loop.iter):
            continue
        yield _found(
            code,
            node,
            f"`{shown(node)}` looks up a row of a frame in every iteration of the loop",
            "work on whole columns, or loop over frame[name].to_numpy()",
            Confidence.LOW if _waits(body) else Confidence.MEDIUM,
        )


def _loops_around(code: Code, node: ast.Subscript) -> Iterator[LoopNode]:
    """Yield the loops around the node, those of comprehensions first."""
    for outer in code.ancestors(node):
        if isinstance(outer, ast.stmt):
            break
        yield from (
            generator
            for generator in getattr(outer, "generators", ())
            if not any(inner is node for inner in walk(generator))
        )
    yield from (loop for loop in code.loops(node) if isinstance(loop, ast.For))


def _is_row(code: Code, node: ast.Subscript, loop: LoopNode) -> bool:
    """Tell whether the loop yields the number or the label of the row."""
    targets = {target.id for target in walk(loop.target) if isinstance(target, ast.Name)}
    if isinstance(node.slice, ast.Slice) or not mentions(_first(node.slice), targets) or not _counts_rows(loop.iter):
        return False
    base = node.value
    if isinstance(base, ast.Attribute):
        of_frame = is_frame(code, base.value) or (base.attr in ("iloc", "loc") and may_be_frame(code, base.value))
        return base.attr in ("iloc", "loc", "at", "iat") and of_frame
    if not isinstance(base, ast.Subscript) or _is_of_row(code, base.value):
        return False
    return is_frame(code, base.value) and is_series(code, base) is True


def _is_of_row(code: Code, node: ast.expr) -> bool:
    """Tell whether the name is a row from iterrows or itertuples: its entries are plain values."""
    return isinstance(node, ast.Name) and any(
        isinstance(loop, ast.For)
        and mentions(loop.target, {node.id})
        and any(
            isinstance(inner, ast.Call) and last_name(inner.func) in ("iterrows", "itertuples")
            for inner in walk(loop.iter)
        )
        for loop in code.loops(node)
    )


def _first(node: ast.expr) -> ast.expr:
    return node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node


def _counts_rows(node: ast.expr) -> bool:
    """Accept range(…) of some length, or the index of a frame, but not a list of names."""
    while isinstance(node, ast.Call) and last_name(node.func) in ("tqdm", "trange", "enumerate", "list") and node.args:
        node = node.args[0]
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("range", "trange", "arange")
    return isinstance(node, ast.Attribute) and node.attr == "index"


def _is_few(node: ast.expr) -> bool:
    """Recognise a constant number of rows: range(10)."""
    return (
        isinstance(node, ast.Call)
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and not is_constant(node.args[0], None)
    )
