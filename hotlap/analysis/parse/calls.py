"""Judges what calls return and do by the terms of a single function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Mapping, Sequence

from hotlap.analysis.parse import torch_names
from hotlap.analysis.parse.facts import Loop
from hotlap.analysis.parse.terms import (
    ACCELERATOR,
    BATCH,
    DEEPEST,
    EXTENT,
    FILE,
    HOST,
    LOADERS,
    MODULE,
    NUMBER,
    NUMPY,
    OPTIMIZER,
    PLACED_LOADER,
    SCALER,
    STATE,
    TENSOR,
    TENSORS,
    TEXT,
    UNKNOWN,
    Term,
    depth,
    element,
    hosted,
    indexed,
    join,
    moved,
)

THROUGH = frozenset(  # calls that return their argument, or something that iterates over it
    "tqdm tqdm.tqdm tqdm.auto.tqdm tqdm.notebook.tqdm tqdm.std.tqdm tqdm.autonotebook.tqdm tqdm.rich.tqdm "
    "rich.progress.track alive_progress.alive_it fastprogress.progress_bar iter list tuple sorted reversed set "
    "torch.compile torch.jit.script torch.nn.DataParallel torch.nn.parallel.DistributedDataParallel itertools.islice "
    "itertools.cycle joblib.delayed dask.delayed copy.deepcopy copy.copy torch.autograd.Variable "
    "torch.autograd.variable.Variable".split()
)
OF_TENSORS = frozenset(
    "to view size dim item cpu cuda detach numpy reshape transpose permute float backward append items keys values get "
    "parameters mean sum max min format join split strip startswith endswith".split()
)
OF_MODULES = frozenset(("eval", "train", "parameters", "named_parameters"))  # nothing else has these, without arguments
_KEEPING = frozenset(  # methods that return the same kind as their receiver, so that the question stays short
    "detach clone float contiguous half double train eval requires_grad_ mean sum squeeze unsqueeze view reshape "
    "permute transpose argmax sigmoid softmax log_softmax clamp exp sqrt abs long int bool any all flatten "
    "repeat expand argmin norm pow relu tanh eq ne lt gt le ge mul div masked_fill".split()
)
_OF_MODULE = frozenset("train eval float half double requires_grad_".split())
_ALONG = 5  # how deep a question may be to be kept as an argument of a call
BACKWARDS = frozenset(("backward", "manual_backward"))


def prepared(base: Term, arguments: list[Term]) -> Term | None:
    """Return what accelerator.prepare(model, loader) returns: its arguments, with batches now on the device."""
    if not arguments or (isinstance(base, str) and base not in (ACCELERATOR, UNKNOWN)):
        return None
    placed = [PLACED_LOADER if argument in LOADERS else argument for argument in arguments]
    return placed[0] if len(placed) == 1 else ("tuple", *placed)


def method_of_unknown(base: Term, name: str, on_host: bool) -> Term | None:
    if name == "item":
        return NUMBER
    if name == "state_dict":
        return STATE
    if name in torch_names.WEIGHTS and name not in ("items", "values", "keys"):
        return torch_names.WEIGHTS[name]
    if name in ("to", "cuda"):
        return hosted(base) if on_host else moved(base)
    if name == "cpu":
        return hosted(base)
    if base[0] in ("self", "super") and name not in _OF_MODULE:
        return None  # a method of the project's own
    if name in _KEEPING:
        return base
    if name == "gather" and base[0] == "attr":
        return TENSOR  # of an accelerator, or of a tensor that an object holds
    if name in torch_names.ONLY_TENSORS and name != "backward":
        return join(base, TENSOR) if base[0] == "call" else base
    return None


def mode_set(node: ast.Call, name: str) -> str:
    """Return the mode that a method sets; `model.train(False)` is `model.eval()`. Only modules have a mode."""
    given = node.args or [word.value for word in node.keywords if word.arg == "mode"]
    if name != "train" or not given:
        return name if name in OF_MODULES and not node.args else ""
    off = isinstance(given[0], ast.Constant) and given[0].value is False
    return "eval" if off else "train" if node.keywords else ""


def to_host(node: ast.Call) -> bool:
    return any(
        isinstance(argument, ast.Constant) and argument.value == "cpu"
        for argument in (*node.args, *(word.value for word in node.keywords))
    )


def beginning(node: ast.expr) -> str:
    """Return the literal beginning of a text: `"loss_" + name`, `f"loss_{name}"`."""
    if isinstance(node, ast.BinOp):
        return beginning(node.left)
    if isinstance(node, ast.JoinedStr):
        return beginning(node.values[0]) if node.values else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def names_host(node: ast.Call) -> bool:
    """Match torch.device("cpu")."""
    first = node.args[0] if node.args else None
    return isinstance(first, ast.Constant) and str(first.value).startswith("cpu")


def builtin(name: str, arguments: list[Term]) -> Term:
    first = arguments[0] if arguments else UNKNOWN
    if name == "len":
        return EXTENT if first in TENSORS else NUMBER
    if name in ("float", "int", "bool", "round", "isinstance", "hasattr", "any", "all", "abs", "pow"):
        return first if name == "abs" else NUMBER
    if name in ("str", "repr", "format", "input"):
        return TEXT
    if name == "range":
        return EXTENT if EXTENT in arguments else NUMBER
    if name == "sum":
        return element(first)
    if name in ("max", "min"):
        return element(first) if len(arguments) == 1 else join(first, arguments[1])
    return element(first) if name == "next" else _several(name, first, arguments)


def _several(name: str, first: Term, arguments: list[Term]) -> Term:
    """Return the results of builtins that iterate over values or give access to them."""
    if name == "enumerate":
        return ("enumerated", first)
    if name == "open":
        return FILE
    if name == "map":
        return ("list", ("call", first)) if may_be_function(first) else UNKNOWN
    if name == "filter":
        return arguments[1] if len(arguments) > 1 else UNKNOWN
    if name == "getattr":
        return ("member", first) if isinstance(first, tuple) and first[0] == "name" else UNKNOWN
    return ("zipped", *arguments) if name == "zip" else UNKNOWN


def named_result(name: str, arguments: list[Term], keywords: dict[str, Term]) -> Term:
    """Return what calling something of this full name returns."""
    if name in THROUGH and (arguments or "iterable" in keywords):
        return arguments[0] if arguments else keywords["iterable"]
    if name == "functools.partial" and arguments:
        return ("partial", arguments[0], len(arguments) - 1) if len(arguments) > 1 else arguments[0]
    if name == "dict" and keywords and not arguments and "**" not in keywords:
        return _written_out(list(keywords.values()))
    if name in torch_names.BUILTINS:
        return builtin(name, arguments)
    known = torch_names.called(name, arguments, keywords)
    if known is not None:
        return known
    return result_of(("name", name), arguments)


def _written_out(values: list[Term]) -> Term:
    """Return the term of `dict(loss=loss, rate=0.1)`. If some values are texts, it is a record of unknown values."""
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    mixed = TEXT in values and any(value != TEXT for value in values)
    return ("dict", UNKNOWN if mixed or depth(result) >= DEEPEST else result)


def result_of(callee: Term, arguments: list[Term]) -> Term:
    """Return the question what a call returns. It includes one or two arguments, as some functions return these."""
    if depth(callee) >= DEEPEST:
        return UNKNOWN
    along = len(arguments) == 1 or (len(arguments) == 2 and callee[0] in ("def", "name", "star"))
    given = arguments if along and any(arguments) and all(depth(argument) < _ALONG for argument in arguments) else ()
    result: Term = ("call", callee, *given)
    return ("aside", result) if all_on_host(arguments) else result


def updates(node: ast.expr, lookup: Callable[[str], Term]) -> bool:
    """Return whether an optimizer, or a scaler in its place, makes the step; a scheduler does not count."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    if isinstance(node, ast.Name) and lookup(name) in (OPTIMIZER, SCALER):
        return True
    return any(word in name.lower() for word in ("opt", "scaler")) and "sched" not in name.lower()


def steps_given(node: ast.Call) -> bool:
    """Match `precision.step(model, optimizer)`."""
    return any(
        isinstance(argument, ast.Name | ast.Attribute) and "optim" in last_name(argument).lower()
        for argument in node.args
    )


def runs_module(function: ast.expr) -> bool:
    """Match `model(x)` and `model.encoder(x)`, not `model.to(x)`."""
    if not isinstance(function, ast.Attribute):
        return True
    return torch_names.method(MODULE, function.attr, [], on_host=False) == TENSOR


def may_be_model(callee: Term) -> bool:
    """Match a called argument, or an attribute of one or of self, except methods of tensors and containers."""
    if not isinstance(callee, tuple) or callee[0] not in ("param", "attr"):
        return False
    if callee[0] == "attr":
        owner = callee[1][1] if callee[1][0] == "attr" else callee[1]
        return owner[0] in ("param", "self") and callee[2] not in OF_TENSORS and not callee[2].endswith("_")
    return True


def is_on_device(term: Term) -> bool:
    if isinstance(term, tuple) and term[0] == "list":
        return is_on_device(term[1])
    if isinstance(term, tuple) and term[0] == "join":  # moved if there is a device
        return any(map(is_on_device, term[1:]))
    return term == TENSOR or (isinstance(term, tuple) and term[0] == "moved")


def holds_module(term: Term) -> bool:
    """Match what a function shows to be a module, such as `model` after `model.eval()`."""
    return term == MODULE or (isinstance(term, tuple) and term[0] == "join" and MODULE in term[1:])


def all_on_host(arguments: list[Term]) -> bool:
    """Return whether a call gets tensors of the host only, so that its result is on the host."""
    plain = (HOST, BATCH, NUMPY, NUMBER, EXTENT, TEXT)
    return (HOST in arguments or BATCH in arguments) and all(argument in plain for argument in arguments)


_FLAGS = (True, False, None)


def given_flags(node: ast.Call) -> tuple[tuple[int | str, bool], ...]:
    """Return the arguments that are literally True, False or None, and "*" if some are hidden in a mapping or sequence:
    `validate(loader, quiet=True)`."""
    found: list[tuple[int | str, bool]] = []
    for number, value in enumerate(node.args):
        if value.__class__ is ast.Starred:
            found.append(("*", True))
        elif isinstance(value, ast.Constant) and value.value in _FLAGS:
            found.append((number, bool(value.value)))
    for word in node.keywords:
        if word.arg is None:
            found.append(("*", True))
        elif isinstance(word.value, ast.Constant) and word.value.value in _FLAGS:
            found.append((word.arg, bool(word.value.value)))
    return tuple(found)


def given_counts(node: ast.Call, counters: Container[str]) -> tuple[int | str, ...]:
    """Return the arguments that count the turns of a loop: `log(loss, batch_number)`."""
    every: list[tuple[int | str, ast.expr]] = list(enumerate(node.args))
    every += [(word.arg, word.value) for word in node.keywords if word.arg is not None]
    return tuple(place for place, value in every if isinstance(value, ast.Name) and value.id in counters)


def event_name(node: ast.Call) -> str:
    """Return `before_step` of `call_hook("before_step")`, `notify(hooks, "before_step")` or
    `send(event="before_step")`."""
    for argument in (*node.args, *(word.value for word in node.keywords)):
        if argument.__class__ is ast.Constant and isinstance(argument.value, str) and argument.value.isidentifier():
            return argument.value
    return ""


_READS = frozenset(
    ("open", "torch.load", *(f"numpy.{name}" for name in "load memmap fromfile genfromtxt loadtxt".split()))
)


def is_library(callee: Term) -> bool:
    if isinstance(callee, str):
        return True
    if callee[0] == "attr":
        return callee[2] in OF_TENSORS
    if callee[0] != "name" or callee[1] in torch_names.LOADER_NAMES or callee[1] in _READS:
        return False  # recorded, although it is the library's
    return callee[1] in torch_names.BUILTINS or callee[1].startswith(("torch.", "numpy.", "math.", "time.", "os."))


def may_be_function(term: Term) -> bool:
    return isinstance(term, tuple) and term[0] in ("def", "attr", "name", "partial")


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def given_by(node: ast.expr, given: Mapping[str, int]) -> int:
    """Return the loop whose element an expression begins with, or -1."""
    while isinstance(node, _BEGINNING):
        node = node.func if isinstance(node, ast.Call) else node.value
    return given.get(node.id, -1) if isinstance(node, ast.Name) else -1


_BEGINNING = (ast.Attribute, ast.Subscript, ast.Call)


def derived_from(node: ast.expr, given: Mapping[str, int]) -> int:
    """Return the loop whose element an expression begins with, or passes to a function: `self.parse(batch)`."""
    if not given:
        return -1
    number = given_by(node, given)
    if number < 0 and isinstance(node, ast.Tuple):
        return max((derived_from(part, given) for part in node.elts), default=-1)
    if number < 0 and isinstance(node, ast.Subscript):  # data[indices], where the indices are the loop's element
        return given.get(node.slice.id, -1) if isinstance(node.slice, ast.Name) else -1
    if number < 0 and isinstance(node, ast.Call):
        names = [argument.id for argument in node.args if isinstance(argument, ast.Name)]
        return next((given[name] for name in names if name in given), -1)
    return number


_NEXT = ("next", "__next__")
_TAKING = (*_NEXT, "pop", "popleft", "get", "get_next", "next_batch")


def is_next(value: ast.expr) -> bool:
    """Match `next(batches)`, `prefetcher.next()` and `batches.pop()`."""
    if not isinstance(value, ast.Call) or last_name(value.func) not in _TAKING:
        return False
    return last_name(value.func) in _NEXT or not (value.args or value.keywords)


def times(node: ast.expr, given: Mapping[str, int]) -> int:
    """Return the loop whose counter is multiplied, or -1: `i * size`, `(i + 1) * size`, `offset + i * size`."""
    if not isinstance(node, ast.BinOp):
        return -1
    if isinstance(node.op, ast.Add):
        return max(times(node.left, given), times(node.right, given))
    if not isinstance(node.op, ast.Mult):
        return -1
    sides = [side.left if isinstance(side, ast.BinOp) else side for side in (node.left, node.right)]  # (i - 1) * size
    return max(given_by(side, given) for side in sides)


def mark_module(names: dict[str, Term], name: str, known: Term) -> None:
    """Mark a name as a module, as only modules have the method that was called."""
    if isinstance(known, tuple) and known[0] == "moved":
        known = known[1]  # model = model.to(device)
    own = isinstance(known, tuple) and known[0] == "self"  # its class and subclasses tell more
    if not own and (known == UNKNOWN or isinstance(known, tuple)):
        names[name] = join(known, MODULE)


def mark_moving(node: ast.expr, given: Mapping[str, int], loops: Sequence[Loop]) -> None:
    """Mark the loop whose element is moved to a device."""
    number = derived_from(node, given)
    if number >= 0:
        loops[number].moves = True


def mark_use(call: ast.Call, given: Mapping[str, int], loops: Sequence[Loop]) -> None:
    """Mark the loops whose element is passed to a call."""
    for argument in (*call.args, *(word.value for word in call.keywords)):
        if isinstance(argument, ast.Name) and argument.id in given:
            loops[given[argument.id]].unpacks = True


def container_method(names: dict[str, Term], function: ast.Attribute, base: Term, arguments: list[Term]) -> Term:
    """Return what a method of a list, set or dict returns; what it puts in changes the container's term."""
    name = function.attr
    if name in ("append", "add", "extend", "insert") and arguments and isinstance(function.value, ast.Name):
        added = element(arguments[-1]) if name == "extend" else arguments[-1]
        put(names, function.value.id, base, added)
        return UNKNOWN
    if name == "items":
        return ("list", ("tuple", UNKNOWN, indexed(base)))
    if name == "values":
        return ("list", indexed(base))
    if name == "copy":
        return base
    return indexed(base) if name in ("get", "pop", "popleft", "setdefault") else UNKNOWN


def put(names: dict[str, Term], name: str, base: Term, added: Term) -> None:
    """Put a term into a container that has a name."""
    if isinstance(base, tuple) and base[0] in ("list", "dict"):
        whole = join(indexed(base), added)
        names[name] = (base[0], whole if depth(whole) < DEEPEST - 1 else UNKNOWN)
