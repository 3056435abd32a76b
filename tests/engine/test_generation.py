"""What a request keeps of its tokens: whatever bytes a model emits and wherever it is cut, text and ids agree."""

from __future__ import annotations

import codecs

from hypothesis import example, given
from hypothesis import strategies as st

from lmprog_runtime.generation import Generation
from lmprog_runtime.model.sampler import Sampled
from lmprog_runtime.request import Completion, GenerateRequest, SamplingParams
from lmprog_runtime.scheduler import Sequence
from tests.support.byte_tokenizer import FIRST_BYTE, IM_END, VOCAB, make_byte_tokenizer
from tests.support.tiny_engine import Waiter

TOKENIZER = make_byte_tokenizer([(b"a", b"b"), (b"\xc3", b"\xa9"), (b" ", b"\xf0")])
tokens = st.lists(st.sampled_from([*range(FIRST_BYTE, VOCAB + 3), *[FIRST_BYTE + 97] * 60, *[VOCAB] * 20]), max_size=20)


def _generate(ids: list[int], params: SamplingParams) -> tuple[Completion, str]:
    """Feed tokens until the request ends; (completion, streamed text)."""
    waiter = Waiter()
    generation = Generation(GenerateRequest([5], params), waiter.sink, TOKENIZER, None, jump_forward=False)
    generation.sequence = Sequence([5], 1, (), len(ids))
    generation.sequence.token_limit = 1 + len(ids)
    for token_id in ids:
        if generation.accept(Sampled(token_id, None, ())).is_finished:
            break
    completion = generation.complete()
    return completion, "".join(delta.text for delta in waiter.deltas)


def _ends_inside_a_character(ids: list[int]) -> bool:
    """Tokens without bytes do not end one."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(b"".join(TOKENIZER.token_bytes[token_id] or b"" for token_id in ids))
    return bool(decoder.getstate()[0]) or TOKENIZER.token_bytes[ids[-1]] is None


@example(ids=[FIRST_BYTE + 0xC2, 261], stop=())
@example(ids=[261], stop=())  # a space and the first byte of a character
@given(ids=tokens, stop=st.sampled_from([(), ("ab",), ("aba", "b"), ("é",)]))
def test_kept_ids_and_tail_make_up_the_text(ids: list[int], stop: tuple[str, ...]) -> None:
    done, streamed = _generate(ids, SamplingParams(stop=stop))
    assert streamed == done.text
    assert TOKENIZER.decode(done.token_ids[: done.kept]) + done.tail == done.text
    assert all(text not in done.text for text in stop)
    if done.matched_stop is None:
        assert done.text == TOKENIZER.decode(ids)
        # what is not kept as ids although it has text ends inside a character, token by token
        assert done.tail == "" or all(_ends_inside_a_character(ids[:end]) for end in range(done.kept + 1, len(ids) + 1))


@given(ids=tokens)
def test_an_end_token_is_no_text_and_is_not_kept(ids: list[int]) -> None:
    done, _ = _generate([*ids, IM_END], SamplingParams())
    assert done.text == TOKENIZER.decode(ids)
    assert (done.finish_reason, done.matched_stop) == ("stop", IM_END)
    assert done.kept <= len(ids)


def test_before_min_tokens_a_stop_string_is_kept_as_text() -> None:
    letters = [FIRST_BYTE + byte for byte in b"xabxab"]
    assert _generate(letters, SamplingParams(stop=("ab",)))[0].text == "x"
    assert _generate(letters, SamplingParams(stop=("ab",), min_tokens=3))[0].text == "xabx"


def test_case_u03_a_cut_inside_a_character_drops_it() -> None:
    star = list("⭐".encode())
    ids = [FIRST_BYTE + byte for byte in [*star, *star, star[0]]]
    done, streamed = _generate(ids, SamplingParams())
    assert done.text == streamed == "⭐⭐"
    assert done.kept == 6
