"""From Python types to forms."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime
from enum import Enum
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from lmprog.errors import InvalidArgument
from lmprog.schema import docstrings, forms, models
from lmprog.schema.forms import Form
from lmprog.schema.objects import Member, ObjectForm

Variables = Mapping[Any, Form]  # type variable to the form of what stands for it

_SCALARS: dict[Any, Form] = {
    None: forms.NULL,
    type(None): forms.NULL,
    bool: forms.BOOLEAN,
    int: forms.INTEGER,
    float: forms.NUMBER,
    str: forms.TEXT,
    date: forms.DATE,
    datetime: forms.MOMENT,
    Any: forms.ANYTHING,
    object: forms.ANYTHING,
    **dict.fromkeys((list, typing.List), forms.ListForm(forms.ANYTHING, list)),  # noqa: UP006 - users may write either
    **dict.fromkeys((tuple, typing.Tuple), forms.ListForm(forms.ANYTHING, tuple)),  # noqa: UP006
    **dict.fromkeys((dict, typing.Dict), forms.DictForm(forms.TEXT, forms.ANYTHING)),  # noqa: UP006
}
_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Iterable)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_WRAPPERS = ("Final", "ReadOnly", "Required", "NotRequired")
_KNOWN = (
    "dict schemas, JSON text, pydantic models, dataclasses, TypedDict, Enum, Literal, None, bool, int, float, str, "
    "date, datetime, Any, and list, tuple, dict, Optional and Union of them"
)
_LIMITS = {
    ("number", "ge"): "minimum",
    ("number", "gt"): "exclusiveMinimum",
    ("number", "le"): "maximum",
    ("number", "lt"): "exclusiveMaximum",
    ("number", "multiple_of"): "multipleOf",
    ("string", "min_length"): "minLength",
    ("string", "max_length"): "maxLength",
    ("string", "pattern"): "pattern",
    ("array", "min_length"): "minItems",
    ("array", "max_length"): "maxItems",
    ("object", "min_length"): "minProperties",
    ("object", "max_length"): "maxProperties",
}
_LIMIT_NAMES = tuple(dict.fromkeys(name for _, name in _LIMITS))


def form_of(spec: Any) -> Form:
    """The form of a type. Raises InvalidArgument for types that have none."""
    return _Resolver().form(spec, {})


def arguments_form(function: Callable[..., Any]) -> ObjectForm:
    """The arguments of a call, by name, as an object; it reads as a dict of them."""
    resolver = _Resolver()
    form = ObjectForm(f"{function.__name__}_arguments", "", dict)
    hints = _type_hints(function)
    form.members = resolver.parameters(function, hints, {}, docstrings.descriptions(function))
    return form


class _Resolver:
    """One walk over a type. Remembers the named types that it has met, because they may refer to themselves."""

    def __init__(self) -> None:
        self._named: dict[Any, Form] = {}

    def form(self, spec: Any, variables: Variables) -> Form:
        if isinstance(spec, TypeVar):
            return variables.get(spec, forms.ANYTHING)
        if _is_hashable(spec) and spec in _SCALARS:
            return _SCALARS[spec]
        origin = get_origin(spec)
        if origin is not None:
            return self._generic(origin, spec, variables)
        if isinstance(spec, NewType):
            return self.form(spec.__supertype__, variables)
        if isinstance(spec, dataclasses.InitVar):
            return self.form(spec.type, variables)
        if _is_alias(spec):
            return self._alias(spec, ())
        if isinstance(spec, type):
            return self._class(spec, ())
        raise _unknown(spec)

    def _generic(self, origin: Any, spec: Any, variables: Variables) -> Form:
        args = get_args(spec)
        if origin is typing.Annotated:
            return self._annotated(args, variables)
        if getattr(origin, "_name", None) in _WRAPPERS:
            return self.form(args[0], variables)
        if origin is Literal:
            return forms.Constants([(forms.written_constant(each, "A Literal"), each) for each in args])
        if origin in (Union, types.UnionType):
            return forms.UnionForm([self.form(each, variables) for each in args])
        if origin in _LISTS:
            return forms.ListForm(self.form(args[0], variables), list)
        if origin in _DICTS:
            return self._dict(spec, variables)
        if origin is tuple:
            return self._tuple(args, variables)
        arguments = tuple(self.form(each, variables) for each in args)
        return self._alias(origin, arguments) if _is_alias(origin) else self._class(origin, arguments)

    def _annotated(self, args: tuple[Any, ...], variables: Variables) -> Form:
        """Of what is written beside a type: texts describe it, limits (as `annotated_types`, pydantic and msgspec have
        them) limit it, and the rest is for others."""
        form = self.form(args[0], variables)
        for each in _flat_metadata(args[1:]):
            if (description := _description(each)) is not None:
                form = forms.Described(form, description)
            if limits := _limits(form, each, args[0]):
                form = forms.Limited(form, limits)
        return form

    def _tuple(self, args: tuple[Any, ...], variables: Variables) -> Form:
        if len(args) == 2 and args[1] is Ellipsis:
            return forms.ListForm(self.form(args[0], variables), tuple)
        return forms.TupleForm([self.form(each, variables) for each in args])

    def _dict(self, spec: Any, variables: Variables) -> Form:
        key, value = get_args(spec)
        key_form = self.form(key, variables)
        is_text = isinstance(key_form, forms.Constants) and all(isinstance(each, str) for each in key_form.written)
        if key_form is not forms.TEXT and not is_text:
            raise InvalidArgument(f"The keys of {spec} must be texts: str, or a Literal or Enum of texts.")
        return forms.DictForm(key_form, self.form(value, variables))

    # -- named types ----------------------------------------------------------------------------------------------

    def _class(self, cls: Any, arguments: tuple[Form, ...]) -> Form:
        key = (cls, *arguments)
        if key not in self._named:
            self._named[key] = self._new_class(cls, arguments, key)
        return self._named[key]

    def _new_class(self, cls: Any, arguments: tuple[Form, ...], key: Any) -> Form:
        described = docstrings.summary(cls)
        if models.is_model(cls):
            return models.ModelForm.of_model(cls)
        if models.is_pydantic_dataclass(cls):
            return models.ModelForm.of_dataclass(cls)
        if issubclass(cls, Enum):
            return _enum(cls)
        variables = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
        if _is_dataclass(cls):
            form = self._named[key] = ObjectForm(cls.__name__, described, lambda values: cls(**values))
            form.members = self.parameters(cls, _type_hints(cls), variables, _field_descriptions(cls))
            return form
        if issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
            form = self._named[key] = ObjectForm(cls.__name__, described, dict)
            form.members = self._keys(cls, variables)
            return form
        raise _unknown(cls)

    def _keys(self, cls: Any, variables: Variables) -> list[Member]:
        described = docstrings.descriptions(cls)
        return [
            Member(name, _described(self.form(hint, variables), described.get(name)), _is_required(cls, name, hint))
            for name, hint in _type_hints(cls).items()
        ]

    def _alias(self, alias: Any, arguments: tuple[Form, ...]) -> Form:
        """`type Name[T] = ...` of Python 3.12."""
        key = (alias, *arguments)
        if key not in self._named:
            form = self._named[key] = forms.AliasForm(alias.__name__)
            form.target = self.form(alias.__value__, dict(zip(alias.__type_params__, arguments, strict=False)))
        return self._named[key]

    def parameters(
        self, function: Any, hints: Mapping[str, Any], variables: Variables, described: Mapping[str, str]
    ) -> list[Member]:
        members = []
        for parameter in inspect.signature(function).parameters.values():
            name = parameter.name
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise InvalidArgument(
                    f"{function.__name__} takes {parameter}, which cannot be given by name; use named parameters."
                )
            if name not in hints:
                raise InvalidArgument(f"The parameter {name!r} of {function.__name__} has no type; annotate it.")
            form = _described(self.form(hints[name], variables), described.get(name))
            members.append(Member(name, form, parameter.default is parameter.empty))
        return members


# -- parts ----------------------------------------------------------------------------------------------------------


def _unknown(spec: Any) -> InvalidArgument:
    shown = spec.__qualname__ if isinstance(spec, type) else repr(spec)
    return InvalidArgument(f"There is no JSON schema for {shown};", hint=f"there are for {_KNOWN}.")


def _is_hashable(spec: Any) -> bool:
    return isinstance(spec, collections.abc.Hashable)


def _is_dataclass(cls: Any) -> bool:
    return dataclasses.is_dataclass(cls)


def _is_alias(spec: Any) -> bool:
    return type(spec).__name__ == "TypeAliasType"


def _enum(cls: type[Enum]) -> Form:
    if not len(cls):
        raise InvalidArgument(f"The Enum {cls.__name__} has no members.")
    values = [(forms.written_constant(each, f"{cls.__name__}.{each.name}"), each) for each in cls]
    return forms.Constants(values, docstrings.summary(cls))


def _type_hints(documented: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(documented, include_extras=True)
    except NameError:
        return _local_type_hints(documented)


def _local_type_hints(documented: Any) -> dict[str, Any]:
    """A class that was defined inside a function may at least refer to itself."""
    own = {**vars(documented), documented.__name__: documented} if isinstance(documented, type) else {}
    try:
        return typing.get_type_hints(documented, localns=own, include_extras=True)
    except NameError as error:
        raise InvalidArgument(
            f"An annotation of {documented.__name__} cannot be understood: {error};",
            hint="define what it names at the top level of a module.",
        ) from None


def _field_descriptions(cls: Any) -> dict[str, str]:
    own = {f.name: f.metadata["description"] for f in dataclasses.fields(cls) if "description" in f.metadata}
    return {**docstrings.descriptions(cls), **own}


def _described(form: Form, description: str | None) -> Form:
    return form if description is None else forms.Described(form, description)


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    """A marker in the annotation counts; with annotations as text, Python itself does not see it."""
    origin = get_origin(hint)
    while getattr(origin, "_name", None) == "ReadOnly" or origin is typing.Annotated:
        hint = get_args(hint)[0]
        origin = get_origin(hint)
    marker = getattr(origin, "_name", None)
    return marker == "Required" if marker in ("Required", "NotRequired") else name in cls.__required_keys__


def _flat_metadata(metadata: tuple[Any, ...]) -> list[Any]:
    """Pydantic's `Field(...)` keeps its limits one level deeper."""
    deeper = [getattr(each, "metadata", None) for each in metadata]
    return [*metadata, *(limit for limits in deeper if isinstance(limits, list) for limit in limits)]


def _description(metadata: Any) -> str | None:
    if isinstance(metadata, str):
        return metadata
    texts = (getattr(metadata, attribute, None) for attribute in ("description", "documentation"))
    return next((text for text in texts if isinstance(text, str)), None)


def _limits(form: Form, metadata: Any, spec: Any) -> dict[str, Any]:
    found = {name: value for name in _LIMIT_NAMES if (value := getattr(metadata, name, None)) is not None}
    for name, value in found.items():
        if (form.kind, name) not in _LIMITS or not isinstance(value, int | float | str):
            raise InvalidArgument(f"The limit {name}={value!r} has no meaning in JSON for {spec}.")
    return {_LIMITS[form.kind, name]: value for name, value in found.items()}
