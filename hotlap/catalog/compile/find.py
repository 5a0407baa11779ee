"""Finds models that run operation by operation. One finding per program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse import features
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found

WORDS = ("backward(", "step(", "Trainer(", "train_", "training")
TESTS = False
_READS = frozenset(("item", "tolist", "numpy", "print"))  # end a graph: Python needs a value


def find(code: Code) -> Iterator[Found]:
    where = programs.advised(code)
    if where is None or not where.lacks(features.COMPILE, features.RECURRENT, features.GRAPH_NETWORK):
        return
    if features.COMMAND_LINE not in where.uses:
        yield Found(
            where.node,
            "the model runs operation by operation: nothing in the program compiles it",
            "; ".join(("model = torch.compile(model), and measure it, as hotlap tune does", *_advice(code))),
            heat=where.heat,
        )


def _advice(code: Code) -> Iterator[str]:
    """Yield what the modules of this file suggest: where the graph will break, and which block to compile once."""
    line = next(_breaks(code), None)
    if line is not None:
        yield f"line {line} breaks the graph in two, and fullgraph=True names every such line"
    block = next(_repeated(code), None)
    if block is not None:
        yield f"if that compiles for too long, compile one region, `{block}`, with its own .compile() for each"


def _breaks(code: Code) -> Iterator[int]:
    """Yield the lines of forward passes on which Python reads the value of a tensor."""
    for function in code.nodes(ast.FunctionDef):
        if isinstance(function, ast.FunctionDef) and function.name == "forward" and code.in_module(function.body[0]):
            calls = [node for node in walk(function) if isinstance(node, ast.Call)]
            yield from sorted(call.lineno for call in calls if last_name(call.func) in _READS)


def _repeated(code: Code) -> Iterator[str]:
    """Yield the classes of the project of which a model has several in a row: `ModuleList([Block() for _ in …])`."""
    for call in code.calls("ModuleList", "Sequential"):
        for node in walk(call):
            made = node.elt if isinstance(node, ast.ListComp | ast.GeneratorExp) else None
            if isinstance(made, ast.Call) and code.project.class_of(code.term(made), code.path) is not None:
                yield last_name(made.func)
