"""`finish="close"`: a constrained output comes to its end within its budget. No torch.

As long as the shortest completion fits what is left of the budget, it fits after the next token too: a sampled token
after which it would not is replaced by the next token of that completion.
"""

from __future__ import annotations

from lmprog_runtime.constraint.base import Grammar
from lmprog_runtime.errors import ConstraintUnsupported


class Closer:
    """Watches one output. `left` counts the tokens that may still come."""

    def __init__(self, grammar: Grammar) -> None:
        """ConstraintUnsupported when the grammar knows no completions."""
        if not grammar.can_close:
            raise ConstraintUnsupported(
                "This constraint backend knows no completions; leave finish='close' out, or use the default backend."
            )
        self._grammar = grammar
        self._is_possible: bool | None = None  # not known before the first token
        self.has_intervened = False

    def allows(self, state: int, token_id: int, left: int) -> bool:
        """Whether the output can still be completed after the token. Always, where it never could be."""
        if self._is_possible is None:
            self._is_possible = self._grammar.tokens_to_finish(state) <= left
        if not self._is_possible:
            return True
        return self._grammar.tokens_to_finish(self._grammar.advance(state, token_id)) < left

    def instead(self, state: int) -> int | None:
        """What comes in place of a token that is not allowed; None: the output ends here, complete."""
        self.has_intervened = True
        return next(iter(self._grammar.closing_tokens(state)), None)
