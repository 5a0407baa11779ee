"""Files opened or read for every sample."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import TEXT
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, keyword, last_name
from hotlap.analysis.queries.invariant import stored_in
from hotlap.analysis.queries.reads import ARCHIVE, ARRAY, PICTURE, READS, SOUND, WORDS, read_of
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import dependents, is_kept, mentions, per_sample, set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

__all__ = ["ONLY_HOT", "WORDS", "find"]
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for call in code.all_calls():
        sort = read_of(code, call)
        if sort is not None and per_sample(code, call) and not is_kept(code, call):
            yield from _read(code, call, sort)
    if "h5py" in code.text:
        yield from _from_open_file(code)


def _read(code: Code, call: ast.Call, sort: str) -> Iterator[Found]:
    if keyword(call, "mmap_mode") is not None or (sort == ARRAY and len(call.args) > 1):
        return
    same = _is_same_file(code, call)
    if _is_picture(code, call, sort) and not same:
        yield _found(call, "decodes a file", "keep the decoded samples where they fit into memory", Confidence.LOW)
    elif same:
        mapped = sort == ARRAY and code.full_name(call.func) == "numpy.load"
        indexed = mapped and isinstance(code.parent(call), ast.Subscript)
        yield _found(
            call,
            "opens the same file",
            "open it once in each process and keep it"
            if sort == ARCHIVE
            else "read it once in __init__, or map it into memory (mmap_mode)"
            if mapped
            else "read it once, in __init__",
            Confidence.HIGH,
            Applicability.UNSAFE if indexed else Applicability.DISPLAY_ONLY,
        )
    else:
        yield _found(call, "reads a file", "read all of them once into one array, or map them into memory", None)


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
    """Which file it is depends on nothing that changes from sample to sample."""
    function = code.function(call)
    path: ast.AST | None = call.args[0] if call.args else None
    if path is None and isinstance(call.func, ast.Attribute) and last_name(call.func) in ("read_text", "read_bytes"):
        path = call.func.value
    if function is None or path is None or mentions(path, dependents(function)):
        return False
    kept = {ast.unparse(one) for one in walk(path) if isinstance(one, ast.Attribute)}
    return not any(one in kept for one in stored_in(function.body))  # self.path = …: set anew for each sample


def _is_picture(code: Code, call: ast.Call, sort: str) -> bool:
    """Also where a picture or a sound is decoded from the file that is opened here."""
    if sort in (PICTURE, SOUND):
        return True
    block: ast.AST = code.statement(call)
    if code.full_name(call.func) == "numpy.fromfile":
        block = code.function(call) or block
    elif sort != "text":
        return False
    decoded = [one for one in walk(block) if isinstance(one, ast.Call) and one is not call]
    return any(_decodes(code, one) for one in decoded)


def _decodes(code: Code, call: ast.Call) -> bool:
    return READS.get(code.full_name(call.func)) in (PICTURE, SOUND) or last_name(call.func) == "imdecode"


def _from_open_file(code: Code) -> Iterator[Found]:
    """`self.file["x"][index]`, where the file is HDF5: every index is a read, and often a decompression."""
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
            "read it once into memory where it fits, or in whole batches",
            Confidence.LOW if _opens_another(code, node) else None,
        )


def _opens_another(code: Code, node: ast.AST) -> bool:
    """The function opens a file for the sample besides: that is what it waits for."""
    function = code.function(node)
    return function is not None and any(
        isinstance(one, ast.Call) and read_of(code, one) == ARCHIVE and per_sample(code, one) for one in walk(function)
    )


def _varies(code: Code, node: ast.Subscript) -> bool:
    function = code.function(node)
    return function is not None and mentions(node.slice, dependents(function))


def _is_indexed(code: Code, node: ast.Subscript) -> bool:
    """`file[key][index]`: the index is what reads."""
    parent = code.parent(node)
    return isinstance(parent, ast.Subscript) and parent.value is node


def _is_stored(code: Code, node: ast.expr) -> bool:
    """A dataset of an HDF5 file that the object keeps open."""
    if isinstance(node, ast.Subscript):
        named = code.kind(node.slice) == TEXT or isinstance(node.slice, ast.Attribute | ast.Name)
        return named and _is_file(code, node.value)
    if isinstance(node, ast.Call):
        got = isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _is_file(code, node.func.value)
        return got or _returns_stored(code, node)
    if not isinstance(node, ast.Attribute):
        return False
    if _is_file(code, node):
        return True  # one key for every sample
    return any(isinstance(value, ast.Subscript | ast.Call) and _is_stored(code, value) for value in set_to(code, node))


def _is_file(code: Code, node: ast.expr) -> bool:
    """h5py.File itself, or an attribute or name that is set to one."""
    if isinstance(node, ast.Call):
        return code.full_name(node.func) == "h5py.File"
    if not isinstance(node, ast.Attribute | ast.Name):
        return False
    return any(
        isinstance(value, ast.Call) and code.full_name(value.func) == "h5py.File" for value in set_to(code, node)
    )


def _returns_stored(code: Code, call: ast.Call) -> bool:
    """`self.mel()[index]`: a method of the same file that hands out what is in the open file."""
    name = last_name(call.func)
    return any(
        isinstance(one, ast.Return) and isinstance(one.value, ast.Subscript) and _is_stored(code, one.value)
        for function in code.nodes(ast.FunctionDef)
        if isinstance(function, ast.FunctionDef) and function.name == name and not call.args
        for one in walk(function)
    )
