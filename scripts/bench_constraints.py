"""Cost of compiling constraints and of their masks, ours next to llguidance, xgrammar and outlines-core.

    python scripts/bench_constraints.py SCHEMAS.jsonl --tokenizer FOLDER [--limit N] [--engines ours,llguidance]
    python scripts/bench_constraints.py SCHEMAS.jsonl --tokenizer FOLDER --verdicts

SCHEMAS.jsonl: one object a line with "schema" and "tests" (each with "valid" and "data"), as in JSONSchemaBench. FOLDER
has a tokenizer.json. For every schema: compile, then feed each valid instance token by token, asking for a mask before
every token. cold: the first time an engine sees a state; warm: the same instances again. Times in microseconds,
measured from Python. Engines that are not installed are left out. outlines-core has no time limit of its own, so
schemas whose expression is longer than 5,000 characters count as refused.

--verdicts counts, for ours, the schemas that pass with this vocabulary: every valid instance is accepted (in some order
of its members; as given, also token by token, up to an end token) and no invalid one is.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers

sys.path.insert(0, str(Path(__file__).parents[1]))

from lmprog_runtime.constraint import arena as arena_module
from lmprog_runtime.constraint.base import DEAD
from lmprog_runtime.constraint.compiler import compile_constraint, warm_up
from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.request import Constraint
from tests.support.schema_suites import Writer

MOST_OUTLINES = 5_000
"""Characters of an expression that outlines-core is still given."""


class Matcher(Protocol):
    """One pass over an instance."""

    def mask(self) -> object: ...
    def accept(self, token_id: int) -> bool: ...


class Engine(Protocol):
    name: str

    def compile(self, schema: str) -> Callable[[], Matcher]:
        """What makes matchers. Raises when the engine refuses the schema."""
        ...


class OurMatcher:
    def __init__(self, grammar: Any) -> None:
        self.grammar, self.state = grammar, grammar.start

    def mask(self) -> object:
        return self.grammar.mask(self.state)

    def accept(self, token_id: int) -> bool:
        self.state = self.grammar.advance(self.state, token_id)
        return bool(self.state != DEAD)


class Ours:
    name = "ours"

    def __init__(self, tokenizer: Tokenizer, _: Path) -> None:
        self.vocabulary = Vocabulary(tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.special_ids)
        warm_up(self.vocabulary)  # as a server does when it loads

    def compile(self, schema: str) -> Callable[[], Matcher]:
        grammar = compile_constraint(Constraint("json_schema", schema), self.vocabulary)
        return lambda: OurMatcher(grammar)


class Fallback(Ours):
    """The pure Python core, as it works where no compiler was there."""

    name = "fallback"

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        arena_module.load_library = lambda: None  # type: ignore[assignment,attr-defined]
        super().__init__(tokenizer, folder)


class LlGuidance:
    name = "llguidance"

    def __init__(self, _: Tokenizer, folder: Path) -> None:
        import llguidance
        import llguidance.hf
        import transformers

        self.library = llguidance
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        self.tokenizer = llguidance.hf.from_tokenizer(fast)

    def compile(self, schema: str) -> Callable[[], Matcher]:
        grammar = self.library.LLMatcher.grammar_from_json_schema(schema)
        first = self.library.LLMatcher(self.tokenizer, grammar)
        if first.get_error():
            raise ValueError(first.get_error())
        return lambda: LlGuidanceMatcher(first.deep_copy())


class LlGuidanceMatcher:
    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def mask(self) -> object:
        return self.matcher.compute_bitmask()

    def accept(self, token_id: int) -> bool:
        return bool(self.matcher.consume_token(token_id))


class XGrammar:
    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        import transformers
        import xgrammar

        self.library = xgrammar
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        self.info = xgrammar.TokenizerInfo.from_huggingface(fast, vocab_size=tokenizer.vocab_size)
        self.compiler = xgrammar.GrammarCompiler(self.info, max_threads=1)

    def compile(self, schema: str) -> Callable[[], Matcher]:
        compiled = self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)
        return lambda: XGrammarMatcher(self.library, self.info, compiled)


class XGrammarMatcher:
    def __init__(self, library: Any, info: Any, compiled: Any) -> None:
        self.matcher = library.GrammarMatcher(compiled)
        self.bits = library.allocate_token_bitmask(1, info.vocab_size)

    def mask(self) -> object:
        self.matcher.fill_next_token_bitmask(self.bits)
        return self.bits

    def accept(self, token_id: int) -> bool:
        return bool(self.matcher.accept_token(token_id))


class OutlinesCore:
    name = "outlines"

    def __init__(self, tokenizer: Tokenizer, _: Path) -> None:
        import outlines_core

        ids: dict[bytes, list[int]] = defaultdict(list)
        for token_id, data in enumerate(tokenizer.token_bytes):
            if data:
                ids[data].append(token_id)
        self.library = outlines_core
        self.vocabulary = outlines_core.Vocabulary(min(tokenizer.eos_ids), dict(ids))
        self.words = (tokenizer.vocab_size + 31) // 32

    def compile(self, schema: str) -> Callable[[], Matcher]:
        pattern = self.library.json_schema.build_regex_from_schema(schema, whitespace_pattern="[ ]?")
        if len(pattern) > MOST_OUTLINES:
            raise ValueError("too long to wait for")
        index = self.library.Index(pattern, self.vocabulary)
        return lambda: OutlinesMatcher(self.library.Guide(index), self.words)


class OutlinesMatcher:
    def __init__(self, guide: Any, words: int) -> None:
        self.guide, self.bits = guide, np.zeros(words, np.uint32)

    def mask(self) -> object:
        self.guide.write_mask_into(self.bits.ctypes.data, self.bits.size, self.bits.itemsize)
        return self.bits

    def accept(self, token_id: int) -> bool:
        if not self.guide.accepts_tokens([token_id]):
            return False
        self.guide.advance(token_id, False)
        return True


ENGINES: dict[str, type[Any]] = {engine.name: engine for engine in (Ours, Fallback, LlGuidance, XGrammar, OutlinesCore)}


class Timings(NamedTuple):
    """Microseconds, in the order measured."""

    compile: list[float]
    first: list[float]
    cold: list[float]
    warm: list[float]
    refused: list[str]


class Clock:
    """The one that times are taken from."""

    now = time.perf_counter


def clock(function: Callable[[], Any]) -> tuple[Any, float]:
    start = Clock.now()
    result = function()
    return result, (Clock.now() - start) * 1e6


def feed(matcher: Matcher, tokens: Sequence[int]) -> Iterator[float]:
    """Time of the mask before each token; ends early where the engine refuses the instance."""
    for token_id in tokens:
        yield clock(matcher.mask)[1]
        if not matcher.accept(token_id):
            return


def measure(engine: Engine, schemas: Sequence[dict[str, Any]], encode: Callable[[str], list[int]]) -> Timings:
    timings = Timings([], [], [], [], [])
    gc.disable()  # its pauses of 50 ms, over the schemas held here, are not the engine's
    for row in schemas:
        try:
            new_matcher, spent = clock(partial(engine.compile, json.dumps(row["schema"])))
        except (RequestRefused, ValueError, RuntimeError) as error:
            timings.refused.append(f"{row['id']}: {error}")
            continue
        timings.compile.append(spent)
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in row["tests"] if test["valid"]]
        instances = [encode(text) for text in texts]
        for index, tokens in enumerate(instances):
            spent_cold = list(feed(new_matcher(), tokens))
            if not index:
                timings.first.extend(spent_cold[:1])
            timings.cold.extend(spent_cold)
        for tokens in instances:
            timings.warm.extend(feed(new_matcher(), tokens))
    return timings


def verdicts(engine: Ours, schemas: Sequence[dict[str, Any]], encode: Callable[[str], list[int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in schemas:
        try:
            grammar = compile_constraint(Constraint("json_schema", json.dumps(row["schema"])), engine.vocabulary)
        except RequestRefused as error:
            is_empty = "No JSON value" in str(error) and not any(test["valid"] for test in row["tests"])
            counts["pass" if is_empty else "refused"] += 1
            continue
        counts[verdict(grammar, row, encode)] += 1
    return counts


def verdict(grammar: CompiledGrammar, row: dict[str, Any], encode: Callable[[str], list[int]]) -> str:
    writer = Writer(Expressions(arena=grammar.arena), grammar.start)
    for test in row["tests"]:
        as_given = writer.accepts(test["data"])
        if as_given and not is_token_path(grammar, encode(writer.text(test["data"]))):
            return "wrong tokens"
        if as_given and not test["valid"]:
            return "under"
        if test["valid"] and not as_given and not writer.accepts_some_order(test["data"]):
            return "over"
    return "pass"


def is_token_path(grammar: CompiledGrammar, tokens: Sequence[int]) -> bool:
    """Whether the masks allow each token in turn, and then an end token."""
    state = grammar.start
    for token_id in (*tokens, grammar.vocabulary.eos_ids[0]):
        if not int(grammar.mask(state)[token_id >> 5]) >> (token_id & 31) & 1:
            return False
        state = grammar.advance(state, token_id)
    return True


def table_row(name: str, values: Sequence[float]) -> str:
    if not values:
        return f"  {name:12} -"
    p50, p99 = np.percentile(values, [50, 99])
    mean, most = np.mean(values), max(values)
    return f"  {name:12} avg {mean:9.1f}  p50 {p50:9.1f}  p99 {p99:9.1f}  max {most:9.1f}  n {len(values)}"


def load_schemas(path: Path, limit: int | None) -> list[dict[str, Any]]:
    with path.open() as lines:
        schemas = [json.loads(line) for line in lines]
    return schemas[:: max(1, len(schemas) // limit)] if limit else schemas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--engines", default="ours")
    parser.add_argument("--cpu", action="store_true", help="processor time instead of wall clock")
    parser.add_argument("--verdicts", action="store_true", help="count what passes instead of timing")
    arguments = parser.parse_args()
    if arguments.cpu:
        Clock.now = time.thread_time
    definition = (arguments.tokenizer / "tokenizer.json").read_bytes()
    library = tokenizers.Tokenizer.from_buffer(definition)
    tokenizer = Tokenizer(definition, eos_ids=eos_ids(arguments.tokenizer, library))
    schemas = load_schemas(arguments.schemas, arguments.limit)
    if arguments.verdicts:
        counts = verdicts(Ours(tokenizer, arguments.tokenizer), schemas, tokenizer.encode)
        print(f"{arguments.tokenizer.name}: vocabulary {tokenizer.vocab_size}, {dict(counts)} of {len(schemas)}")
        return
    for name in arguments.engines.split(","):
        try:
            engine = ENGINES[name](tokenizer, arguments.tokenizer)
        except ImportError as error:
            print(f"{name}: not installed ({error})")
            continue
        timings = measure(engine, schemas, tokenizer.encode)
        print(f"{name}: {len(schemas)} schemas, {len(timings.refused)} refused, vocabulary {tokenizer.vocab_size}")
        for part in ("compile", "first", "cold", "warm"):
            print(table_row(part, getattr(timings, part)))


def eos_ids(folder: Path, library: tokenizers.Tokenizer) -> list[int]:
    token = json.loads((folder / "tokenizer_config.json").read_text()).get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    token_id = library.token_to_id(content) if content else None
    return [] if token_id is None else [token_id]


if __name__ == "__main__":
    main()
