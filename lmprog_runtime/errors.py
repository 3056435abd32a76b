"""Errors of the runtime. Light: standard library only.

    RuntimeFault                      base; `.code` is the stable name that crosses process borders
    +-- RequestRefused (ValueError)   the request is wrong; nothing was computed
    |   +-- PromptTooLong             does not fit the context or the KV pool; names both numbers
    |   +-- ConstraintInvalid         the regex / schema / grammar is malformed
    |   +-- ConstraintUnsupported     well-formed, but a named construct cannot be enforced
    |   +-- ConstraintTooLarge        a limit on states, bytes or time was reached inside the compiler
    |   +-- ConstraintUnreachable     this tokenizer cannot produce any text that satisfies it
    |   +-- UnencodableText           the tokenizer has no tokens for a character; names it and its offset
    +-- ModelNotFound (LookupError)   no such model; lists what was looked for, and where
    +-- ModelUnsupported (ValueError) found, but this runtime cannot run it correctly
    +-- EngineFailed (RuntimeError)   a step crashed; `__cause__` is the original exception
    +-- RequestAborted (RuntimeError) cancelled by its owner, or the engine was shut down

Every message says in one sentence what happened and what to do about it.
"""

from __future__ import annotations


class RuntimeFault(Exception):
    """Base of every error that lmprog_runtime raises on purpose."""

    code = "runtime_fault"


class RequestRefused(RuntimeFault, ValueError):
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


class ModelNotFound(RuntimeFault, LookupError):
    code = "model_not_found"


class ModelUnsupported(RuntimeFault, ValueError):
    code = "model_unsupported"


class EngineFailed(RuntimeFault, RuntimeError):
    code = "engine_failed"


class RequestAborted(RuntimeFault, RuntimeError):
    code = "request_aborted"
