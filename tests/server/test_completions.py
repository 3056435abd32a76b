"""/v1/completions: OpenAI's contract, and the one of evaluation harnesses."""

from __future__ import annotations

import pytest

from tests.support.tiny_engine import TINY_VOCAB
from tests.support.tiny_server import ASCII_ONLY, Served

HARNESS = {"model": "tiny", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
TEXT = {"model": "tiny", "max_tokens": 6, "temperature": 0, "logit_bias": ASCII_ONLY}


def test_batches_are_answered_in_order_and_alike(server: Served) -> None:
    prompts = ["one", "two is longer", "three"]
    together = server.ok("/v1/completions", prompt=prompts, n=1, **TEXT)
    alone = [server.ok("/v1/completions", prompt=prompt, **TEXT)["choices"][0]["text"] for prompt in prompts]
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in together["choices"]] == alone
    assert together["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert together["usage"]["completion_tokens"] == 18


def test_samples_are_reproducible_by_seed_and_differ(server: Served) -> None:
    wanted = {**TEXT, "temperature": 1.5, "max_tokens": 12}
    first, second = (server.ok("/v1/completions", prompt="abc", n=3, seed=5, **wanted) for _ in range(2))
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in second["choices"]]
    assert len(set(texts)) == 3
    assert first["usage"]["prompt_tokens"] == 3, "a prompt counts once however many samples it has"


def test_best_of_keeps_the_likeliest(server: Served) -> None:
    wanted = {**TEXT, "temperature": 2.0, "seed": 1, "logprobs": 0}
    every = server.ok("/v1/completions", prompt="abc", n=6, **wanted)["choices"]
    best = server.ok("/v1/completions", prompt="abc", n=1, best_of=6, **wanted)["choices"]
    means = [sum(choice["logprobs"]["token_logprobs"]) for choice in every]
    assert [choice["text"] for choice in best] == [every[means.index(max(means))]["text"]]


def test_echo_and_logprobs_as_harnesses_read_them(server: Served) -> None:
    """H01: lengths, a null first, and the chosen token inside top_logprobs with the very same number."""
    ids = list(range(30, 70))
    answer = server.ok(
        "/v1/completions", prompt=[ids, ids[:9]], echo=True, logprobs=1, max_tokens=1, temperature=0, model="tiny"
    )
    assert answer["usage"]["prompt_tokens"] == 49, "H02: ids are used as given"
    for choice, length in zip(answer["choices"], (40, 9), strict=True):
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {length + 1}
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        for token, logprob, top in zip(
            *(logprobs[k][1:] for k in ("tokens", "token_logprobs", "top_logprobs")), strict=True
        ):
            assert top[token] == logprob
            assert logprob <= max(top.values())
            assert 1 <= len(top) <= 2


def test_echoed_logprobs_do_not_depend_on_the_cache_or_the_batch(server: Served) -> None:
    wanted = {"model": "tiny", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    ids = list(range(40, 90))
    cold = server.ok("/v1/completions", prompt=ids, cache_salt="fresh", **wanted)["choices"][0]
    warm = server.ok("/v1/completions", prompt=[ids, ids[::-1], ids], cache_salt="fresh", **wanted)["choices"]
    for other in (warm[0], warm[2]):
        assert other["logprobs"]["token_logprobs"][1:] == pytest.approx(
            cold["logprobs"]["token_logprobs"][1:], abs=1e-4
        )


def test_text_offsets_point_into_the_text(server: Served) -> None:
    wanted = {**TEXT, "prompt": "añb日c", "echo": True, "logprobs": 0, "max_tokens": 4}
    answer = server.ok("/v1/completions", **wanted)["choices"][0]
    text, offsets = answer["text"], answer["logprobs"]["text_offset"]
    assert text.startswith("añb日c")
    assert [text[offset] for offset in offsets[-4:]] == list(text[-4:])
    assert offsets == sorted(offsets)
    choices = [choice for event in server.events("/v1/completions", **wanted)[:-1] for choice in event["choices"]]
    later = [offset for choice in choices if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
    assert later == offsets[-4:]


def test_streams_add_up_to_the_answer(server: Served) -> None:
    wanted = {**TEXT, "prompt": ["alpha", "beta"], "echo": True}
    whole = server.ok("/v1/completions", **wanted)
    events = server.events("/v1/completions", stream_options={"include_usage": True}, **wanted)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 12
    for index, choice in enumerate(whole["choices"]):
        mine = [c for e in events[:-2] for c in e["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]


def test_the_second_request_reports_cached_tokens(server: Served) -> None:
    prompt = "a prompt that nobody has sent before, " * 3
    cached = [
        server.ok("/v1/completions", prompt=prompt, **TEXT)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert cached == [cached[0], len(prompt) - 1]
    assert cached[0] < 3


def test_max_tokens_zero_only_echoes(server: Served) -> None:
    choice = server.ok("/v1/completions", prompt="abc", echo=True, logprobs=0, max_tokens=0, model="tiny")["choices"][0]
    assert choice["text"] == "abc"
    assert len(choice["logprobs"]["tokens"]) == 3
    assert "max_tokens is 0" in server.refused("/v1/completions", prompt="abc", max_tokens=0, model="tiny")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": [[-1]]}, "is -1; token ids of this model are 0 to"),
        ({"prompt": [5, TINY_VOCAB]}, rf"[1] is {TINY_VOCAB}; token ids"),
        ({"prompt": [5279552648203111001]}, "5279552648203111001"),
        ({"prompt": [True]}, "valid"),
        ({"prompt": [1.0]}, "valid"),
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": ""}, "prompt 0 is empty"),
        ({"prompt": ["a", ""]}, "prompt 1 is empty"),
        ({"prompt": None}, "prompt"),
        ({"logit_bias": {str(TINY_VOCAB): 1}}, str(TINY_VOCAB)),
        ({"logit_bias": {"x": 1}}, "'x'"),
        ({"logit_bias": {"5": 101}}, "101"),
        ({"stop_token_ids": [-5]}, "stop_token_ids[0] is -5"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_k": 0}, "top_k is 0"),
        ({"n": 0}, "n:"),
        ({"n": 129}, "n:"),
        ({"n": 3, "best_of": 2}, "best_of (2) is below n (3)"),
        ({"max_tokens": -4}, "max_tokens is -4"),
        ({"min_tokens": 9, "max_tokens": 4}, "min_tokens (9) is above max_tokens (4)"),
        ({"stop": [""]}, "empty string"),
        ({"seed": 2**70}, "seed"),
        ({"priority": 2**40}, "priority"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"best_of": 2, "stream": True}, "cannot be streamed"),
        ({"regex": "a", "choices": ["b"]}, "regex and choices were both given"),
        ({"model": "../../etc/passwd"}, "no model"),
    ],
)
def test_case_a01_mistakes_are_refused_in_one_sentence(server: Served, fields: dict, message: str) -> None:
    """A01 among others. The next request is fine."""
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 2, **fields}
    answer = server.post("/v1/completions", **body)
    assert answer.status_code == (404 if "model" in fields else 400)
    assert message in answer.json()["error"]["message"]
    server.ok("/v1/completions", model="tiny", prompt="abc", max_tokens=1)
    assert server.is_at_rest() or server.comes_to_rest() is None


def test_numbers_that_are_no_numbers(server: Served) -> None:
    for value in ("NaN", "Infinity", "1e999"):
        body = f'{{"model":"tiny","prompt":"a","temperature":{value}}}'
        assert (
            server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"}).status_code
            == 400
        )


def test_case_a03_prompts_that_do_not_fit_name_both_numbers(server: Served) -> None:
    """A03."""
    assert "4096" in (message := server.refused("/v1/completions", prompt="x" * 5000, max_tokens=1, model="tiny"))
    assert "5000" in message
    assert "4096" in (message := server.refused("/v1/completions", prompt="x" * 4000, max_tokens=500, model="tiny"))
    assert "500" in message
    assert "characters" in server.refused("/v1/completions", prompt="x" * 1_000_000, max_tokens=1, model="tiny")
    assert "larger than" in server.refused("/v1/completions", 413, prompt="x" * 17_000_000, max_tokens=1, model="tiny")


@pytest.mark.parametrize("regex", ["ab**", "[a-", "(x", "(?P<n", "x{3,1}", r"\p{Nope}"])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_constraints_are_the_clients_mistake(server: Served, regex: str, stream: bool) -> None:
    """C01; a stream gets a status code too."""
    assert server.refused("/v1/completions", prompt="a", regex=regex, stream=stream, model="tiny")
    server.ok("/v1/completions", model="tiny", prompt="abc", max_tokens=1)


@pytest.mark.parametrize("schema", [{"type": "strng"}, {"type": 5}, "not json", {"$ref": "http://127.0.0.1:9/x"}])
def test_bad_schemas_are_the_clients_mistake(server: Served, schema: object) -> None:
    assert server.refused("/v1/completions", prompt="a", json_schema=schema, model="tiny")


@pytest.mark.parametrize("text", ["a\ud800", "\udfff"])
def test_case_u09_half_a_surrogate_pair_is_named(server: Served, text: str) -> None:
    """U09."""
    assert "surrogate" in server.refused("/v1/completions", prompt=text, model="tiny")
    assert "no model" in server.refused("/v1/completions", 404, prompt="a", model=text)


def test_isolation_by_salt(server: Served) -> None:
    """R08: only equal salts share; none, "" and "a" are three."""
    prompt = "the very same prompt for every salt " * 2
    salts = [{}, {"cache_salt": ""}, {"cache_salt": "a"}, {"cache_salt": "a:b"}]
    for _ in range(2):
        found = [
            server.ok("/v1/completions", prompt=prompt, **TEXT, **salt)["usage"]["prompt_tokens_details"][
                "cached_tokens"
            ]
            for salt in salts
        ]
    assert found == [len(prompt) - 1] * 4
    server.http.post("/flush_cache")
    assert [_cached(server, prompt, **salt) for salt in salts] == [0] * 4


def _cached(server: Served, prompt: str, **fields: str) -> int:
    usage = server.ok("/v1/completions", prompt=prompt, **TEXT, **fields)["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]
