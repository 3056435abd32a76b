"""Writing ahead: one request answers several gens, and the text is what it would have been."""

from __future__ import annotations

import random
import time

import pytest

from lmprog import ScriptedBackend, assistant, function, gen, select, user
from lmprog.backends.openai import OpenAI
from lmprog.backends.speculation import SpeculativeBackend
from lmprog.errors import Cancelled, RequestRefused
from tests.support.fake_api import Reply, fake_api
from tests.support.language import PROGRAMS, counting

STORY = "Ada\nBorn: 1815\nJob: poet. And more"


def form(s):
    s += "Name: " + gen("name", stop="\n") + "\nBorn: " + gen("born", stop="\n") + "\nJob: " + gen("job", stop=".")


def eventually(holds, seconds=5.0):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.001)


def run(body, backend, **options):
    return function(body).run(backend=backend, **options)


def writing(text, **options):
    """A model that would write `text` after "Name: ", and knows how to go on with any part of it."""

    def answer(call):
        _, _, written = call.prompt.partition("Name: ")
        return text[len(written) :] if text.startswith(written) else "?"

    return ScriptedBackend(answer, **options)


def test_one_request_for_three_gens():
    backend = writing(STORY)
    state = run(form, SpeculativeBackend(backend, 64))
    assert (state["name"], state["born"], state["job"]) == ("Ada", "1815", "poet")
    assert state.text() == "Name: Ada\nBorn: 1815\nJob: poet"
    assert [call.sampling.max_tokens for call in backend.calls] == [64]
    assert backend.calls[0].sampling.stop is None
    assert backend.open_streams == 0


def test_prompt_tokens_go_down():
    plain, ahead = run(form, writing(STORY)), run(form, SpeculativeBackend(writing(STORY), 64))
    assert ahead.text() == plain.text()
    assert plain.usage.prompt_tokens == 1 + 3 + 5
    assert ahead.usage.prompt_tokens == 1
    assert ahead.get_meta_info("job")["speculated"] is True
    assert ahead.get_meta_info("job")["prompt_tokens"] == 0
    assert ahead.get_meta_info("job")["matched_stop"] == "."


def test_what_the_model_did_not_foresee_is_asked_again():
    def body(s):
        s += "Name: " + gen("name", stop="\n") + "\nDied: " + gen("died", stop="\n")

    backend = ScriptedBackend({"Name: $": "Ada\nBorn: 1815\n", "Died: $": "1852\n"})
    state = run(body, SpeculativeBackend(backend, 64))
    assert (state["name"], state["died"]) == ("Ada", "1852")
    assert [call.prompt for call in backend.calls] == ["Name: ", "Name: Ada\nDied: "]


def test_what_was_written_ahead_may_be_too_short():
    backend = writing(STORY)
    state = run(form, SpeculativeBackend(backend, 2))  # "Ada\nBorn:"
    assert (state["name"], state["born"], state["job"]) == ("Ada", "1815", "poet")
    assert [call.prompt for call in backend.calls] == ["Name: ", "Name: Ada\nBorn: ", "Name: Ada\nBorn: 1815\nJob: "]


def test_the_end_of_what_the_model_has_to_say():
    state = run(form, SpeculativeBackend(writing("Ada\nBorn: 1815\nJob: poet"), 64))
    assert state["job"] == "poet"
    meta = state.get_meta_info("job")
    assert (meta["finish_reason"], meta["matched_stop"]) == ("stop", None)


def test_never_ending():
    state = run(lambda s: s.__iadd__("Name: " + gen("x", stop="\n")), SpeculativeBackend(writing("a " * 99), 5))
    assert (state["x"], state.get_meta_info("x")["finish_reason"]) == ("a a a a a", "length")


def test_the_stop_that_comes_first_counts():
    def body(s):
        s += "Name: " + gen("x", stop=["]", ",", '"']) + gen("y", stop="]")

    state = run(body, SpeculativeBackend(writing('John", "x] and'), 64))
    assert (state["x"], state["y"]) == ("John", '", "x')


def test_other_sampling_is_another_request():
    def body(s):
        s += "Name: " + gen("name", stop="\n", temperature=0.1) + "\nBorn: " + gen("born", stop="\n", temperature=0.9)

    backend = writing(STORY)
    assert run(body, SpeculativeBackend(backend, 64))["born"] == "1815"
    assert [call.sampling.temperature for call in backend.calls] == [0.1, 0.9]


def test_gens_without_a_stop_selects_and_constraints_are_plain_calls():
    def body(s):
        s += "Name: " + gen("free", max_tokens=1) + gen("digits", regex=r"\d", max_tokens=1)
        s += select("which", ["a", "b"])

    backend = ScriptedBackend("1", scores={"a": -1.0, "b": -2.0})
    state = run(body, SpeculativeBackend(backend, 64))
    assert state.text() == "Name: 11a"
    assert [call.sampling.max_tokens for call in backend.calls[:2]] == [1, 1]


def test_branches_go_on_with_what_was_written_ahead():
    def body(s):
        s += "Name: " + gen("name", stop="\n")
        for i, branch in enumerate(s.fork(2)):
            branch += ["\nBorn: ", "\nDied: "][i] + gen("year", stop="\n")
            s[f"year{i}"] = branch["year"]
        s += "\nBorn: " + gen("born", stop="\n")

    backend = ScriptedBackend({"Name: $": STORY, "Died: $": "1852\n"})
    state = run(body, SpeculativeBackend(backend, 64))
    assert (state["year0"], state["year1"], state["born"]) == ("1815", "1852", "1815")
    assert len(backend.calls) == 2
    assert backend.open_streams == 0


def test_streaming():
    state = run(form, SpeculativeBackend(writing(STORY), 64), stream=True)
    assert "".join(state.text_iter()) == "Name: Ada\nBorn: 1815\nJob: poet"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_programs_are_what_they_are(program):
    """Without stops nothing is written ahead."""
    plain, ahead = counting(), counting()
    expected = program.run(backend=plain)
    assert program.run(backend=SpeculativeBackend(ahead, 64)).text() == expected.text()
    assert [(c.prompt, c.sampling) for c in ahead.calls] == [(c.prompt, c.sampling) for c in plain.calls]
    assert ahead.open_streams == 0


@pytest.mark.parametrize("seed", range(20))
def test_random_forms(seed):
    """A deterministic model gives the same text with and without writing ahead, however far it is ahead."""
    rng = random.Random(seed)
    story = "".join(rng.choice(["a", "b", " ", ",", ".", "\n"]) for _ in range(60))
    steps, position = [], 0
    for i in range(6):
        stop = rng.choice([",", ".", "\n"])
        end = story.find(stop, position)
        if end < 0:
            break
        follows = story[end : end + rng.randint(1, 3)]
        steps.append((f"v{i}", stop, follows))
        position = end + len(follows)

    def body(s):
        s += "Name: "
        for name, stop, follows in steps:
            s += gen(name, stop=stop) + follows

    plain = run(body, writing(story))
    longest = max((len(plain[name]) for name, *_ in steps), default=0)  # no gen may be longer than what is asked for
    ahead = run(body, SpeculativeBackend(writing(story), longest + rng.choice([1, 3, 60])))
    assert ahead.text() == plain.text()


def test_everything_else_is_the_backends():
    backend = ScriptedBackend("x", unsupported=["top_k"])
    ahead = SpeculativeBackend(backend, 9)
    assert ahead.name == "scripted"
    assert not ahead.supports("top_k")
    ahead.warm_prefix("p")
    ahead.flush_cache()
    assert backend.warmed == ["p"]
    assert ahead.server_info() == backend.server_info()


@pytest.mark.parametrize("failing", range(1, 4))
def test_failures_surface(failing):
    backend = writing(STORY, errors={failing: RuntimeError("boom")})
    state = run(form, SpeculativeBackend(backend, 2))
    with pytest.raises(RuntimeError, match="boom"):
        state.sync()
    assert backend.open_streams == 0


def test_cancelling():
    backend = writing(STORY, delay=60)
    state = run(form, SpeculativeBackend(backend, 64), stream=True)
    eventually(lambda: backend.calls)
    state.cancel()
    assert isinstance(state.error(), Cancelled)
    eventually(lambda: not backend.open_streams and not backend.running)


# -- chats, whose messages are written as a whole ----------------------------------------------------------------------


def chat_form(s):
    s += user("Who?")
    s += assistant("Name:" + gen("name", stop="\n") + "\nJob:" + gen("job", stop="\n") + "\nEnd." + gen("rest"))
    s += user("Sure?") + assistant(gen("sure"))


@pytest.fixture
def api():
    with fake_api() as api:
        yield api


@pytest.fixture
def chat(api):
    with OpenAI("m", api_key="k", base_url=f"{api.url}/v1") as backend:
        yield SpeculativeBackend(backend, 64)


def test_one_message_answers_all_gens_of_a_turn(api, chat):
    answers = iter([" Name: Ada\nJob: poet\nEnd. Bye.", "yes"])
    api.script = lambda body: next(answers)
    state = run(chat_form, chat)
    assert (state["name"], state["job"], state["rest"], state["sure"]) == (" Ada", " poet", " Bye.", "yes")
    assert len(api.requests) == 2
    assert [m["role"] for m in api.bodies[0]["messages"]] == ["user"]
    assert api.bodies[1]["messages"][1]["content"] == "Name: Ada\nJob: poet\nEnd. Bye."
    assert state.usage.prompt_tokens == 20


def test_a_model_is_asked_again_until_it_keeps_to_the_format(api, chat):
    answers = iter(["I am Ada.", "It is Ada.", "Name: Ada\nJob: poet\nEnd.", "yes"])
    api.script = lambda body: next(answers)
    state = run(chat_form, chat)
    assert (state["name"], state["rest"], state["sure"]) == (" Ada", "", "yes")
    assert len(api.requests) == 4
    assert state.get_meta_info("name")["prompt_tokens"] == 30


def test_a_model_that_does_not_keep_to_the_format(api, chat):
    api.script = "I am Ada."
    with pytest.raises(RequestRefused, match=r"asked 5 times for a message that begins with 'Name:', and wrote 'I am"):
        run(chat_form, chat).sync()
    assert len(api.requests) == 5


def test_branches_of_an_open_turn(api, chat):
    def body(s):
        s += user("Who?")
        with s.assistant():
            s += "Name:" + gen("name", stop="\n")
            for i, branch in enumerate(s.fork(2)):
                branch += "\nJob:" + gen("job", stop="\n")
                s[f"job{i}"] = branch["job"]

    api.script = "Name: Ada\nJob: poet\nEnd."
    state = run(body, chat)
    assert (state["job0"], state["job1"]) == (" poet", " poet")
    assert len(api.requests) == 1


def test_cancelling_between_attempts(api, chat):
    api.script = Reply("I am Ada.", delay=0.05)
    state = run(chat_form, chat, stream=True)
    eventually(lambda: len(api.requests) > 1)
    state.cancel()
    assert isinstance(state.error(), Cancelled)
    assert len(api.requests) <= 3


def test_option_of_a_run_and_of_a_program() -> None:
    """One request for three gens, asked for in either place; a program that is called goes on with its own length."""

    @function(num_api_spec_tokens=16)
    def inner(s):
        s += "A: " + gen("a", stop="\n") + "\nB: " + gen("b", stop="\n")

    for program, options in ((inner, {}), (inner.with_options(num_api_spec_tokens=None), {"num_api_spec_tokens": 16})):
        backend = ScriptedBackend("1\nB: 2\nC: 3")
        state = program.run(backend=backend, **options)
        assert (state["a"], state["b"], len(backend.calls)) == ("1", "2", 1)
        assert backend.calls[0].sampling.max_tokens == 16

    @function
    def outer(s):
        return inner()["b"]

    backend = ScriptedBackend("1\nB: 2\nC: 3")
    assert outer.run(backend=backend, num_api_spec_tokens=8).ret_value == "2"
    assert [call.sampling.max_tokens for call in backend.calls] == [16]
