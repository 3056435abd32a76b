"""Which text a report shows as cached, in whatever way the gens between the texts were written."""

from __future__ import annotations

from typing import Any

import pytest

from lmprog import Reasoning, Runtime, State, beam, function, gen, select, separate_reasoning
from lmprog.report.reuse import cached_characters
from tests.support.byte_tokenizer import FIRST_BYTE
from tests.support.tiny_engine import TINY_VOCAB

TWO_LETTERS = {token_id: -100.0 for token_id in range(TINY_VOCAB) if token_id - FIRST_BYTE not in (*b"ab",)}
THOUGHTS = Reasoning("(", "bb", starts_inside=True)
DRAWN: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 1, "logit_bias": TWO_LETTERS}

WAYS: dict[str, Any] = {
    "gen": gen("x", **DRAWN),
    "samples": gen("x", n=3, stop="bb", **DRAWN),
    "the best": gen("x", best_of=8, stop="bb", **DRAWN),
    "the two best": gen("x", n=2, best_of=8, stop="bb", **DRAWN),
    "beam": beam(gen("x", max_tokens=6, ignore_eos=True), width=24),
    "beam, cut": beam(gen("x", max_tokens=4, ignore_eos=True, stop="0"), width=24),
    "thoughts": separate_reasoning(gen("x", **DRAWN), THOUGHTS),
    "stop": gen("x", stop="b", **DRAWN),
    "select": select("x", ["yes", "no way"]),
    "select, beginnings shared": select("x", ["no", "no way"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_new_text_is_read_once_and_known_text_is_cached(backend: Runtime, way: str) -> None:
    """One token is one byte here, so the counts are exact. The last token before an output is always computed."""

    @function
    def program(s: State) -> None:
        s += "before:" + WAYS[way] + ";after it:" + gen("end", max_tokens=1, temperature=0)

    def cached_of_texts() -> list[int]:
        record = program.run(backend=backend).record
        found = cached_characters(record)
        return [found[step] for step in record.children if step.kind == "text"]

    assert cached_of_texts() == [0, 0]
    assert cached_of_texts() == [len("before:") - 1, len(";after it:") - 1]
