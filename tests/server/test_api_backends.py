"""Backends on the official client packages: the real clients against a fake server on loopback."""

from __future__ import annotations

import builtins
import json
import math
import os
import threading
import time
from dataclasses import dataclass

import pytest

from lmprog import assistant, function, gen, select, system, user
from lmprog.backends.anthropic import Anthropic
from lmprog.backends.base import GenerateCall, Sink
from lmprog.backends.openai import OpenAI
from lmprog.errors import (
    BackendUnavailable,
    Cancelled,
    ConstraintUnsupported,
    InvalidArgument,
    InvalidOutput,
    LmprogError,
    MissingDependency,
    ModelNotFound,
    PromptTooLong,
    RequestRefused,
    UnsupportedParameter,
)
from lmprog.evaluation import MultipleChoice, evaluate
from lmprog.evaluation.task import Asking
from lmprog.sampling import OF_ONE_CALL, Sampling
from tests.support.fake_api import ApiError, Reply, fake_api

for _package in ("openai", "anthropic", "litellm"):
    pytest.importorskip(_package, reason=f"{_package} is not installed")

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else litellm asks the network when it is imported


@pytest.fixture
def api():
    with fake_api() as api:
        yield api


@pytest.fixture
def chat(api):
    with OpenAI("m", api_key="k", base_url=f"{api.url}/v1") as backend:
        yield backend


@pytest.fixture
def text(api):
    with OpenAI("m", is_chat_model=False, api_key="k", base_url=f"{api.url}/v1") as backend:
        yield backend


@pytest.fixture
def claude(api):
    with Anthropic("m", api_key="k", base_url=api.url) as backend:
        yield backend


@pytest.fixture
def lite(api):
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    from lmprog.backends.litellm import LiteLLM

    litellm.suppress_debug_info = True
    with LiteLLM("openai/m", api_key="k", api_base=f"{api.url}/v1") as backend:
        yield backend


LITE = pytest.param("lite", marks=pytest.mark.filterwarnings("ignore"))  # the package warns in many places


@pytest.fixture(params=["chat", "claude", LITE])
def any_chat(request):
    return request.getfixturevalue(request.param)


@dataclass
class Person:
    name: str
    age: int


@function
def talk(s, question="Hi?"):
    s += system("Be kind.") + user(question) + assistant(gen("answer", max_tokens=7))
    s += user("And?") + assistant(gen("more", max_tokens=5))


def run(body, backend, **options):
    return function(body).run(backend=backend, **options)


def answered(s):
    s += user("Hi?") + assistant(gen("x", max_tokens=9))


def written(s):
    s += "Once upon" + gen("x", max_tokens=9)


# -- what is sent, what comes back ------------------------------------------------------------------------------------


def messages_of(body):
    system = [{"role": "system", "content": body["system"]}] if "system" in body else []
    return system + body["messages"]


def test_a_conversation(api, any_chat):
    state = talk.run(backend=any_chat)
    assert (state["answer"], state["more"]) == ("hello there you", "hello there you")
    assert messages_of(api.bodies[1]) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi?"},
        {"role": "assistant", "content": "hello there you"},
        {"role": "user", "content": "And?"},
    ]
    assert [body["model"] for body in api.bodies] == ["m", "m"]
    assert [body["max_tokens"] for body in api.bodies] == [7, 5]
    assert tuple(state.usage) == (20, 8, 6, 0)
    assert state.get_meta_info("answer")["finish_reason"] == "stop"


def test_streaming(api, any_chat):
    state = talk.run(backend=any_chat, stream=True)
    assert "".join(state.text_iter("answer")) == "hello there you"
    assert state["more"] == "hello there you"
    assert api.bodies[0]["stream"] is True
    assert tuple(state.usage) == (20, 8, 6, 0)
    meta = state.get_meta_info("answer")
    assert 0 < meta["first_token"] <= meta["total"]


@pytest.mark.parametrize("wants_deltas", [True, False])
def test_pieces_come_as_they_are_sent(any_chat, wants_deltas):
    pieces, ended = [], threading.Event()
    sink = Sink(pieces.append, lambda result: ended.set(), lambda error: ended.set())
    stream = any_chat.open_stream()
    stream.begin_role("user")
    stream.append_text("Hi")
    stream.end_role()
    stream.begin_role("assistant")
    stream.generate(GenerateCall(Sampling(max_tokens=9), wants_deltas=wants_deltas), sink)
    assert ended.wait(10)
    assert pieces == (["hello", " there", " you"] if wants_deltas else [])


def test_streaming_text(text):
    state = run(written, text, stream=True)
    assert "".join(state.text_iter("x")) == "hello there you"
    assert tuple(state.usage) == (10, 4, 3, 0)


def test_completions(api, text):
    state = run(lambda s: s.__iadd__("Once upon" + gen("x", max_tokens=9) + " a" + gen("y")), text)
    assert state.text() == "Once uponhello there you ahello there you"
    assert [body["prompt"] for body in api.bodies] == ["Once upon", "Once uponhello there you a"]
    assert api.requests[0].path == "/v1/completions"
    assert api.requests[0].headers["authorization"] == "Bearer k"


def test_branches_do_not_share_what_they_say(api, any_chat):
    def body(s):
        s += user("Hi?")
        for i, branch in enumerate(s.fork(2)):
            branch += user(f"{i}") + assistant(gen("x"))
            s[f"x{i}"] = branch["x"]
        s += assistant(gen("end"))

    run(body, any_chat).sync()
    assert [[m["content"] for m in messages_of(b)] for b in api.bodies] == [["Hi?", "0"], ["Hi?", "1"], ["Hi?"]]


SENT = {
    "max_tokens": (5, "max_tokens", 5),
    "temperature": (0.5, "temperature", 0.5),
    "top_p": (0.5, "top_p", 0.5),
    "top_k": (5, "top_k", 5),
    "min_p": (0.1, None, None),
    "min_tokens": (1, None, None),
    "repetition_penalty": (1.1, None, None),
    "frequency_penalty": (0.5, "frequency_penalty", 0.5),
    "presence_penalty": (0.5, "presence_penalty", 0.5),
    "logit_bias": ({3: -1.0}, "logit_bias", {"3": -1.0}),
    "stop": (["a", "b"], "stop", ["a", "b"]),
    "stop_token_ids": ([3], None, None),
    "stop_regex": ("a+", None, None),
    "ignore_eos": (True, None, None),
    "seed": (7, "seed", 7),
    "logprobs": (True, "logprobs", True),
    "top_logprobs": (2, "top_logprobs", 2),
    "finish": ("close", None, None),
}
RENAMED = {"claude": {"stop": "stop_sequences"}, "text": {}, "chat": {}, "lite": {}}


def test_the_table_has_all_parameters():
    assert set(SENT) == OF_ONE_CALL


@pytest.mark.parametrize("kind", ["chat", "claude", LITE, "text"])
@pytest.mark.parametrize("parameter", SENT)
def test_each_parameter_arrives_or_is_refused_by_name(request, api, kind, parameter):
    backend = request.getfixturevalue(kind)
    value, key, sent = SENT[parameter]
    body = written if kind == "text" else answered
    program = function(lambda s: body(s))
    if not backend.supports(parameter):
        with pytest.raises(UnsupportedParameter, match=f"has no '{parameter}'"):
            program.run(backend=backend, **{parameter: value})
        assert api.requests == []
        return
    assert key is not None, f"{parameter} is said to be supported, but nothing is known of how it is sent"
    program = function(lambda s: s.__iadd__("a" + gen("x") if kind == "text" else user("a") + assistant(gen("x"))))
    program.run(backend=backend, **{parameter: value}).sync()
    if kind == "text" and "logprobs" in parameter:
        key, sent = "logprobs", {"logprobs": 0, "top_logprobs": 2}[parameter]
    assert api.bodies[0][RENAMED[kind].get(key, key)] == sent


def test_what_is_supported(chat, claude, text):
    refused = {"top_k", "min_p", "min_tokens", "repetition_penalty", "stop_token_ids", "stop_regex", "ignore_eos"}
    refused.add("finish")
    assert {name for name in SENT if not chat.supports(name)} == refused
    assert {name for name in SENT if claude.supports(name)} == {"max_tokens", "temperature", "top_p", "top_k", "stop"}
    assert not any(chat.supports(name) for name in ("regex", "grammar", "choices", "heal", "special"))
    assert not any(text.supports(name) for name in ("regex", "json_schema", "roles", "special"))


def test_other_servers_take_more(api):
    options = {"api_key": "k", "base_url": f"{api.url}/v1", "extra_parameters": ["top_k", "min_p", "stop_token_ids"]}
    with OpenAI("m", **options) as backend:
        run(answered, backend, top_k=5, min_p=0.1, stop_token_ids=[7]).sync()
        assert {name: api.bodies[0][name] for name in options["extra_parameters"]} == {
            "top_k": 5,
            "min_p": 0.1,
            "stop_token_ids": [7],
        }
    with pytest.raises(InvalidArgument, match="extra_parameters has 'topk'; it may have finish, ignore_eos, min_p"):
        OpenAI("m", api_key="k", extra_parameters=["topk"])


def test_openai_itself_has_its_own_name_for_the_limit(monkeypatch):
    with OpenAI("gpt-4.1-mini", api_key="k") as backend:
        sent = {}
        monkeypatch.setattr(backend._client.chat.completions, "create", lambda **body: sent.update(body) or 1 / 0)
        run(answered, backend).error()
        assert sent["max_completion_tokens"] == 9
        assert "max_tokens" not in sent


@pytest.mark.parametrize(
    ("model", "is_chat"), [("gpt-4.1", True), ("gpt-3.5-turbo-instruct", False), ("davinci-002", False)]
)
def test_which_models_chat(model, is_chat):
    with OpenAI(model, api_key="k") as backend:
        assert backend.is_chat_model is is_chat


def test_a_limit_is_needed_and_there_is_a_default(api, claude):
    run(lambda s: s.__iadd__(user("a") + assistant(gen("x"))), claude).sync()
    assert api.bodies[0]["max_tokens"] == 1024


def test_logprobs(api, chat, text):
    api.script = Reply("one two", logprobs=True)
    for backend, body in ((chat, answered), (text, written)):
        meta = run(body, backend, logprobs=True, top_logprobs=2).get_meta_info("x")["logprobs"]
        assert [(each.token, each.logprob) for each in meta] == [("one", -0.5), (" two", -0.5)]
        assert [token for token, _ in meta[1].top] == [" two", "other"]


def test_logprobs_while_streaming(api, chat):
    api.script = Reply("one two", logprobs=True)
    run_ = run(answered, chat, logprobs=True, stream=True)
    run_.sync()
    assert [each.token for each in run_.get_meta_info("x")["logprobs"]] == ["one", " two"]


@pytest.mark.parametrize(("finish", "reason"), [("stop", "stop"), ("length", "length"), ("content_filter", "abort")])
def test_why_it_ended(api, chat, finish, reason):
    api.script = Reply("x", finish=finish)
    assert run(answered, chat).get_meta_info("x")["finish_reason"] == reason


def test_what_it_stopped_at(api, text, claude):
    api.script = Reply("x", stop="\n")
    assert run(written, text).get_meta_info("x")["matched_stop"] == "\n"
    api.script = Reply("x", finish="stop_sequence", stop="END")
    meta = run(answered, claude).get_meta_info("x")
    assert (meta["matched_stop"], meta["finish_reason"]) == ("END", "stop")


# -- schemas ----------------------------------------------------------------------------------------------------------


def extract(s):
    s += user("Who?") + assistant(gen("who", type=Person, max_tokens=50))


@pytest.mark.filterwarnings("ignore")
def test_schemas(api, chat, claude, lite):
    api.script = '{"name":"Ada","age":36}'
    assert run(extract, chat)["who"] == Person("Ada", 36)
    assert run(extract, lite)["who"] == Person("Ada", 36)
    for body in api.bodies:
        format = body["response_format"]["json_schema"]
        assert format["strict"] is True
        assert list(format["schema"]["properties"]) == ["name", "age"]
    assert run(extract, claude)["who"] == Person("Ada", 36)
    assert api.bodies[2]["output_config"]["format"]["schema"]["required"] == ["name", "age"]


def test_a_schema_that_the_api_does_not_enforce(api, chat):
    api.script = '{"name":3,"age":1}'
    state = run(lambda s: s.__iadd__(user("a") + assistant(gen("x", schema={"type": "object"}) + "")), chat)
    assert state["x"] == {"name": 3, "age": 1}
    assert api.bodies[0]["response_format"]["json_schema"]["strict"] is False
    with pytest.raises(InvalidOutput, match="At /name: 3 is not a text"):
        run(extract, chat)["who"]


def test_a_schema_that_was_cut(api, chat):
    api.script = Reply('{"name":"A', finish="length")
    assert run(extract, chat).get_meta_info("who")["is_complete"] is False


# -- select -----------------------------------------------------------------------------------------------------------


def pick_one(s):
    s += user("Is it?") + assistant(select("x", ["yes", "no"]))
    s += user("Sure?") + assistant(gen("y"))


def test_select_in_a_chat_asks_for_one_of_the_choices(api, any_chat):
    api.script = lambda body: '{"choice": "no"}' if "yes" in json.dumps(body) else "of course"
    state = run(pick_one, any_chat)
    assert (state["x"], state["y"]) == ("no", "of course")
    assert state.get_meta_info("x")["scores"] == (-math.inf, 0.0)
    assert messages_of(api.bodies[1])[1] == {"role": "assistant", "content": "no"}
    format = api.bodies[0].get("response_format", {}).get("json_schema") or api.bodies[0]["output_config"]["format"]
    assert format["schema"]["properties"]["choice"]["enum"] == ["yes", "no"]
    assert api.bodies[0]["temperature"] == 0


@pytest.mark.parametrize("method", ["sum_logprob", "per_byte", "greedy_token_selection", "token_length_normalized"])
def test_every_rule_takes_the_choice_of_the_model(api, chat, method):
    api.script = '{"choice": "no"}'
    state = run(lambda s: s.__iadd__(user("a") + assistant(select("x", ["yes", "no"], 0.0, method))), chat)
    assert state["x"] == "no"


def test_an_answer_that_is_no_choice(api, chat):
    api.script = "maybe"
    with pytest.raises(RequestRefused, match=r"m was asked for one of \['yes', 'no'\], and answered 'maybe'"):
        run(pick_one, chat).sync()


@pytest.mark.parametrize("style", ["chat", "turns"])
def test_tasks_that_score_choices_are_refused_before_a_chat_is_asked(api, any_chat, style):
    data = [{"country": "Peru"}, {"country": "Italy"}]
    task = MultipleChoice(
        name="capitals",
        data=data,
        question="The capital of {country}?",
        choices=lambda _: ["Lima", "Rome"],
        target=lambda item: data.index(item),
    )
    with pytest.raises(UnsupportedParameter, match="cannot score choices; use a model here"):
        evaluate(task, backend=any_chat, asking=Asking(style))
    assert api.requests == []


@pytest.mark.parametrize("warm", [lambda program: program.cache, lambda program: program.trace().program.cache])
def test_a_prefix_is_warmed_where_a_chat_keeps_none(api, any_chat, warm):
    @function
    def program(s, question):
        s += system("Be brief.") + user("Question: " + question) + assistant(gen("x"))

    assert warm(program)(any_chat).endswith("Question: ")
    runs = program.trace().run_batch([{"question": "a"}], backend=any_chat, warms_prefix=True)
    assert [run.error() for run in runs] == [None]
    assert len(api.requests) == 1


def test_which_backends_give_probabilities_of_choices(any_chat, text):
    assert text.supports("choice_logprobs")
    assert not any_chat.supports("choice_logprobs")


def test_rules_that_need_probabilities_are_refused(chat, text):
    method = "unconditional_likelihood_normalized"
    for backend, prompt in ((chat, user("a")), (text, "a")):
        selection = select("x", ["yes", "no"], choices_method=method)
        state = run(lambda s, p=prompt, e=selection: s.__iadd__(p + (assistant(e) if p != "a" else e)), backend)
        with pytest.raises(UnsupportedParameter, match=method):
            state.sync()


def test_select_in_text_scores_echoes(api, text):
    likely = {" Paris": -1.0, " Rome": -3.0, " today": -0.5}
    api.models = lambda prompt: [likely.get(f" {word}", -9.0) for word in prompt.split()]
    state = run(lambda s: s.__iadd__("The capital is" + select("x", [" Rome", " Paris today"])), text)
    assert state["x"] == " Paris today"
    assert state.get_meta_info("x")["logprobs"] == ((-3.0,), (-1.0, -0.5))
    assert api.bodies[0]["prompt"] == ["The capital is Rome", "The capital is Paris today"]
    assert (api.bodies[0]["echo"], api.bodies[0]["max_tokens"]) == (True, 0)
    assert tuple(state.usage) == (10, 4, 3, 0)


def test_choices_are_scored_from_a_border_that_all_have(api, text):
    """The last word of the prompt goes on in one of the choices: the others count it too."""
    api.models = lambda prompt: [-float(len(word)) for word in prompt.split()]
    state = run(lambda s: s.__iadd__("see http:" + select("x", ["//a.org", " not"])), text)
    assert state.get_meta_info("x")["logprobs"] == ((-12.0,), (-5.0, -3.0))


def test_select_without_a_prompt_or_without_echoes(api, text):
    with pytest.raises(RequestRefused, match="does not echo prompts"):
        run(lambda s: s.__iadd__("a" + select("x", [" b", " c"])), text).sync()
    api.models = lambda prompt: [-1.0] * 9
    with pytest.raises(RequestRefused, match="The first token of a text has no probability"):
        run(lambda s: s.__iadd__(select("x", ["b", "c"])), text).sync()


# -- programs that an API cannot run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (written, "m takes a chat, and 'Once upon' stands outside of its turns; write user"),
        (lambda s: s.__iadd__(gen("x")), "a gen can only stand in the assistant's turn; write assistant"),
        (lambda s: s.__iadd__(user(gen("x"))), "a gen can only stand in the assistant's turn"),
        (lambda s: s.__iadd__(user(select("x", ["a", "b"]))), "a select can only stand in the assistant's turn"),
        (lambda s: s.__iadd__(user("a") + assistant("Sure, " + gen("x"))), "cannot go on with a message that begins"),
    ],
)
def test_what_a_chat_cannot_do_is_said(api, chat, body, message):
    state = run(body, chat)
    with pytest.raises(RequestRefused, match=message):
        state.sync()
    assert api.requests == []


def test_turns_that_a_text_model_has_not(text):
    with pytest.raises(UnsupportedParameter, match="has no 'roles'"):
        run(answered, text)


def test_claude_goes_on_with_a_message(api, claude):
    state = run(lambda s: s.__iadd__(user("a") + assistant("Sure," + gen("x"))), claude)
    assert state.messages()[1]["content"] == "Sure,hello there you"
    assert api.bodies[0]["messages"][1] == {"role": "assistant", "content": "Sure,"}


def test_one_system_turn_at_the_beginning(api, claude):
    for body in (
        lambda s: s.__iadd__(user("a") + system("b") + assistant(gen("x"))),
        lambda s: s.__iadd__(system("a") + system("b") + user("c") + assistant(gen("x"))),
    ):
        with pytest.raises(RequestRefused, match="one system turn, at the beginning"):
            run(body, claude).sync()
    assert api.requests == []


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ApiError(500), BackendUnavailable),
        (ApiError(503), BackendUnavailable),
        (ApiError(529), BackendUnavailable),
        (ApiError(429), BackendUnavailable),
        (ApiError(408), BackendUnavailable),
        (ApiError(400), RequestRefused),
        (ApiError(422), RequestRefused),
        (ApiError(401), RequestRefused),
        (ApiError(403), RequestRefused),
        (ApiError(404), ModelNotFound),
    ],
)
def test_errors_are_the_languages_own(api, any_chat, error, expected):
    api.script = error
    found = run(answered, any_chat).error()
    assert type(found) is expected
    assert str(found).startswith(f"{any_chat.model_name}: ")
    assert "the server says no" in str(found)
    assert found.__cause__ is not None
    assert len(api.requests) == 1, "retries are the language's business"
    if error.status in (401, 403):
        assert str(found).endswith("Check the API key.")


def test_special_codes(api, chat):
    api.script = ApiError(429, "insufficient_quota")
    assert type(run(answered, chat).error()) is RequestRefused
    api.script = ApiError(400, "context_length_exceeded")
    assert type(run(answered, chat).error()) is PromptTooLong
    api.script = ApiError(400, "constraint_unsupported", "no such keyword")
    assert type(run(answered, chat).error()) is ConstraintUnsupported


def test_too_long_for_claude(api, claude):
    api.script = ApiError(400, "invalid_request_error", "prompt is too long: 9 > 8")
    assert type(run(answered, claude).error()) is PromptTooLong


def test_no_server(api, any_chat):
    api.requests.clear()
    address = api.url
    with OpenAI("m", api_key="k", base_url="http://127.0.0.1:9/v1") as gone:
        error = run(answered, gone).error()
    assert type(error) is BackendUnavailable, address


def test_retries_are_made_by_the_program(api, chat):
    replies = iter([ApiError(503), ApiError(429), "at last"])
    api.script = lambda body: next(replies)
    assert run(answered, chat, retries=3)["x"] == "at last"
    assert len(api.requests) == 3


@pytest.mark.parametrize("breaks_after", [0, 1, 3])
def test_a_stream_that_breaks(api, chat, claude, text, breaks_after):
    api.script = Reply("a b c", breaks_after=breaks_after)
    for backend, body in ((chat, answered), (claude, answered), (text, written)):
        state = run(body, backend, stream=True)
        with pytest.raises(BackendUnavailable, match="The server's answer stops before its end"):
            state.sync()


def test_refusals(api, chat, claude):
    api.script = Reply("", refusal="I will not.")
    assert str(run(answered, chat).error()) == "The model refuses: I will not."
    api.script = Reply("No.", finish="refusal")
    assert str(run(answered, claude).error()) == "The model refuses: No."


def test_one_bad_item_does_not_lose_a_batch(api, chat):
    api.script = lambda body: ApiError(400) if "3" in body["messages"][1]["content"] else "fine"
    states = talk.run_batch([{"question": f"{i}"} for i in range(6)], backend=chat)
    assert [type(state.error()) for state in states].count(RequestRefused) == 1
    assert isinstance(states[3].error(), RequestRefused)
    assert [s["answer"] for i, s in enumerate(states) if i != 3] == ["fine"] * 5


# -- cancelling, concurrency, closing ---------------------------------------------------------------------------------


def test_a_cancelled_call_is_over_at_once(api, chat):
    api.script = Reply("late", delay=3)
    state = run(answered, chat, stream=True)
    while not api.requests:
        time.sleep(0.001)
    start = time.monotonic()
    state.cancel()
    assert isinstance(state.error(), Cancelled)
    assert time.monotonic() - start < 2.5


def test_a_cancelled_stream_is_left(api, chat):
    got, first = [], threading.Event()
    sink = Sink(lambda text: first.set(), got.append, got.append)
    api.script = Reply("word " * 2000)
    stream = chat.open_stream()
    stream.begin_role("assistant")
    call = stream.generate(GenerateCall(Sampling(), wants_deltas=True), sink)
    assert first.wait(5)
    call.cancel()
    call.cancel()
    chat.close()
    assert [type(each) for each in got] == [Cancelled]


def test_calls_under_way_are_bounded(api):
    running, peak, lock = [0], [0], threading.Lock()

    def reply(body):
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1
        return "x"

    api.script = reply
    with OpenAI("m", api_key="k", base_url=f"{api.url}/v1", max_concurrency=3) as backend:
        states = function(lambda s, i: answered(s)).run_batch([{"i": i} for i in range(12)], backend=backend)
        assert [state["x"] for state in states] == ["x"] * 12
    assert 1 < peak[0] <= 3


def test_after_closing(api, chat):
    chat.close()
    with pytest.raises(Cancelled, match="The backend is closed; make a new one"):
        run(answered, chat).sync()


def test_closing_cancels_what_waits(api):
    api.script = Reply("x", delay=0.1)
    backend = OpenAI("m", api_key="k", base_url=f"{api.url}/v1", max_concurrency=1)
    states = [run(answered, backend, stream=True) for _ in range(3)]
    while not api.requests:
        time.sleep(0.001)
    backend.close()
    assert [type(state.error()) for state in states].count(Cancelled) >= 1
    assert all(state.error() is None or isinstance(state.error(), LmprogError) for state in states)


# -- making one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["openai", "anthropic", "litellm"])
def test_a_package_that_is_missing(kind, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.split(".")[0] == kind:
            raise ModuleNotFoundError(f"No module named {name!r}", name=kind)
        return real(name, *args, **kwargs)

    import importlib

    def missing_module(name, package=None):
        return missing(name)

    from lmprog.backends.litellm import LiteLLM

    monkeypatch.setattr(importlib, "import_module", missing_module)
    make = {"openai": OpenAI, "anthropic": Anthropic, "litellm": LiteLLM}[kind]
    message = rf"needs {kind}, which is not installed. Run: pip install 'lmprog\[{kind}\]'"
    with pytest.raises(MissingDependency, match=message):
        make("m")


def test_options_that_the_client_refuses(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    with pytest.raises(InvalidArgument, match=r"The openai client refuses its options: .*api_key"):
        OpenAI("m")
    with pytest.raises(InvalidArgument, match=r"The openai client refuses its options: .*colour"):
        OpenAI("m", api_key="k", colour="red")
    with pytest.raises(InvalidArgument, match=r"The anthropic client refuses its options: .*colour"):
        Anthropic("m", api_key="k", colour="red")


def test_azure():
    options = {"api_key": "k", "azure_endpoint": "https://x.example", "api_version": "2024-06-01"}
    with OpenAI("m", is_azure=True, **options) as backend:
        assert "x.example" in str(backend._client.base_url)


def test_server_info(chat):
    assert chat.server_info() == {"backend": "openai", "model": "m"}
