"""Defines terms: what an expression may be, worked out without running it.

A term is a kind (a string) if reading one function is enough, or a question that only the project can answer:

("def", name)            a definition of this file, by its qualified name
("name", "pkg.thing")    something imported
("param", name, number)  an argument of the function of that qualified name
("rest", name)           an element of `*args` of that function
("self", name)           an instance of that class of this file
("super", name)          the same, looked up from its bases on
("attr", term, name)     an attribute of the term
("call", term)           the result of calling the term
("call", term, argument)  the same, with its only argument, or two of them
("item", term)           an element of the term
("part", term, number)   the value at that place when the term is unpacked
("list", term)           a list or set of such elements
("dict", term)           a dictionary of such values
("index", term)          the result of indexing the term
("tuple", term, …)       a tuple of exactly these
("enumerated", term)     enumerate(…) of it
("zipped", term, …)      zip(…) of them
("join", term, term)     either of them, or an operation on both
("operation", term, …)   the result of a torch function of them
("moved", term)          after .to(device) or .cuda()
("hosted", term)         after .cpu()
("aside", call)          the result of a call whose tensors are all on the host
("prefixed", term, text)  an attribute whose name has that prefix: getattr(self, text + …)
("star", name)           a name that one of the star imports may have brought
("held", name)           a table of the file, which its functions fill
("member", term)          some function or class of that module: getattr(module, name)
("some", class, term)    the term narrowed by isinstance to that class or a subclass
("partial", term, count) a function whose first `count` arguments are bound
"""

from __future__ import annotations

from typing import Any, TypeAlias

Term: TypeAlias = str | tuple[Any, ...]

UNKNOWN = ""
TENSOR = "tensor"  # on the device, as far as the source tells
BATCH = "batch"  # from a loader, and still on the host unless the framework has moved it
HOST = "host tensor"
NUMBER = "number"
EXTENT = "extent"  # a number that counts elements of a tensor
TEXT = "text"
NUMPY = "array"
FRAME = "frame"
MODULE = "module"
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
LOADER = "loader"
PLACED_LOADER = "placed loader"  # its batches are on the device already
DATASET = "dataset"
TENSOR_DATASET = "dataset of tensors"
SCALER = "scaler"
DEVICE = "device"
HOST_DEVICE = "host device"  # torch.device("cpu"), held by a name of a function or file
WRITER = "writer"  # TensorBoard, wandb and their like
LOGGER = "logger"
ACCELERATOR = "accelerator"
FILE = "file"
RARELY = "rarely true"  # a flag that holds every n-th time
NO_GRAD = "no_grad"
STATE = "state dict"

DEEPEST = 11  # the depth of a question; without a bound, loops could nest it endlessly
TENSORS = frozenset((TENSOR, BATCH, HOST))
LOADERS = frozenset((LOADER, PLACED_LOADER))
_STRENGTH = {
    kind: rank
    for rank, kind in enumerate((UNKNOWN, HOST_DEVICE, TEXT, NUMBER, EXTENT, FRAME, NUMPY, HOST, BATCH, MODULE, TENSOR))
}


def join(left: Term, right: Term) -> Term:
    """Return the result of an operation on both, or the term of a name that is either, depending on the path."""
    if left in (right, TENSOR) or right in (NUMBER, UNKNOWN, TEXT):
        return left
    if left in (NUMBER, UNKNOWN, TEXT) or right == TENSOR:
        return right
    if left[0] == "join" and right in left[1:]:
        return left
    if isinstance(left, str) and isinstance(right, str):
        return left if _STRENGTH.get(left, 20) >= _STRENGTH.get(right, 20) else right
    return left if depth(left) + depth(right) > 12 else ("join", left, right)


def either(terms: list[Term]) -> Term:
    """Return a term that may be any of these, nested as little as possible."""
    if len(terms) < 3:
        return ("join", *terms) if len(terms) == 2 else terms[0] if terms else UNKNOWN
    half = len(terms) // 2
    return ("join", either(terms[:half]), either(terms[half:]))


def depth(term: Term) -> int:
    """Return how deep a question nests; the depth is bounded so that loops in a program cannot blow up a term."""
    if term.__class__ is str:
        return 0
    deepest = 0
    for part in term:
        if part.__class__ is tuple:
            inner = depth(part)
            if inner > deepest:  # cheaper than max(), and this is asked of every term
                deepest = inner
    return deepest + 1


def element(term: Term) -> Term:
    """Return the element that iterating over a term yields."""
    if isinstance(term, str):
        return _ELEMENTS.get(term, UNKNOWN)
    if term[0] == "list":
        return part_of(term, 1)
    if term[0] == "dict":  # its keys
        return UNKNOWN
    if term[0] == "tuple":
        return _joined(term[1:])
    if term[0] == "enumerated":
        return ("tuple", NUMBER, element(term[1]))
    if term[0] == "zipped":
        return ("tuple", *(element(part) for part in term[1:]))
    if term[0] == "join" and any(_is_group(part) for part in term[1:]):
        return _joined(tuple(element(part) for part in term[1:]))
    return ("item", term) if depth(term) < DEEPEST else UNKNOWN


def indexed(term: Term) -> Term:
    """Return the result of `term[…]`."""
    if isinstance(term, str) or term[0] in ("list", "tuple", "enumerated", "zipped"):
        return element(term)
    if term[0] == "dict":
        return part_of(term, 1)
    if term[0] == "join" and any(_is_group(part) for part in term[1:]):
        return _joined(tuple(indexed(part) for part in term[1:]))
    return ("index", term) if depth(term) < DEEPEST else UNKNOWN


def unpacked(term: Term, number: int, total: int) -> Term:
    """Return what the target at one place gets when the term is unpacked."""
    if isinstance(term, str):
        return _ELEMENTS.get(term, UNKNOWN)
    if term[0] == "tuple":
        return part_of(term, number + 1) if len(term) == total + 1 else element(term)
    if term[0] == "list":
        return part_of(term, 1)
    return ("part", term, number) if depth(term) < DEEPEST else UNKNOWN


def _is_group(term: Term) -> bool:
    """Match a list, dict or tuple, or a join with one."""
    if isinstance(term, tuple) and term[0] == "join":
        return any(_is_group(part) for part in term[1:])
    return isinstance(term, tuple) and term[0] in ("list", "dict", "tuple")


def part_of(term: tuple[Any, ...], number: int) -> Term:
    part: Term = term[number]
    return part


def _joined(parts: tuple[Any, ...]) -> Term:
    result: Term = UNKNOWN
    for part in parts:
        result = join(result, part)
    return result


_ELEMENTS = {
    TENSOR: TENSOR, BATCH: BATCH, HOST: HOST, NUMPY: NUMPY, LOADER: BATCH, PLACED_LOADER: TENSOR, DATASET: BATCH,
    TENSOR_DATASET: BATCH,
    EXTENT: EXTENT, FRAME: FRAME, TEXT: TEXT, MODULE: MODULE, NUMBER: NUMBER,
}  # fmt: skip


def moved(term: Term) -> Term:
    if isinstance(term, str):
        return TENSOR if term in (BATCH, HOST, UNKNOWN) else term
    return term if term[0] == "moved" else ("moved", term)


def hosted(term: Term) -> Term:
    if isinstance(term, str):
        return HOST if term in (BATCH, TENSOR, UNKNOWN) else term
    return term if term[0] == "hosted" else ("hosted", term)


def placed(term: Term) -> Term:
    """Return the term of a model's output, which is on its device even if it contains constants of the host."""
    if isinstance(term, str):
        return TENSOR if term in (HOST, BATCH) else term
    if term[0] in ("tuple", "list", "dict"):
        return (term[0], *(placed(part) for part in term[1:]))
    return term
