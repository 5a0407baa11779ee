"""no_grad around an evaluation, where inference_mode would do less work."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency import modes
from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.frequency.single_evaluations import is_made_once
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated
from hotlap.analysis.queries.evaluation import at_once, comprehended, evaluations, returns_tensors, runs_model
from hotlap.analysis.queries.lasting import Leaves, hands_over, leaves
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence, Frequency

WORDS = ("no_grad",)
PREVIEW = True  # true wherever found, but a third of its findings in code that nobody here knew gain next to nothing
SEVERITY = "low"
_MESSAGE = "no_grad still tracks the versions and views of every tensor, which an evaluation does not need"
_REPAIR = "use torch.inference_mode()"


def find(code: Code) -> Iterator[Found]:
    seen: set[ast.AST] = set()
    for loop, _ in evaluations(code):
        around = _no_grad_around(code, loop)
        node = around or _no_grad_within(code, loop)
        if node is None or node in seen or not code.hot(loop.body[0]) or _is_of_framework(code, loop):
            continue
        seen.add(node)
        yield Found(node, _MESSAGE, _REPAIR, _applicability(code, node), code.heat(loop.body[0]), Confidence.MEDIUM)
    for comprehension in comprehended(code):
        no_grad = _no_grad_around(code, comprehension)
        if no_grad is not None and no_grad not in seen and code.hot(comprehension.elt):
            seen.add(no_grad)
            yield Found(
                no_grad,
                _MESSAGE,
                _REPAIR,
                _applicability(code, no_grad),
                code.heat(comprehension.elt),
                Confidence.MEDIUM,
            )
    for call in at_once(code):
        no_grad = _no_grad_around(code, call)
        if no_grad is not None and no_grad not in seen:
            seen.add(no_grad)
            yield Found(no_grad, _MESSAGE, _REPAIR, _applicability(code, no_grad), code.heat(call), Confidence.MEDIUM)
    yield from _around_calls(code, seen)
    yield from _in_steps(code, seen)


def _found(code: Code, no_grad: ast.expr, node: ast.With | Definition) -> Found:
    applicability = _applicability(code, no_grad)
    return Found(no_grad, _MESSAGE, _REPAIR, applicability, code.heat(node.body[0]), Confidence.MEDIUM)


def _applicability(code: Code, no_grad: ast.AST) -> Applicability:
    """Judge by what may outlive the evaluation: a tensor made in inference_mode raises in a later backward pass."""
    block = next(outer for outer in code.ancestors(no_grad) if isinstance(outer, ast.With | Definition))
    handed = returns_tensors(code, block) if isinstance(block, Definition) else hands_over(code, block)
    left = Leaves.TENSORS if handed else leaves(code, block)
    return {Leaves.NOTHING: Applicability.SAFE, Leaves.UNKNOWN: Applicability.UNSAFE}.get(
        left, Applicability.DISPLAY_ONLY
    )


def _is_of_framework(code: Code, node: ast.AST) -> bool:
    """Recognise a hook of Lightning's evaluation, all of which runs in inference_mode."""
    reference = code.reference(node)
    return reference is not None and modes.is_quiet_hook(code.project, reference)


def _around_calls(code: Code, seen: set[ast.AST]) -> Iterator[Found]:
    """Yield `with torch.no_grad(): validate(model)` where the function loops over batches, and such decorators."""
    for node in code.nodes(ast.With, ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.With | Definition)
        no_grad = _no_grad_on(code, node)
        if no_grad is None or no_grad in seen or not _is_between(code, node.body[0]):
            continue
        calls = [inner for statement in node.body for inner in walk(statement) if isinstance(inner, ast.Call)]
        is_function = isinstance(node, Definition)  # a function may loop by way of others
        if any(_loops(code, call, right_there=is_function) for call in calls) and (
            not is_function or _evaluates(code, node.body[0])
        ):
            seen.add(no_grad)
            yield _found(code, no_grad, node)


def _is_between(code: Code, node: ast.stmt) -> bool:
    """Accept code that runs once in one or more epochs, or, if the project never calls it, is part of an evaluation."""
    heat, reference = code.heat(node), code.reference(node)
    if heat.frequency is Frequency.EPOCH:
        return not heat.rarely or any(code.loops(node))
    if reference is None or heat.hot or not _evaluates(code, node):
        return False
    return heat.frequency is Frequency.RARE or not (
        code.hotness.callers.get(reference) or is_made_once(code.hotness, reference)
    )


def _in_steps(code: Code, seen: set[ast.AST]) -> Iterator[Found]:
    """Yield `with torch.no_grad(): self.model(batch)` in a function that is one step of an evaluation."""
    for node in code.nodes(ast.With, ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.With | Definition)
        no_grad = _no_grad_on(code, node)
        if no_grad is None or no_grad in seen or not _is_step(code, node) or not runs_model(code, node):
            continue
        seen.add(no_grad)
        yield _found(code, no_grad, node)


def _no_grad_on(code: Code, node: ast.With | Definition) -> ast.expr | None:
    expressions = [item.context_expr for item in node.items] if isinstance(node, ast.With) else node.decorator_list
    return next((expression for expression in expressions if _is_no_grad(code, expression)), None)


def _is_step(code: Code, node: ast.With | Definition) -> bool:
    """Tell whether the code runs on every batch of an evaluation, for every caller, outside loops of its function."""
    heat, reference = code.heat(node.body[0]), code.reference(node.body[0])
    if not heat.hot or heat.side is not Side.EVALUATE or any(code.loops(node)) or reference is None:
        return False
    if any("Lightning" in name for name in _bases(code, node)) or code.project.function(reference).steps:
        return False  # Lightning disables the graph in evaluations itself
    if code.project.function(reference).evaluates:
        return True  # part of an evaluation, whichever loop calls it
    sides = [code.hotness.at(caller, call.stack) for caller, call in code.hotness.callers.get(reference, ())]
    return all(caller_heat is None or caller_heat.side is Side.EVALUATE for caller_heat in sides)


def _bases(code: Code, node: ast.AST) -> set[str]:
    outer = next((ancestor for ancestor in code.ancestors(node) if isinstance(ancestor, ast.ClassDef)), None)
    owner = code.project.files[code.path].classes.get(outer.name) if outer is not None else None
    return code.project.base_names(code.path, owner) if owner is not None else set()


def _evaluates(code: Code, node: ast.AST) -> bool:
    reference = code.reference(node)
    return reference is not None and code.project.function(reference).evaluates


def _loops(code: Code, call: ast.Call, right_there: bool) -> bool:
    """Tell whether the called function loops over batches, itself or, unless `right_there`, by way of others."""
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return False
    targets = code.project.targets(code.term(call.func), code.path)
    return any(
        code.hotness.goes_over_batches(target) or (not right_there and target in code.hotness.loopers)
        for target in targets
    )


def _no_grad_around(code: Code, loop: ast.AST) -> ast.Call | None:
    """Return the innermost `with torch.no_grad()` or decorator around the loop."""
    for outer in code.ancestors(loop):
        if isinstance(outer, ast.With):
            for item in outer.items:
                if _is_no_grad(code, item.context_expr):
                    assert isinstance(item.context_expr, ast.Call)
                    return item.context_expr
        if isinstance(outer, Definition):
            return next(
                (
                    decorator
                    for decorator in outer.decorator_list
                    if isinstance(decorator, ast.Call) and _is_no_grad(code, decorator)
                ),
                None,
            )
    return None


def _no_grad_within(code: Code, loop: Repeated) -> ast.Call | None:
    """Return a `with torch.no_grad()` inside the loop, around the call of the model."""
    for node in walk(loop):
        if isinstance(node, ast.With):
            for item in node.items:
                if _is_no_grad(code, item.context_expr) and runs_model(code, node):
                    assert isinstance(item.context_expr, ast.Call)
                    return item.context_expr
    return None


def _is_no_grad(code: Code, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and not node.args and code.full_name(node.func) == "torch.no_grad"
