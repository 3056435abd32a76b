"""The words of the language: functions that build nodes, with every check that can be made before a model is near."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from lmprog import arguments
from lmprog.backends.base import Constraint
from lmprog.choices import METHODS, ChoicesMethod, token_length_normalized
from lmprog.errors import InvalidArgument
from lmprog.nodes import Appendable, Block, Gen, RoleBegin, RoleEnd, Select, Special, as_node

_BOOLEANS = {"true": True, "false": False}


class _Form(NamedTuple):
    """What shape an output has: how to force it, and how to read it."""

    constraint: Constraint | None
    convert: Callable[[str], Any] | None


@arguments.guess_unknown_keywords
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    min_tokens: int | None = None,
    n: int | None = None,
    best_of: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: int | Iterable[int] | None = None,
    stop_regex: str | None = None,
    ignore_eos: bool | None = None,
    seed: int | None = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    finish: Literal["close"] | None = None,
    regex: str | None = None,
    schema: Any = None,
    json_schema: Any = None,
    type: Any = None,
    dtype: Any = None,
    tools: Sequence[Callable[..., Any]] | None = None,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    heal: bool | None = None,
) -> Gen | Select:
    """Generate text, and keep it in the state's variable `name`.

    Parameters left out come from `run`, then `@function`, then the backend. Lengths are in tokens.
    stop: one text or several; the one that comes first in the output ends it and is not part of it.
    regex: the whole output matches it. dtype: str (in double quotes), int, float or bool, and the value is one (for
        str: the text, quotes included); together with regex, dtype only says how to read the output.
    schema, type (the same): a JSON schema as a dict (the value is the parsed JSON) or as JSON text (the value is text),
        a pydantic model, or another type (the value is one of it). json_schema: an older name of schema.
    tools: functions; the output is a call of one of them, and the value a `ToolCall`, see `lmprog.tools`.
    choices, choices_method: the same as `select`.
    heal: whether the last token before may be rewritten with what follows. None: only trailing spaces.
    finish: "close" brings a constrained output to its end within max_tokens: when few are left, only what leads to the
        shortest end is allowed.
    n: take this many samples; the value is the list of them, and the text goes on with the first.
    best_of: take this many, and keep the one with the highest mean log-probability per token, or the n best in order.
    logprobs, top_logprobs: reported by `get_meta_info(name)`.
    Raises InvalidArgument or UnknownParameter here, and not later, for what can be known here.
    """
    given = {key: value for key, value in locals().items() if key in arguments.CHECKS and value is not None}
    variable = arguments.variable_name(name)
    if choices is not None:
        forms = {"regex": regex, "schema": schema, "json_schema": json_schema, "type": type, "dtype": dtype}
        _refuse_beside_choices(given, **forms, tools=tools)
        return _select(variable, choices, choices_method, given)
    if choices_method is not None:
        raise InvalidArgument("choices_method has no meaning without choices.")
    form = _form(regex, _only_one(schema=schema, json_schema=json_schema, type=type, tools=tools), dtype, tools)
    checked_heal = None if heal is None else arguments.flag("heal", heal)
    return Gen(variable, arguments.sampling_from(given), form.constraint, checked_heal, form.convert)


@arguments.guess_unknown_keywords
def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str = token_length_normalized,
    *,
    seed: int | None = None,
    logprobs: bool = False,
) -> Select:
    """Write the best of several texts. Each is scored as a whole, on the text that it gives together with the prompt.

    This may differ from `gen(regex="a|b")`, which decides token by token and cannot take back a promising first token.
    choices: repeated ones count once; one alone is written without asking the model, unless logprobs is True.
    choices_method: how to compare, see `lmprog.choices`. temperature: above 0, draw from softmax(scores / temperature).
    `get_meta_info(name)` has the scores and token log-probabilities of all choices.
    """
    if choices is None:
        raise InvalidArgument("select needs choices.")
    given = {"temperature": temperature, "seed": seed, "logprobs": logprobs}
    return _select(arguments.variable_name(name), choices, choices_method, given)


def gen_int(name: str | None = None, **options: Any) -> Gen | Select:
    """`gen` of a whole number."""
    return gen(name, dtype=int, **options)


def gen_string(name: str | None = None, **options: Any) -> Gen | Select:
    """`gen` of a text in double quotes."""
    return gen(name, dtype=str, **options)


def special(token: str) -> Special:
    """A control token by its name. All other text is literal and never makes control tokens."""
    if not isinstance(token, str) or not token:
        raise InvalidArgument(f"special takes the name of a control token, not {token!r}.")
    return Special(token)


def role(name: str, expr: Appendable | None = None) -> Block:
    """A turn of any role that the model's chat template knows."""
    content = Block(()) if expr is None else as_node(expr)
    return RoleBegin(name) + content + RoleEnd(name)


def system(expr: Appendable | None = None) -> Block:
    return role("system", expr)


def user(expr: Appendable | None = None) -> Block:
    return role("user", expr)


def assistant(expr: Appendable | None = None) -> Block:
    return role("assistant", expr)


def system_begin() -> RoleBegin:
    return RoleBegin("system")


def system_end() -> RoleEnd:
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    return RoleBegin("user")


def user_end() -> RoleEnd:
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    return RoleEnd("assistant")


# -- choices ------------------------------------------------------------------------------------------------------


def _select(
    name: str | None, choices: Iterable[str], method: ChoicesMethod | str | None, given: Mapping[str, Any]
) -> Select:
    checked = arguments.sampling_from(given)
    return Select(
        name,
        arguments.choice_texts(choices),
        _method(method),
        temperature=checked.temperature or 0.0,
        seed=checked.seed,
        wants_logprobs=bool(checked.logprobs),
    )


def _method(method: ChoicesMethod | str | None) -> ChoicesMethod:
    if method is None:
        return token_length_normalized
    if isinstance(method, ChoicesMethod):
        return method
    if method not in METHODS:
        raise InvalidArgument(f"There is no choices_method {method!r};", hint=f"it is one of {', '.join(METHODS)}.")
    return METHODS[method]


def _refuse_beside_choices(given: Mapping[str, Any], **forms: Any) -> None:
    allowed = {"temperature", "seed", "logprobs"}
    for name in [*given, *(form for form, value in forms.items() if value is not None)]:
        if name not in allowed:
            raise InvalidArgument(f"{name} has no meaning together with choices.")


# -- forms of output ----------------------------------------------------------------------------------------------


def _only_one(**given: Any) -> Any:
    present = {name: value for name, value in given.items() if value is not None}
    if len(present) > 1:
        raise InvalidArgument(f"{' and '.join(present)} say the same thing; give one of them.")
    return next(iter(present.values()), None)


def _form(regex: str | None, schema: Any, dtype: Any, tools: Sequence[Callable[..., Any]] | None) -> _Form:
    if schema is not None:
        if regex is not None or dtype is not None:
            other = "regex" if regex is not None else "dtype"
            raise InvalidArgument(f"A schema and {other} both say what the output looks like; give one of them.")
        return _schema_form(schema) if tools is None else _tools_form(tools)
    form = _Form(None, None) if dtype is None else _dtype_form(dtype)
    if regex is not None:
        return _Form(Constraint("regex", arguments.regex("regex", regex)), form.convert)
    return form


def _dtype_form(dtype: Any) -> _Form:
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    if name not in _DTYPES:
        raise InvalidArgument(f"dtype must be str, int, float or bool, not {dtype!r};", hint="use type= for others.")
    return _DTYPES[name]


def _boolean(text: str) -> bool:
    if (word := text.strip().lower()) not in _BOOLEANS:
        raise ValueError(f"not true or false: {text!r}")
    return _BOOLEANS[word]


# A leading space is allowed because most tokenizers write a word together with the space before it.
_DTYPES: Mapping[str, _Form] = {
    "str": _Form(Constraint("regex", r' ?"[^"\\\x00-\x1f]*"'), None),  # a JSON string without escapes
    "int": _Form(Constraint("regex", r" ?-?(0|[1-9][0-9]*)"), int),
    "float": _Form(Constraint("regex", r" ?-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"), float),
    "bool": _Form(Constraint("regex", " ?([Tt]rue|[Ff]alse)"), _boolean),
}


def _schema_form(schema: Any) -> _Form:
    from lmprog.schema import to_json_schema

    constraint = Constraint("json_schema", to_json_schema(schema))
    if isinstance(schema, str):
        return _Form(constraint, None)
    return _Form(constraint, json.loads if isinstance(schema, Mapping) else functools.partial(_from_json, schema))


def _tools_form(tools: Sequence[Callable[..., Any]]) -> _Form:
    from lmprog.tools import Toolbox

    toolbox = Toolbox(tools)
    return _Form(Constraint("json_schema", toolbox.schema()), toolbox.read)


def _from_json(schema: Any, text: str) -> Any:
    from lmprog.schema import from_json

    return from_json(schema, text)
