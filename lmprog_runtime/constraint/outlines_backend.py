"""outlines-core as the mask engine, for those who want it: checked against our own automaton before it is used.

outlines-core loses transitions behind accepting states and takes the first alternative that fits, so some constraints
come out wrong. Each is compared here with ours, state by state over the whole vocabulary, and refused with the text
behind which the two differ. For a regular expression or choices both have to allow the same tokens everywhere; for a
schema, of which outlines-core writes some instances only, it may allow no token that ours does not.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.base import DEAD, FAR
from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.json_schema.layouts import FLEXIBLE
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintTooLarge, ConstraintUnsupported
from lmprog_runtime.request import Constraint

_MARK = "\ue000"  # of no meaning in a regular expression
_GAPS = {"dense": "", "flexible": FLEXIBLE}
_FIXED = ("member_order", "formats", "max_digits", "max_items")
_DEFAULTS = Constraint("json_schema", "{}")

MOST_COMPARED = 300
"""Pairs of states; what needs more cannot be checked and is refused."""

_ONLY_TOKENS = "outlines-core follows whole tokens only; turn token healing off (heal=False)."


class OutlinesGrammar:
    """Implements `constraint.base.Grammar` on an index of outlines-core. Tokens only: it knows no bytes inside them."""

    can_close = False

    def __init__(self, index: Any, vocabulary: Vocabulary) -> None:
        self._transitions: dict[int, dict[int, int]] = index.get_transitions()
        self._accepting: frozenset[int] = frozenset(index.get_final_states())
        self._masks: dict[int, NDArray[np.uint32]] = {}
        self.vocabulary = vocabulary
        self.start: int = index.get_initial_state()

    def mask(self, state: int) -> NDArray[np.uint32]:
        found = self._masks.get(state)
        if found is None:
            found = self._masks[state] = self._new_mask(state)
        return found

    def _new_mask(self, state: int) -> NDArray[np.uint32]:
        allowed = np.zeros(self.vocabulary.mask_words * 32, bool)
        allowed[self.leaving(state)] = True
        allowed[list(self.vocabulary.eos_ids)] = self.is_accepting(state)
        mask = np.packbits(allowed, bitorder="little").view("<u4")
        mask.flags.writeable = False
        return mask

    def leaving(self, state: int) -> list[int]:
        """The text tokens that may follow."""
        return [i for i in self._transitions.get(state, {}) if i not in self.vocabulary.eos_ids]

    def advance(self, state: int, token_id: int) -> int:
        if token_id in self.vocabulary.eos_ids:
            return state if self.is_accepting(state) else DEAD
        return self._transitions.get(state, {}).get(token_id, DEAD)

    def advance_bytes(self, state: int, data: bytes) -> int:  # noqa: ARG002
        raise ConstraintUnsupported(_ONLY_TOKENS)

    def is_accepting(self, state: int) -> bool:
        return state in self._accepting

    def is_final(self, state: int) -> bool:
        return self.is_accepting(state) and not self.leaving(state)

    def forced_tokens(self, state: int) -> list[int]:
        leaving = self.leaving(state)
        return leaving if len(leaving) == 1 and not self.is_accepting(state) else []

    def guessed_tokens(self, state: int) -> list[int]:  # noqa: ARG002
        return []

    def tokens_to_finish(self, state: int) -> int:
        return 0 if self.is_accepting(state) else FAR

    def closing_tokens(self, state: int) -> list[int]:  # noqa: ARG002
        return []


class _Pair(NamedTuple):
    """The same text in both automata."""

    theirs: int
    ours: int
    text: bytes


class OutlinesCompiler:
    """The engine's compiler on this backend. Without a cache: building an index takes a second, checking it more."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, constraint: Constraint | None, prefix_text: bytes) -> OutlinesGrammar:
        if constraint is None or prefix_text:
            raise ConstraintUnsupported(_ONLY_TOKENS)
        return compile_with_outlines(constraint, self._vocabulary)


def compile_with_outlines(constraint: Constraint, vocabulary: Vocabulary) -> OutlinesGrammar:
    """The grammar of a constraint as outlines-core sees it. Raises what `compile_constraint` raises, and
    ConstraintUnsupported where outlines-core cannot do it, or does it wrong: then with the text where it goes wrong."""
    import outlines_core

    pattern = _pattern(constraint)
    ours = compile_constraint(constraint, vocabulary)
    ids: dict[bytes, list[int]] = defaultdict(list)
    for token_id, data in enumerate(vocabulary.token_bytes):
        if data:
            ids[data].append(token_id)
    try:
        index = outlines_core.Index(pattern, outlines_core.Vocabulary(vocabulary.eos_ids[0], dict(ids)))
    except (ValueError, TypeError) as error:
        raise ConstraintUnsupported(
            f"outlines-core refuses the constraint ({error}); use the default backend."
        ) from None
    grammar = OutlinesGrammar(index, vocabulary)
    _compare(grammar, ours, is_equal=constraint.kind != "json_schema")
    return grammar


def _pattern(constraint: Constraint) -> str:
    if constraint.kind == "regex":
        return constraint.source
    if constraint.kind == "choices":
        return "|".join(re.escape(choice) for choice in json.loads(constraint.source))
    if constraint.kind != "json_schema":
        raise ConstraintUnsupported(f"outlines-core has no {constraint.kind} constraints; use the default backend.")
    for name in _FIXED:
        value = getattr(constraint, name)
        if value != getattr(_DEFAULTS, name):
            raise ConstraintUnsupported(
                f"outlines-core knows no {name}={value!r}; leave {name} out, or use the default backend."
            )
    if constraint.whitespace == "compact":
        return _compact(_schema_pattern(constraint.source, _MARK))
    return _schema_pattern(constraint.source, _GAPS.get(constraint.whitespace, constraint.whitespace))


def _schema_pattern(schema: str, gap: str) -> str:
    """`gap`: what may stand between JSON's tokens."""
    from outlines_core.json_schema import build_regex_from_schema

    try:
        return str(build_regex_from_schema(schema, whitespace_pattern=gap))
    except (ValueError, TypeError) as error:
        raise ConstraintUnsupported(f"outlines-core refuses the schema ({error}); use the default backend.") from None


def _compact(marked: str) -> str:
    """A blank behind commas and colons, no other. outlines-core has one gap for all places."""
    return marked.replace(f":{_MARK}", ": ").replace(f",{_MARK}", ", ").replace(_MARK, "")


def _compare(theirs: OutlinesGrammar, ours: CompiledGrammar, *, is_equal: bool) -> None:
    """Every pair of states that a text leads to, once."""
    waiting = [_Pair(theirs.start, ours.start, b"")]
    seen = {waiting[0][:2]}
    while waiting:
        pair = waiting.pop()
        _compare_masks(theirs.mask(pair.theirs), ours.mask(pair.ours), pair.text, theirs.vocabulary, is_equal)
        for token_id in theirs.leaving(pair.theirs):
            after = (theirs.advance(pair.theirs, token_id), ours.advance(pair.ours, token_id))
            if after not in seen:
                seen.add(after)
                waiting.append(_Pair(*after, pair.text + theirs.vocabulary.token_bytes[token_id]))
        if len(seen) > MOST_COMPARED:
            raise ConstraintTooLarge(
                f"The constraint has more than {MOST_COMPARED} states, too many to check what outlines-core makes of "
                "it; use the default backend."
            )


def _compare_masks(
    theirs: NDArray[np.uint32], ours: NDArray[np.uint32], text: bytes, vocabulary: Vocabulary, is_equal: bool
) -> None:
    wrong = theirs ^ ours if is_equal else theirs & ~ours
    if not wrong.any():
        return
    token_id = int(np.unpackbits(wrong.view(np.uint8), bitorder="little").argmax())
    what = "the end" if token_id in vocabulary.eos_ids else repr(vocabulary.token_bytes[token_id])
    does = "allows" if theirs[token_id >> 5] >> (token_id & 31) & 1 else "does not allow"
    raise ConstraintUnsupported(
        f"outlines-core gets this constraint wrong: behind {text!r} it {does} {what}; use the default backend."
    )
