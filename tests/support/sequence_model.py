"""A language model with llama.cpp's notion of sequences and positions, whose answers depend on every token before.

Stands in for a LlamaContext: whoever forgets, repeats or mixes up tokens gets other numbers, or an AssertionError.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.bench.llama_cpp_model import Piece

VOCAB_SIZE = 50


def logits_after(tokens: Sequence[int]) -> NDArray[np.float32]:
    generator = random.Random(repr(list(tokens)))
    return np.array([generator.gauss(0, 2) for _ in range(VOCAB_SIZE)], np.float32)


class SequenceModel:
    def __init__(self) -> None:
        self.sequences: dict[int, list[int]] = {}
        self.computed = 0  # rows, as llama.cpp would compute them
        self.batch_sizes: list[int] = []

    def decode(self, pieces: Sequence[Piece]) -> NDArray[np.float32]:
        rows: list[NDArray[np.float32]] = []
        for piece in pieces:
            own = [self.sequences.setdefault(number, []) for number in piece.sequences]
            assert all(known == own[0] for known in own), "these share a token but not what stands before it"
            assert len(own[0]) == piece.start, "positions must follow each other"
            for number, token in enumerate(piece.tokens):
                for known in own:
                    known.append(token)
                if number >= len(piece.tokens) - piece.outputs:
                    rows.append(logits_after(own[0]))
            self.computed += len(piece.tokens)
        self.batch_sizes.append(sum(len(piece.tokens) for piece in pieces))
        return np.array(rows, np.float32).reshape(-1, VOCAB_SIZE)

    def share(self, source: int, sequences: Sequence[int]) -> None:
        for number in sequences:
            assert not self.sequences.get(number), "a sequence that others are copied to must be empty"
            self.sequences[number] = list(self.sequences[source])

    def cut(self, sequences: Sequence[int], length: int) -> None:
        for number in sequences:
            del self.sequences[number][length:]

    def clear(self) -> None:
        self.sequences.clear()
