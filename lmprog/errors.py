"""Errors of the language. Standard library only.

LmprogError                        base; `.hint` says what to do
+-- UnknownVariable (KeyError)     `s["x"]` of a name no step sets; lists the known names
+-- InvalidArgument (ValueError)   a value that can never work; raised where it is written
+-- UnknownParameter (TypeError)   a keyword nobody knows; guesses the typo
+-- UnsupportedParameter (ValueError)  known, but this backend has no such thing; names both
+-- NoBackend (RuntimeError)       a program was run with no backend given or set
+-- NotTraceable (RuntimeError)    a program cannot be traced; names the line and what to pass
+-- BlockingRead (RuntimeError)    a read that would block an event loop, or wait for itself
+-- MissingDependency (ImportError)    an extra is not installed; names the pip command
+-- BackendError                   the model side refused or failed; `.code` is stable over process borders
|   +-- RequestRefused (ValueError)    the request is wrong; nothing was computed
|   |   +-- PromptTooLong, ConstraintInvalid, ConstraintUnsupported, ConstraintTooLarge, ConstraintUnreachable,
|   |       UnencodableText
|   +-- ModelNotFound (LookupError), ModelUnsupported (ValueError)
|   +-- EngineFailed (RuntimeError)    a step of the model crashed; `__cause__` is the original
|   +-- BackendUnavailable (ConnectionError)   cannot be reached, or answered with a server error
+-- Cancelled (RuntimeError)       the run, branch or call was cancelled
+-- RunTimeout (TimeoutError)      a time limit that the caller set has passed
+-- IncompleteOutput (ValueError)  a constrained output was cut by max_tokens; has the partial text
+-- InvalidOutput (ValueError)     an output is not of the type it is read as; has the JSON pointer to the place
+-- ReplayMismatch (LookupError)   a call that a replay has no record of; says how it differs from the closest one
"""

from __future__ import annotations


class LmprogError(Exception):
    """Base of every error that lmprog raises on purpose."""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.hint = hint


class UnknownVariable(LmprogError, KeyError):
    def __str__(self) -> str:  # KeyError shows repr(args[0]), which garbles a sentence
        return str(self.args[0])


class InvalidArgument(LmprogError, ValueError):
    pass


class UnknownParameter(LmprogError, TypeError):
    pass


class UnsupportedParameter(LmprogError, ValueError):
    pass


class NoBackend(LmprogError, RuntimeError):
    pass


class NotTraceable(LmprogError, RuntimeError):
    pass


class BlockingRead(LmprogError, RuntimeError):
    pass


class MissingDependency(LmprogError, ImportError):
    pass


class BackendError(LmprogError):
    code = "backend_error"


class RequestRefused(BackendError, ValueError):
    code = "request_refused"


class PromptTooLong(RequestRefused):
    code = "prompt_too_long"


class ConstraintInvalid(RequestRefused):
    code = "constraint_invalid"


class ConstraintUnsupported(RequestRefused):
    code = "constraint_unsupported"


class ConstraintTooLarge(RequestRefused):
    code = "constraint_too_large"


class ConstraintUnreachable(RequestRefused):
    code = "constraint_unreachable"


class UnencodableText(RequestRefused):
    code = "unencodable_text"


class ModelNotFound(BackendError, LookupError):
    code = "model_not_found"


class ModelUnsupported(BackendError, ValueError):
    code = "model_unsupported"


class EngineFailed(BackendError, RuntimeError):
    code = "engine_failed"


class BackendUnavailable(BackendError, ConnectionError):
    code = "backend_unavailable"


class Cancelled(LmprogError, RuntimeError):
    code = "request_aborted"


class RunTimeout(LmprogError, TimeoutError):
    pass


class IncompleteOutput(LmprogError, ValueError):
    def __init__(self, message: str, partial: str) -> None:
        super().__init__(message)
        self.partial = partial


class InvalidOutput(LmprogError, ValueError):
    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class ReplayMismatch(LmprogError, LookupError):
    pass


def add_note(error: BaseException, note: str) -> None:
    """`error.add_note` of Python 3.11, also on 3.10; the same note once."""
    notes: list[str] = error.__dict__.setdefault("__notes__", [])
    if note not in notes:
        notes.append(note)


def _codes(base: type[LmprogError]) -> dict[str, type[LmprogError]]:
    found = {base.__dict__["code"]: base} if "code" in base.__dict__ else {}
    for child in base.__subclasses__():
        found.update(_codes(child))
    return found


def from_code(code: str, message: str) -> LmprogError:
    """The language's error for a backend's stable code; BackendError for one this version does not know."""
    return _codes(LmprogError).get(code, BackendError)(message)
