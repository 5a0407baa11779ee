"""Tells which branches of a program are taken rarely."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Sequence

from hotlap.analysis.parse import statements
from hotlap.analysis.parse.facts import DEAD, EPOCHLY, ERROR, FIRST, FLAG, MAYBE, RARE, RECORD
from hotlap.analysis.parse.tree import walk

NONE = 0  # no guard; never on a stack, where 0 is a loop
_CLOCKS = frozenset(("time", "perf_counter", "monotonic", "process_time"))
_CHECKS = frozenset(("isnan", "isinf", "isfinite", "is_scripting", "is_tracing", "is_nan"))
_UPDATES = ("optimizer_step", "optim_step", "update_weights", "update_params", "apply_grad")
_ENDINGS = frozenset("done dones terminated truncated terminal".split())  # of an episode
_SPACED = ("interval", "every")
_MAKERS = ("init", "setup", "set_up", "build", "create", "lazy", "prepare")
_USUAL = ("rank", "main_process", "is_main", "training", "master", "type", "loader", "save_model", "save_checkpoint")
_ASKED_OF_RUNS = frozenset("isinstance len hasattr is_available is_main_process get_rank is_tensor isdir".split())
_LAST = re.compile(r"(is_|at_)?last_(iter|iteration|step|batch|epoch)")
_WINDOWS = frozenset(("imshow", "waitKey", "namedWindow", "show"))
_SWITCHES = ("debug", "verbose", "profil", "dry_run", "sanity", "detect_anomaly", "visuali", "visdom", "save_val")


def guards(node: ast.If | ast.IfExp, counters: Container[str], rare_names: Container[str]) -> tuple[int, int]:
    """Return how rarely the body and the other branch are taken."""
    body, other = of_test(node.test, counters, rare_names)
    if isinstance(node, ast.IfExp):
        return body, other
    if (body == RARE or (body == FIRST and statements.starts_again(node))) and has_step(node.body):
        return NONE, other  # gradient accumulation: the body is the step itself
    if body == NONE:
        body = _of_body(node)
    if _sets_best(node.orelse) and not _sets_best(node.body):  # if score < self.best: wait, else: a new best
        body, other = (NONE if body == RECORD else body), RECORD
    if body == NONE and other == NONE and not _is_plain(node.test):
        return MAYBE, MAYBE
    return body, other


def deciding(test: ast.expr) -> tuple[list[ast.expr], bool]:
    """Return the parts that must be true for the body or, if the flag is set, for the other branch."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    inner = test.operand if isinstance(test, ast.UnaryOp) and negated else test
    return (inner.values if isinstance(inner, ast.BoolOp) and isinstance(inner.op, ast.And) else [inner]), negated


def _is_plain(test: ast.expr) -> bool:
    """Match tests of types, None, the rank, training mode or options. They hold for whole runs and do not suggest that
    the branch is rare."""
    if isinstance(test, ast.UnaryOp):
        return _is_plain(test.operand) or (isinstance(test.op, ast.Not) and _is_ending(test.operand))
    if isinstance(test, ast.BoolOp):
        return all(_is_plain(value) for value in test.values)
    if isinstance(test, ast.Compare):
        sides = [test.left, *test.comparators]
        return isinstance(test.ops[0], ast.Is | ast.IsNot) or any(_is_usual(side) or _is_choice(side) for side in sides)
    return _is_usual(test)


def _is_ending(node: ast.expr) -> bool:
    """Match `stop` and `self.finished`, which are false until the end."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return bool(set(name.lower().split("_")) & {"stop", "stopped", "finished", "converged"})


def _is_choice(node: ast.expr) -> bool:
    """Match one or several texts: `head == "gmm"` and `mode in ("a", "b")` choose a variant for the whole run."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return bool(node.elts) and all(_is_choice(part) for part in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_usual(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in _ASKED_OF_RUNS
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return any(word in name.lower() for word in _USUAL)


def of_test(test: ast.expr, counters: Container[str], rare_names: Container[str]) -> tuple[int, int]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        body, other = of_test(test.operand, counters, rare_names)
        return (RARE, NONE) if _is_modulo(test.operand) else (other, body)
    if isinstance(test, ast.BoolOp):
        return _of_both(test, counters, rare_names)
    if isinstance(test, ast.Constant):
        return (NONE, DEAD) if test.value else (DEAD, NONE)
    if isinstance(test, ast.Compare):
        return _of_comparison(test, counters, rare_names)
    if _is_modulo(test):
        return NONE, RARE
    if isinstance(test, ast.Call):
        return _of_call(test)
    return _of_name(test, rare_names)


def _of_both(test: ast.BoolOp, counters: Container[str], rare_names: Container[str]) -> tuple[int, int]:
    parts = [of_test(value, counters, rare_names)[0] for value in test.values]
    if isinstance(test.op, ast.And):
        return next((part for part in parts if part in (DEAD, RARE, FIRST, FLAG, RECORD, EPOCHLY)), NONE), NONE
    return (parts[0], NONE) if NONE not in parts else (NONE, NONE)


def _of_comparison(test: ast.Compare, counters: Container[str], rare_names: Container[str]) -> tuple[int, int]:
    operator, sides = test.ops[0], [test.left, *test.comparators]
    if any(_is_modulo(side) for side in sides):
        return _of_remainder(operator, sides)
    if any(map(_mentions_clock, sides)):
        return RARE, NONE
    if any(map(_is_record, sides)):
        return RECORD, NONE
    if isinstance(operator, ast.In):
        seldom = _is_counter(test.left, counters) or _is_episode(test.left) or _is_epoch(test.left)
        return (RARE, NONE) if seldom else (NONE, NONE)
    if _is_filled(test, rare_names):
        return RARE, NONE
    counted = any(_is_counter(side, counters) or _is_epoch(side) for side in sides)
    if isinstance(operator, ast.Eq) and (counted or any(map(_counts_steps, sides))):
        return (FIRST if counted else RARE), NONE
    if counted and isinstance(operator, ast.NotEq):
        return NONE, FIRST
    if counted and isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and is_small(test.comparators[0]):
        return _of_beginning(test, operator, counters)
    return NONE, NONE


def _of_remainder(operator: ast.cmpop, sides: list[ast.expr]) -> tuple[int, int]:
    if isinstance(operator, ast.Eq | ast.Lt | ast.LtE):
        return (EPOCHLY if isinstance(operator, ast.Eq) and any(map(_counts_epochs, sides)) else RARE), NONE
    return (NONE, RARE) if isinstance(operator, ast.NotEq | ast.Gt) else (NONE, NONE)


def _of_beginning(test: ast.Compare, operator: ast.cmpop, counters: Container[str]) -> tuple[int, int]:
    """Guard by a counter's start: `step < 3` holds the first few times, `epoch > 0` all but those."""
    if isinstance(operator, ast.Gt | ast.GtE):
        return NONE, RARE
    return (RARE, NONE) if _is_counter(test.left, counters) else (NONE, NONE)


def _is_filled(test: ast.Compare, rare_names: Container[str]) -> bool:
    """Match `len(names) > 0` for a list that is empty most of the time."""
    left = test.left
    held = left.args[0] if isinstance(left, ast.Call) and called(left) == "len" and left.args else None
    return isinstance(held, ast.Name) and held.id in rare_names and isinstance(test.ops[0], ast.Gt | ast.NotEq)


def _of_call(test: ast.Call) -> tuple[int, int]:
    name = test.func.attr if isinstance(test.func, ast.Attribute) else getattr(test.func, "id", "")
    if name == "isfinite":
        return NONE, RARE
    if name in _CHECKS:
        return RARE, NONE
    if name in ("any", "all") and isinstance(test.func, ast.Attribute) and isinstance(test.func.value, ast.Call):
        return _of_call(test.func.value)
    if name in ("any", "all", "bool") and test.args and isinstance(test.args[0], ast.Call):
        return _of_call(test.args[0])
    return (RARE, NONE) if any(word in name.lower() for word in _SPACED) else _of_word(name)


def _of_word(name: str) -> tuple[int, int]:
    """Guard by a word, which can only make a place colder: debugging switches, rare flags."""
    if name.lower().startswith(("should_", "time_to_", "is_time_to", "divisible")) or name in _ENDINGS:
        return RARE, NONE
    if "first" in name.lower().split("_") or _LAST.fullmatch(name.lower()):
        return FIRST, NONE
    return (FLAG, NONE) if any(word in name.lower() for word in _SWITCHES) else (NONE, NONE)


def _of_name(test: ast.expr, rare_names: Container[str]) -> tuple[int, int]:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    if isinstance(test, ast.Subscript) and isinstance(test.slice, ast.Constant):
        name = str(test.slice.value)  # options["verbose"]
    if name == "TYPE_CHECKING":
        return DEAD, NONE
    if isinstance(test, ast.Name) and name in rare_names:
        return RARE, NONE
    return _of_word(name)


def _of_body(node: ast.If) -> int:
    """Guard a branch that ends in an exception, or that fills what is still empty."""
    last = node.body[-1]
    if any(_shows(statement) for statement in node.body):
        return FLAG
    while isinstance(last, ast.If):
        last = last.body[-1]
    if isinstance(last, ast.Raise) and last is node.body[-1]:
        return ERROR
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and _ends_program(last.value):
        return ERROR
    if isinstance(node.test, ast.UnaryOp) and called(node.test.operand) == "hasattr":
        return FIRST
    if _remembers(node) or _raises_flag(node) or _begins(node):
        return FIRST
    if statements.gives_up(node):
        return ERROR
    if _sets_best(node.body):
        return RECORD
    empty = _tested_for_none(node.test)
    if empty and any(_fills(statement, empty) for statement in node.body):
        return FIRST
    return NONE


def _shows(statement: ast.stmt) -> bool:
    """Match a statement that opens a window for a person to look at."""
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    return isinstance(call, ast.Call) and called(call) in _WINDOWS


def _tested_for_none(test: ast.expr) -> str:
    """Return the place that `if x is None` tests, as text to compare."""
    if isinstance(test, ast.BoolOp):
        return next(filter(None, map(_tested_for_none, test.values)), "")
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and not isinstance(test.left, ast.Name):
        right = test.comparators[0]  # a local name is empty again in the next call
        if isinstance(right, ast.Constant) and right.value is None:
            return _text(_attribute(test.left))
    return ""


def _text(node: ast.expr) -> str:
    """Return a dotted name, or an element of one, as text to compare, or "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _text(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ast.unparse(node) if isinstance(node, ast.Subscript) else ""


def called(node: ast.expr) -> str:
    """Return the last name of what a call calls, or "" if this is not a call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _attribute(node: ast.expr) -> ast.expr:
    """Return `x.name` for `getattr(x, "name", None)`, and other nodes unchanged."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr" and len(node.args) > 1:
        name = node.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return ast.Attribute(node.args[0], name.value, ast.Load())
    return node


def _remembers(node: ast.If) -> bool:
    """Match `if key not in table: table[key] = …`."""
    parts, negated = deciding(node.test)
    lookups = [part for part in parts if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.NotIn)]
    tables = {_text(part.comparators[0]) for part in lookups} - {""}
    return not negated and bool(tables) and any(_files(statement, tables) for statement in node.body)


def _begins(node: ast.If) -> bool:
    """Match `if len(state) == 0: state["step"] = 0`, for a mapping that is empty the first time only."""
    test = node.test
    length = test.left if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) else None
    held = length.args[0] if isinstance(length, ast.Call) and called(length) == "len" and length.args else None
    empty = _text(held) if held is not None and ast.unparse(test.comparators[0]) == "0" else ""  # type: ignore[attr-defined]
    return bool(empty) and any(_files(statement, (empty,)) for statement in node.body)


def _files(statement: ast.stmt, tables: Container[str]) -> bool:
    """Match `table[key] = …` and `seen.add(key)`."""
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Subscript) and _text(target.value) in tables for target in statement.targets)
    call = statement.value if isinstance(statement, ast.Expr) else None
    named = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    return named and call.func.attr in ("add", "append", "update") and _text(call.func.value) in tables  # type: ignore[union-attr]


def _raises_flag(node: ast.If) -> bool:
    """Match `if not self.checked: self.checked = True` and `if self.first: self.first = False`."""
    negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
    flag = _text(node.test.operand if negated else node.test)  # type: ignore[attr-defined]
    return bool(flag) and any(
        isinstance(statement, ast.Assign)
        and _text(statement.targets[0]) == flag
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is negated
        for statement in node.body
    )


def _fills(statement: ast.stmt, empty: str) -> bool:
    """Return whether a statement sets what was empty, directly or through a method named for that."""
    if isinstance(statement, ast.Assign):
        return _text(statement.targets[0]) == empty
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    function = statement.value.func
    return isinstance(function, ast.Attribute) and function.attr.lstrip("_").startswith(_MAKERS)


def _ends_program(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("exit", "_exit", "abort", "quit")


def leaves(body: list[ast.stmt]) -> bool:
    """Return whether control never reaches what follows the block."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def leaves_loop(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Break)


def is_rare_flag(value: ast.expr, counters: Container[str] = ()) -> bool:
    """Match `log_now = step % 50 == 0` and `last = step == count - 1`."""
    return value.__class__ in (ast.Compare, ast.BoolOp) and of_test(value, counters, ())[0] in (RARE, EPOCHLY, FIRST)


def is_still_none(test: ast.expr) -> str:
    """Return `x` for `x is None`, or ""."""
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name) or not isinstance(test.ops[0], ast.Is):
        return ""
    right = test.comparators[0]
    return test.left.id if isinstance(right, ast.Constant) and right.value is None else ""


def sets(body: list[ast.stmt], name: str) -> bool:
    return any(_fills(statement, name) for statement in body)


def _is_modulo(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant)


def _counts_epochs(node: ast.expr) -> bool:
    """Match `step % len(loader)`."""
    return _is_modulo(node) and called(node.right) == "len"  # type: ignore[attr-defined]


def _is_record(node: ast.expr) -> bool:
    """Match `best_loss`: comparisons with it are rarely true."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return "best" in name.lower().split("_")


def _sets_best(body: list[ast.stmt]) -> bool:
    """Match `self.best_score = score`."""
    return any(isinstance(statement, ast.Assign) and _is_record(statement.targets[0]) for statement in body)


def _is_episode(node: ast.expr) -> bool:
    """Match `"episode" in info`, which environments report at the end of an episode."""
    return isinstance(node, ast.Constant) and node.value in ("episode", "final_info", "terminal_observation")


def _mentions_clock(node: ast.expr) -> bool:
    """Match `time.time()` and `now() - last`."""
    if isinstance(node, ast.BinOp):
        return _mentions_clock(node.left) or _mentions_clock(node.right)
    return called(node) in _CLOCKS


def _is_counter(node: ast.expr, counters: Container[str]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _is_counter(node.left, counters)
    return isinstance(node, ast.Name) and node.id in counters


def _counts_steps(node: ast.expr) -> bool:
    """Match `self.global_step` and `total_steps`, which rarely equal a given number."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.lower().rsplit("_", 1)[-1] in ("step", "steps", "iteration", "iterations")


def _is_epoch(node: ast.expr) -> bool:
    """Match `self.epoch` and `state.current_epoch`, which equal a given number once per training."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.lower().lstrip("_") in ("epoch", "current_epoch", "epoch_idx", "cur_epoch", "epoch_num", "ep")


def is_small(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value <= 10


def has_step(body: Sequence[ast.stmt]) -> bool:
    for statement in body:
        for node in walk(statement):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if (name == "step" and not _is_scheduler(node.func)) or any(word in name for word in _UPDATES):
                    return True
    return False


def _is_scheduler(function: ast.expr) -> bool:
    """Match `scheduler.step()`, which may follow an evaluation as well as a step."""
    receiver = function.value if isinstance(function, ast.Attribute) else None
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return "sched" in name.lower()
