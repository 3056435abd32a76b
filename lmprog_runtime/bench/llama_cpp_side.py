"""llama.cpp as a side of `lmprog bench peers`, through its batch API and without the copies that its server makes.

A shared beginning is computed once and belongs to all sequences; those decode together, and each leaves the batch when
its answer is long enough. Choices of a question share its tokens, and only rows whose logits count have any. No
constraint: for JSON it generates freely, as many tokens as each answer has here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from lmprog_runtime.bench.llama_cpp_model import KINDS, LlamaContext, LlamaModel, Piece, requantized
from lmprog_runtime.bench.sides import Side, Work
from lmprog_runtime.bench.workloads import Ids, Workload
from lmprog_runtime.errors import RequestRefused

_TOKENS = 16384  # of all sequences: the full size of every workload fits
_AT_ONCE = 32  # sequences that share a beginning; 16 took 7 % more processor time, 8 of JSON 11 % more than 16
_QUESTIONS_AT_ONCE = 8
_CONVERSATIONS = 16


class Asked(NamedTuple):
    tokens: Ids  # new to the sequence
    start: int  # tokens that the sequence has already
    sequence: int
    new_tokens: int  # to generate


class LlamaCpp(Side):
    def __init__(self, name: str, shared: LlamaContext, apart: LlamaContext) -> None:
        """shared: a unified context for sequences that begin alike. apart: for _CONVERSATIONS that do not."""
        self.name, self._shared, self._apart = name, shared, apart

    def run(self, work: Workload) -> Work:
        if work.choices is not None:
            return Work([], self._scores(work, work.choices))
        answers = self.answers(work)
        return Work([len(answer) for answer in answers], [])

    def answers(self, work: Workload) -> list[Ids]:
        """Token ids; of a conversation one after the other."""
        if work.shared_len:
            return self._after_shared(work)
        return self._conversations(work, work.later_turns or [[] for _ in work.prompts])

    def _after_shared(self, work: Workload) -> list[Ids]:
        shared, context = work.shared_len, self._compute_shared(work)
        lengths = work.answer_lens if work.schema else [work.new_tokens] * len(work.prompts)
        answers: list[Ids] = []
        for start in range(0, len(work.prompts), _AT_ONCE):
            wanted = zip(work.prompts[start : start + _AT_ONCE], lengths[start : start + _AT_ONCE], strict=True)
            asked = [Asked(p[shared:], shared, number, count) for number, (p, count) in enumerate(wanted, 1)]
            sequences = [each.sequence for each in asked]
            context.share(0, sequences)
            answers += generate(context, asked)
            context.cut(sequences, 0)
        return answers

    def _compute_shared(self, work: Workload) -> LlamaContext:
        """What all prompts begin with, as sequence 0 and alone."""
        self._shared.clear()
        self._shared.decode([Piece(work.prompts[0][: work.shared_len], 0, [0])])
        return self._shared

    def _conversations(self, work: Workload, later: list[list[Ids]]) -> list[Ids]:
        """All in step. A sequence has all of an answer but its last token, which the next turn begins with."""
        if len(work.prompts) > _CONVERSATIONS:
            raise RequestRefused(f"llama.cpp's side takes up to {_CONVERSATIONS} conversations; use a smaller --scale.")
        self._apart.clear()
        asked = [Asked(prompt, 0, number, work.new_tokens) for number, prompt in enumerate(work.prompts)]
        turns = [generate(self._apart, asked)]
        for number, _ in enumerate(later[0]):
            said = [[answer[-1], *turn[number]] for answer, turn in zip(turns[-1], later, strict=True)]
            length = asked[0].start + len(asked[0].tokens) + work.new_tokens - 1
            asked = [each._replace(tokens=ids, start=length) for each, ids in zip(asked, said, strict=True)]
            turns.append(generate(self._apart, asked))
        return [answer for conversation in zip(*turns, strict=True) for answer in conversation]

    def _scores(self, work: Workload, choices: list[list[Ids]]) -> list[list[float]]:
        context, found = self._compute_shared(work), list[list[float]]()
        for start in range(0, len(work.prompts), _QUESTIONS_AT_ONCE):
            some = slice(start, start + _QUESTIONS_AT_ONCE)
            found += _score(context, [p[work.shared_len :] for p in work.prompts[some]], choices[some], work.shared_len)
        return found


@contextmanager
def llama_cpp_side(file: Path, dtype: str, vocab_size: int, threads: int) -> Iterator[LlamaCpp]:
    """The GGUF file with weights of as many bits as a dtype of ours has; as it is for "gguf". RequestRefused when it
    has another vocabulary."""
    if not file.is_file():
        raise RequestRefused(f"There is no file {str(file)!r}; --llama-cpp takes a GGUF file.")
    kind = KINDS.get(dtype)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        model = LlamaModel(requantized(file, kind, Path(folder), threads) if kind else file)
        stack.callback(model.close)
        if model.vocab_size != vocab_size:
            raise RequestRefused(f"{file} has {model.vocab_size} tokens, the model here {vocab_size}: it is another.")
        contexts = []
        for sequences, unified in ((4 * _QUESTIONS_AT_ONCE + 1, True), (_CONVERSATIONS, False)):
            made = LlamaContext(model, sequences=sequences, tokens=_TOKENS, threads=threads, unified=unified)
            stack.callback(made.close)
            contexts.append(made)
        yield LlamaCpp(f"llama.cpp {kind or file.name}", *contexts)


def generate(context: LlamaContext, asked: Sequence[Asked]) -> list[Ids]:
    """Greedily and all together. The last token of an answer is not computed."""
    answers: list[Ids] = [[] for _ in asked]
    pieces = [Piece(each.tokens, each.start, [each.sequence], 1) for each in asked]
    active = list(range(len(asked)))
    while active:
        best = context.decode(pieces).argmax(1).tolist()
        for index, token in zip(active, best, strict=True):
            answers[index].append(token)
        active = [index for index in active if len(answers[index]) < asked[index].new_tokens]
        pieces = [_next(asked[index], answers[index]) for index in active]
    return answers


def _next(asked: Asked, answer: Ids) -> Piece:
    return Piece(answer[-1:], asked.start + len(asked.tokens) + len(answer) - 1, [asked.sequence], 1)


def _score(context: LlamaContext, questions: list[Ids], choices: list[list[Ids]], shared: int) -> list[list[float]]:
    """Sums of log-probabilities of each question's choices. The last token of a choice is not computed."""
    each = len(choices[0])
    sequences = range(1, 1 + len(questions) * each)
    context.share(0, sequences)
    pieces: list[Piece] = []
    for number, (question, some) in enumerate(zip(questions, choices, strict=True)):
        own = sequences[number * each : (number + 1) * each]
        pieces.append(Piece(question, shared, own, 1))
        start = shared + len(question)
        pieces += [Piece(ids[:-1], start, [one], len(ids) - 1) for ids, one in zip(some, own, strict=True)]
    logprobs = torch.from_numpy(context.decode(pieces)).log_softmax(-1)
    context.cut(sequences, 0)
    return [list(_sums(part, some)) for part, some in zip(logprobs.chunk(len(questions)), choices, strict=True)]


def _sums(logprobs: torch.Tensor, choices: list[Ids]) -> Iterator[float]:
    """logprobs: rows after the question's last token, then after each token but the last of each choice."""
    row = 1
    for ids in choices:
        rows = [0, *range(row, row + len(ids) - 1)]
        row += len(ids) - 1
        yield float(logprobs[rows, ids].sum())
