"""A small grammar language, after Lark's and EBNF.

    start: greeting " " NAME ("," " " NAME)~0..3 "!"?
    greeting: "hello"i | "good" ("morning" | "evening")      // i: upper or lower case
    NAME: /[A-Z][a-z]+/                                       # a regular expression, or "a".."z"
    sum: sum "+" product | product                            // left recursion is fine when it is direct

`name: ...` or `name ::= ...`; alternatives with `|`, on as many lines as wanted; `?`, `*`, `+`, `~n`, `~n..m` after an
item; `[x]` is `(x)?`. Names in capitals are terminals: units without recursion. `%ignore NAME` allows a terminal
between any two terminals or literals of the other rules. The output matches `start` (or `root`) as a whole.
"""

from lmprog_runtime.constraint.grammar_text.translate import compile_grammar_text

__all__ = ["compile_grammar_text"]
