"""Debugging switches and profilers that are active for a whole training run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.frequency.hotness import LoopKind
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, is_constant, keyword
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence, Frequency, Step

WORDS = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "profile", "emit_nvtx", "gradcheck")
TESTS = False
SEVERITY = "high"
PREVIEW = True  # it found nothing in 146 repositories that nobody here knew
_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (("1",), "the host waits after every kernel"),
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "every collective is checked by a second one"),
}
_PROFILERS = frozenset(
    "torch.profiler.profile torch.autograd.profiler.profile torch.autograd.profiler.emit_nvtx cProfile.Profile "
    "torch.profiler.profiler.profile".split()
)
_CHECKS = frozenset(("torch.autograd.gradcheck", "torch.autograd.gradgradcheck"))


def find(code: Code) -> Iterator[Found]:
    yield from _variables(code)
    yield from _profilers(code)
    for call in code.calls("gradcheck", "gradgradcheck"):
        if code.full_name(call.func) in _CHECKS and code.hot(call):
            yield Found(
                call, "every derivative is computed a second time by finite differences", "check once, in a test"
            )
    for call in code.calls("Trainer"):
        profiler = keyword(call, "profiler")
        if isinstance(profiler, ast.Constant) and profiler.value in ("pytorch", "advanced"):
            yield _found(
                code, call, "the profiler records the whole training run", "drop profiler= once you have measured"
            )


def _variables(code: Code) -> Iterator[Found]:
    if "torch" not in code.text:
        return
    for node, name, value in _settings(code):
        values, cost = _VARIABLES.get(name, ((), ""))
        if value not in values:
            continue
        statement = code.statement(node)
        alone = statement is node or (isinstance(statement, ast.Expr) and statement.value is node)
        yield _found(
            code,
            statement if alone else node,
            f"{name}={value}: {cost}",
            "remove it; set it in the shell while you are debugging",
            {"statement": position_of(statement, code.lines)} if alone else {},
        )


def _settings(code: Code) -> Iterator[tuple[ast.AST, str, str]]:
    for node in code.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        target = node.targets[0]
        if (
            isinstance(target, ast.Subscript)
            and code.full_name(target.value) == "os.environ"
            and len(node.targets) == 1
        ):
            yield node, _text(target.slice), _text(node.value)
    for call in code.calls("setdefault", "putenv"):
        if code.full_name(call.func) in ("os.environ.setdefault", "os.putenv") and len(call.args) == 2:
            yield call, _text(call.args[0]), _text(call.args[1])
    for call in code.calls("update"):
        if code.full_name(call.func) == "os.environ.update" and call.args and isinstance(call.args[0], ast.Dict):
            variables = call.args[0]
            for key, value in zip(variables.keys, variables.values, strict=True):
                if key is not None and _text(key) in _VARIABLES:
                    yield value, _text(key), _text(value)


def _text(node: ast.expr) -> str:
    """Return the text of a constant: `"1"`, or `str(1)`; "" for any other expression."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) == "str":
        node = node.args[0]
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _profilers(code: Code) -> Iterator[Found]:
    for node in code.nodes(ast.With):
        assert isinstance(node, ast.With)
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and code.full_name(call.func) in _PROFILERS and _is_whole(code, node, call):
                yield _found(
                    code,
                    call,
                    "the profiler records a whole epoch or training run",
                    "record only a few steps: schedule=torch.profiler.schedule(wait=10, warmup=5, active=10, repeat=1)",
                )


def _is_whole(code: Code, block: ast.With, call: ast.Call) -> bool:
    """Tell whether a profiler without a schedule stands around a loop over epochs or batches that runs to its end."""
    if keyword(call, "schedule") is not None or is_constant(keyword(call, "enabled"), False):
        return False
    if keyword(call, "enabled") is not None or (call.args and not is_constant(call.args[0], True)):
        return False
    kinds = {loop: code.loop_kind(loop) for loop in walk(block) if isinstance(loop, Repeated)}
    training_loops = [loop for loop, kind in kinds.items() if kind in (LoopKind.EPOCH, LoopKind.BATCH)]
    return bool(training_loops) and not any(_ends_early(loop, kinds[loop]) for loop in training_loops)


def _ends_early(loop: Repeated, kind: LoopKind) -> bool:
    """Tell whether the loop has a `break`, or runs over only some of the batches."""
    if any(isinstance(node, ast.Break) for node in walk(loop)):
        return True
    iterable = loop.test if isinstance(loop, ast.While) else loop.iter
    few = any(
        isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value <= 100 for node in walk(iterable)
    )
    return kind is LoopKind.BATCH and (few or "islice" in ast.unparse(iterable))


def _found(code: Code, node: ast.AST, message: str, repair: str, hints: dict[str, str] | None = None) -> Found:
    here = code.heat(node)
    certain = here.confidence is not Confidence.LOW and here.frequency is not Frequency.NEVER
    confidence = Confidence.HIGH if certain and not _behind_switch(code, node) else Confidence.LOW
    heat = Heat(Frequency.BATCH, confidence, Side.TRAIN, (Step(code.path, _line(node), "left on from here"),))
    return Found(
        node, message, repair, Applicability.SAFE if hints else Applicability.DISPLAY_ONLY, heat, hints=hints or {}
    )


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1))


def _behind_switch(code: Code, node: ast.AST) -> bool:
    """Tell whether an option enables it, or a function whose purpose is reproducible runs."""
    scope = code.function(node)
    if scope is not None and "deterministic" in ast.unparse(scope):
        return True
    for outer in code.ancestors(node):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(outer, ast.If | ast.IfExp) and "__name__" not in ast.unparse(outer.test):
            return not isinstance(outer.test, ast.Constant)
    return False
