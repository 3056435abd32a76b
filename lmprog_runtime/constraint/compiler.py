"""From a request's constraint to a grammar: front end, sealing, and a cache by content.

Refusals are results too and are kept like them, those by time limits too: they count processor time, which a
busy machine hardly changes. Nothing here runs on the engine's thread.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.grammar_text import compile_grammar_text
from lmprog_runtime.constraint.json_schema import SchemaOptions, compile_value
from lmprog_runtime.constraint.json_schema.values import parse
from lmprog_runtime.constraint.structural_tag import compile_structural_tag
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.constraint.witness import is_unwritable
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnreachable, RequestRefused
from lmprog_runtime.request import Constraint

MAX_SOURCE = 8 * 2**20
"""Characters of a constraint."""

WORN_BYTES = 128 * 2**20
"""A cached automaton that has grown beyond this is compiled afresh for new requests; running ones keep theirs."""

MOST_EXAMPLE = 200
"""Bytes of a text quoted in a message."""

_ANY_TEXT = "any text"  # its key in the cache
_EVERY_BYTE = b"\xff" * 32


class _Refusal(NamedTuple):
    """A remembered error."""

    error: type[RequestRefused]
    message: str

    @property
    def nbytes(self) -> int:
        return len(self.message)


def compile_constraint(constraint: Constraint, vocabulary: Vocabulary) -> CompiledGrammar:
    """The grammar of a constraint over a vocabulary; the same constraint gets the same answer from the cache.

    Raises ConstraintInvalid, ConstraintUnsupported, ConstraintTooLarge or ConstraintUnreachable, saying where and why.
    """
    cache = vocabulary.compiled
    refusal = cache.get(constraint, _Refusal)
    if refusal is not None:
        raise refusal.error(refusal.message)
    grammar = cache.get(constraint, CompiledGrammar)
    if grammar is not None and grammar.nbytes < WORN_BYTES:
        return grammar
    try:
        grammar = _compile(constraint, vocabulary)
    except RequestRefused as error:
        cache.put(constraint, _Refusal(type(error), str(error)))
        raise
    cache.put(constraint, grammar)
    return grammar


def prefix_constraint(data: bytes, then: CompiledGrammar | None, vocabulary: Vocabulary) -> CompiledGrammar:
    """Token healing: the output must begin with `data`, the end of the prompt that was held back, and go on as `then`
    says (None: with any text). ConstraintUnreachable when the vocabulary cannot write `data`."""
    grammar = (then or _any_text(vocabulary)).starting_with(data)
    if grammar is None:
        raise ConstraintUnreachable(f"This tokenizer cannot write {data!r}; turn token healing off (heal=False).")
    return grammar


def warm_up(vocabulary: Vocabulary) -> None:
    """Make what nearly all JSON constraints share (token sets, spelling: some 100 ms); the first request finds it.
    Called when a model loads."""
    for schema in ("{}", '{"type": "integer"}'):
        grammar = compile_constraint(Constraint("json_schema", schema), vocabulary)
        for prefix in (b"", b'"', b"1", b"-", b"1.", b"1e"):
            grammar.mask(grammar.advance_bytes(grammar.start, prefix))
        grammar.tokens_to_finish(grammar.start)


def _any_text(vocabulary: Vocabulary) -> CompiledGrammar:
    grammar = vocabulary.compiled.get(_ANY_TEXT, CompiledGrammar)
    if grammar is None:
        expressions = Expressions()
        start = expressions.complement(Expressions.EMPTY)
        root = expressions.arena.seal(start, vocabulary.producible)
        grammar = CompiledGrammar(expressions.arena, root, vocabulary, _ANY_TEXT)
        vocabulary.compiled.put(_ANY_TEXT, grammar)
    return grammar


def _compile(constraint: Constraint, vocabulary: Vocabulary) -> CompiledGrammar:
    if len(constraint.source) > MAX_SOURCE:
        raise ConstraintTooLarge(f"The constraint has more than {MAX_SOURCE} characters; make it smaller.")
    if constraint.kind == "choices":
        _check_choices(_choices(constraint.source), vocabulary)
    expressions = Expressions()
    root = _expression(constraint, expressions)
    start = expressions.arena.seal(root, vocabulary.producible)
    if start == Expressions.EMPTY:
        _refuse_unreachable(constraint, vocabulary)
    grammar = CompiledGrammar(expressions.arena, start, vocabulary, constraint)
    if not vocabulary.has_all_single_bytes and is_unwritable(grammar):
        raise ConstraintUnreachable("No sequence of this tokenizer's tokens satisfies the constraint; change it.")
    return grammar


def _expression(constraint: Constraint, expressions: Expressions) -> int:
    if constraint.kind == "regex":
        return expressions.regex(constraint.source)
    if constraint.kind == "json_schema":
        return compile_value(parse(constraint.source), expressions, _options(constraint))
    if constraint.kind == "structural_tag":
        return compile_structural_tag(constraint.source, expressions, _options(constraint))
    if constraint.kind == "grammar":
        return compile_grammar_text(constraint.source, expressions)
    return expressions.words(choice.encode() for choice in _choices(constraint.source))


def _options(constraint: Constraint) -> SchemaOptions:
    return SchemaOptions(
        constraint.whitespace,
        constraint.member_order,
        constraint.formats,
        max_digits=constraint.max_digits,
        max_items=constraint.max_items,
    )


def _choices(source: str) -> list[str]:
    try:
        choices = json.loads(source)
    except ValueError as error:
        raise ConstraintInvalid(f"The choices are no JSON list ({error}); give a list of texts.") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintInvalid("The choices must be a JSON list of at least one text.")
    return choices


def _check_choices(choices: list[str], vocabulary: Vocabulary) -> None:
    for choice in choices:
        if not vocabulary.can_write(choice.encode()):
            raise ConstraintUnreachable(f"This tokenizer cannot write the choice {choice!r}; leave it out.")


def _refuse_unreachable(constraint: Constraint, vocabulary: Vocabulary) -> None:
    """Say why nothing is left: no text at all, or none that the tokenizer can write."""
    expressions = Expressions()
    root = expressions.arena.seal(_expression(constraint, expressions), _EVERY_BYTE)
    if root == Expressions.EMPTY:
        raise ConstraintUnreachable("No text satisfies the constraint; it contradicts itself.")
    example = expressions.arena.shortest(root, MOST_EXAMPLE)
    missing = next((byte for byte in example or b"" if not vocabulary.can_write(bytes([byte]))), None)
    where = "" if missing is None else f": no token has the byte 0x{missing:02X}, as in {example!r}"
    raise ConstraintUnreachable(
        f"This tokenizer cannot write any text that satisfies the constraint{where}; change it."
    )
