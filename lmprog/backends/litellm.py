"""Any provider that the `litellm` package knows (extra `litellm`).

    LiteLLM("gemini/gemini-2.5-flash")                       keys come from the provider's environment variables
    LiteLLM("openai/my-model", api_base="http://127.0.0.1:8000/v1", api_key="none")

What is supported is what litellm says of the model. `select` makes the API answer with one of the choices, where the
provider has structured outputs, and has no probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmprog.backends.base import GenerateCall, GenerateResult
from lmprog.backends.openai import chat_parameters
from lmprog.backends.openai_answers import Collector
from lmprog.backends.remote import ChatBackend, Message, client_package
from lmprog.backends.threads import Report

_NEEDS: Mapping[str, str] = {"json_schema": "response_format", "score": "response_format"}


class LiteLLM(ChatBackend):
    """model_name: with the provider before it, as litellm wants it. options: for each `litellm.completion` call.

    max_concurrency: calls under way at a time, each on a thread. Raises MissingDependency.
    """

    name = "litellm"

    def __init__(self, model_name: str, *, max_concurrency: int = 64, **options: Any) -> None:
        self._package = client_package("litellm")
        super().__init__(model_name, max_concurrency)
        self._options = {"num_retries": 0, "max_retries": 0, **options}
        provider = options.get("custom_llm_provider")
        supported = self._package.get_supported_openai_params(model_name, custom_llm_provider=provider)
        self._supported = frozenset(supported or ())

    def supports(self, parameter: str) -> bool:
        return parameter == "roles" or _NEEDS.get(parameter, parameter) in self._supported

    def chat(self, messages: Sequence[Message], call: GenerateCall, report: Report) -> GenerateResult:
        body = {**self._options, **chat_parameters(call, "max_tokens")}
        return Collector(call, report).chat(
            self._package.completion(model=self.model_name, messages=list(messages), **body)
        )
