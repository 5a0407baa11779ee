"""Finds batches copied to the device while the host waits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from hotlap.analysis.frequency.containers import GIVING, MOVING
from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.features import ACCELERATED
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.terms import BATCH, HOST, MODULE, TENSOR, UNKNOWN
from hotlap.analysis.parse.torch_names import LIKE
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import arguments, loaders, programs, turns
from hotlap.analysis.queries.batch_parts import is_assembled
from hotlap.analysis.queries.code import Code, Definition, Project, keyword, last_name, spread
from hotlap.analysis.queries.invariant import set_by
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import dependents, mentions
from hotlap.analysis.queries.syncs import shown
from hotlap.analysis.queries.transfers import transfers
from hotlap.records.scan_finding import Applicability, Confidence, Frequency

WORDS = (".to(", "cuda(", "to_device(", "move_to(")
ONLY_HOT = True
_SHAPES = frozenset(
    "float long int half double bool bfloat16 type unsqueeze squeeze view reshape permute transpose contiguous".split()
)
_CONVERTING = frozenset(f"torch.{name}" for name in "from_numpy Tensor FloatTensor LongTensor DoubleTensor".split())


def find(code: Code) -> Iterator[Found]:
    if not programs.of(code).mentions(code.path, ACCELERATED):
        return
    yield from _through_helpers(code)
    for call, moved, _ in transfers(code):
        if _says_whether_to_wait(call) or spread(call) or not code.heat(call).hot:
            continue
        if _moves_itself(code, call, moved):
            yield _of_container(code, call)
            continue
        if not code.hot(call) and not _is_fed(code, call):
            continue
        confidence = _confidence(code, call, moved)
        if confidence is None or _is_there(code, call) or _is_kept(code, call, moved):
            yield from _from_numpy(code, call, moved)
            continue
        if _follows(code, call):
            confidence = Confidence.LOW
        hints = _pinning(code, call)
        yield Found(
            call,
            f"`{shown(call)}` copies to the device and waits for the copy {code.heat(call).frequency}",
            "copy from pinned memory without waiting: non_blocking=True, and pin_memory=True for the loader",
            Applicability.SAFE if _is_plain(code, moved) else Applicability.UNSAFE,
            confidence=confidence,
            hints=hints,
        )


def _says_whether_to_wait(call: ast.Call) -> bool:
    """Match `non_blocking` by keyword, or as the second argument of `cuda`, or after the device and dtype of `to`."""
    whole = (
        1
        if last_name(call.func) == "cuda" or any(isinstance(argument, ast.Constant) for argument in call.args[1:])
        else 2
    )
    return keyword(call, "non_blocking") is not None or len(call.args) > whole


@lru_cache(maxsize=2)
def _waiting(project: Project) -> tuple[str, ...]:
    """Return the unqualified names of the project's functions that take `non_blocking` and wait by default."""
    return tuple({reference.name.rsplit(".", 1)[-1] for reference, function in project.functions() if function.waits})


def _through_helpers(code: Code) -> Iterator[Found]:
    """Find `to_cuda(batch)` of a helper in the project that waits unless given `non_blocking`, which it is not."""
    for call in code.calls(*_waiting(code.project)):
        given = call.args[0] if call.args else None
        if given is None or keyword(call, "non_blocking") is not None or spread(call) or not code.hot(call):
            continue
        targets = code.project.targets(code.asked(call.func), code.path)
        waits = bool(targets) and all(code.project.function(target).waits > len(call.args) for target in targets)
        if waits and _confidence(code, call, given) is not None:
            yield Found(
                call,
                f"`{shown(call)}` copies to the device and waits for the copy {code.heat(call).frequency}",
                "pass non_blocking=True, and set pin_memory=True for the loader",
                confidence=Confidence.MEDIUM,
            )


def _moves_itself(code: Code, call: ast.Call, moved: ast.expr) -> bool:
    """Match `self.inputs = self.inputs.to(device)` in a class that is a batch."""
    statement = code.parent(call)
    if not isinstance(statement, ast.Assign) or not isinstance(moved, ast.Attribute) or code.kind(moved) == MODULE:
        return False
    heat = code.heat(call)
    if heat.side is not Side.LOAD and all(step.text != MOVING for step in heat.why):
        return False
    on_self = isinstance(moved.value, ast.Name) and moved.value.id == "self"
    same = ast.unparse(statement.targets[0]) == ast.unparse(moved)
    return on_self and same and heat.frequency is Frequency.BATCH and _gives_itself(code, call)


def _gives_itself(code: Code, call: ast.Call) -> bool:
    """Return whether the method returns only `self`, as `def to(self, device)` of a batch does, or nothing."""
    function = code.function(call)
    returned = [node.value for node in walk(function) if isinstance(node, ast.Return)] if function is not None else []
    return all(value is None or (isinstance(value, ast.Name) and value.id == "self") for value in returned)


def _of_container(code: Code, call: ast.Call) -> Found:
    heat = code.heat(call)
    loads = heat.side is Side.LOAD
    return Found(
        call,
        f"`{shown(call)}` copies to the device and waits for the copy {heat.frequency}",
        "leave the batch on the host here, and move it from pinned memory in the training loop"
        if loads
        else "copy without waiting: non_blocking=True, a pin_memory method, and pin_memory=True for the loader",
        heat=Heat(heat.frequency, heat.confidence, Side.TRAIN, heat.why),
        confidence=Confidence.MEDIUM,
    )


def _confidence(code: Code, call: ast.Call, moved: ast.expr) -> Confidence | None:
    """Return how sure it is that `moved` is a batch or part of one; None if it is not."""
    moved = _taken_out(code, moved)
    kind = UNKNOWN if turns.is_of_mixture(code, moved) else code.kind(moved)
    moved = _unchanged(moved)
    if kind == BATCH or _is_like(code, moved):  # created for the batch: another finding
        return Confidence.HIGH if not _is_like(code, moved) else None
    if is_assembled(code, moved):
        return Confidence.MEDIUM
    if _is_stacked(code, moved):
        assert isinstance(moved, ast.Call)
        moved, kind = moved.args[0], UNKNOWN
    if kind in (UNKNOWN, HOST) and _is_piece(code, _as_set(code, moved)):
        return Confidence.MEDIUM
    root: ast.expr = moved
    while isinstance(root, ast.Subscript | ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return None
    if arguments.to_model(code, call, root, kind) or (kind in (UNKNOWN, TENSOR) and _is_mover(code, call, root)):
        return Confidence.MEDIUM
    return Confidence.MEDIUM if _is_given(code, call, root, kind) else None


def _taken_out(code: Code, moved: ast.expr) -> ast.expr:
    """Return `sample` of `getter(sample)`, if the argument `getter` has an itemgetter or a lambda as its default."""
    function = code.function(moved)
    if function is None or not isinstance(moved, ast.Call) or not isinstance(moved.func, ast.Name):
        return moved
    plain = [*function.args.posonlyargs, *function.args.args][::-1]
    pairs = [*zip(plain, function.args.defaults[::-1], strict=False)]
    pairs += [
        (parameter, value)
        for parameter, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if value
    ]
    getters = {
        parameter.arg
        for parameter, value in pairs
        if isinstance(value, ast.Lambda)
        or (isinstance(value, ast.Call) and last_name(value.func) in ("itemgetter", "attrgetter"))
    }
    return moved.args[0] if moved.func.id in getters and len(moved.args) == 1 else moved


def _is_given(code: Code, call: ast.Call, root: ast.Name, kind: str) -> bool:
    """Return whether a loop over batches yields `root`, or a function called per batch receives it."""
    loop = code.batch_loop(root)
    if kind == HOST:
        return isinstance(loop, ast.For) and root.id in _names(loop.target) | turns.drawn(code, loop)
    if kind != UNKNOWN:
        return False
    if loop is None:
        taken = {root.id, _iterated_over(code, root)} & _given_to_step(code, root)
        names = {root.id, _outer_name(code, root), _iterated_over(code, root)}
        return bool(taken) or _is_helper(code, call, root) or turns.is_fetched(code, root, names)
    return bool({_outer_name(code, root), _iterated_over(code, root)} & turns.of_turn(code, loop))


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in walk(target) if isinstance(node, ast.Name)}


def _is_like(code: Code, moved: ast.expr) -> bool:
    return isinstance(moved, ast.Call) and code.full_name(moved.func).removeprefix("torch.") in LIKE


def _is_stacked(code: Code, moved: ast.expr) -> bool:
    """Match `torch.stack(x)` of a list passed to the function."""
    if not isinstance(moved, ast.Call) or code.full_name(moved.func) not in ("torch.stack", "torch.cat"):
        return False
    function = code.function(moved)
    listed = moved.args[0] if moved.args else None
    return function is not None and isinstance(listed, ast.Name) and listed.id in arguments.arguments(function)


def _unchanged(moved: ast.expr) -> ast.expr:
    """Return `x` of `x.float().unsqueeze(1)`."""
    while isinstance(moved, ast.Call) and isinstance(moved.func, ast.Attribute) and moved.func.attr in _SHAPES:
        moved = moved.func.value
    return moved


def _as_set(code: Code, moved: ast.expr) -> ast.expr:
    """Return `x[i : i + size]` for `batch`, if `batch = x[i : i + size].float()` was set in the same iteration."""
    made = _last_value(code, moved) if isinstance(moved, ast.Name) else None
    here = made is not None and next(code.loops(made), None) is next(code.loops(moved), None)
    return _unchanged(made) if made is not None and here else moved


def _is_piece(code: Code, moved: ast.expr) -> bool:
    """Match `data[order[i : i + size]]`: taken from data on the host in each iteration of a training loop."""
    loop = code.batch_loop(moved) or (next(code.loops(moved), None) if _is_fed(code, moved) else None)
    if loop is None or not isinstance(moved, ast.Subscript) or code.kind(moved.value) not in (UNKNOWN, HOST):
        return False
    base = moved.value
    plain = isinstance(base, ast.Name | ast.Attribute) and ast.unparse(base) not in set_by(loop)
    return plain and mentions(moved.slice, set_by(loop)) and not isinstance(code.term(base), tuple)


def _is_mover(code: Code, call: ast.Call, root: ast.Name) -> bool:
    """Match a helper that moves its argument, or elements of it, after checking that they are tensors."""
    function = code.function(root)
    if function is None or not code.hot(call) or arguments.is_placed_before(code, root):
        return False
    names = {root.id, _outer_name(code, root), _iterated_over(code, root)}
    if not names & arguments.arguments(function) or not arguments.is_chosen(code, call.args[0] if call.args else None):
        return False
    return any(
        isinstance(node, ast.Call) and node.args and mentions(node.args[0], names) and _asks_for_tensor(node)
        for node in walk(function)
    )


def _asks_for_tensor(call: ast.Call) -> bool:
    """Match `isinstance(x, torch.Tensor)`, `torch.is_tensor(x)` and `hasattr(x, "to")`."""
    name = last_name(call.func)
    if name == "isinstance":
        return len(call.args) == 2 and "Tensor" in ast.unparse(call.args[1])
    return name == "is_tensor" or (name == "hasattr" and len(call.args) == 2 and ast.unparse(call.args[1]) == "'to'")


def _is_fed(code: Code, node: ast.AST) -> bool:
    """Return whether the node is in a generator that yields batches to a training loop in the same process."""
    return any(step.text == GIVING for step in code.heat(node).why)


def _is_helper(code: Code, call: ast.Call, root: ast.Name) -> bool:
    """Match `def to_device(batch, device)`, which always moves its argument."""
    function = code.function(root)
    if function is None or code.heat(call).frequency is not Frequency.BATCH or function.name == "forward":
        return False
    if arguments.is_placed_before(code, root):
        return False
    place = call.args[0] if call.args else keyword(call, "device")
    given = arguments.arguments(function)
    names = {root.id, _outer_name(code, root), _iterated_over(code, root)}
    taken = names & (given | arguments.taken(function))
    if isinstance(place, ast.Name) and place.id in code.stored(function):
        return place.id in dependents(function, given) - taken and bool(taken & given)
    return arguments.is_chosen(code, place) and bool(taken - {getattr(place, "id", "")})


def _iterated_over(code: Code, name: ast.Name) -> str:
    """Return the name that the loop yielding `name`, or the source of its comprehension, iterates over."""
    found = _outer_name(code, name)
    for loop in code.loops(name):
        if isinstance(loop, ast.For) and mentions(loop.target, {found}):
            names = [node.id for node in walk(loop.iter) if isinstance(node, ast.Name)]
            return names[-1] if names else ""
    return ""


def _given_to_step(code: Code, name: ast.Name) -> set[str]:
    """Return the arguments of a function that runs one training step, and the names unpacked from them."""
    function = code.function(name)
    calls = (node for node in walk(function) if isinstance(node, ast.Call)) if function is not None else ()
    if function is None or not (any(last_name(call.func) == "backward" for call in calls) or _is_run(code, function)):
        return set()
    given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
    for node in function.body:
        if isinstance(node, ast.Assign) and turns.is_taken_from(code, node.value, given):
            given |= {node.id for target in node.targets for node in walk(target) if isinstance(node, ast.Name)}
    return given


def _is_run(code: Code, function: Definition) -> bool:
    """Return whether the function is passed to an engine, which calls it with each batch."""
    why = code.heat(function.body[0]).why
    return len(why) == 1 and why[0].text.endswith("is run by the engine every batch")


def _is_kept(code: Code, call: ast.Call, moved: ast.expr) -> bool:
    """Match `self.table = self.table.to(device)`, which copies nothing from the second time on."""
    statement = code.statement(call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return isinstance(target, ast.Attribute) and ast.unparse(target) == ast.unparse(moved)


def _is_there(code: Code, call: ast.Call) -> bool:
    """Return whether the loader takes its batches from tensors on the device."""
    loop = code.batch_loop(call)
    made = loaders.made_at(code, loop.iter) if isinstance(loop, ast.For) else None
    return made is not None and loaders.on_device(code, loaders.loader(code, made))


def _outer_name(code: Code, name: ast.Name) -> str:
    """Return the name a comprehension iterates over, however deep: `batch` of `[x.to(device) for x in batch]`."""
    found = name.id
    for outer in code.ancestors(name):
        if isinstance(outer, ast.stmt):
            break
        for generator in getattr(outer, "generators", ()):
            if any(isinstance(node, ast.Name) and node.id == found for node in walk(generator.target)):
                names = [node.id for node in walk(generator.iter) if isinstance(node, ast.Name)]
                found = names[0] if names else found
    return found


def _from_numpy(code: Code, call: ast.Call, moved: ast.expr) -> Iterator[Found]:
    """Find `torch.from_numpy(x).float().to(device)`: it copies from pageable memory while the host waits."""
    if isinstance(moved, ast.Name):
        moved = _last_value(code, moved) or moved
    while isinstance(moved, ast.Call):
        if last_name(moved.func) == "Variable" and moved.args:
            moved = moved.args[0]
            continue
        if code.full_name(moved.func) in _CONVERTING and _is_of_batch(code, moved):
            yield Found(
                call,
                f"`{shown(call)}` copies from pageable memory and waits for the copy {code.heat(call).frequency}",
                "pin it first: .pin_memory().to(device, non_blocking=True); or keep the data on the device",
                confidence=Confidence.LOW,  # rows that were just assembled: pinning them is one more copy
            )
            return
        if not isinstance(moved.func, ast.Attribute):
            return
        moved = moved.func.value


def _follows(code: Code, call: ast.Call) -> bool:
    """Match `lengths.to(x.device)` in a forward pass: a safeguard, since most callers have moved it already."""
    function, place = code.function(call), call.args[0] if call.args else keyword(call, "device")
    beside = isinstance(place, ast.Attribute) and place.attr == "device" and isinstance(place.value, ast.Name)
    return beside and function is not None and function.name == "forward" and place.value.id != "self"  # type: ignore[union-attr]


def _is_of_batch(code: Code, made: ast.Call) -> bool:
    """Match from_numpy, or a tensor made of what a loop over batches yields."""
    if code.full_name(made.func) == "torch.from_numpy":
        return True
    loop = code.batch_loop(made)
    given = (
        {node.id for node in walk(loop.target) if isinstance(node, ast.Name)} if isinstance(loop, ast.For) else set()
    )
    names = [node for node in walk(made) if isinstance(node, ast.Name)]
    return bool(given) and len(made.args) == 1 and any(_outer_name(code, name) in given for name in names)


def _last_value(code: Code, name: ast.Name) -> ast.expr | None:
    """Return the last value assigned to the name before this use, in the same function."""
    scope = code.function(name) or code.tree
    before = [
        node.value
        for node in walk(scope)
        if isinstance(node, ast.Assign) and node.lineno < name.lineno
        if any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
    ]
    return max(before, key=lambda value: value.lineno, default=None)


def _is_plain(code: Code, moved: ast.expr) -> bool:
    """Return whether it is certainly a tensor; a helper's argument may have a `.to` without `non_blocking`."""
    if turns.is_mapping(code, moved):
        return False
    return code.kind(moved) == BATCH or code.batch_loop(moved) is not None


def _pinning(code: Code, call: ast.Call) -> dict[str, str]:
    """Return the position of the loader to pin, if it is made in this file without `pin_memory`."""
    loop = code.batch_loop(call)
    made = loaders.made_at(code, loop.iter) if isinstance(loop, ast.For) else None
    if made is None or spread(made) or not loaders.loader(code, made).lacks("pin_memory"):
        return {}
    return {"loader": position_of(made, code.lines)}
