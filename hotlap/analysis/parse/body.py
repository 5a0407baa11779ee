"""Reads the statements of one function, in order, with the loops and guards around them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from hotlap.analysis.parse import early_exits as leaving
from hotlap.analysis.parse import guards, statements
from hotlap.analysis.parse.annotations import annotated
from hotlap.analysis.parse.call_values import Reader
from hotlap.analysis.parse.calls import derived_from, is_next, last_name, times
from hotlap.analysis.parse.expressions import Expressions
from hotlap.analysis.parse.facts import (
    CONDITIONAL,
    DEAD,
    ERROR,
    FIRST,
    MAYBE,
    RARE,
    TURN,
    Call,
    Function,
    Loop,
    Summary,
)
from hotlap.analysis.parse.terms import NO_GRAD, RARELY, TENSOR, TEXT, UNKNOWN, Term, element, join
from hotlap.analysis.parse.tree import walk

_ANSWERING = ("def", "name", "attr")
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_MOST_BRANCHES = 4  # of one question; with more, each is rarely taken


class FileState(Reader):
    """What statements need to know about the file, besides what expressions need."""

    summary: Summary
    within: dict[ast.AST, Function]

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Body) -> None:
        raise NotImplementedError

    def define_class(self, node: ast.ClassDef, scope: Body) -> None:
        raise NotImplementedError


class Body(Expressions):
    """Reads the statements of one function."""

    owner = ""  # inside a class statement: the class
    following: Sequence[ast.stmt] = ()  # what stands after the `if` being read, in its block

    def block(self, statements: list[ast.stmt]) -> None:
        before = self.stack
        places, within = self.reader.places, self._file.within
        for number, statement in enumerate(statements, 1):
            kind = statement.__class__
            if kind is ast.If:
                self.following = statements[number:]
            if self.keep is not None:
                places[statement] = self.stack
                within[statement] = self.function
            _STATEMENTS.get(kind, Body._rest)(self, statement)
            if kind in _LEAVING:
                break  # nothing after it runs
        self.stack = before

    @property
    def _file(self) -> FileState:
        assert isinstance(self.reader, FileState)
        return self.reader

    def guarded(self, statements: list[ast.stmt], guard: int) -> None:
        if guard == DEAD:  # `if TYPE_CHECKING`: annotations name what it imports
            self.block([statement for statement in statements if isinstance(statement, ast.Import | ast.ImportFrom)])
            return
        before = self.stack
        if guard:
            self.stack = (*before, guard)
        self.block(statements)
        self.stack = before

    # Statements

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self.names[alias.asname] = ("name", alias.name)
            else:
                top = alias.name.split(".")[0]
                self.names[top] = ("name", top)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            module = statements.relative(self._file.summary, node.level, module)
        for alias in node.names:
            if alias.name != "*":
                self.names[alias.asname or alias.name] = ("name", f"{module}.{alias.name}")
            else:
                self.names.setdefault(f"*{module}", ("name", module))

    def _assign(self, node: ast.Assign) -> None:
        term = self.term(node.value)
        rare = guards.is_rare_flag(node.value, self.counters)
        loop = derived_from(node.value, self.loop_names)
        if loop < 0 and self.stack and is_next(node.value):
            loop = self.here
        for target in node.targets:
            self.assign(target, RARELY if rare and isinstance(target, ast.Attribute) else term, loop)
            if isinstance(target, ast.Name):
                self.set_in[target.id] = self.here
                self._note_list(target.id, node.value)
                self._note_flag(target.id, node.value, rare)

    def _note_list(self, name: str, value: ast.expr) -> None:
        """Note a list that starts empty in every iteration: it is filled as often as something is put in."""
        self.rare_names.discard(name)
        if isinstance(value, ast.List) and not value.elts and any(frame >= 0 for frame in self.stack):
            self.rare_names.add(name)

    def _note_filled(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name) and not any(frame in (RARE, FIRST, ERROR) for frame in self.stack):
            self.rare_names.discard(node.id)

    def _note_flag(self, name: str, value: ast.expr, rare: bool) -> None:
        """Note names that are true every n-th time, and names computed from counters: `step = i + epoch * length`."""
        self.few.discard(name)
        self.ranges[name] = statements.counted(value)
        if guards.is_small(value):
            self.few.add(name)
        elif rare:
            self.rare_names.add(name)
        elif isinstance(value, ast.BinOp) and statements.counts_on(value, self.counters):
            self.counters.add(name)
            self.starts[name] = times(value, self.loop_names)

    def _annotated_assign(self, node: ast.AnnAssign) -> None:
        term = annotated(node.annotation, self.plain)
        if node.value is not None:
            value = self.term(node.value)
            term = value if not term or term == TEXT else join(term, value)
        self.assign(node.target, term)

    def _augmented(self, node: ast.AugAssign) -> None:
        value = self.term(node.value)
        before = self.term(node.target)
        self._note_filled(node.target)
        if isinstance(node.target, ast.Name) and isinstance(node.value, ast.Constant):
            self.counters.add(node.target.id)
        if isinstance(before, tuple) and before[0] == "list" and isinstance(node.op, ast.Add):
            value = ("list", element(value))
        self.assign(node.target, join(before, value))

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        over = self.term(node.iter)
        before = self.stack
        if leaving.ends(node.body) or leaving.ends_soon(node, self.few):  # `for batch in loader: …; break`
            self.assign(node.target, element(over))
            self.block(node.body)
            self.block(node.orelse)
            return
        number = self.enter_loop(node.iter, over)
        self.assign(node.target, element(over), number)
        self._note_counter(node, self.function.loops[number])
        self.function.loops[number].strided |= statements.strided(node.iter)
        self.function.loops[number].weights = any(
            isinstance(part, ast.Attribute) and part.attr in statements.WEIGHTS for part in walk(node.iter)
        )
        self._turns(node.body)
        self.stack = before
        self.block(node.orelse)

    def _turns(self, body: list[ast.stmt]) -> None:
        """Read the body of a loop. Names are revised afterwards only if terms are kept for rules."""
        self._note_counted(body)
        before = dict(self.names) if self.reader.keep is not None else {}
        self.block(body)
        self.carry(body, before)

    def _note_counted(self, body: list[ast.stmt]) -> None:
        """Note `step += 1` in a loop's body: the name counts iterations from the first line on."""
        for statement in body:
            if (
                isinstance(statement, ast.AugAssign)
                and isinstance(statement.target, ast.Name)
                and statements.is_one(statement.value)
            ):
                self.counters.add(statement.target.id)

    def _note_counter(self, node: ast.For | ast.AsyncFor, loop: Loop) -> None:
        iterable = statements.counted(node.iter)
        if isinstance(iterable, ast.Name):
            iterable = self.ranges.get(iterable.id, iterable)
        name = last_name(iterable.func) if isinstance(iterable, ast.Call) else ""
        loop.files = statements.goes_over_files(node.iter)
        loop.batches = name in ("range", "trange") and statements.mentions_batches(*statements.given(iterable))
        target = node.target
        if isinstance(target, ast.Tuple) and target.elts and statements.counts(node.iter):
            target = target.elts[0]
        elif name not in ("range", "trange", "count"):
            return
        if isinstance(target, ast.Name):
            self.counters.add(target.id)
        if isinstance(target, ast.Name | ast.Attribute):  # for self.epoch in range(n)
            loop.epoch = name in ("range", "trange") and statements.mentions_epochs(target, *statements.given(iterable))

    def _while(self, node: ast.While) -> None:
        before = self.stack
        if leaving.ends(node.body):  # retries until it works
            self.term(node.test)
            self.block(node.body)
            return
        number = self.enter_loop(node.test, UNKNOWN)
        self.starts.update(dict.fromkeys(statements.grown(node), number))
        self.term(node.test)
        self._turns(node.body)
        self.stack = before
        self.block(node.orelse)

    def _if(self, node: ast.If) -> None:
        self.term(node.test)
        following = self.following
        body, otherwise = guards.guards(node, self.counters, self.rare_names)
        if body in (guards.NONE, MAYBE) and guards.leaves_loop(node.body) and any(frame >= 0 for frame in self.stack):
            body = FIRST
        if body in (guards.NONE, MAYBE) and self.is_kept_empty(node):
            body = FIRST
        body = TURN if body == FIRST and self.counts_here(node.test) else body
        body, otherwise = self._by_project(node.test, body, otherwise)
        before = dict(self.names)
        body = self._by_count(statements.compared_with_number(node.test), body)
        otherwise = self._by_count(statements.beyond_number(node.test), otherwise)
        first, second = self._by_flag(node.test, body, otherwise)
        narrowed = self._narrow(node.test)
        self.guarded(node.body, first)
        after = self.names
        if narrowed and after[narrowed][:1] == ("some",):
            after[narrowed] = before[narrowed]
        for name in statements.converted(node):
            before[name] = after.get(name, UNKNOWN)
        for name in statements.tested_for_tensor(node.test):
            known = before.get(name, UNKNOWN)
            if known == TENSOR or known[:1] == ("param",):  # a part of a batch may be a list of tensors
                before[name] = UNKNOWN
        self.names = before
        chained = otherwise == MAYBE and 1 < statements.branches(node) <= _MOST_BRANCHES
        self.guarded(node.orelse, guards.NONE if chained else second)  # an `elif` belongs to the question of its `if`
        self._merge(after)
        if otherwise == RARE and guards.has_step(following):
            return  # `if step % n: continue`, and then the optimizer's step: gradient accumulation
        if otherwise and guards.leaves(node.body) and otherwise not in (DEAD, MAYBE):
            self.stack = (*self.stack, otherwise)  # `if step % 100: continue`: what follows is as rare

    def _by_flag(self, test: ast.expr, body: int, otherwise: int) -> tuple[int, int]:
        """Guard branches that an argument decides: frequent callers may never take them."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):  # `if testing and path`
            known = [statements.tested_flag(part) for part in test.values]
            name, wanted = next((flag for flag in known if self._is_argument(flag[0])), ("", True))
            return (self._flagged(body, name, wanted) if name else body), otherwise
        name, wanted = statements.tested_flag(test)
        if not self._is_argument(name):
            return body, otherwise
        return self._flagged(body, name, wanted), self._flagged(otherwise, name, not wanted)

    def _by_count(self, name: str, guard: int) -> int:
        """Guard `if number == 0` by an argument: whether it counts the turns of a loop, only its callers say."""
        if guard not in (guards.NONE, MAYBE) or not self._is_argument(name):
            return guard
        self.function.conditions.append((("counted", name), guard))
        return CONDITIONAL - len(self.function.conditions) + 1

    def _is_argument(self, name: str) -> bool:
        """Return whether a name is an argument of this function that has not been set again."""
        if not name or name not in self.function.parameters:
            return False
        term, annotated = self.names.get(name), self.function.annotations[self.function.parameters.index(name)]
        return term == ("param", self.function.name, self.function.parameters.index(name)) or (
            annotated != UNKNOWN and term == annotated
        )

    def _flagged(self, guard: int, name: str, wanted: bool) -> int:
        if guard == DEAD or guard <= CONDITIONAL:
            return guard
        self.function.conditions.append((("flag", name, wanted), guard))
        return CONDITIONAL - len(self.function.conditions) + 1

    def _narrow(self, test: ast.expr) -> str:
        """Narrow x after `if isinstance(x, Metric)` to an object of that class of the project, or of a subclass. Return
        the name, or "" if nothing is learned."""
        tested = statements.tested_for_class(test)
        known = self.names.get(tested[0]) if tested is not None else None
        kind = self.plain(tested[1]) if tested is not None and isinstance(known, tuple) else UNKNOWN
        if tested is None or not isinstance(kind, tuple) or kind[0] not in ("def", "name"):
            return ""
        self.names[tested[0]] = ("some", kind, known)
        return tested[0]

    def _by_project(self, test: ast.expr, body: int, otherwise: int) -> tuple[int, int]:
        """Guard branches that a function or flag of the project decides; only the project knows how rare they are."""
        parts, negated = guards.deciding(test)
        guard = otherwise if negated else body
        for part in parts if guard in (guards.NONE, MAYBE) else ():
            term = self.plain(part.func if isinstance(part, ast.Call) else part)
            if isinstance(term, tuple) and term[0] in (_ANSWERING if isinstance(part, ast.Call) else ("attr",)):
                self.function.conditions.append((term, guard))
                number = CONDITIONAL - len(self.function.conditions) + 1
                return (body, number) if negated else (number, otherwise)
        return body, otherwise

    def _merge(self, branch: dict[str, Term]) -> None:
        mine = self.names
        for name, term in branch.items():
            if name not in mine:
                mine[name] = term
            elif mine[name] is not term:
                mine[name] = join(mine[name], term)
        # The names of the file, and those a nested function sees, must stay the same dictionary.
        branch.clear()
        branch.update(mine)
        self.names = branch

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        before = self.no_grad
        for item in node.items:
            term = self.term(item.context_expr)
            if term == NO_GRAD or statements.is_grad_off(item.context_expr):
                self.no_grad = True
            self._enter(item.context_expr, term)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, term)
        self.block(node.body)
        self.no_grad = before

    def _enter(self, node: ast.expr, term: Term) -> None:
        """Note that entering and leaving a `with` may run methods of an object of the project."""
        if isinstance(term, tuple) and term[0] not in ("name", "list", "dict", "tuple"):
            for name in ("__enter__", "__exit__"):
                self.function.calls.append(Call(("attr", term, name), node.lineno, self.stack))

    def _try(self, node: ast.Try) -> None:
        self.block(node.body)
        for handler in node.handlers:
            before = dict(self.names)
            if handler.name:
                self.names[handler.name] = UNKNOWN
            self.guarded(handler.body, ERROR)
            after, self.names = self.names, before  # `except ImportError: wandb = None`: the earlier value still counts
            self._merge(after)
        self.block(node.orelse)
        self.block(node.finalbody)

    def _match(self, node: ast.Match) -> None:
        self.term(node.subject)
        for case in node.cases:
            self.block(case.body)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._file.define(node, self)

    def _class(self, node: ast.ClassDef) -> None:
        self._file.define_class(node, self)

    def _return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.function.returns = join(self.function.returns, self.term(node.value))
            self.function.rare = self.function.rare or guards.is_rare_flag(node.value)

    def _expression(self, node: ast.Expr) -> None:
        self.term(node.value)
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            self._note_filled(node.value.func.value)

    def _raise(self, node: ast.Raise) -> None:
        before = self.stack
        self.stack = (*before, ERROR)
        self._rest(node)
        self.stack = before

    def _rest(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Global | ast.Nonlocal):
            self.function.kept.append(UNKNOWN)  # whatever is set under these names
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.term(child)


_STATEMENTS: dict[type, Callable[[Body, Any], None]] = {
    ast.Import: Body._import, ast.ImportFrom: Body._import_from, ast.Assign: Body._assign,
    ast.AnnAssign: Body._annotated_assign, ast.AugAssign: Body._augmented, ast.For: Body._for,
    ast.AsyncFor: Body._for, ast.While: Body._while, ast.If: Body._if, ast.With: Body._with,
    ast.AsyncWith: Body._with, ast.Try: Body._try, ast.FunctionDef: Body._function,
    ast.AsyncFunctionDef: Body._function, ast.ClassDef: Body._class, ast.Return: Body._return,
    ast.Match: Body._match, ast.Raise: Body._raise, ast.Expr: Body._expression,
}  # fmt: skip
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = Body._try
