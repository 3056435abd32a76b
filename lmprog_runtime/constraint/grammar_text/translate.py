"""From a parsed grammar to an expression: one reference per rule, direct left recursion turned around."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmprog_runtime.constraint.grammar_text.parser import parse
from lmprog_runtime.constraint.grammar_text.syntax import (
    Choice,
    Grammar,
    Item,
    Literal,
    Name,
    Pattern,
    Repeated,
    Span,
)
from lmprog_runtime.errors import ConstraintInvalid, ConstraintUnsupported

if TYPE_CHECKING:
    from lmprog_runtime.constraint.expressions import Expressions


def compile_grammar_text(source: str, expressions: Expressions) -> int:
    """The texts of the grammar's start rule. ConstraintInvalid and ConstraintUnsupported name the line."""
    grammar = parse(source)
    return _Translator(grammar, expressions).start()


class _Translator:
    def __init__(self, grammar: Grammar, expressions: Expressions) -> None:
        self.grammar, self.e = grammar, expressions
        self._check_names()
        self.terminals: dict[str, int] = {}
        self.open_terminals: set[str] = set()
        self.ignored = self.e.EPSILON
        if grammar.ignored:
            choices = [self.terminal(name) for name in grammar.ignored]
            self.ignored = self.e.repeat(self.e.alternate(choices), 0)
        self.rules = {name: _turned(name, rule) for name, rule in grammar.rules.items() if not name.isupper()}
        self.nullable = self._nullable_rules()
        self.references = {name: self.e.reference(name in self.nullable) for name in self.rules}

    def start(self) -> int:
        for name, rule in self.rules.items():
            self.e.define(self.references[name], self.choice(rule))
        return self.e.concat(self.ignored, self.reference(Name(self.grammar.start, 0)))

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        for rule in self.grammar.rules.values():
            for name in _names(rule):
                self._check_name(name)
        for name in self.grammar.ignored:
            self._check_name(name)

    def _check_name(self, name: Name) -> None:
        if name.name not in self.grammar.rules:
            raise ConstraintInvalid(
                f"Line {name.line} of the grammar names {name.name}, which is not defined; define it."
            )

    def _nullable_rules(self) -> set[str]:
        """Rules that match the empty text: the least fixpoint."""
        found: set[str] = set()
        while True:
            more = {name for name, rule in self.rules.items() if self._is_nullable(rule, found)}
            if more == found:
                return found
            found = more

    def _is_nullable(self, item: Item, nullable: set[str]) -> bool:
        if isinstance(item, Choice):
            return any(all(self._is_nullable(part, nullable) for part in branch) for branch in item.branches)
        if isinstance(item, Repeated):
            return item.low == 0 or self._is_nullable(item.item, nullable)
        if isinstance(item, Name) and not item.is_terminal:
            return item.name in nullable
        return self.e.is_nullable(self.plain(item))

    # -- items of rules: with what is ignored behind each terminal ---------------------------------------------------

    def choice(self, choice: Choice) -> int:
        return self.e.alternate(self.e.concat(*(self.item(item) for item in branch)) for branch in choice.branches)

    def item(self, item: Item) -> int:
        if isinstance(item, Choice):
            return self.choice(item)
        if isinstance(item, Repeated):
            return self.e.repeat(self.item(item.item), item.low, item.high)
        if isinstance(item, Name) and not item.is_terminal:
            return self.reference(item)
        return self.e.concat(self.plain(item), self.ignored)

    def reference(self, name: Name) -> int:
        return self.references[name.name]

    # -- terminals: nothing ignored, no recursion ---------------------------------------------------------------------

    def plain(self, item: Item) -> int:
        if isinstance(item, Literal):
            return self._literal(item)
        if isinstance(item, Span):
            return self.e.code_points([(ord(item.low), ord(item.high))])
        if isinstance(item, Pattern):
            return self._pattern(item)
        if isinstance(item, Repeated):
            return self.e.repeat(self.plain(item.item), item.low, item.high)
        if isinstance(item, Choice):
            return self.e.alternate(self.e.concat(*map(self.plain, branch)) for branch in item.branches)
        if not item.is_terminal:
            raise ConstraintUnsupported(
                f"Line {item.line} of the grammar uses the rule {item.name} in a terminal; write it in capitals."
            )
        return self.terminal(item)

    def terminal(self, name: Name) -> int:
        if name.name in self.open_terminals:
            raise ConstraintUnsupported(
                f"Line {name.line} of the grammar: the terminal {name.name} refers to itself; make it a rule."
            )
        found = self.terminals.get(name.name)
        if found is None:
            self.open_terminals.add(name.name)
            found = self.terminals[name.name] = self.e.lexeme(self.plain(self.grammar.rules[name.name]))
            self.open_terminals.discard(name.name)
        return found

    def _literal(self, item: Literal) -> int:
        if item.ignores_case:
            return self.e.regex("(?i)" + re.escape(item.text))
        return self.e.literal(item.text.encode())

    def _pattern(self, item: Pattern) -> int:
        flags = f"(?{item.flags})" if item.flags else ""
        try:
            return self.e.regex(flags + item.source)
        except ConstraintInvalid as error:
            raise ConstraintInvalid(f"Line {item.line} of the grammar: {error}") from None


def _names(item: Item) -> list[Name]:
    if isinstance(item, Name):
        return [item]
    if isinstance(item, Repeated):
        return _names(item.item)
    if isinstance(item, Choice):
        return [name for branch in item.branches for part in branch for name in _names(part)]
    return []


def _turned(name: str, rule: Choice) -> Choice:
    """a: a x | y  becomes  a: y x*  (the same texts; a derivative needs the byte first)."""
    again = [branch[1:] for branch in rule.branches if _begins_with(branch, name)]
    others = [branch for branch in rule.branches if not _begins_with(branch, name)]
    if not again:
        return rule
    tail = Repeated(Choice(tuple(branch for branch in again if branch)), 0, None)
    return Choice(((Choice(tuple(others)), tail),))


def _begins_with(branch: tuple[Item, ...], name: str) -> bool:
    return bool(branch) and isinstance(branch[0], Name) and branch[0].name == name
