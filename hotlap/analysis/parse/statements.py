"""Recognizes forms of statements and expressions that reading a file needs to know."""

from __future__ import annotations

import ast
from collections.abc import Container

from hotlap.analysis.parse.calls import BACKWARDS, last_name
from hotlap.analysis.parse.facts import Function, Summary
from hotlap.analysis.parse.terms import MODULE, TENSOR, Term
from hotlap.analysis.parse.tree import walk

Decorators = tuple[tuple[str, tuple[str, ...]], ...]


def relative(summary: Summary, level: int, module: str) -> str:
    """Return the full name of the module in `from ..x import y`."""
    parts = summary.module.split(".")
    up = level - 1 if summary.package else level
    return "@" + ".".join([*parts[: max(len(parts) - up, 0)], *([module] if module else [])])


def qualified(owner: str, function: Function, name: str) -> str:
    """Return the name of something defined in a class or function."""
    if owner:
        return f"{owner}.{name}"
    return f"{function.name}.{name}" if function.name else name


def free_name(functions: dict[str, Function], name: str, line: int, decorators: Decorators) -> str:
    """Return a free name for a definition. The last definition gets the plain name, except a property's setter."""
    known = functions.get(name)
    if known is None:
        return name
    if any(full.endswith((".setter", ".deleter")) for full, _ in decorators):
        return f"{name}@{line}"
    known.name = f"{name}@{known.line}"
    functions[known.name] = known
    return name


def default_flags(arguments: ast.arguments) -> tuple[tuple[str, bool], ...]:
    """Return the arguments whose default is True, False or None."""
    plain = [*arguments.posonlyargs, *arguments.args]
    last = zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True)
    every = (*last, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    found = ((argument.arg, value.value) for argument, value in every if isinstance(value, ast.Constant))
    return tuple((name, bool(value)) for name, value in found if value is None or value is True or value is False)


def tested_flag(test: ast.expr) -> tuple[str, bool]:
    """Return the name that a condition tests and its required value: `quiet`, `not quiet`, `x is not None`."""
    if isinstance(test, ast.Name):
        return test.id, True
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        name, wanted = tested_flag(test.operand)
        return name, not wanted
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.Eq) and isinstance(test.left, ast.Name):
        right = test.comparators[0]
        if isinstance(right, ast.Constant) and (right.value is None or right.value is True or right.value is False):
            return test.left.id, bool(right.value)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and isinstance(test.left, ast.Name):
        right = test.comparators[0]
        return (test.left.id, True) if isinstance(right, ast.Constant) and right.value is None else ("", True)
    return "", True


def compared_with_number(test: ast.expr, *operators: type[ast.cmpop]) -> str:
    """Return `number` for `number == 0`, or for other comparisons, else ""."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], operators or ast.Eq):
        return ""
    right = test.comparators[0]
    plain = isinstance(right, ast.Constant) and type(right.value) is int
    return test.left.id if plain and isinstance(test.left, ast.Name) else ""


_FEW = 10


def beyond_number(test: ast.expr) -> str:
    """Return `number` for `number > 0` and `number != 0`, whose other branch is for the first few numbers."""
    limit = getattr(test.comparators[0], "value", None) if isinstance(test, ast.Compare) else None
    few = type(limit) is int and 0 <= limit < _FEW
    return compared_with_number(test, ast.Gt, ast.GtE, ast.NotEq) if few else ""


def is_static(function: Function) -> bool:
    return any(name == "staticmethod" for name, _ in function.decorators)


def properties(node: ast.ClassDef) -> frozenset[str]:
    """Return the properties of a class, which run on each access."""
    return frozenset(
        statement.name
        for statement in node.body
        if isinstance(statement, ast.FunctionDef)
        and any(isinstance(part, ast.Name) and part.id == "property" for part in statement.decorator_list)
    )


def losses(function: ast.AST) -> frozenset[str]:
    """Return the names that a backward pass starts from, which are tensors, whatever made them."""
    found = set()
    for node in walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BACKWARDS:
            start = node.args[0] if node.args else node.func.value
            if isinstance(start, ast.Call) and last_name(start.func) == "scale" and start.args:
                start = start.args[0]
            if isinstance(start, ast.Name):
                found.add(start.id)
    return frozenset(found)


def converted(node: ast.If) -> list[str]:
    """Return x for `if not isinstance(x, list): x = x.tolist()`, after which both paths have what the branch makes."""
    if node.orelse:
        return []
    targets = [target for statement in node.body if isinstance(statement, ast.Assign) for target in statement.targets]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    if not names:
        return []
    tested = {_not_none(node.test)} | {
        part.args[0].id
        for part in walk(node.test)
        if isinstance(part, ast.Call) and part.args and isinstance(part.args[0], ast.Name)
        if last_name(part.func) in ("isinstance", "is_tensor", "hasattr")
    }
    return [name for name in names if name in tested]


def _not_none(test: ast.expr) -> str:
    """Return `x` for `x is not None`: if the branch is skipped, it is None."""
    if (
        not isinstance(test, ast.Compare)
        or not isinstance(test.ops[0], ast.IsNot)
        or not isinstance(test.left, ast.Name)
    ):
        return ""
    right = test.comparators[0]
    return test.left.id if isinstance(right, ast.Constant) and right.value is None else ""


def tested_for_tensor(test: ast.expr) -> list[str]:
    """Return x for `if isinstance(x, torch.Tensor)`: in the other branch x is not a tensor."""
    if not isinstance(test, ast.Call) or not test.args or not isinstance(test.args[0], ast.Name):
        return []
    name = last_name(test.func)
    tensor = name == "isinstance" and len(test.args) == 2 and last_name(test.args[1]) == "Tensor"
    return [test.args[0].id] if tensor or name == "is_tensor" else []


def tested_for_class(test: ast.expr) -> tuple[str, ast.expr] | None:
    """Return the name and the class in `isinstance(x, Metric)`."""
    if not isinstance(test, ast.Call) or last_name(test.func) != "isinstance" or len(test.args) != 2:
        return None
    name, kind = test.args
    return (name.id, kind) if isinstance(name, ast.Name) and isinstance(kind, ast.Name | ast.Attribute) else None


def counts(node: ast.expr) -> bool:
    """Match enumerate(…), also inside tqdm(…)."""
    while isinstance(node, ast.Call):
        if last_name(node.func) == "enumerate":
            return True
        if not node.args:
            return False
        node = node.args[0]
    return False


def counted(node: ast.expr) -> ast.expr:
    """Return `range(n)` for `tqdm(range(n))`."""
    while isinstance(node, ast.Call) and last_name(node.func) in ("tqdm", "track") and node.args:
        node = node.args[0]
    return node


def dotted(node: ast.expr) -> str:
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else last_name(node)


def counts_on(value: ast.expr, counters: Container[str]) -> bool:
    """Match arithmetic with a loop's counter."""
    if isinstance(value, ast.BinOp):
        return counts_on(value.left, counters) or counts_on(value.right, counters)
    return isinstance(value, ast.Name) and value.id in counters


_OF_TENSORS = frozenset("shape size dim device view permute unsqueeze squeeze masked_fill contiguous numel".split())


def used_as_tensors(node: ast.AST, parameters: tuple[str, ...]) -> set[str]:
    """Return the arguments of a forward pass that are used for what only tensors have, and never taken apart."""
    found, apart = set(), set()
    for part in walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            found |= {part.value.id} if part.attr in _OF_TENSORS else set()
        elif isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name):
            named = isinstance(part.slice, ast.Constant) and isinstance(part.slice.value, str)
            apart |= {part.value.id} if named else set()
        elif (
            isinstance(part, ast.Assign) and isinstance(part.value, ast.Name) and isinstance(part.targets[0], ast.Tuple)
        ):
            apart.add(part.value.id)
    return (found - apart) & set(parameters)


_MODEL_FIRST = (".compute_loss", ".prediction_step", ".training_step")  # of Hugging Face's trainer
_WITH_OUTPUTS = (".on_train_batch_end", ".on_validation_batch_end", ".on_test_batch_end")  # of Lightning's callbacks


def hook_arguments(function: Function) -> dict[str, Term]:
    """Return what a framework passes to its hooks, judged by the names of the arguments."""
    if not function.owner or len(function.parameters) < 2:
        return {}
    if function.name.endswith(_MODEL_FIRST) and function.parameters[1] == "model":
        return {"model": MODULE}
    if function.name.endswith(_WITH_OUTPUTS) and "outputs" in function.parameters:
        return {"outputs": ("dict", TENSOR)}
    return {}


def branches(node: ast.If) -> int:
    """Return how many branches with a test remain in an `if`–`elif` chain."""
    count = 1
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node, count = node.orelse[0], count + 1
    return count


def is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def is_grad_off(node: ast.expr) -> bool:
    """Match `torch.set_grad_enabled(False)`."""
    named = isinstance(node, ast.Call) and last_name(node.func) == "set_grad_enabled" and node.args
    return bool(named) and isinstance(node.args[0], ast.Constant) and node.args[0].value is False  # type: ignore[attr-defined]


def mentions_epochs(*nodes: ast.expr) -> bool:
    """Match `for epoch in range(n)` and `for e in range(args.epochs)`."""
    names = (getattr(part, "id", getattr(part, "attr", "")) for node in nodes for part in walk(node))
    return any("epoch" in name.lower() and "per_epoch" not in name.lower() for name in names if isinstance(name, str))


_LISTINGS = frozenset("glob iglob rglob listdir scandir iterdir walk".split())
_FILES = frozenset("files paths filenames fnames filepaths".split())


def goes_over_files(iterable: ast.expr) -> bool:
    """Match `for path in folder.glob("*.csv")` and `for i, path in enumerate(self.audio_files)`."""
    for part in walk(iterable):
        name = getattr(part, "id", getattr(part, "attr", ""))
        if isinstance(name, str) and (name in _LISTINGS or name.lower().rsplit("_", 1)[-1] in _FILES):
            return True
    return False


WEIGHTS = frozenset(
    "parameters named_parameters modules named_modules children state_dict buffers param_groups all_weights "
    "keys".split()
)
_PIECES = ("split", "chunk", "tensor_split", "array_split")


def grown(loop: ast.While) -> list[str]:
    """Return `start` for `while start < n: …; start += size`."""
    tested = {part.id for part in walk(loop.test) if isinstance(part, ast.Name)}
    names = [getattr(statement.target, "id", "") for statement in loop.body if isinstance(statement, ast.AugAssign)]
    return [name for name in names if name in tested]


def strided(node: ast.expr) -> bool:
    """Match slices of one long sequence: range(start, end, step), x.split(size) or torch.chunk(x, n), also inside
    enumerate(…) or tqdm(…)."""
    while isinstance(node, ast.Call):
        if last_name(node.func) == "range":
            return len(node.args) == 3
        if last_name(node.func) in _PIECES:
            return bool(node.args) and not isinstance(getattr(node.args[0], "value", None), str)
        if not node.args:
            return False
        node = node.args[0]
    return False


def mentions_batches(*nodes: ast.expr) -> bool:
    """Match numbers of batches or steps: `num_batches`, `self.val_steps`, `state[STEPS]`."""
    names = [
        last_name(part).lower() for node in nodes for part in walk(node) if isinstance(part, ast.Name | ast.Attribute)
    ]
    return any(name.endswith(("batches", "steps", "iters", "iterations")) for name in names)


def starts_again(node: ast.If) -> bool:
    """Match `if gathered == n: …; gathered = 0`, which is true every n-th time, not once."""
    left = ast.unparse(node.test.left) if isinstance(node.test, ast.Compare) else ""
    return any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and any(ast.unparse(target) == left for target in statement.targets)
        for statement in node.body
    )


_MESSAGES = frozenset("print warn warning error exception info debug critical".split())


def gives_up(node: ast.If) -> bool:
    """Match `if image is None: print("not found"); continue`, which skips a failed element with a message."""
    messages = node.body[:-1]
    return isinstance(node.body[-1], ast.Continue) and bool(messages) and all(map(_is_message, messages))


def _is_message(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and last_name(statement.value.func) in _MESSAGES
    )


def given(call: ast.expr) -> list[ast.expr]:
    """Return the arguments of a call, without keywords such as the texts of a progress bar."""
    return call.args if isinstance(call, ast.Call) else []
