"""Files opened or read for every sample."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import TEXT
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import reads
from hotlap.analysis.queries.code import Code, keyword, last_name
from hotlap.analysis.queries.invariant import stored_in
from hotlap.analysis.queries.reads import ARCHIVE, ARRAY, PICTURE, READS, SOUND, read_of
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import dependents, is_kept, mentions, per_sample, set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = (*reads.WORDS, "listdir(", "scandir(", "glob(")
_LISTS = ("os.listdir", "os.scandir", "glob.glob")
SEVERITY = "high"
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for call in code.all_calls():
        sort = read_of(code, call)
        if sort is not None and per_sample(code, call) and not is_kept(code, call):
            yield from _read(code, call, sort)
    for call in code.calls("listdir", "scandir", "glob"):
        listed = code.full_name(call.func) in _LISTS and per_sample(code, call) and not is_kept(code, call)
        if listed and _is_same_file(code, call):
            yield _found(call, "lists the same folder", "list it once, in __init__", Confidence.HIGH)
    if "h5py" in code.text:
        yield from _from_open_file(code)


def _read(code: Code, call: ast.Call, sort: str) -> Iterator[Found]:
    if keyword(call, "mmap_mode") is not None or (sort == ARRAY and len(call.args) > 1):
        return
    same = _is_same_file(code, call)
    if _is_picture(code, call, sort) and not same:
        yield _found(call, "decodes a file", "keep the decoded samples in memory if they fit", Confidence.LOW)
    elif same:
        mappable = sort == ARRAY and code.full_name(call.func) == "numpy.load"
        indexed = mappable and isinstance(code.parent(call), ast.Subscript)
        yield _found(
            call,
            "opens the same file",
            "open it once in each process and keep it open"
            if sort == ARCHIVE
            else "read it once in __init__, or map it into memory (mmap_mode)"
            if mappable
            else "read it once, in __init__",
            Confidence.HIGH,
            Applicability.UNSAFE if indexed else Applicability.DISPLAY_ONLY,
        )
    else:
        yield _found(call, "reads a file", "read all files once into one array, or map them into memory", None)


def _found(
    node: ast.expr,
    does: str,
    repair: str,
    confidence: Confidence | None,
    applicability: Applicability = Applicability.DISPLAY_ONLY,
) -> Found:
    message = f"`{shown(node)}` {does} for every sample"
    return Found(node, message, repair, applicability, confidence=confidence or Confidence.MEDIUM)


def _is_same_file(code: Code, call: ast.Call) -> bool:
    """Tell whether the path is the same for every sample."""
    function = code.function(call)
    path: ast.AST | None = call.args[0] if call.args else None
    if path is None and isinstance(call.func, ast.Attribute) and last_name(call.func) in ("read_text", "read_bytes"):
        path = call.func.value
    if function is None or path is None or mentions(path, dependents(function)):
        return False
    attributes = {ast.unparse(node) for node in walk(path) if isinstance(node, ast.Attribute)}
    return not any(name in attributes for name in stored_in(function.body))  # self.path = …: set for each sample


def _is_picture(code: Code, call: ast.Call, sort: str) -> bool:
    """Tell whether a picture or a sound is read, also if another call decodes it from the file opened here."""
    if sort in (PICTURE, SOUND):
        return True
    block: ast.AST = code.statement(call)
    if code.full_name(call.func) == "numpy.fromfile":
        block = code.function(call) or block
    elif sort != "text":
        return False
    others = [node for node in walk(block) if isinstance(node, ast.Call) and node is not call]
    return any(_decodes(code, node) for node in others)


def _decodes(code: Code, call: ast.Call) -> bool:
    return READS.get(code.full_name(call.func)) in (PICTURE, SOUND) or last_name(call.func) == "imdecode"


def _from_open_file(code: Code) -> Iterator[Found]:
    """Yield `self.file["x"][index]` of an HDF5 file: every index is a read, and often a decompression."""
    for node in code.nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if not isinstance(node.ctx, ast.Load) or not isinstance(node.value, ast.Subscript | ast.Call | ast.Attribute):
            continue
        if not per_sample(code, node) or is_kept(code, node) or not _is_stored(code, node.value):
            continue
        if not _varies(code, node) or (_is_file(code, node.value) and _is_indexed(code, node)):
            continue
        yield _found(
            node,
            "reads from the open file",
            "read it into memory once if it fits, or read whole batches",
            Confidence.LOW if _opens_another(code, node) else None,
        )


def _opens_another(code: Code, node: ast.AST) -> bool:
    """Tell whether the function also opens a file for the sample: then the open is what costs."""
    function = code.function(node)
    return function is not None and any(
        isinstance(call, ast.Call) and read_of(code, call) == ARCHIVE and per_sample(code, call)
        for call in walk(function)
    )


def _varies(code: Code, node: ast.Subscript) -> bool:
    function = code.function(node)
    return function is not None and mentions(node.slice, dependents(function))


def _is_indexed(code: Code, node: ast.Subscript) -> bool:
    """Tell whether this is the `file[key]` of `file[key][index]`, where only the index reads."""
    parent = code.parent(node)
    return isinstance(parent, ast.Subscript) and parent.value is node


def _is_stored(code: Code, node: ast.expr) -> bool:
    """Tell whether this is a dataset in an HDF5 file that the object keeps open."""
    if isinstance(node, ast.Subscript):
        named = code.kind(node.slice) == TEXT or isinstance(node.slice, ast.Attribute | ast.Name)
        return named and _is_file(code, node.value)
    if isinstance(node, ast.Call):
        looked_up = isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _is_file(code, node.func.value)
        return looked_up or _returns_stored(code, node)
    if not isinstance(node, ast.Attribute):
        return False
    if _is_file(code, node):
        return True  # one key for every sample
    return any(isinstance(value, ast.Subscript | ast.Call) and _is_stored(code, value) for value in set_to(code, node))


def _is_file(code: Code, node: ast.expr) -> bool:
    """Tell whether this is an h5py.File, or an attribute or name set to one."""
    if isinstance(node, ast.Call):
        return code.full_name(node.func) == "h5py.File"
    if not isinstance(node, ast.Attribute | ast.Name):
        return False
    return any(
        isinstance(value, ast.Call) and code.full_name(value.func) == "h5py.File" for value in set_to(code, node)
    )


def _returns_stored(code: Code, call: ast.Call) -> bool:
    """Recognise `self.mel()[index]`, a method in this source file that returns a dataset of the open file."""
    name = last_name(call.func)
    return any(
        isinstance(node, ast.Return) and isinstance(node.value, ast.Subscript) and _is_stored(code, node.value)
        for function in code.nodes(ast.FunctionDef)
        if isinstance(function, ast.FunctionDef) and function.name == name and not call.args
        for node in walk(function)
    )
