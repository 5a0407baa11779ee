"""Tells whether code that evaluates may leave a tensor behind, which raises if a later training step uses it.

Tensors made in `inference_mode` can never take part in a backward pass, nor be changed in place outside of it.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.call_values import PUTS
from hotlap.analysis.parse.calls import BACKWARDS
from hotlap.analysis.parse.features import SHARDED
from hotlap.analysis.parse.terms import DEVICE, FILE, HOST_DEVICE, LOGGER, MODULE, WRITER, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code, Repeated, last_name
from hotlap.analysis.queries.evaluation import is_plain, returns_tensors

_RUN_UNSEEN = ("forward", "__getitem__", "__iter__", "__next__", "__call__")  # by torch, whatever the call says
_CACHES = ("lru_cache", "functools.cache", "cached_property")
_KEEPING = PUTS | frozenset(("push", "store", "put", "enqueue", "collect", "record", "observe", "add_batch", "write"))
_HARMLESS = frozenset((DEVICE, HOST_DEVICE, FILE, LOGGER, WRITER, MODULE))
_TRAINING = frozenset((*BACKWARDS, "zero_grad", "requires_grad_", "grad", "adapt", "unscale_"))
# Libraries whose layers and containers are known to leave nothing behind, and libraries without any.
_KNOWN = frozenset(
    "torch torchvision torchaudio numpy pandas scipy sklearn matplotlib seaborn PIL cv2 skimage imageio h5py zarr tqdm "
    "yaml omegaconf hydra wandb tensorboard tensorboardX mlflow psutil requests nltk spacy tiktoken sentencepiece "
    "torchmetrics torchinfo torchsummary torchtext portalocker datasets tokenizers evaluate rich click fire absl "
    "six attr attrs einops thop gym gymnasium progress termcolor colorama prettytable joblib numba".split()
)


class Leaves(IntEnum):
    """What may outlive an evaluation."""

    NOTHING = 0
    UNKNOWN = 1  # it runs code of a library that is not known
    TENSORS = 2  # it may keep tensors, or train


def leaves(code: Code, block: ast.AST) -> Leaves:
    """Return what the code in a block, with all that it calls, may leave behind."""
    calls = [node for node in walk(block) if isinstance(node, ast.Call)]
    if any(last_name(call.func) in _TRAINING or _is_kept_by(code, call) for call in calls):
        return Leaves.TENSORS
    if any(_writes_outside(code, node) for node in walk(block)):
        return Leaves.TENSORS
    named = [call.func for call in calls if isinstance(call.func, ast.Name | ast.Attribute)]
    begun = {target for name in named for target in code.project.targets(code.asked(name), code.path)}
    if begun & code.hotness.learning:
        return Leaves.TENSORS
    if programs.of(code).mentions(code.path, SHARDED):
        return Leaves.TENSORS
    family = programs.of(code).family(code.path)
    every = _reached(code.project, begun) | _run_unseen(code.project, family)
    if any(_keeps(code.project, reference) for reference in every):
        return Leaves.TENSORS
    return Leaves.UNKNOWN if _uses_unknown(code.project, family) else Leaves.NOTHING


def hands_over(code: Code, block: ast.With | Repeated) -> bool:
    """Return whether the code around a block may get a tensor that was made in it, by a name or a return."""
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in walk(block)):
        function = code.function(block)
        if function is None or returns_tensors(code, function):
            return True
    filled = {
        node.func.value.id
        for node in walk(block)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        if node.func.attr in _KEEPING
    }
    filled |= {
        _root(node) for node in walk(block) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    changed, inside = code.stored(block) | filled, set(walk(block))
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in changed
        and node not in inside
        and not is_plain(code.term(node))
        and not _is_set_anew(code, node, block)
        for node in walk(code.function(block) or code.tree)
    )


def _is_kept_by(code: Code, call: ast.Call) -> bool:
    """Match `bank.update(features)` of an object from outside the function, whose method cannot be seen."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _KEEPING:
        return False
    if _is_local(code, call.func.value) or code.project.targets(code.asked(call.func), code.path):
        return False
    given = [*call.args, *(word.value for word in call.keywords)]
    return not all(isinstance(value, ast.Constant) or is_plain(code.term(value)) for value in given)


def _writes_outside(code: Code, node: ast.AST) -> bool:
    """Match `teacher.center = output.mean(0)` and `MASKS[key] = mask`, which are there after the function."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) or node.value is None:
        return False
    if isinstance(node.value, ast.Constant) or is_plain(code.term(node.value)):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return any(isinstance(part, ast.Attribute | ast.Subscript) and not _is_local(code, part) for part in parts)


def _is_local(code: Code, node: ast.expr) -> bool:
    """Return whether an expression begins with a name that its function sets, so that nobody else has it."""
    function, name = code.function(node), _root(node)
    return function is not None and name in code.stored(function)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return last_name(node)


def _is_set_anew(code: Code, name: ast.Name, block: ast.AST) -> bool:
    """Return whether another loop sets the name before reading it here, as a training loop does with its batch."""
    around = set(code.ancestors(block))
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name.id
        for loop in code.loops(name)
        if loop not in around
        for node in walk(loop)
        if isinstance(node, ast.Name) and (node.lineno, node.col_offset) < (name.lineno, name.col_offset)
    )


def _reached(project: Project, begun: set[Reference]) -> set[Reference]:
    found, waiting = set(begun), list(begun)
    while waiting:
        here = waiting.pop()
        for call in project.function(here).calls:
            for target in project.targets(call.callee, here.path):
                if target not in found:
                    found.add(target)
                    waiting.append(target)
    return found


@lru_cache(maxsize=64)
def _run_unseen(project: Project, family: frozenset[str]) -> frozenset[Reference]:
    """Return the methods that modules, data sets and loaders of a program run, with all that they call."""
    begun = {
        Reference(path, name)
        for path in family
        for name, function in project.files[path].functions.items()
        if function.owner and name.rpartition(".")[2] in _RUN_UNSEEN
    }
    return frozenset(_reached(project, begun))


def _keeps(project: Project, reference: Reference) -> bool:
    """Return whether a function may leave a tensor in an object, a cache, or a name outside of it."""
    function = project.function(reference)
    if reference.name.endswith(("__init__", "__post_init__")):
        return False  # of an object made there
    if any(name.endswith(_CACHES) for name, _ in function.decorators):
        return True
    return any(not _is_harmless(project.answer(term, reference.path)) for term in function.kept)


def _is_harmless(term: Term) -> bool:
    if isinstance(term, tuple) and term[0] == "join":
        return all(map(_is_harmless, term[1:]))
    return term in _HARMLESS or is_plain(term)


@lru_cache(maxsize=64)
def _uses_unknown(project: Project, family: frozenset[str]) -> bool:
    """Return whether the program uses a library whose modules may keep tensors, as far as anybody here knows."""
    known = _KNOWN | sys.stdlib_module_names | set(dir(builtins)) | {name.split(".", 1)[0] for name in project.modules}
    return not known.issuperset(_imported(project, family))


def _imported(project: Project, family: frozenset[str]) -> Iterator[str]:
    for path in family:
        for term in project.files[path].names.values():
            if isinstance(term, tuple) and term[0] == "name" and not str(term[1]).startswith("@"):
                yield str(term[1]).split(".", 1)[0]
