"""Holds what remains of a file once it is read: small, picklable, and enough to analyse the whole project."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotlap.analysis.parse.terms import UNKNOWN, Term

# A stack says how a place in a function is reached: numbers from 0 on are loops, the others are guards.
Stack = tuple[int, ...]
RARE = -1  # every n-th time, now and then
FIRST = -2  # once per loop: the first time, the last time, or on leaving it
DEAD = -3
FLAG = -4  # behind a debugging switch
ERROR = -5  # on the way to an exception
MAYBE = -6  # behind a condition of unknown frequency
RECORD = -7  # when something is better than ever before: rare among batches, but not among epochs
EPOCHLY = -8  # whenever the loader is exhausted: step % len(loader) == 0
TURN = -9  # once in all iterations of the innermost loop
CONDITIONAL = (
    -10
)  # and below: behind a condition that only the project can judge, Function.conditions[CONDITIONAL - guard]


@dataclass(slots=True)
class Loop:
    line: int
    over: Term
    parent: int  # the loop around it in the same function, or -1
    comprehension: bool = False
    trains: bool = False  # makes a backward pass, not in an inner loop
    moves: bool = False  # moves what it iterates over to a device
    no_grad: bool = False
    epoch: bool = False  # counts epochs, by its names
    weights: bool = False  # iterates over parameters, modules or names, not over data
    updates: bool = False  # steps an optimizer, not in an inner loop
    feeds: bool = False  # passes something on the device to what may be a module
    models: bool = False  # calls a module
    quiet: bool = False  # calls a module without recording a graph
    unpacks: bool = False  # passes its element to a call
    yields: bool = False  # yields, not in an inner loop
    strided: bool = False  # iterates over slices of one sequence
    batches: bool = False  # counts batches or steps, by its names
    files: bool = False  # goes over files, by its names


@dataclass(slots=True)
class Call:
    callee: Term
    line: int
    stack: Stack
    arguments: tuple[Term, ...] = ()
    keywords: tuple[tuple[str, Term], ...] = ()
    no_grad: bool = False
    flags: tuple[tuple[int | str, bool], ...] = ()  # arguments that are literally True, False or None, by place or name
    counts: tuple[int | str, ...] = ()  # arguments that count the turns of a loop, by place or name
    event: str = ""  # the first argument that is a literal name: call_hook("before_step")


@dataclass(slots=True)
class KeywordForwarding:
    """A call that forwards the `**options` of the function around it."""

    callee: Term
    arguments: tuple[tuple[str, Any], ...]  # where each comes from: a constant, an argument and its default
    keywords: tuple[tuple[str, tuple[str, Any]], ...]


@dataclass(slots=True)
class Function:
    name: str  # qualified; "" for the code of the file itself
    line: int
    owner: str = ""  # the class whose method it is
    parameters: tuple[str, ...] = ()
    annotations: tuple[Term, ...] = ()
    named: int = 0  # how many of them, at the end, are keyword-only
    defaults: tuple[tuple[int, Term], ...] = ()  # classes, functions and modules that stand in for an argument
    flags: tuple[tuple[str, bool], ...] = ()  # arguments whose default is True, False or None
    rest: str = ""  # `*args`
    forwardings: tuple[KeywordForwarding, ...] = ()
    decorators: tuple[tuple[str, tuple[str, ...]], ...] = ()  # full name and arguments
    loops: list[Loop] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    returns: Term = UNKNOWN
    steps: bool = False  # makes a backward pass outside of its loops
    waits: int = 0  # the place, from 1 on, of an argument `non_blocking` whose default is False
    builds: bool = False  # makes an optimizer, so that it is a whole training, not a step
    updates: bool = False  # steps an optimizer
    evaluates: bool = False  # puts a model in evaluation mode
    models: bool = False  # calls a module, and records the graph
    sends: bool = False  # calls a method by a name it is given: getattr(hook, name)
    moves: bool = False  # moves one of its arguments to a device
    places: bool = False  # moves something to a device, or calls a module, which is on one
    rare: bool = False  # returns a condition that is rarely true: step % n == 0
    conditions: list[tuple[Term, int]] = field(
        default_factory=list
    )  # what a branch depends on, and its guard if that is unknown
    no_grad: bool = False
    quiets: bool = False  # yields where no graph is recorded, as a context manager does
    generates: bool = False
    kept: list[Term] = field(default_factory=list)  # what it leaves in objects, and in names outside of it


@dataclass(slots=True)
class Class:
    name: str
    line: int
    bases: tuple[Term, ...] = ()
    base_names: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    properties: frozenset[str] = frozenset()  # methods that run on attribute access
    attributes: dict[str, Term] = field(default_factory=dict)


@dataclass(slots=True)
class Summary:
    """One file: what it defines, imports and calls."""

    path: str
    module: str  # dotted, from the top of what is scanned
    package: bool
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    names: dict[str, Term] = field(default_factory=dict)  # globals of the file: imports, assignments
    uses: frozenset[str] = frozenset()  # a few features that it mentions: "cuda", "mps", …
