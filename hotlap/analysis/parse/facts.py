"""What is kept of a file once it is read: small, picklable, and enough to see the whole project."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotlap.analysis.parse.terms import UNKNOWN, Term

# A stack says how a place is reached inside its function: numbers from 0 on are loops, the others are guards.
Stack = tuple[int, ...]
RARE = -1  # every n-th time, now and then
FIRST = -2  # once in a loop: the first time, the last time, on leaving it
DEAD = -3
FLAG = -4  # behind a debugging switch
ERROR = -5  # on the way to an exception
MAYBE = -6  # behind a condition that says nothing
RECORD = -7  # when something is better than ever before: rare among batches, not among epochs
EPOCHLY = -8  # every time the loader has been gone through: step % len(loader) == 0
TURN = -9  # once in all the turns of the loop right around it
ASKED = -10  # and below: behind a condition of which only the project knows, Function.asked[ASKED - guard]


@dataclass(slots=True)
class Loop:
    line: int
    over: Term
    parent: int  # the loop around it in the same function, or -1
    comprehension: bool = False
    trains: bool = False  # a backward pass right in it, in no loop within
    moves: bool = False  # moves what it iterates over to a device
    no_grad: bool = False
    epoch: bool = False  # counts epochs, by its own word
    weights: bool = False  # goes over parameters, modules or names, not over data
    updates: bool = False  # steps an optimizer right in it
    feeds: bool = False  # gives something on the device to what may be a module
    models: bool = False  # calls a module right in it
    quiet: bool = False  # the same, without recording a graph
    unpacks: bool = False  # gives what it iterates over to a call
    yields: bool = False  # right in it
    strided: bool = False  # over pieces of one sequence
    batches: bool = False  # counts batches or steps, by its own word


@dataclass(slots=True)
class Call:
    callee: Term
    line: int
    stack: Stack
    arguments: tuple[Term, ...] = ()
    keywords: tuple[tuple[str, Term], ...] = ()
    no_grad: bool = False
    flags: tuple[tuple[int | str, bool], ...] = ()  # True and False, written out, by place or name
    said: str = ""  # the first argument that is a name written out: call_hook("before_step")


@dataclass(slots=True)
class KeywordForwarding:
    """A call that gets the `**options` of the function it stands in."""

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
    named: int = 0  # how many of them, the last ones, can be given by name only
    defaults: tuple[tuple[int, Term], ...] = ()  # classes, functions and modules that stand in for an argument
    flags: tuple[tuple[str, bool], ...] = ()  # arguments that are True or False unless given
    rest: str = ""  # `*args`
    hands: tuple[KeywordForwarding, ...] = ()
    decorators: tuple[tuple[str, tuple[str, ...]], ...] = ()  # full name, and the names given to it
    loops: list[Loop] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    returns: Term = UNKNOWN
    steps: bool = False  # a backward pass in no loop of its own
    waits: int = 0  # the place, from 1 on, of an argument `non_blocking` that is False unless given
    builds: bool = False  # makes an optimizer: it is a whole training, not a step
    updates: bool = False  # steps an optimizer
    evaluates: bool = False  # puts a model in evaluation mode
    models: bool = False  # calls a module, and records the graph
    sends: bool = False  # calls what has the name that it is given: getattr(hook, name)
    moves: bool = False  # moves one of its arguments to a device
    places: bool = False  # moves something to a device, or calls a module, which is on one
    rare: bool = False  # answers a question that is true now and then: step % n == 0
    asked: list[tuple[Term, int]] = field(default_factory=list)  # what a branch depends on, and its guard otherwise
    no_grad: bool = False
    quiets: bool = False  # yields where no graph is recorded: a context for others
    generates: bool = False


@dataclass(slots=True)
class Class:
    name: str
    line: int
    bases: tuple[Term, ...] = ()
    base_names: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    properties: frozenset[str] = frozenset()  # methods that are run by being looked at
    attributes: dict[str, Term] = field(default_factory=dict)


@dataclass(slots=True)
class Summary:
    """One file: what it defines, imports and calls."""

    path: str
    module: str  # dotted, from the top of what is scanned
    package: bool
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    names: dict[str, Term] = field(default_factory=dict)  # of the file itself: imports, assignments
    uses: frozenset[str] = frozenset()  # of a few features: "cuda", "mps", …
