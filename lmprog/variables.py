"""Variables of a state. Each setting of a name makes a new one, in program order, so that a read is never stale."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lmprog.errors import IncompleteOutput, InvalidArgument, add_note
from lmprog.record import Record

_IMMUTABLE = (str, int, float, bool, bytes, complex, type(None))


class Variable(ABC):
    """One setting of a name. `get` is for ready ones only."""

    record: Record | None = None  # the step that makes the value, if a step does

    @property
    @abstractmethod
    def is_ready(self) -> bool: ...

    @abstractmethod
    def get(self) -> Any: ...

    @abstractmethod
    def for_branch(self, name: str) -> Variable:
        """The same value for a branch, isolated: changing one does not change the other."""


class Assigned(Variable):
    """Set by Python: `s["x"] = value`."""

    is_ready = True

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return self._value

    def for_branch(self, name: str) -> Variable:
        return Assigned(copied(name, self._value))


class Written(Variable):
    """The text that a step writes, converted at the first read."""

    def __init__(self, name: str, record: Record, convert: Callable[[str], Any] | None = None) -> None:
        self._name, self.record, self._convert = name, record, convert
        self._value: Any = None
        self._error: Exception | None = None
        self._is_converted = False

    record: Record

    @property
    def is_ready(self) -> bool:
        return self.record.status == "done"

    def get(self) -> Any:
        if not self._is_converted:
            self._read()
            self._is_converted = True
        if self._error is not None:
            raise self._error
        return self._value

    def _read(self) -> None:
        try:
            self._value = self._converted()
        except Exception as error:
            add_note(error, f"In reading {self._name!r} from {self.record.text!r}, {self.record.location}.")
            self._error = error

    def _converted(self) -> Any:
        text, convert = self.record.text, self._convert
        if convert is None:
            return text
        if not self.record.meta["is_complete"]:
            raise IncompleteOutput(
                f"The output for {self._name!r} was cut at {len(text)} characters, before it was complete; "
                f"raise max_tokens. It ends with {text[-40:]!r}.",
                text,
            )
        return convert(text)

    def for_branch(self, name: str) -> Variable:
        return self if self._convert is None else Inherited(name, self)


class Inherited(Variable):
    """A branch's view of a value of its parent that may not be ready yet: copied at the first read."""

    def __init__(self, name: str, source: Variable) -> None:
        self._name, self._source, self.record = name, source, source.record
        self._copy: list[Any] = []  # empty until the first read

    @property
    def is_ready(self) -> bool:
        return self._source.is_ready

    def get(self) -> Any:
        if not self._copy:
            self._copy.append(copied(self._name, self._source.get()))
        return self._copy[0]

    def for_branch(self, name: str) -> Variable:
        return Inherited(name, self)


class Computed(Variable):
    """A value that follows from others, computed at the first read once `is_ready`."""

    def __init__(self, is_ready: Callable[[], bool], compute: Callable[[], Any], record: Record | None = None) -> None:
        self._is_ready, self._compute, self.record = is_ready, compute, record
        self._value: list[Any] = []

    @property
    def is_ready(self) -> bool:
        return self._is_ready()

    def get(self) -> Any:
        if not self._value:
            self._value.append(self._compute())
        return self._value[0]

    def for_branch(self, name: str) -> Variable:
        return Inherited(name, self)


def copied(name: str, value: Any) -> Any:
    """A copy that shares nothing that can change."""
    if isinstance(value, _IMMUTABLE):
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise InvalidArgument(
            f"s[{name!r}] cannot be copied into a branch ({error});", hint="keep it in a Python variable instead."
        ) from error


def known_names(variables: Mapping[str, Variable]) -> str:
    return ", ".join(repr(name) for name in variables) or "none"
