"""Makes the changes of a fix at one finding in a libcst tree, preserving formatting and comments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from hotlap.records.scan_finding import ScanFinding

Node = TypeVar("Node", bound=cst.CSTNode)
Change = Callable[[Any], Any]
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


_USUAL_WIDTH = 100  # characters; lines may become that long, or as long as the file's longest


class CannotFix(Exception):
    """Raised when the code does not match the finding or another fix is changing it; this round then skips the fix."""


class Tree:
    """A file being repaired; changes are collected, then made in one pass."""

    def __init__(self, text: str) -> None:
        self.wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module = self.wrapper.module
        self.parents = self.wrapper.resolve(ParentNodeProvider)
        self.positions = self.wrapper.resolve(PositionProvider)
        self.by_position: dict[tuple[int, int, int, int], list[cst.CSTNode]] = {}
        for node, where in self.positions.items():
            key = (where.start.line, where.start.column, where.end.line, where.end.column)
            self.by_position.setdefault(key, []).append(node)
        self.changes: dict[cst.CSTNode, list[Change]] = {}
        self.taken: set[cst.CSTNode] = set()
        self.once: set[tuple[cst.CSTNode, str]] = set()
        self.lines = text.splitlines()
        self.widest = max(_USUAL_WIDTH, *map(len, self.lines)) if self.lines else _USUAL_WIDTH
        self.grown: dict[int, int] = {}  # how many characters each line has gained

    def apply(self, fix: Callable[[Place], None], finding: ScanFinding) -> bool:
        """Collect the changes of one fix, or none of them if the fix cannot be made completely."""
        place = Place(self, finding)
        try:
            fix(place)
        except CannotFix:
            return False
        for node in (*place.changes, *place.takes):
            if node in self.taken or any(ancestor in self.taken for ancestor in self.ancestors(node)):
                return False
        if any(self._touched(node) for node in place.takes):
            return False
        for node, changes in place.changes.items():
            self.changes.setdefault(node, []).extend(changes)
        self.taken.update(place.takes)
        self.once.update(place.onces)
        return True

    def ancestors(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        found = []
        while node in self.parents:
            node = self.parents[node]
            found.append(node)
        return found

    def _touched(self, node: cst.CSTNode) -> bool:
        return any(changed is node or node in self.ancestors(changed) for changed in self.changes)

    def code(self) -> str:
        return self.module.visit(_Changer(self.changes)).code


class _Changer(cst.CSTTransformer):
    def __init__(self, changes: dict[cst.CSTNode, list[Change]]) -> None:
        super().__init__()
        self.changes = changes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        result: Any = updated_node
        before: list[Any] = []
        after: list[Any] = []
        for change in self.changes.get(original_node, ()):
            result = change(result)
            if isinstance(result, _Around):
                before, result, after = [*before, *result.before], result.node, [*after, *result.after]
        if not before and not after:
            return result
        middle = [] if isinstance(result, cst.RemovalSentinel) else [result]
        return cst.FlattenSentinel([*before, *middle, *after])


class _Around:
    """A statement with other statements inserted before or after it."""

    def __init__(self, node: Any, before: Sequence[Any], after: Sequence[Any]) -> None:
        self.node, self.before, self.after = node, before, after


class Place:
    """The place that a fix changes: `place.found` is the finding, `place.node(kind)` the node it points at."""

    def __init__(self, tree: Tree, found: ScanFinding) -> None:
        self.tree, self.found = tree, found
        self.changes: dict[cst.CSTNode, list[Change]] = {}
        self.takes: list[cst.CSTNode] = []
        self.onces: list[tuple[cst.CSTNode, str]] = []

    # Lookup

    def node(self, kind: type[Node], at: str = "") -> Node:
        """Return the node of this kind at the finding, or at the position of a hint, written by `position_of`."""
        finding = self.found
        key = (finding.line, finding.column - 1, finding.end_line, finding.end_column - 1)
        if at:
            numbers = [int(part) for part in at.split(":")]
            key = (numbers[0], numbers[1], numbers[2], numbers[3])
        for node in self.tree.by_position.get(key, ()):
            if isinstance(node, kind):
                return node
        raise CannotFix(f"no {kind.__name__} at line {key[0]}")

    def has_here(self, kind: type[cst.CSTNode]) -> bool:
        return self.has(kind, "")

    def has(self, kind: type[cst.CSTNode], at: str) -> bool:
        try:
            self.node(kind, at)
        except CannotFix:
            return False
        return True

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        return self.tree.parents[node]

    def line(self, node: cst.CSTNode) -> Statement:
        """Return the whole statement that a node is in."""
        for outer in (node, *self.tree.ancestors(node)):
            if isinstance(outer, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return outer
        raise CannotFix("it is not in a statement")

    def statement_at(self, at: str) -> Statement:
        """Return the statement at a position written by `position_of`."""
        kinds: tuple[type[cst.CSTNode], ...] = (cst.For, cst.While, cst.Assign, cst.AnnAssign, cst.Expr, cst.Return)
        for kind in kinds:
            if self.has(kind, at):
                return self.line(self.node(kind, at))
        raise CannotFix(f"no statement at {at}")

    def text(self, node: cst.CSTNode) -> str:
        return self.tree.module.code_for_node(node)

    # Changes

    def change(self, node: cst.CSTNode, how: Change) -> None:
        """Register a change: `how` gets the node with earlier changes applied and returns the new one."""
        self.changes.setdefault(node, []).append(how)

    def replace(self, node: cst.CSTNode, text: str) -> None:
        """Replace a node by an expression; no other fix may change it in this round."""
        self.takes.append(node)
        new = cst.parse_expression(text)
        self.change(node, lambda _: new)

    def replace_once(self, node: cst.CSTNode, text: str) -> None:
        """Replace a node once, even if several fixes request the same replacement."""
        if self.first(node, text):
            self.replace(node, text)

    def take(self, node: cst.CSTNode) -> None:
        self.takes.append(node)

    def remove(self, node: cst.CSTNode) -> None:
        self.takes.append(node)
        self.change(node, lambda _: cst.RemoveFromParent())

    def before(self, statement: cst.CSTNode, text: str) -> None:
        """Insert text before a statement, once even if several fixes request the same text."""
        if self.first(statement, text):
            new = self.statement(text)
            self.change(statement, lambda node: _Around(node, [new], []))

    def after(self, statement: cst.CSTNode, text: str) -> None:
        if self.first(statement, text):
            new = self.statement(text)
            self.change(statement, lambda node: _Around(node, [], [new]))

    def first(self, statement: cst.CSTNode, text: str) -> bool:
        """Return whether this is the first request in this round for this change to this node."""
        key = (statement, text)
        if key in self.tree.once or key in self.onces:
            return False
        self.onces.append(key)
        return True

    def imports(self, module: str) -> bool:
        """Return whether the file has `import module` among its own statements."""
        return any(self.text(statement).strip() == f"import {module}" for statement in self._imports())

    def _imports(self) -> list[cst.SimpleStatementLine]:
        statements = [
            statement for statement in self.tree.module.body if isinstance(statement, cst.SimpleStatementLine)
        ]
        return [statement for statement in statements if isinstance(statement.body[0], cst.Import | cst.ImportFrom)]

    def need_import(self, module: str) -> None:
        """Add `import module` to the other imports, unless it is there already."""
        if self.imports(module):
            return
        imports = self._imports()
        plain = [statement for statement in imports if "__future__" not in self.text(statement)]
        if plain:
            self.before(plain[0], f"import {module}")
        elif imports:
            self.after(imports[-1], f"import {module}")
        else:
            raise CannotFix(f"there are no imports to add {module} to")

    def statement(self, text: str) -> Any:
        return cst.parse_statement(text, config=self.tree.module.config_for_parsing)

    def set_argument(self, call: cst.Call, name: str, value: str) -> None:
        """Add a keyword argument to a call, or change its value."""
        aligned = self._break(call, len(f", {name}={value}"))
        self.change(call, lambda node: with_argument(node, name, value, aligned))

    def _break(self, call: cst.Call, length: int) -> cst.ParenthesizedWhitespace | None:
        """Return the line break before one more argument if the line would become longer than any in the file."""
        statement, line = self.line(call), self.tree.positions[call].end.line
        self.tree.grown[line] = self.tree.grown.get(line, 0) + length
        short = len(self.tree.lines[line - 1]) + self.tree.grown[line] <= self.tree.widest
        inside = isinstance(self.parent(call), cst.Arg | cst.Element | cst.Attribute)
        if short or inside or not call.args or not isinstance(statement, cst.SimpleStatementLine):
            return None
        around = self.tree.positions[statement.body[0]].start
        spaces = self.tree.positions[call.args[0]].start.column - around.column
        if "\t" in self.tree.lines[around.line - 1] or spaces <= 0:
            return None
        return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(" " * spaces))

    def quoted(self, text: str) -> str:
        """Return a text in the quotes that the file uses most."""
        single = self.tree.module.code.count("'") > self.tree.module.code.count('"')
        return f"'{text}'" if single else f'"{text}"'

    def drop_argument(self, call: cst.Call, name: str) -> None:
        self.change(call, lambda node: without_argument(node, name))


def with_argument(
    call: cst.Call, name: str, value: str, aligned: cst.ParenthesizedWhitespace | None = None
) -> cst.Call:
    expression = cst.parse_expression(value)
    for number, argument in enumerate(call.args):
        if argument.keyword is not None and argument.keyword.value == name:
            changed = argument.with_changes(value=expression)
            return call.with_changes(args=[*call.args[:number], changed, *call.args[number + 1 :]])
    new = cst.Arg(
        value=expression,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not call.args:
        return call.with_changes(args=[new])
    last = call.args[-1]
    between = _separator(call)
    if aligned is not None and isinstance(between, cst.SimpleWhitespace):
        between = aligned
    if isinstance(last.comma, cst.Comma):
        ending = last.comma.whitespace_after
        last = last.with_changes(comma=cst.Comma(whitespace_after=_continued(ending, between)))
        new = new.with_changes(comma=cst.Comma(whitespace_after=_plain(ending)))
    else:
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(
            comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
        )
    return call.with_changes(args=[*call.args[:-1], last, new])


def _separator(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """Return the whitespace between the existing arguments."""
    if len(call.args) > 1 and isinstance(call.args[-2].comma, cst.Comma):
        return _plain(call.args[-2].comma.whitespace_after)
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        return call.whitespace_before_args
    return cst.SimpleWhitespace(" ")


def _plain(white: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """Return the same line breaks without the comment."""
    if isinstance(white, cst.ParenthesizedWhitespace):
        return white.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return white


def _continued(
    ending: cst.BaseParenthesizableWhitespace, between: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """Return the whitespace and comment after the last argument, adapted to a further argument."""
    if isinstance(ending, cst.ParenthesizedWhitespace) and isinstance(between, cst.ParenthesizedWhitespace):
        return ending.with_changes(last_line=between.last_line, indent=between.indent)
    return between


def without_argument(call: cst.Call, name: str) -> cst.Call:
    remaining = [argument for argument in call.args if argument.keyword is None or argument.keyword.value != name]
    if len(remaining) == len(call.args):
        return call
    removed = next(
        argument for argument in call.args if argument.keyword is not None and argument.keyword.value == name
    )
    if remaining and call.args[-1] is removed:
        remaining[-1] = remaining[-1].with_changes(
            comma=removed.comma, whitespace_after_arg=removed.whitespace_after_arg
        )
    return call.with_changes(args=remaining)
