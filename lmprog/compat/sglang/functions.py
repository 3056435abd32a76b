"""SGLang's `function`: programs whose options have its names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import lmprog
from lmprog.arguments import CHECKS
from lmprog.backends.base import Backend
from lmprog.compat.sglang.states import ProgramState
from lmprog.compat.sglang.words import translated
from lmprog.program import Program
from lmprog.state import State

_DEFAULT_NEW_TOKENS = 128
_OPTIONS = (
    frozenset(CHECKS)
    | frozenset(("max_new_tokens", "min_new_tokens", "return_logprob", "logprob_start_len", "top_logprobs_num"))
    | frozenset(("return_text_in_logprobs",))
)


def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    if func is not None:
        return SglFunction(func, num_api_spec_tokens)
    return functools.partial(SglFunction, num_api_spec_tokens=num_api_spec_tokens)


class SglFunction:
    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.func, self.num_api_spec_tokens = func, num_api_spec_tokens
        self.bind_arguments = dict(bind_arguments or {})
        program: Program[Any, Any] = lmprog.function(max_tokens=_DEFAULT_NEW_TOKENS)(_on_program_states(func))
        self.program = program.bind(**self.bind_arguments)
        functools.update_wrapper(self, func)

    def bind(self, **values: Any) -> SglFunction:
        return SglFunction(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **values})

    def run(
        self,
        *args: Any,
        stream: bool = False,
        backend: Backend | None = None,
        use_thread: bool = True,  # noqa: ARG002 - states need no thread either way
        **kwargs: Any,
    ) -> ProgramState:
        options = self._options(kwargs, backend)
        return ProgramState(self.program.run(*args, stream=stream, **options))

    __call__ = run

    def run_batch(
        self,
        batch_kwargs: Iterable[Any],
        *,
        backend: Backend | None = None,
        num_threads: str | int = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        items = [tuple(item) if isinstance(item, list) else item for item in batch_kwargs]
        runs = self.program.run_batch(
            items,
            num_threads=num_threads,
            progress_bar=progress_bar,
            generator_style=generator_style,
            **self._options(kwargs, backend),
        )
        return map(ProgramState, runs) if generator_style else [ProgramState(run) for run in runs]

    def trace(self, *, backend: Backend | None = None, **kwargs: Any) -> Any:  # noqa: ARG002 - traces need none
        return self.program.trace(**kwargs)

    def cache(self, backend: Backend | None = None) -> str:
        return self.program.cache(backend)

    def _options(self, given: Mapping[str, Any], backend: Backend | None) -> dict[str, Any]:
        """Arguments of the program as they are, options by lmprog's names."""
        parameters = self.program.__signature__.parameters
        names = [name for name in given if name in _OPTIONS and name not in parameters]
        options = translated({name: given[name] for name in names})
        options |= {"backend": backend, "num_api_spec_tokens": self.num_api_spec_tokens}
        return {**{k: v for k, v in given.items() if k not in names}, **options}


def _on_program_states(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def body(state: State, *args: Any, **kwargs: Any) -> Any:
        return func(ProgramState(state), *args, **kwargs)

    return body
