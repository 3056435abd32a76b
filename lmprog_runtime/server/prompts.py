"""From the prompts and messages of a request to token ids. Text never makes control tokens; only the model's own chat
template does. Runs off the event loop: long prompts take a while to encode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmprog_runtime.errors import PromptTooLong, RequestRefused
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.protocol import Message, Prompt, Tool
from lmprog_runtime.server.tools import in_plain_turns, with_parsed_arguments, with_tool_text

MOST_CHARACTERS_PER_TOKEN = 64
"""A prompt with more characters per token of the context cannot fit; refused before encoding."""


def prompt_ids(runtime: LocalRuntime, prompt: Prompt) -> list[list[int]]:
    """One list of ids per prompt; ids are used as given, text is encoded without special tokens."""
    prompts: Sequence[Any] = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
    if not prompts:
        raise RequestRefused("prompt is an empty list; give at least one prompt.")
    return [_one(runtime, item, index) for index, item in enumerate(prompts)]


def _is_ids(prompt: Prompt) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


def _one(runtime: LocalRuntime, item: str | list[int], index: int) -> list[int]:
    if not item:
        raise RequestRefused(f"prompt {index} is empty; give at least one token.")
    if isinstance(item, str):
        return [*runtime.tokenizer.bos_ids, *encode(runtime, runtime.tokenizer.at_start(item))]
    return item


def encode(runtime: LocalRuntime, text: str) -> list[int]:
    """Ids of a text; PromptTooLong before encoding when it cannot fit."""
    check_length(runtime, len(text))
    return runtime.tokenizer.encode(text)


def check_length(runtime: LocalRuntime, characters: int) -> None:
    most = runtime.engine.context_length * MOST_CHARACTERS_PER_TOKEN
    if characters > most:
        raise PromptTooLong(f"The prompt has {characters} characters; at most {most} can fit this model's context.")


def chat_ids(
    runtime: LocalRuntime,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Ids of a conversation in the model's own template; tools are described in text where it has no place for them."""
    plain = [message_dict(message) for message in messages]
    check_length(runtime, sum(len(str(message["content"])) for message in plain))
    shown = [tool.model_dump(exclude_none=True) for tool in tools] if tools else None
    if not runtime.chat.takes_tools:
        plain = [in_plain_turns(message) for message in plain]
        plain, shown = with_tool_text(plain, tools or ()), None
    else:
        plain = [with_parsed_arguments(message) for message in plain]
    return runtime.chat.render(
        plain,
        add_generation_prompt=add_generation_prompt and not continue_final_message,
        continue_final_message=continue_final_message,
        tools=shown,
        variables=variables,
    )


def message_dict(message: Message) -> dict[str, Any]:
    """A message as templates read it: content parts joined, fields that were not given left out."""
    parts = message.content
    text = parts if isinstance(parts, str) or parts is None else "".join(part.text for part in parts)
    given = message.model_dump(exclude_none=True, exclude={"content", "role", "annotations", "refusal"})
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": text if text is not None else message.refusal or "", **given}


def opens_reasoning(runtime: LocalRuntime, token_ids: Sequence[int]) -> bool:
    """Whether a prompt ends inside the tag that models put around their reasoning."""
    return runtime.tokenizer.decode(token_ids[-16:]).rstrip().endswith("<think>")
