"""Tokenizer and chat template of the real default model, for tests marked `model`."""

from __future__ import annotations

from functools import cache

from lmprog_runtime.model.chat import ChatTemplate, load_chat_template
from lmprog_runtime.model.tokenizer import Tokenizer, load_tokenizer
from tests.support.real_model import model_files


@cache
def default_tokenizer() -> Tokenizer:
    return load_tokenizer(model_files())


@cache
def default_chat() -> ChatTemplate:
    return load_chat_template(model_files(), default_tokenizer())
