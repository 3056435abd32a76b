"""Templates from anywhere: what they can reach, how much they can do, and that they render as in transformers."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from lmprog_runtime.errors import ModelUnsupported, RequestRefused
from lmprog_runtime.model import template_sandbox
from lmprog_runtime.model.template_sandbox import SPARE_CHARACTERS, Template


def render(source: str, input_length: int = 100, **variables: Any) -> str:
    return Template(source).render(variables, input_length)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ dict.__base__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ ('%s'|attr('format')).__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ lipsum.__globals__ }}",
    ],
)
def test_the_internals_of_python_are_out_of_reach(source: str) -> None:
    try:
        text = render(source, messages=[])
    except (ModelUnsupported, RequestRefused):
        return
    assert text == ""  # an undefined value


def test_values_cannot_be_changed() -> None:
    messages = [{"role": "user"}]
    with pytest.raises(ModelUnsupported, match="leave its sandbox"):
        render("{{ messages.append(1) }}", messages=messages)
    assert messages == [{"role": "user"}]


RUNAWAYS = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested ranges with a filter": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}"
    "{% endfor %}",
    "recursive loop": "{% for a in range(99) recursive %}{{ loop(range(99)) if loop.depth < 9 }}{% endfor %}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "output": "{% for a in range(99999) %}{% for b in range(9999) %}0123456789{% endfor %}{% endfor %}",
    "repeated text": "{{ 'x' * 1000000000 }}",
    "repeated list": "{{ ([0] * 1000000000)|length }}",
    "repeated from the left": "{{ 1000000000 * 'x' }}",
    "range": "{{ range(1000000000)|list }}",
    "doubled by plus": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubled by tilde": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubled in a block": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "doubled by a format": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "doubled by a join": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "doubled by a method": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set ns.x = ''.join([ns.x, ns.x]) %}{% endfor %}",
    "replaced": "{% set x = 'x' * 900000 %}{{ x.replace('x', x)|length }}",
    "replaced by a filter": "{% set x = 'x' * 900000 %}{{ x|replace('x', x)|length }}",
    "padded": "{{ 'x'|center(1000000000) }}",
    "padded by a method": "{{ 'x'.ljust(1000000000) }}",
    "padded by a format": "{{ '%1000000000d' % 1 }}",
    "padded by a star": "{{ '%*d' % (1000000000, 1) }}",
    "padded by str.format": "{{ '{:1000000000}'.format(1) }}",
    "indented": "{{ ('x\n' * 999)|indent(1000000000) }}",
    "indented JSON": "{{ [1]|tojson(indent=1000000000) }}",
    "tabs": "{{ ('\t' * 99999).expandtabs(99999)|length }}",
    "formatted many times": "{% set x = 'x' * 900000 %}{{ ('{0}' * 9000).format(x)|length }}",
    "formatted from a list": "{% set x = ['x' * 900000] * 9000 %}{{ ('%s' % x)|length }}",
    "shown list": "{% set x = ['x' * 900000] * 90000 %}{{ x }}",
    "joined list": "{% set x = ['x' * 900000] * 90000 %}{{ x|join|length }}",
    "list as a text": "{% set x = ['x' * 900000] * 90000 %}{{ (x|string)|length }}",
    "list in a concatenation": "{% set x = ['x' * 900000] * 90000 %}{{ (x ~ 'x')|length }}",
    "list as JSON": "{% set x = ['x' * 900000] * 90000 %}{{ (x|tojson)|length }}",
    "summed lists": "{% set x = [[1]] * 90000 %}{{ (x|sum(start=[]))|length }}",
    "translated": "{% set x = 'x' * 900000 %}{{ x.translate({120: x})|length }}",
    "tags": "{{ ('<' * 900000)|striptags }}",
    "tags of markup": "{{ (('<' * 900000)|safe).striptags() }}",
    "endless block": "{% block a %}{{ self.a() }}{% endblock %}",
    "lists in lists": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
}


@pytest.mark.parametrize("source", RUNAWAYS.values(), ids=RUNAWAYS.keys())
def test_runaway_templates_are_stopped_soon(source: str) -> None:
    template = Template(source)
    start = time.process_time()
    with pytest.raises(RequestRefused, match=r"stopped|Range too big"):
        template.render({}, 100)
    assert time.process_time() - start < 4


def test_a_slow_template_is_stopped_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MOST_SECONDS", 0.0)
    with pytest.raises(RequestRefused, match="runs for more than 0 seconds"):
        render("{% for i in range(9999) %}{% endfor %}")


def test_constants_are_not_computed_while_compiling() -> None:
    Template("{{ 'x'|center(1000000000) }}{{ 'x' * 1000000000 }}")


@pytest.mark.parametrize("source", ["{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}", "{% if %}", "{{ x", "{% nope %}"])
def test_what_is_no_template_is_refused_when_it_is_loaded(source: str) -> None:
    with pytest.raises(ModelUnsupported, match="cannot be compiled"):
        Template(source)


def test_the_limit_of_the_output_follows_the_input() -> None:
    text = "x" * SPARE_CHARACTERS
    assert render("{{ a }}{{ a }}", input_length=len(text), a=text) == text + text
    with pytest.raises(RequestRefused, match="far more text"):
        render("{% for i in range(99) %}{% for j in range(9) %}{{ a }}{% endfor %}{% endfor %}", len(text), a=text)


def test_limits_hold_for_each_rendering_anew() -> None:
    template = Template("{% for i in range(90000) %}{% endfor %}ok")
    assert [template.render({}, 0) for _ in range(15)] == ["ok"] * 15


def test_a_refusal_of_the_template_is_told() -> None:
    with pytest.raises(RequestRefused, match=r"refuses these messages: Roles must alternate"):
        render("{{ raise_exception('Roles must alternate') }}")


def test_an_error_inside_the_template_is_told() -> None:
    with pytest.raises(RequestRefused, match=r"fails on these messages: .*no attribute 'x'"):
        render("{{ messages.x.y }}", messages={})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", '{\n "b": 1,\n "a": 2\n}'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in [1, 2, 3] if i != 2 %}{{ i }}{{ loop.last }}{% endfor %}", "1False3True"),
        ("{% for i in [] %}{% else %}none{% endfor %}", "none"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "2"),
        ("{{ dict(a=1)['a'] }}{{ none }}{{ nothing }}{{ 1.5 }}", "1None1.5"),
        (
            "{{ 'a' ~ 1 ~ none }}{{ 'b' + 'c' }}{{ 3 * 4 }}{{ 2 ** 3 }}{{ 'ab' * 2 }}{{ '%s!' % 'x' }}",
            "a1Nonebc128ababx!",
        ),
        ("{% macro f(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call f(1) %}c{% endcall %}", "[1c]"),
        ("{{ messages[::-1][0]['content'].split('</think>')[-1].lstrip('\n') | trim }}", "b"),
        ("{{ [1, 2] | map('string') | join(', ') }}{{ 'a,b'.replace(',', ';') }}", "1, 2a;b"),
    ],
)
def test_templates_render_as_in_transformers(source: str, expected: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": "a</think>\n b "}]
    assert render(source, messages=messages) == expected
    assert render_jinja_template([messages], chat_template=source)[0] == [expected]


def test_the_date_is_that_of_today() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_variables_are_those_that_the_template_reads() -> None:
    assert Template("{{ a }}{% set b = 1 %}{{ b }}{{ raise_exception(c) }}").variables == {"a", "c"}
