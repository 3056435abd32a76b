"""Tracing: graphs that print, draw and run, and clear words where a program cannot be traced."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from lmprog import (
    InvalidArgument,
    NotTraceable,
    ScriptedBackend,
    UnknownParameter,
    assistant,
    function,
    gen,
    select,
    system,
    user,
)
from tests.support.language import (
    appended,
    counting,
    error_of,
    forked,
    joined,
    no_threads_left,
    scoped,
    straight,
    threads_of_the_language,
)

pytestmark = pytest.mark.timeout(20)
SVG = "{http://www.w3.org/2000/svg}"
PROGRAMS_TO_DRAW = [straight, forked, appended, joined, scoped]


@function(temperature=0.5)
def judge(s, essay, style="short"):
    s += system("You grade essays.") + user(f"In {style} words: {essay.strip()}!")
    with s.fork(["clarity", "depth"], top_p=0.9) as branches:
        for aspect, b in branches.items():
            b += user(f"Judge the {aspect}.") + assistant(gen("note", max_tokens=8))
    s += user("Notes:\n" + "\n".join(b["note"] for b in branches))
    s["n"] = len(branches)
    s["copy"] = "<" + branches["depth"]["note"] + ">"
    with s.var_scope("verdict_text"):
        s += assistant(gen("verdict") + "/" + select("grade", ["a", "b"]))
    s += s["copy"]


@function
def gathers(s, x):
    s += f"{x:>4}|" + gen("a", n=2, temperature=1.0)
    group = s.fork(3)
    group += lambda i: f" {i} {s['a'][1]}" + gen("v")
    group.join()
    s += " ".join(s["v"])
    first = s["v"][0]
    s += gen("v")
    s += f"{first}{s['v'].upper()}"


def same(program: Any, **values: Any) -> tuple[Any, Any]:
    return program.run(backend=counting(), **values), program.trace().run(backend=counting(), **values)


@pytest.mark.parametrize(("program", "values"), [(judge, {"essay": "  text "}), (gathers, {"x": "ab"})])
def test_graph_does_what_the_program_does(program: Any, values: dict[str, str]) -> None:
    straight, traced = same(program, **values)
    assert traced.text() == straight.text()
    assert traced.messages() == straight.messages()
    assert traced.usage == straight.usage
    assert traced.variables() == straight.variables()
    assert [traced[name] for name in traced.variables()] == [straight[name] for name in straight.variables()]


def test_sampling_and_forms_survive() -> None:
    backends = counting(), counting()
    judge.run(essay="x", backend=backends[0], seed=3)
    judge.trace().run(essay="x", backend=backends[1], seed=3).sync()
    assert [(c.prompt, c.sampling, c.choices) for c in backends[0].calls] == [
        (c.prompt, c.sampling, c.choices) for c in backends[1].calls
    ]


def test_constants_and_parameters() -> None:
    assert judge.trace().parameters == ("essay",)
    assert judge.trace("text").parameters == ()
    assert judge.bind(essay="text").trace(style="long").parameters == ()
    assert judge.trace(essay="text").run(backend=counting()).text() == judge.run("text", backend=counting()).text()
    with pytest.raises(UnknownParameter, match="did you mean 'essay'"):
        judge.trace().run(esay="x", backend=counting())
    with pytest.raises(TypeError, match="missing a required"):
        judge.trace().run(backend=counting())


def test_whole_graph_is_submitted_without_blocking() -> None:
    """The program's thread reads, and so waits; a graph is handed over at once, before any call has come back."""
    graph, backend = judge.trace(), counting(delay=0.02)
    with no_threads_left():
        before = len(threads_of_the_language())
        state = graph.run(essay="x", backend=backend)
        assert not any(call.answer for call in backend.calls)
        assert len(threads_of_the_language()) <= before + 1
        assert state["grade"] in ("a", "b")


def test_failures_are_the_originals_at_their_program_line() -> None:
    graph = judge.trace()
    for k in range(1, 5):
        boom = RuntimeError("boom")
        with no_threads_left():
            state = graph.run(essay="x", backend=counting(errors={k: boom}, delay=0.001))
            assert error_of(state.text) is boom
        assert __file__ in boom.__notes__[0]  # type: ignore[attr-defined]


def test_batches_and_hoisting() -> None:
    backend = counting()
    runs = judge.trace().run_batch([{"essay": f"e{i}"} for i in range(5)], backend=backend, warms_prefix=True)
    assert [run.error() for run in runs] == [None] * 5
    prefix = "<|im_start|>system\nYou grade essays.<|im_end|>\n<|im_start|>user\nIn short words: "
    assert (backend.calls[0].kind, backend.calls[0].prompt) == ("score", prefix)


def test_print() -> None:
    assert (
        str(judge.trace())
        == """\
judge(essay)
  turn   system
  text   'You grade essays.'
  end    system
  turn   user
  text   'In short words: {essay}!'
  end    user
  fork   into 2
    branch 'clarity'
      turn   user
      text   'Judge the clarity.'
      end    user
      turn   assistant
      gen    note max_tokens=8
      end    assistant
    branch 'depth'
      turn   user
      text   'Judge the depth.'
      end    user
      turn   assistant
      gen    note max_tokens=8
      end    assistant
  turn   user
  text   'Notes:\\n{clarity.note}\\n{depth.note}'
  end    user
  set    n = 2
  set    copy = '<{depth.note}>'
  scope  verdict_text
  turn   assistant
  gen    verdict
  text   '/'
  select grade ['a', 'b'] by token_length_normalized
  end    assistant
  text   '<{depth.note}>'"""
    )
    assert judge.trace().variables() == ["note", "n", "copy", "verdict_text", "verdict", "grade"]


def test_html() -> None:
    page = judge.trace("<b>&")._repr_html_()
    assert "&lt;b&gt;&amp;" in page
    assert page.count("<div") == page.count("</div>")
    assert "<i>join</i> gather_variable" in gathers.trace()._repr_html_()


def test_call_is_traced_with_its_own_defaults() -> None:
    @function(temperature=0.1)
    def inner(s, word):
        s += word + gen("x")
        return s["x"]

    @function(temperature=0.9)
    def outer(s, word):
        s += "in:" + s.call(inner, word + "!") + gen("y")

    backend = counting()
    assert outer.trace().run(word="w", backend=backend).text() == "w! n1in: n1 n2"
    assert [c.sampling.temperature for c in backend.calls] == [0.1, 0.9]


def test_each_read_is_of_its_moment() -> None:
    @function
    def program(s):
        s += gen("x")
        early = s["x"]
        s += gen("x")
        s += early + s["x"]

    assert program.trace().run(backend=counting()).text() == " n1 n2 n1 n2"


LINES: list[tuple[str, Any]] = [
    ("bool", lambda s, a: 1 if a else 2),
    ("eq", lambda s, a: s["x"] == "yes"),
    ("len", lambda s, a: len(a)),
    ("iter", lambda s, a: list(a)),
    ("int", lambda s, a: int(s["x"])),
    ("float", lambda s, a: float(a)),
    ("index", lambda s, a: range(a)),
    ("hash", lambda s, a: {a: 1}),
    ("getitem", lambda s, a: a[0]),
    ("contains", lambda s, a: "x" in a),
    (r"\.pages", lambda s, a: a.pages),
    ("split", lambda s, a: a.split()),
    ("startswith", lambda s, a: a.startswith("x")),
]


@pytest.mark.parametrize(("operation", "use"), LINES, ids=[name for name, _ in LINES])
def test_data_dependent_course_is_named(operation: str, use: Any) -> None:
    @function
    def program(s, a):
        s += gen("x")
        use(s, a)

    pattern = (
        rf"{__file__}:\d+: {operation} needs the value of the (argument 'a'|variable 'x'), which a trace does not know"
    )
    with pytest.raises(NotTraceable, match=pattern):
        program.trace()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda s, a: s.text(), "waits for what program 'program' writes"),
        (lambda s, a: s.fork(2).first(), "waits for what program 'program', branch 0 writes"),
        (lambda s, a: s.fork(2).best("x"), "waits for what"),
        (lambda s, a: s.fork(2).grow(1), "a group that grows cannot be traced"),
        (lambda s, a: judge("x"), "write s.call"),
        (lambda s, a: s.__iadd__(select("x", ["yes", f"no {a}"])), "into texts only"),
        (lambda s, a: s.__iadd__(gen("x", stop=f"{a}\n")), "into texts only"),
        (lambda s, a: s.__setitem__("l", [f"{a}"]), "a list or dict with unknown values"),
    ],
)
def test_what_cannot_be_traced_is_said(body: Any, message: str) -> None:
    def program(s: Any, a: Any) -> None:
        body(s, a)

    with pytest.raises(NotTraceable, match=message):
        function(program).trace()


def test_async_programs_cannot_be_traced() -> None:
    @function
    async def program(s):
        s += "x"

    with pytest.raises(NotTraceable, match="async program"):
        program.trace()


def test_mistakes_are_found_while_tracing() -> None:
    @function
    def program(s):
        s += user(user("x"))

    with pytest.raises(InvalidArgument, match="cannot begin inside"):
        program.trace()
    with pytest.raises(InvalidArgument, match="is a graph already"):
        judge.trace().program.trace("x")
    assert judge.trace().program.trace().name == "judge"


def test_text_with_private_characters_is_no_mark() -> None:
    @function
    def program(s, a):
        s += "\ue0001:0\ue001" + a

    assert program.trace().run(a="x", backend=counting()).text() == "\ue0001:0\ue001x"


# -- cache --------------------------------------------------------------------------------------------------------


def test_cache_computes_the_constant_beginning_and_runs_no_more_of_the_body() -> None:
    ran: list[str] = []

    @function
    def few_shot(s, question, examples=("a", "b")):
        for example in examples:
            s += f"Example {example}\n"
        s += f"Question: {question}"
        ran.append("too far")

    backend = ScriptedBackend()
    prefix = "Example a\nExample b\nQuestion: "
    assert few_shot.cache(backend) == prefix
    assert [(call.kind, call.prompt) for call in backend.calls] == [("score", prefix)]
    for lacking in ("score", "choice_logprobs"):
        other = ScriptedBackend(unsupported={lacking})
        assert few_shot.cache(other) == prefix
        assert (other.warmed, other.calls, ran) == ([prefix], [], [])
    assert few_shot.bind(examples=["z"]).with_options(backend=backend).cache() == "Example z\nQuestion: "


@pytest.mark.parametrize(
    "body",
    [
        lambda s, a: s.__iadd__("const" + gen("x") + "more"),
        lambda s, a: s.__iadd__("const").fork(2),
        lambda s, a: [s.__iadd__("const"), *a],
        lambda s, a: s.__iadd__("const").text(),
    ],
)
def test_cache_stops_at_whatever_is_unknown(body: Any) -> None:
    def program(s: Any, a: Any) -> None:
        body(s, a)

    assert function(program).cache(ScriptedBackend()) == "const"


def test_cache_of_a_chat_is_computed_with_the_backends_own_turns() -> None:
    backend = ScriptedBackend()
    text = judge.cache(backend)
    assert text.endswith("In short words: ")
    assert [(call.kind, call.prompt) for call in backend.calls] == [("score", text)]
    assert backend.open_streams == 0


def test_an_argument_alone_is_text() -> None:
    @function
    def program(s, q):
        s += q
        s += [q, "!"]
        s += user(q) + gen("x")

    whole = program.run("why", backend=ScriptedBackend("ok")).text()
    assert program.trace().run(q="why", backend=ScriptedBackend("ok")).text() == whole


# -- drawing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS_TO_DRAW, ids=lambda program: program.name)
def test_svg_shows_every_step_once_and_nothing_overlaps(program: Any) -> None:
    graph = program.trace()
    root = ElementTree.fromstring(graph.svg())
    boxes = [{k: int(v) for k, v in r.attrib.items() if k != "fill"} for r in root.iter(f"{SVG}rect")]
    titles = [title.text for title in root.iter(f"{SVG}title")]
    lines = [" ".join(line.split()) for line in str(graph).splitlines()[1:]]
    named = [re.sub("^branch '(.*)'$", r"branch \1", line) for line in lines]
    assert sorted(" ".join(title.split()) for title in titles[1:]) == sorted(named)
    for a, b in itertools.combinations(boxes, 2):
        apart = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
        assert apart or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
    for box in boxes:
        assert box["x"] + box["width"] <= int(root.attrib["width"])
        assert box["y"] + box["height"] <= int(root.attrib["height"])


def test_svg_is_well_formed_whatever_the_text() -> None:
    graph = judge.trace("<b>&\x00\x1b\ud800]]>")
    assert ElementTree.fromstring(graph.svg().encode("utf-8", "strict")) is not None


# -- reordering ---------------------------------------------------------------------------------------------------


@function
def grade(s, essay, criteria):
    s += system("You grade.")
    with s.user():
        s += f"Essay: {essay}\n"
        s += "Answer in one word.\n"
        s += f"Criteria: {criteria}\n"
        s += "Be fair.\n"
        s += "The grade:"
    s += assistant(gen("grade")) + user("Why?")
    with s.assistant():
        s += gen("why")
        s += " is the reason.\n"
        s += f"It is about {s['grade']}.\n"
        s += "Thank you.\n"


def test_constant_paragraphs_come_first_when_asked() -> None:
    graph = grade.trace()
    moved = graph.reordered()
    text = moved.run(essay="E", criteria="C", backend=ScriptedBackend("good")).text()
    assert "Answer in one word.\nBe fair.\nEssay: E\nCriteria: C\nThe grade:" in text
    assert prefix_text(moved).endswith("user\nAnswer in one word.\nBe fair.\nEssay: ")
    assert prefix_text(graph).endswith("user\nEssay: ")


def prefix_text(graph: Any) -> str:
    """Up to the first value, as the backend sees it."""
    backend = counting()
    graph.run_batch([], backend=backend, warms_prefix=True)
    return backend.calls[0].prompt


def test_nothing_is_reordered_unasked() -> None:
    program_text = grade.run("E", "C", backend=ScriptedBackend("good")).text()
    graph = grade.trace()
    assert graph.moved == ()
    assert graph.run(essay="E", criteria="C", backend=ScriptedBackend("good")).text() == program_text


def test_dependent_text_keeps_its_place() -> None:
    """Text with values, what ends within a line, and what follows a gen, fork or variable."""
    text = grade.trace().reordered().run(essay="E", criteria="C", backend=ScriptedBackend("good")).text()
    order = ["Essay: E", "Criteria: C", "The grade:", "Why?", "good is the reason.", "Thank you.", "It is about good."]
    assert [text.find(each) for each in order] == sorted(text.find(each) for each in order) != [-1] * len(order)

    @function
    def fixed(s, x):
        s += f"A {x}"
        s += " same line\n"
        s += f"B {x}\n"
        s += gen("y") + "rest\n"
        s["v"] = 1
        s += f"C {x}\n"
        with s.var_scope("scope"):
            s += "D\n"
        with s.fork(1) as branches:
            branches += "branch\n" + gen("z")
        s += "E\n"

    graph = fixed.trace()
    assert graph.reordered().ops == graph.ops
    assert graph.reordered().moved == ()


def test_what_moved_is_said() -> None:
    moved = grade.trace().reordered()
    assert moved.moved == (
        "'Answer in one word.\\n' before 'Essay: {essay}\\n'",
        "'Be fair.\\n' before 'Essay: {essay}\\n'",
        "'Thank you.\\n' before 'It is about {grade}.\\n'",
    )
    assert str(moved).splitlines()[-1] == f"  moved  {moved.moved[-1]}"
    assert moved.reordered().moved == moved.moved


def test_a_batch_shares_more_after_reordering() -> None:
    items = [{"essay": f"essay {i}", "criteria": "C"} for i in range(4)]
    plain, better = counting(), counting()
    grade.trace().run_batch(items, backend=plain, warms_prefix=True)
    grade.trace().reordered().run_batch(items, backend=better, warms_prefix=True)
    assert len(better.calls[0].prompt) > len(plain.calls[0].prompt) + 20
    assert sorted(len(c.prompt) for c in plain.calls[1:]) == sorted(len(c.prompt) for c in better.calls[1:])


def test_variants_of_a_graphs_program() -> None:
    @function(max_tokens=8)
    def program(s, question, style):
        s += f"Q: {question} ({style}) " + gen("x") + gen("y", max_tokens=5)

    graph = program.trace()
    expected = graph.run(question="why", style="long", backend=counting()).text()
    backend = counting()
    bound = graph.program.bind(question="why")
    assert bound.with_options(backend=backend, max_tokens=77).run(style="long").text() == expected
    assert [call.sampling.max_tokens for call in backend.calls] == [77, 5]
    assert bound.with_options(backend=counting())(style="long").text() == expected
    assert graph.program.cache(counting()) == bound.cache(counting()) == "Q: "
    with pytest.raises(InvalidArgument, match="program is a graph already"):
        bound.trace()
    with pytest.raises(UnknownParameter, match="did you mean 'style'"):
        graph.program.bind(stile="x")
    assert (graph.program.bound, graph.program.options) == ({}, program.options)


def test_a_graphs_program_in_a_class() -> None:
    class Suite:
        judge = judge.trace().program

    expected = judge.run("text", backend=ScriptedBackend("x")).text()
    assert Suite().judge.run(essay="text", backend=ScriptedBackend("x")).text() == expected
