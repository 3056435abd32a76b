"""Runs a model's Jinja template where it can reach nothing and cannot run away.

Templates come with model files, from anywhere. Jinja's immutable sandbox keeps them from Python's internals, but not
from nested loops over huge ranges or from strings that double; so the syntax tree is given counters before it is
compiled: every turn of a loop and every call of a macro is a step, and every text or list that is made counts with its
length. The environment is otherwise the one of transformers, so that templates render as their authors saw them.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.visitor
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from lmprog_runtime.errors import ModelUnsupported, RequestRefused

MOST_STEPS = 300_000
"""Loop turns and macro calls of one rendering. A chat of 10,000 messages takes some 50,000."""

MOST_SECONDS = 5.0

SPARE_CHARACTERS = 1_000_000
"""How much longer than four times its input an output, or any text on the way to it, may be."""

MOST_COPIES = 50
"""How often the longest allowed text may be made in one rendering, all pieces taken together."""

MOST_NUMBER_BITS = 4096

MOST_PADDING = 100_000


class _LimitReached(Exception):
    """A template made too much or ran too long."""


class _Refusal(Exception):
    """The template called raise_exception."""


class Template:
    """A compiled template. Thread-safe. Raises ModelUnsupported when the source is no valid template."""

    def __init__(self, source: str) -> None:
        environment = _Environment()
        try:
            self.variables = frozenset(
                meta.find_undeclared_variables(environment.parse(source)) - set(environment.globals)
            )
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            reason = error if isinstance(error, jinja2.TemplateError) else "it is nested too deep"
            raise ModelUnsupported(f"The model's chat template cannot be compiled: {reason}.") from error

    def render(self, variables: Mapping[str, Any], input_length: int) -> str:
        """The output for `variables`, which hold `input_length` characters.

        Raises RequestRefused when the template refuses them, fails on them, or exceeds a limit.
        """
        token = _budget.set(_Budget(4 * input_length + SPARE_CHARACTERS))
        try:
            return "".join(self._template.generate(**variables))
        except _Refusal as refusal:
            raise RequestRefused(f"The model's chat template refuses these messages: {refusal}") from None
        except _LimitReached as error:
            raise RequestRefused(f"The model's chat template was stopped: {error}.") from None
        except SecurityError as error:
            raise ModelUnsupported(f"The model's chat template tries to leave its sandbox: {error}.") from error
        except (RecursionError, MemoryError) as error:
            raise RequestRefused("The model's chat template was stopped: it nests too deep.") from error
        except Exception as error:  # whatever the template's own expressions raise
            raise RequestRefused(f"The model's chat template fails on these messages: {error}.") from error
        finally:
            _budget.reset(token)


class _Budget:
    """What one rendering may still do."""

    def __init__(self, longest: int) -> None:
        self._longest, self._characters_left = longest, MOST_COPIES * longest
        self._steps_left = MOST_STEPS
        self._deadline = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _LimitReached(f"it takes more than {MOST_STEPS:,} steps")
        if self._steps_left % 256 == 0 and time.monotonic() > self._deadline:
            raise _LimitReached(f"it runs for more than {MOST_SECONDS:g} seconds")

    def make(self, length: int) -> None:
        """Account for a text or list of this length, before it is made where that is possible."""
        self._characters_left -= length
        if length > self._longest or self._characters_left < 0:
            raise _LimitReached("it makes far more text than it is given")


_budget: ContextVar[_Budget] = ContextVar("budget")


def _sized(value: Any) -> Any:
    if isinstance(value, (str, list, tuple, dict)):
        _budget.get().make(len(value))
    return value


def _weigh(value: Any) -> None:
    """Account for the text that a value would be: of a list, one long text in it many times over."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    _sized(value)
    if isinstance(value, (list, tuple)):
        for item in value:
            _budget.get().step()
            _weigh(item)


def _check_growth(name: str, subject: Any, arguments: tuple[Any, ...]) -> None:
    """Refuse, before they run, the few operations that make much from little or search without bound."""
    if name in _UNBOUNDED:
        raise _LimitReached(f"it uses {name}, whose work has no bound")
    if any(isinstance(argument, int) and argument > MOST_PADDING for argument in arguments):
        raise _LimitReached(f"it pads or repeats by more than {MOST_PADDING:,}")
    if name in _SHOWN:
        _weigh(subject)
    if name == "replace" and len(arguments) > 1:
        old, new = str(arguments[0]), str(arguments[1])
        _budget.get().make(str(subject).count(old) * len(new))
    if name == "format":
        _check_format(str(subject), arguments)


_UNBOUNDED = frozenset({"expandtabs", "pprint", "striptags", "sum", "translate", "urlize", "wordwrap"})
_SHOWN = frozenset({"join", "string", "tojson"})


def _check_format(pattern: str, arguments: tuple[Any, ...]) -> None:
    if re.search(r"\d{5}", pattern):
        raise _LimitReached("it formats to a width of over four digits")
    for argument in arguments:
        _weigh(argument)
    longest = max((len(argument) for argument in arguments if isinstance(argument, str)), default=0)
    _budget.get().make((pattern.count("%") + pattern.count("{")) * longest)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # `optimized` would compute constant expressions while compiling, outside of any budget
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _GenerationBlocks]
        )
        self.filters = {name: _bounded(name, function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _to_json, "count_step": _count_step, "count_text": _count_text, "concat": _concat}
        del self.globals["lipsum"]  # makes as much text as it is asked for
        self.globals |= {"raise_exception": _raise, "strftime_now": _now, "dict": _make_dict, "namespace": _Namespace}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _with_counters(super()._parse(source, name, filename))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - the base's names
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        if isinstance(subject := getattr(method, "__self__", None), str):
            name, given = method.__name__, (*args, *kwargs.values())
            _check_growth(name, given[0] if name == "join" and given else subject, given)
        return _sized(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_growth("format", left, right if isinstance(right, tuple) else (right,))
        elif operator in ("*", "**"):
            _check_product(operator, left, right)
        return _sized(super().call_binop(context, operator, left, right))


def _check_product(operator: str, left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
            _budget.get().make(len(sequence) * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MOST_NUMBER_BITS:
            raise _LimitReached(f"it computes with numbers of over {MOST_NUMBER_BITS} bits")


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose growth is checked before, and whose result after. Keeps what it asks Jinja to pass it."""
    is_passed_context = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        subject, *rest = args[1:] if is_passed_context else args
        _check_growth(name, subject, (*rest, *kwargs.values()))
        return _sized(function(*args, **kwargs))

    return checked


def _with_counters(tree: nodes.Template) -> nodes.Template:
    """Count loop turns, macro calls and text. Filters, unlike names, cannot be replaced by a template."""
    for loop in tree.find_all(nodes.For):
        if loop.test is not None:
            loop.test = nodes.And(_filter(nodes.Const(True), "count_step"), loop.test).set_lineno(loop.lineno)
    blocks: list[nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block]
    blocks = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
    blocks += [*tree.find_all(nodes.CallBlock), *tree.find_all(nodes.Block)]
    for block in blocks:
        block.body.insert(0, nodes.ExprStmt(_filter(nodes.Const(True), "count_step")).set_lineno(block.lineno))
    for output in tree.find_all(nodes.Output):
        output.nodes = [_filter(node, "count_text") for node in output.nodes]
    _Concatenations().visit(tree)
    return tree


class _Concatenations(jinja2.visitor.NodeTransformer):
    """Makes `a ~ b` a filter that counts."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the base's convention
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes).set_lineno(node.lineno), "concat")


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    made = nodes.Filter(node, name, [], [], None, None)
    made.set_lineno(node.lineno or 1)
    return made


def _count_step(value: bool) -> bool:
    _budget.get().step()
    return value


def _count_text(value: Any) -> str:
    _weigh(value)
    return str(value)


def _concat(parts: list[Any]) -> str:
    _weigh(parts)
    return str(_sized("".join(map(str, parts))))


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """transformers' own: Jinja's escapes HTML characters, which models were not trained on."""
    _check_growth("tojson", value, (indent,))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return str(_sized(text))


def _raise(message: object) -> NoReturn:
    raise _Refusal(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Not the class itself, whose attributes lead to others."""
    return dict(*args, **kwargs)


class _Namespace(Namespace):
    """Takes no names of Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        namespace, *rest = args
        for name in dict(*rest, **kwargs):
            _check_name(name)
        Namespace.__init__(namespace, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - declared by the base as it is here

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)
