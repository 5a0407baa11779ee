"""Frames gone through row by row in Python: apply, iterrows, itertuples, and loops over the row numbers."""

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

Turns = ast.For | ast.comprehension
WORDS = (".iterrows", ".itertuples", ".apply(", ".applymap(", ".map(", ".iloc[", ".loc[", ".at[", ".iat[")
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
    yield from _iterated(code)
    yield from _applied(code)
    yield from _numbered(code)


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


def _iterated(code: Code) -> Iterator[Found]:
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
            f"`{shown(call)}` makes {'a Series' if slow else 'a tuple'} of every row",
            "work on whole columns, or loop over frame[name].to_numpy()",
            Confidence.LOW if _waits(body) else None if slow else Confidence.MEDIUM,
        )


def _is_group(code: Code, node: ast.expr) -> bool:
    """`for key, group in frame.groupby(…)`: a few rows at a time."""
    names = {one.id for one in walk(node) if isinstance(one, ast.Name)}
    return any(
        isinstance(loop, ast.For)
        and any(isinstance(one, ast.Call) and last_name(one.func) == "groupby" for one in walk(loop.iter))
        and mentions(loop.target, names)
        for loop in code.loops(node)
    )


def _body(code: Code, call: ast.Call) -> list[ast.stmt] | None:
    """What is done with the rows."""
    for one in code.ancestors(call):
        if isinstance(one, ast.For | ast.AsyncFor) and any(part is call for part in walk(one.iter)):
            return one.body
        if isinstance(one, ast.stmt):
            return [one]
    return None


def _is_short(node: ast.expr) -> bool:
    """`frame.head(5)`, a sample, or counts: few rows."""
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
    """Something in there takes far longer than the row: a file, a server, another program."""
    return any(
        isinstance(one, ast.Call) and last_name(one.func) in _SLOW and not _is_get(one)
        for statement in body
        for one in walk(statement)
    )


def _is_get(call: ast.Call) -> bool:
    """`row.get("name", default)`, not requests.get."""
    return (
        last_name(call.func) == "get"
        and isinstance(call.func, ast.Attribute)
        and last_name(call.func.value) != "requests"
    )


# frame["x"].apply(lambda value: …)


def _applied(code: Code) -> Iterator[Found]:
    for call in code.calls("apply", "map", "applymap"):
        if not isinstance(call.func, ast.Attribute) or not call.args or not _is_of_pandas(code, call, call.func):
            continue
        given = call.args[0]
        if (
            not _is_python(code, given, call.func.attr == "map")
            or is_grouped(call.func.value)
            or not prepares(code, call)
        ):
            continue
        vectorised = _vectorised(code, call, given)
        waits = isinstance(given, ast.Lambda) and _waits([ast.Expr(given.body)])
        yield _found(
            code,
            call,
            f"`{shown(call)}` calls a Python function for every row",
            f"work on the whole column: {vectorised}" if vectorised else _advice(given),
            Confidence.LOW if waits or READS.get(code.full_name(given)) else None if vectorised else Confidence.MEDIUM,
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
    """`data.loc[:, NAME] = data[NAME].apply(…)`: nothing but a frame has that."""
    statement = code.parent(call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or not isinstance(base, ast.Subscript):
        return False
    columns = target.slice.elts[-1:] if isinstance(target.slice, ast.Tuple) else []
    located = isinstance(target.value, ast.Attribute) and target.value.attr == "loc"
    same = located and ast.unparse(target.value.value) == ast.unparse(base.value)  # type: ignore[attr-defined]
    return same and any(ast.unparse(one) == ast.unparse(base.slice) for one in columns)


def _is_python(code: Code, given: ast.expr, mapped: bool) -> bool:
    """A lambda, a function of the program, or a builtin; not a name of a library's, which may be made for columns."""
    if isinstance(given, ast.Lambda):
        return True
    name = code.full_name(given)
    if name:
        return name in _PLAIN_FUNCTIONS or not name.startswith(("numpy.", "pandas.", "torch."))
    if isinstance(given, ast.Attribute) and isinstance(given.value, ast.Constant):
        return True  # "".join
    if isinstance(given, ast.Call):
        return last_name(given.func) == "partial"
    term = code.term(given)
    if isinstance(given, ast.Name | ast.Attribute) and not term:
        return not mapped  # from somewhere else: apply takes functions only, map dictionaries as well
    return isinstance(term, tuple) and term[0] in ("function", "class", "instance")


def _advice(given: ast.expr) -> str:
    text = ast.unparse(given)
    if ".split" in text or ".lower" in text or ".strip" in text or ".replace" in text or "len" in text:
        return "use the column's .str methods, or a comprehension over .tolist()"
    return "work on the whole column; what must be Python runs faster in a comprehension over .tolist()"


def _vectorised(code: Code, call: ast.Call, given: ast.expr) -> str:
    """The same on the whole column: `column * 2`, where the lambda is plain arithmetic. Rounding may differ."""
    if not isinstance(given, ast.Lambda) or len(call.args) != 1 or call.keywords or last_name(call.func) != "apply":
        return ""
    assert isinstance(call.func, ast.Attribute)
    arguments = given.args
    plain = len(arguments.args) == 1 and not (
        arguments.defaults or arguments.vararg or arguments.kwarg or arguments.kwonlyargs
    )
    if not plain or is_series(code, call.func.value) is not True or not is_frame(code, call.func.value):
        return ""
    name = arguments.args[0].arg
    if not _is_arithmetic(given.body, name) or isinstance(given.body, ast.Name):
        return ""
    simple = isinstance(call.func.value, ast.Name | ast.Subscript | ast.Attribute)
    if not simple or not _once(given.body, name):
        return ""
    return ast.unparse(given.body).replace(name, ast.unparse(call.func.value))


def _is_within(code: Code, call: ast.Call) -> bool:
    """Part of a larger expression: it needs parentheses."""
    parent = code.parent(call)
    return not isinstance(parent, ast.Assign | ast.Return | ast.AnnAssign | ast.keyword | ast.Call)


def _once(body: ast.expr, name: str) -> bool:
    words = [one.id for one in walk(body) if isinstance(one, ast.Name)]
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
            and all(_is_arithmetic(one, name) for one in (node.left, *node.comparators))
        )
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return False
    divides = isinstance(node.op, ast.Div) and (not isinstance(node.right, ast.Constant) or not node.right.value)
    return not divides and _is_arithmetic(node.left, name) and _is_arithmetic(node.right, name)


# for i in range(len(frame)): frame.iloc[i]


def _numbered(code: Code) -> Iterator[Found]:
    seen: set[Turns] = set()
    for node in code.nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if not isinstance(node.value, ast.Attribute | ast.Subscript) or code.heat(node).hot:
            continue
        loop = next((one for one in _around(code, node) if _is_row(code, node, one)), None)
        body = loop.body if isinstance(loop, ast.For) else [code.statement(node)]
        if loop is None or loop in seen or not prepares(code, node) or only_shows(body):
            continue
        seen.add(loop)
        if _is_few(loop.iter):
            continue
        yield _found(
            code,
            node,
            f"`{shown(node)}` looks up a row of a frame in every turn of the loop",
            "work on whole columns, or loop over frame[name].to_numpy()",
            Confidence.LOW if _waits(body) else Confidence.MEDIUM,
        )


def _around(code: Code, node: ast.Subscript) -> Iterator[Turns]:
    """The loops it stands in, those of comprehensions first."""
    for outer in code.ancestors(node):
        if isinstance(outer, ast.stmt):
            break
        yield from (one for one in getattr(outer, "generators", ()) if not any(part is node for part in walk(one)))
    yield from (one for one in code.loops(node) if isinstance(one, ast.For))


def _is_row(code: Code, node: ast.Subscript, loop: Turns) -> bool:
    """The loop gives the number or the name of the row."""
    targets = {one.id for one in walk(loop.target) if isinstance(one, ast.Name)}
    if isinstance(node.slice, ast.Slice) or not mentions(_first(node.slice), targets) or not _counts_rows(loop.iter):
        return False
    base = node.value
    if isinstance(base, ast.Attribute):
        known = is_frame(code, base.value) or (base.attr in ("iloc", "loc") and may_be_frame(code, base.value))
        return base.attr in ("iloc", "loc", "at", "iat") and known
    if not isinstance(base, ast.Subscript) or _is_of_row(code, base.value):
        return False
    return is_frame(code, base.value) and is_series(code, base) is True


def _is_of_row(code: Code, node: ast.expr) -> bool:
    """A row that iterrows made: its entries are plain values."""
    return isinstance(node, ast.Name) and any(
        isinstance(loop, ast.For)
        and mentions(loop.target, {node.id})
        and any(
            isinstance(one, ast.Call) and last_name(one.func) in ("iterrows", "itertuples") for one in walk(loop.iter)
        )
        for loop in code.loops(node)
    )


def _first(node: ast.expr) -> ast.expr:
    return node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node


def _counts_rows(node: ast.expr) -> bool:
    """range(…) of some length, or an index of the frame; not a list of names."""
    while isinstance(node, ast.Call) and last_name(node.func) in ("tqdm", "trange", "enumerate", "list") and node.args:
        node = node.args[0]
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("range", "trange", "arange")
    return isinstance(node, ast.Attribute) and node.attr == "index"


def _is_few(node: ast.expr) -> bool:
    """range(10)."""
    return (
        isinstance(node, ast.Call)
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and not is_constant(node.args[0], None)
    )
