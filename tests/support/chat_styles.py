"""Small tokenizers and chat templates in the styles of well-known families, each as transformers' tokenizer and ours.

The templates are written here after the published formats; they keep what makes each style hard: trimmed contents,
turns merged or refused, spaces beside contents, answers that are written differently once they are history.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

import tokenizers
from tokenizers import models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lmprog_runtime.model.chat import ChatTemplate
from lmprog_runtime.model.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital of France is Paris.",
    "Please answer the question: how many apples are there? There are 12 apples, and 30 pears in the basket!",
    "user assistant system model tool Hello there, you are a helpful assistant. Thank you very much.",
    "Here is some code:\n\n    def add(a, b):\n        return a + b\n\nIt adds two numbers.\n  - one\n  - two\n",
    "l'été à la plage, das schöne Mädchen, 你好世界, こんにちは 😀😨 <think> </think> [INST] [/INST] <<SYS>>",
]

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Style(NamedTuple):
    name: str
    reference: PreTrainedTokenizerFast
    tokenizer: Tokenizer
    chat: ChatTemplate


class _Recipe(NamedTuple):
    template: str
    specials: tuple[str, ...]
    named: dict[str, str]
    kind: str  # "bytes" or "pieces"
    edits: dict[str, Any] = {}  # noqa: RUF012 - of the tokenizer.json
    flags: dict[str, bool] = {}  # noqa: RUF012 - of the special tokens


LLAMA_3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)

LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set first = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set first = false %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and first != false %}"
    "{% set content = '<<SYS>>\n' + first + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set turns = messages %}{%- endif %}{{- bos_token }}"
    "{%- for message in turns %}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Conversation roles must alternate') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}"
    "{%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{%- if loop.last and system is defined %}{{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)

GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

QWEN_3 = (
    "{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(last_query=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if message.role == 'user' and ns.last_query == messages|length - 1 and index < ns.last_query %}"
    "{%- set ns.last_query = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}"
    "{%- set content = message.content %}{%- set thoughts = '' %}"
    "{%- if '</think>' in message.content %}"
    "{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- set thoughts = message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- endif %}"
    "{%- if loop.index0 > ns.last_query and (loop.last or thoughts) %}"
    "{{- '<|im_start|>assistant\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{- '<|im_start|>assistant\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)

PHI_3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

_ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _MARK]}
_FIRST = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}

RECIPES = {
    "llama-3": _Recipe(
        LLAMA_3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        "bytes",
    ),
    "llama-2": _Recipe(LLAMA_2, ("<unk>", "<s>", "</s>"), _ENDS, "pieces", {"normalizer": _PREPEND}),
    "llama-2-first": _Recipe(
        LLAMA_2, ("<unk>", "<s>", "</s>"), _ENDS, "pieces", {"normalizer": None, "pre_tokenizer": _FIRST}
    ),
    "mistral": _Recipe(
        MISTRAL,
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        _ENDS,
        "pieces",
        {"normalizer": _PREPEND},
    ),
    "gemma": _Recipe(
        GEMMA,
        ("<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"},
        "pieces",
        {"normalizer": _MARK},
    ),
    "qwen-3": _Recipe(
        QWEN_3,
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        "bytes",
        {"normalizer": {"type": "NFC"}},
    ),
    "phi-3": _Recipe(
        PHI_3,
        ("<unk>", "<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        {"bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>"},
        "pieces",
        {"normalizer": _PREPEND},
        {"rstrip": True},
    ),
}


@cache
def make_style(name: str) -> Style:
    recipe = RECIPES[name]
    definition = json.dumps(_definition(recipe))
    library = tokenizers.Tokenizer.from_str(definition)
    reference = PreTrainedTokenizerFast(tokenizer_object=library, chat_template=recipe.template, **recipe.named)
    tokenizer = Tokenizer(definition.encode(), named=recipe.named)
    return Style(name, reference, tokenizer, ChatTemplate(recipe.template, tokenizer))


def _definition(recipe: _Recipe) -> dict[str, Any]:
    trained = json.loads(_trained(recipe.kind, recipe.specials))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": trained["model"]["vocab"][name], "content": name, **flags, **recipe.flags} for name in recipe.specials
    ]
    return {**trained, "added_tokens": added, **recipe.edits}


def _trained(kind: str, specials: tuple[str, ...]) -> str:
    if kind == "bytes":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ]
        )
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        first: list[str] = []
    else:
        tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
        # words keep together while training, as SentencePiece does; the finished tokenizer has no pre-tokenizer
        tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        tokenizer.decoder = tokenizers.decoders.Sequence(
            [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
        )
        alphabet, first = [], [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[*specials, *first], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    if kind == "pieces":
        return json.dumps({**json.loads(tokenizer.to_str()), "pre_tokenizer": None})
    return tokenizer.to_str()
