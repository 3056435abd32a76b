"""Mistakes are found where they are written: unknown keywords, wrong types and ranges, bad patterns and schemas."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from lmprog import (
    InvalidArgument,
    ScriptedBackend,
    UnknownParameter,
    UnsupportedParameter,
    function,
    gen,
    gen_int,
    gen_string,
    select,
    special,
)
from lmprog.arguments import CHECKS
from lmprog.nodes import Gen, Select
from lmprog.sampling import Sampling

GOOD: dict[str, Any] = {
    "max_tokens": 5, "min_tokens": 0, "n": 2, "temperature": 0.5, "top_p": 1, "top_k": -1, "min_p": 0.1,
    "repetition_penalty": 1.1, "frequency_penalty": -2, "presence_penalty": 2.0, "logit_bias": {5: -1.0},
    "stop": ["a", "b"], "stop_token_ids": [1, 2], "stop_regex": r"\d", "ignore_eos": True, "seed": 7, "logprobs": True,
    "top_logprobs": 3, "finish": "close", "best_of": 3,
}  # fmt: skip


def test_every_sampling_parameter_has_a_check_and_an_example() -> None:
    assert set(CHECKS) == set(Sampling.__dataclass_fields__) == set(GOOD)


@pytest.mark.parametrize("name", GOOD)
def test_good_values_are_taken(name: str) -> None:
    node = gen("x", **{name: GOOD[name]})
    assert isinstance(node, Gen)
    value = getattr(node.sampling, name)
    assert value == (tuple(GOOD[name]) if isinstance(GOOD[name], list) else GOOD[name])
    assert node.sampling.given().keys() == {name}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", True), ("max_tokens", "9"), ("min_tokens", -1), ("n", 0),
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "hot"),
        ("temperature", True), ("top_p", 0), ("top_p", 1.01), ("top_k", 0), ("top_k", -2), ("min_p", 1.5),
        ("repetition_penalty", 0), ("frequency_penalty", 2.5), ("presence_penalty", -3), ("logit_bias", [1]),
        ("logit_bias", {"a": 1}), ("logit_bias", {1: "x"}), ("stop", 3), ("stop", ["a", ""]), ("stop", [b"a"]),
        ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_regex", "("), ("ignore_eos", 1), ("seed", -1),
        ("seed", 1.0), ("logprobs", 3), ("top_logprobs", -1), ("finish", "open"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        gen("x", **{name: value})


def test_numbers_of_other_libraries_are_taken() -> None:
    class Count:
        def __index__(self) -> int:
            return 4

    assert gen("x", max_tokens=Count()).sampling.max_tokens == 4  # type: ignore[arg-type]


def test_inputs_are_copied() -> None:
    stops, bias, choices = ["a"], {1: 2.0}, ["x", "y"]
    node, chosen = gen("x", stop=stops, logit_bias=bias), select("c", choices)
    stops.append("b")
    bias[2] = 3.0
    choices.append("z")
    assert isinstance(node, Gen)
    assert (node.sampling.stop, node.sampling.logit_bias, chosen.choices) == (("a",), {1: 2.0}, ("x", "y"))


@pytest.mark.parametrize(
    ("wrong", "guess"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("json_shema", "json_schema")]
)
def test_misspelt_keyword_is_guessed(wrong: str, guess: str) -> None:
    with pytest.raises(UnknownParameter, match=rf"gen\(\) has no parameter '{wrong}'; did you mean '{guess}'\?"):
        gen("x", **{wrong: 1})
    with pytest.raises(TypeError):
        gen("x", **{wrong: 1})


def test_unknown_keyword_without_a_guess_lists_the_known() -> None:
    with pytest.raises(
        UnknownParameter, match=r"select\(\) has no parameter 'zzz'; it knows name, choices, temperature"
    ):
        select("x", ["a"], zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("bad", ["", 3, b"x"])
def test_variable_names(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="name of a variable"):
        gen(bad)


@pytest.mark.parametrize(
    ("pattern", "position"), [("ab**", 3), ("[a-", 0), ("(x", 0), ("(?P<n", 4), ("x{3,1}", 2), (r"\p{Nope}", 0)]
)
def test_bad_regex_has_reason_and_position(pattern: str, position: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"regex {re.escape(repr(pattern))} is not .* at position {position}\."):
        gen("x", regex=pattern)


def test_huge_regex_is_an_error_and_no_crash() -> None:
    with pytest.raises(InvalidArgument, match=r"nested too deeply|not a regular expression"):
        gen("x", regex="(" * 60_000 + ")" * 60_000)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not JSON: .* at line 1, column 2"),
        ("[1]", "an object or a boolean"),
        ('"text"', "an object or a boolean"),
        ("[" * 100_000, "nested too deeply"),
        ({"a": {1, 2}}, "cannot be written as JSON"),
        ({"minimum": math.nan}, "cannot be written as JSON"),
    ],
)
def test_bad_schema(schema: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        gen("x", schema=schema)


def test_schema_of_text_gives_text_and_of_dict_gives_data() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}

    @function
    def program(s):
        s += gen("text", json_schema=json.dumps(schema)) + gen("data", schema=schema)

    backend = ScriptedBackend('{"b": 1}')
    state = program.run(backend=backend)
    assert (state["text"], state["data"]) == ('{"b": 1}', {"b": 1})
    assert [json.loads(call.constraint.source) for call in backend.calls if call.constraint] == [schema, schema]
    assert backend.calls[1].constraint is not None
    assert backend.calls[1].constraint.source.index('"b"') < backend.calls[1].constraint.source.index('"a"')


@pytest.mark.parametrize(
    "options",
    [
        {"schema": {}, "json_schema": {}},
        {"schema": {}, "type": int},
        {"schema": {}, "regex": "a"},
        {"type": int, "dtype": int},
        {"choices": ["a"], "regex": "a"},
        {"choices": ["a"], "max_tokens": 3},
        {"choices_method": "sum_logprob"},
        {"dtype": complex},
        {"heal": 1},
    ],
)
def test_contradictions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        gen("x", **options)


@pytest.mark.parametrize(
    ("dtype", "answer", "value"),
    [
        (int, " -42", -42),
        ("int", "7", 7),
        (float, "2.5e3", 2500.0),
        (bool, " True", True),
        (bool, "false", False),
        (str, '"a b"', '"a b"'),
    ],
)
def test_dtype(dtype: Any, answer: str, value: Any) -> None:
    @function
    def program(s):
        s += gen("x", dtype=dtype)

    state = program.run(backend=ScriptedBackend(answer))
    assert state["x"] == value
    assert type(state["x"]) is type(value)
    assert state.text() == answer


def test_short_forms() -> None:
    assert gen_int("x", max_tokens=4) == gen("x", dtype=int, max_tokens=4)
    assert gen_string("x") == gen("x", dtype=str)


def test_a_string_in_quotes_is_one_of_json() -> None:
    """So that a program may write JSON around it; escapes are left out."""
    node = gen("x", dtype=str)
    assert isinstance(node, Gen)
    assert node.constraint is not None
    pattern = re.compile(node.constraint.source)
    for text in (f'"a{character}b"' for character in map(chr, range(0x3000)) if character != "\\"):
        try:
            is_json = isinstance(json.loads(text), str)
        except json.JSONDecodeError:
            is_json = False
        assert bool(pattern.fullmatch(text)) == is_json, repr(text)
    assert not pattern.fullmatch(r'"a\b"')


def test_regex_with_dtype_reads_what_the_regex_allows() -> None:
    @function
    def program(s):
        s += gen("x", regex=r"0\d+", dtype=int)

    assert program.run(backend=ScriptedBackend("007"))["x"] == 7


@pytest.mark.parametrize("bad", [[], (), "abc", 3, ["a", 1], ["a", None]])
def test_bad_choices(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="choices"):
        select("x", bad)
    with pytest.raises(InvalidArgument, match="choices"):
        gen("x", choices=bad)


def test_choices_keep_order_and_lose_repeats() -> None:
    node = gen("x", choices=iter(["b", "a", "b", ""]), temperature=0.5, choices_method="sum_logprob")
    assert isinstance(node, Select)
    assert (node.choices, node.temperature, node.method.name) == (("b", "a", ""), 0.5, "sum_logprob")


def test_select_needs_choices_and_a_known_method() -> None:
    with pytest.raises(InvalidArgument, match="needs choices"):
        select("x")
    with pytest.raises(InvalidArgument, match="it is one of token_length_normalized, sum_logprob"):
        select("x", ["a"], choices_method="median")


def test_nodes_in_an_fstring_are_a_mistake() -> None:
    with pytest.raises(InvalidArgument, match=r'A gen cannot be written inside a string; write "text" \+ gen'):
        f"Answer: {gen('x')}"


@pytest.mark.parametrize("bad", [5, None, b"x", {"a": 1}, ["a", 5]])
def test_only_text_and_nodes_can_be_appended(bad: Any) -> None:
    @function
    def program(s):
        s += bad

    with pytest.raises(InvalidArgument, match="A state takes text"):
        program.run(backend=ScriptedBackend())
    with pytest.raises(InvalidArgument, match="A state takes text"):
        gen("x") + bad


def test_special_needs_a_name() -> None:
    with pytest.raises(InvalidArgument, match="name of a control token"):
        special("")


@pytest.mark.parametrize(
    ("feature", "build"),
    [
        ("regex", lambda: gen("x", regex="a")),
        ("json_schema", lambda: gen("x", schema={})),
        ("score", lambda: select("x", ["a", "b"])),
        ("seed", lambda: gen("x", seed=1)),
        ("heal", lambda: gen("x", heal=False)),
        ("special", lambda: special("<|x|>")),
    ],
)
def test_what_the_backend_lacks_is_refused_by_name_before_any_call(feature: str, build: Any) -> None:
    @function
    def program(s):
        s += build()

    backend = ScriptedBackend("x", unsupported={feature})
    with pytest.raises(UnsupportedParameter, match=f"The scripted backend has no '{feature}'"):
        program.run(backend=backend)
    assert (backend.calls, backend.open_streams) == ([], 0)


@pytest.mark.parametrize("where", ["run", "function", "fork", "backend"])
def test_defaults_that_the_backend_lacks_are_refused_too(where: str) -> None:
    @function(**({"seed": 1} if where == "function" else {}))
    def program(s):
        s.fork(2, **({"seed": 1} if where == "fork" else {}))

    backend = ScriptedBackend("x", unsupported={"seed"})
    if where == "backend":
        program.run(backend=backend)
        return
    with pytest.raises(UnsupportedParameter, match="'seed'"):
        program.run(backend=backend, **({"seed": 1} if where == "run" else {}))


def test_program_arguments() -> None:
    @function
    def program(s, essay, *, style="short"):
        s += essay + style

    backend = ScriptedBackend()
    assert program.run("a", style="b", backend=backend).text() == "ab"
    with pytest.raises(TypeError, match=r"program\(\): missing a required argument: 'essay'"):
        program.run(backend=backend)
    with pytest.raises(UnknownParameter, match=r"program\(\) has no parameter 'stile'; did you mean 'style'\?"):
        program.run("a", stile="b", backend=backend)
    with pytest.raises(UnknownParameter, match=r"did you mean 'temperature'\?"):
        program.run("a", temprature=0, backend=backend)
    with pytest.raises(UnknownParameter, match=r"function\(\) has no parameter 'temprature'"):
        function(temprature=1)
    with pytest.raises(InvalidArgument, match="timeout"):
        program.run("a", timeout=0, backend=backend)
    with pytest.raises(InvalidArgument, match="retries"):
        program.run("a", retries=-1, backend=backend)
    with pytest.raises(InvalidArgument, match="stream"):
        program.run("a", stream="yes", backend=backend)


def test_parameter_of_the_program_wins_over_an_option_of_that_name() -> None:
    @function
    def program(s, temperature):
        s += temperature + gen("x")

    backend = ScriptedBackend("!")
    assert program.with_options(temperature=0.3).run(temperature="hot", backend=backend).text() == "hot!"
    assert backend.calls[0].sampling.temperature == 0.3


def test_a_program_needs_a_state() -> None:
    with pytest.raises(InvalidArgument, match="takes its state as the first parameter"):

        @function
        def program(): ...

    with pytest.raises(InvalidArgument, match="takes options by keyword"):
        function()("not a function")  # type: ignore[call-overload]


def test_finish_is_refused_where_the_backend_has_no_such_thing() -> None:
    backend = ScriptedBackend("7", unsupported=["finish"])
    with pytest.raises(UnsupportedParameter, match="finish"):
        function(lambda s: s.__iadd__(gen("x", regex="[0-9]+", finish="close"))).run(backend=backend)
    assert backend.calls == []
