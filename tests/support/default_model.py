"""The real default model for tests marked `model`: fetched once by `lmprog pull smollm2-135m`."""

from __future__ import annotations

from functools import cache

import pytest

from lmprog_runtime.errors import ModelNotFound
from lmprog_runtime.model.chat import ChatTemplate, load_chat_template
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.hub import DEFAULT_MODEL, resolve_model
from lmprog_runtime.model.tokenizer import Tokenizer, load_tokenizer


@cache
def default_files() -> ModelFiles:
    try:
        return resolve_model(DEFAULT_MODEL, progress=False)
    except ModelNotFound as error:
        pytest.skip(f"the default model is not here and cannot be fetched: {error}")


@cache
def default_tokenizer() -> Tokenizer:
    return load_tokenizer(default_files())


@cache
def default_chat() -> ChatTemplate:
    return load_chat_template(default_files(), default_tokenizer())
