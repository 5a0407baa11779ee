"""The same file read again: in every epoch or trial, or twice at the start."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.frequency.hotness import LoopKind
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, keyword, last_name
from hotlap.analysis.queries.invariant import set_by
from hotlap.analysis.queries.reads import ARRAY, MODELS, TABLE, WORDS, read_of, reading_functions
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import dependents, is_kept, loops, mentions, per_sample
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence, Frequency, Step

__all__ = ["WORDS", "find"]
SEVERITY = "high"
TESTS = False
_WRITES = frozenset("save to_csv to_parquet savez dump to_pickle save_pretrained savetxt to_hdf write_text".split())
_STUDIES = frozenset(("optimize", "agent", "run", "Tuner", "with_parameters", "with_resources"))


def find(code: Code) -> Iterator[Found]:
    if not code.trains():
        return
    reads = [call for call in code.all_calls() if _is_read(code, call)]
    repeated = set()
    for call in reads:
        for found in _in_loop(code, call):
            repeated.add(call)
            yield found
    yield from _twice(code, [call for call in reads if call not in repeated])


def _is_read(code: Code, call: ast.Call) -> bool:
    """Tell whether the call reads data: by a library, or by code of the project that always reads a file."""
    sort = read_of(code, call)
    if sort is not None and keyword(call, "mmap_mode") is not None:
        return False  # only what is used is read
    if sort is not None:
        return sort in (TABLE, ARRAY) and not _is_weights(code, call)
    if not call.args and not call.keywords:
        return False
    targets = code.project.targets(code.term(call.func), code.path) if code.term(call.func) else []
    if len(targets) != 1 or not reading_functions(code.project, targets[0]) or _is_cached(code, targets[0]):
        return False
    return not _is_weights(code, call)  # last: it searches the whole statement


def _is_weights(code: Code, call: ast.Call) -> bool:
    """Recognise a checkpoint, which changes while training goes on."""
    if code.full_name(call.func).startswith(("pandas.", "numpy.")):
        return False
    statement = code.statement(call)
    texts = " ".join(code.lines[statement.lineno - 1 : (statement.end_lineno or statement.lineno)]).lower()
    return any(
        word in texts for word in ("state", "ckpt", "checkpoint", "model", "weight", "resume", "pretrain", "best")
    )


def _is_cached(code: Code, target: Reference) -> bool:
    function = code.project.function(target)
    return any(name.rsplit(".", 1)[-1] in ("cache", "lru_cache", "cached") for name, _ in function.decorators)


# In a loop


def _in_loop(code: Code, call: ast.Call) -> Iterator[Found]:
    if per_sample(code, call) or is_kept(code, call) or _writes_between(code, call):
        return
    heat = code.heat(call)
    loop = next((outer for outer in loops(code, call) if _repeats_training(code, outer)), None)
    if loop is not None and _is_same(call, _changing(code, call)):
        frequency = heat.frequency if heat.hot else Frequency.EPOCH
        why = heat.why or (Step(code.path, loop.lineno, "loop around a training run"),)
        if heat.frequency not in (Frequency.RARE, Frequency.NEVER):
            yield _again(call, Heat(frequency, Confidence.HIGH, heat.side, why, around=heat.around))
        return
    function = code.function(call)
    if _is_of_each_file(code, call):
        yield _every_file(call, heat)
        return
    if function is None or next(loops(code, call), None) is not None or _depends(call, function):
        return
    if code.full_name(call.func) in MODELS or _is_of_new_object(call, heat):
        return
    if heat.frequency is Frequency.EPOCH or (heat.hot and heat.side is not Side.LOAD):
        yield _again(call, heat._replace(confidence=Confidence.MEDIUM))
    elif _is_trial(code, function):
        why = (Step(code.path, function.lineno, f"{function.name} is run for every trial"),)
        yield _again(call, Heat(Frequency.EPOCH, Confidence.HIGH, Side.TRAIN, why))


def _is_of_each_file(code: Code, call: ast.Call) -> bool:
    """Match `for path in paths: load(path)` in the epoch loop, or in a function that runs once an epoch, where nothing
    but the loop over the files changes what is read."""
    around, heat = list(loops(code, call)), code.heat(call)
    files = around[0] if around else None
    if not isinstance(files, ast.For) or heat.frequency is not Frequency.EPOCH or code.is_batch_loop(files):
        return False
    if code.loop_kind(files) is not LoopKind.PLAIN or (len(around) == 1 and heat.rarely):
        return False  # a training goes over shards because they do not fit into memory together
    if any(code.loop_kind(outer) is not LoopKind.EPOCH for outer in around[1:]):
        return False
    over = files.iter
    while isinstance(over, ast.Call) and last_name(over.func) in ("enumerate", "tqdm", "sorted") and over.args:
        over = over.args[0]
    names = {node.id for node in walk(files.target) if isinstance(node, ast.Name)}
    given = [*call.args, *(word.value for word in call.keywords)]
    changing = set().union(*(set_by(outer) for outer in around)) - names
    return (
        isinstance(over, ast.Name | ast.Attribute)
        and ast.unparse(over) not in changing
        and any(mentions(argument, names) for argument in given)
        and not any(mentions(argument, changing) for argument in given)
    )


def _every_file(call: ast.Call, heat: Heat) -> Found:
    return Found(
        call,
        f"`{shown(call)}` reads every file again {heat.often}",
        "read all files once and keep what is needed of them, in memory or in one array on disk",
        heat=heat,
        confidence=Confidence.MEDIUM,
    )


def _is_of_new_object(call: ast.Call, heat: Heat) -> bool:
    """Tell whether `self`, created anew each time and perhaps for other data, determines what is read."""
    in_constructor = any(step.text == "calls __init__" for step in heat.why)
    return in_constructor and any(
        mentions(argument, {"self"}) for argument in (*call.args, *(word.value for word in call.keywords))
    )


def _again(call: ast.Call, heat: Heat) -> Found:
    often = "in every trial" if heat.why and heat.why[-1].text.endswith("every trial") else heat.often
    return Found(call, f"`{shown(call)}` reads the same data {often}", "read it once, before the loop", heat=heat)


def _repeats_training(code: Code, loop: Repeated) -> bool:
    """Tell whether the loop is over epochs, trials, folds or batches."""
    return code.loop_kind(loop) in (LoopKind.EPOCH, LoopKind.BATCH, LoopKind.BATCH_LIKELY)


def _changing(code: Code, call: ast.Call) -> set[str]:
    """Return the names set by the loops around the call, and the names that depend on them."""
    names: set[str] = set()
    for loop in loops(code, call):
        names |= set_by(loop)
    function = code.function(call)
    return dependents(function, names) if function is not None else names


def _is_same(call: ast.Call, changing: set[str]) -> bool:
    arguments = (*call.args, *(word.value for word in call.keywords))
    texts = {ast.unparse(node) for argument in arguments for node in walk(argument) if isinstance(node, ast.Attribute)}
    return bool(arguments) and not any(mentions(argument, changing) for argument in arguments) and not texts & changing


def _depends(call: ast.Call, function: Definition) -> bool:
    names = dependents(function)
    return any(mentions(argument, names) for argument in (*call.args, *(word.value for word in call.keywords)))


def _is_trial(code: Code, function: Definition) -> bool:
    """Tell whether a hyper-parameter search, `study.optimize(objective)`, runs the function, directly or not."""
    return function.name in _trials(code)


@lru_cache(maxsize=2)
def _trials(code: Code) -> frozenset[str]:
    """Return the names of the functions that a search runs, and of those they call."""
    if not any(True for _ in code.calls(*_STUDIES)):
        return frozenset()
    names = {node.id for node in code.nodes(ast.Name) if isinstance(node, ast.Name) and _is_passed_to_study(code, node)}
    for _ in range(4):
        for function in code.nodes(ast.FunctionDef):
            if isinstance(function, ast.FunctionDef) and function.name in names:
                names |= {last_name(node.func) for node in walk(function) if isinstance(node, ast.Call)}
    return frozenset(names)


def _is_passed_to_study(code: Code, node: ast.AST) -> bool:
    inner: ast.AST = node
    for outer in code.ancestors(node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.Call) and outer.func is not inner and last_name(outer.func) in _STUDIES:
            name = code.full_name(outer.func)
            return last_name(outer.func) in ("optimize", "Tuner", "agent") or name.startswith(("ray.", "wandb."))
        if isinstance(outer, ast.Call) and outer.func is inner and not isinstance(code.parent(outer), ast.Lambda):
            return False  # called, not passed on
        inner = outer
    return False


def _writes_between(code: Code, call: ast.Call) -> bool:
    """Tell whether the source file also writes to the path: its content may be new each time."""
    paths = {ast.unparse(base) for argument in call.args[:1] for base in (argument, *_bases(argument))}
    return any(
        any(ast.unparse(argument) in paths for argument in node.args)
        for node in (*code.calls(*_WRITES), *code.calls("open"))
        if last_name(node.func) != "open" or _opens_to_write(node)
    )


def _bases(node: ast.expr) -> Iterator[ast.expr]:
    """Yield `self.path` of `self.path.read_bytes()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
        yield node


def _opens_to_write(call: ast.Call) -> bool:
    mode = call.args[1] if len(call.args) > 1 else None
    return isinstance(mode, ast.Constant) and bool(set(str(mode.value)) & set("wax"))


# Twice


def _twice(code: Code, reads: list[ast.Call]) -> Iterator[Found]:
    groups: dict[tuple[object, str], list[ast.Call]] = defaultdict(list)
    for call in reads:
        if next(loops(code, call), None) is None and not isinstance(code.parent(call), ast.Subscript):
            groups[code.function(call), ast.unparse(call)].append(call)
    for same in groups.values():
        for number, call in enumerate(same[1:], 1):
            first = next((earlier for earlier in same[:number] if _both_run(code, earlier, call)), None)
            if first is None or _changed_between(code, first, call):
                continue
            where = Step(code.path, first.lineno, "first read here")
            heat = Heat(Frequency.ONCE, Confidence.HIGH, Side.TRAIN, (where,))
            message = f"`{shown(call)}` reads the data that line {first.lineno} has already read"
            yield Found(call, message, "read it once and use it for both", heat=heat, confidence=Confidence.MEDIUM)
            break


def _both_run(code: Code, first: ast.Call, second: ast.Call) -> bool:
    """Tell whether both calls run: they stand in the same branches of the same statements."""
    return _branches(code, first) == _branches(code, second) and code.heat(second).frequency is not Frequency.NEVER


def _branches(code: Code, call: ast.Call) -> list[tuple[ast.AST, str]]:
    found: list[tuple[ast.AST, str]] = []
    here: ast.AST = call
    for parent in code.ancestors(call):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            break
        if isinstance(parent, ast.If | ast.IfExp | ast.Try | ast.ExceptHandler | ast.Match):
            found.append((parent, _side(parent, here)))
        here = parent
    return found


def _side(parent: ast.AST, child: ast.AST) -> str:
    for field in ("body", "orelse", "handlers", "finalbody"):
        value = getattr(parent, field, None)
        if value is child or (isinstance(value, list) and child in value):
            return field
    return ""


def _changed_between(code: Code, first: ast.Call, second: ast.Call) -> bool:
    """Tell whether a name in the arguments is set, the file is written, or chdir or download is called in between."""
    names = {node.id for node in walk(second) if isinstance(node, ast.Name)}
    paths = {ast.unparse(argument) for argument in second.args[:1]}
    scope = code.function(first) or code.tree
    for node in walk(scope):
        line = getattr(node, "lineno", 0)
        if not first.lineno < line < second.lineno:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
            return True
        if isinstance(node, ast.Call) and last_name(node.func) in ("chdir", "download"):
            return True
        writes = isinstance(node, ast.Call) and last_name(node.func) in _WRITES
        if writes and any(ast.unparse(argument) in paths for argument in node.args):  # type: ignore[attr-defined]
            return True
    return False
